//! The course of a round: its threads, their phases of work, and the pauses between the phases.
//!
//! All threads wait at the end of each phase. The first thread, the *leader*, then runs the checks while the others
//! wait.
//!
//! Related files: `worker.rs` has a thread's work in a phase, and `pause.rs` has the leader's work in a pause.

use std::sync::atomic::AtomicBool;

use zonal::mempolicy::WeightTable;
use zonal::units::NodeId;
use zonal_lab::sim::{Join, Role, RunError, Threads, Time};

use super::worker::Worker;
use super::world::{Policies, World};

impl World<'_, '_, '_, '_> {
    /// Runs the round, with `harm` before the checks of each pause, and returns its virtual time.
    pub(super) fn run(&self, stop: &AtomicBool, harm: fn(&Self)) -> Result<Time, RunError> {
        let machine = self.machine();
        let weights = WeightTable::new();
        let policies = &Policies::new(self, &weights);
        let barriers: Vec<[Join; 2]> =
            (0..self.round.phases).map(|_| [Join::new(self.cpus.len()), Join::new(1)]).collect();
        let mut threads = Threads::new();
        for (at, &cpu) in self.cpus.iter().enumerate() {
            let barriers = &barriers;
            threads.add(cpu.id.index(), Role::Foreground, Time::ZERO, move || {
                self.work(at, policies, barriers, harm);
            })?;
        }
        for (place, node) in self.round.machine.model.nodes.iter().enumerate() {
            let cpu = node.cpus.first().map_or(self.cpus[0].id, |&cpu| cpu);
            threads
                .add(cpu.index(), Role::Background, Time::ZERO, move || self.reclaim_for(place, node.id))?;
        }
        let _asked = machine.ask(self);
        let ended = machine.run(threads, stop)?;
        let last = ended.iter().filter(|&&time| time != Time::NEVER).max();
        Ok(last.copied().unwrap_or_default())
    }

    /// Runs all phases of a thread.
    fn work(&self, at: usize, policies: &Policies<'_>, barriers: &[[Join; 2]], harm: fn(&Self)) {
        let machine = self.machine();
        let mut worker = Worker::new(self, policies, at);
        for (phase, [end, begin]) in barriers.iter().enumerate() {
            let rests = phase % 2 == 1;
            worker.run_phase();
            if rests {
                worker.free_all();
            }
            end.arrive(machine);
            if at == 0 {
                end.wait(machine);
                harm(self);
                self.pause(rests);
                begin.arrive(machine);
            } else {
                begin.wait(machine);
            }
        }
    }

    /// Runs the background reclaim of a node, whenever the machine wakes it up.
    fn reclaim_for(&self, place: usize, node: NodeId) {
        loop {
            self.machine().wait_for_reclaim(place);
            self.reclaiming.set(self.reclaiming.get() + 1);
            self.allocator().background_reclaim(node);
            self.reclaiming.set(self.reclaiming.get() - 1);
        }
    }
}
