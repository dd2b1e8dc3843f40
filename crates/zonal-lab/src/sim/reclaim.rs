//! Reclaim on a simulated machine: which program is asked for frames, and when workers wake.
//!
//! Neighbours: `platform.rs` is where the allocator asks, `reclaimers.rs` has the state.

use zonal::units::NodeId;

use super::reclaimers::{ProgramReclaimer, Worker};
use super::world::World;

/// Until dropped, a program is asked for frames.
#[must_use]
pub struct Asked<'a> {
    world: &'a World,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.world.reclaim.program.replace(None);
    }
}

impl World {
    /// Has `program` asked for frames until the result is dropped.
    pub fn ask<'a>(&'a self, program: &'a (dyn ProgramReclaimer + 'a)) -> Asked<'a> {
        let program: *const (dyn ProgramReclaimer + 'a) = program;
        // SAFETY: only the lifetime changes; it is used until `Asked` is dropped, which borrows it.
        #[allow(unsafe_code)]
        let program: *const (dyn ProgramReclaimer + 'static) = unsafe { std::mem::transmute(program) };
        self.reclaim.program.replace(Some(program));
        Asked { world: self }
    }

    /// The program to ask for frames.
    pub(super) fn reclaimer(&self) -> Option<&dyn ProgramReclaimer> {
        let program = *self.reclaim.program.borrow();
        // SAFETY: set by `ask`, whose guard outlives all threads of the run and resets it.
        #[allow(unsafe_code)]
        program.map(|program| unsafe { &*program } as &dyn ProgramReclaimer)
    }

    /// Wakes the reclaim worker of a node, or has it work on.
    pub(super) fn wake_reclaim_worker(&self, node: NodeId) {
        let mut workers = self.reclaim.workers.borrow_mut();
        let Some(worker) = self.geometry.place_of(node).and_then(|place| workers.get_mut(place)) else {
            return;
        };
        match worker.asleep.take() {
            Some(thread) => self.wake(thread, self.now()),
            None => worker.wanted = true,
        }
    }

    /// The running thread, which is the reclaim worker of the node at a place, waits until it is wanted.
    pub fn wait_for_reclaim(&self, place: usize) {
        {
            let mut workers = self.reclaim.workers.borrow_mut();
            if workers.len() <= place {
                workers.resize(self.geometry.nodes, Worker::default());
            }
            let worker = &mut workers[place];
            if std::mem::take(&mut worker.wanted) {
                return;
            }
            worker.asleep = Some(self.thread());
        }
        self.idle();
    }
}
