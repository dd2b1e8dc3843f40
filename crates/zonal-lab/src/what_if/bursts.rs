//! Processes that map memory, touch every page and unmap it, after pagesets have adapted to that.
//!
//! Pagesets adapt once a second, and a program that runs for seconds takes minutes to simulate. The allocator's clock
//! therefore runs so fast that a second has two rounds. Only what comes after some of these seconds is measured.
//!
//! Related files: `load.rs` measures.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;

use zonal::Request;

use crate::outcome::Outcome;
use crate::sim::{Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;
use crate::workload::{Program, Unfit, cpus, zeroing_ns};

/// Rounds in a second of the allocator's clock.
const ROUNDS_IN_SECOND: f64 = 2.0;
/// How long a process waits before it looks again whether all have settled.
const WAIT: Time = Time::from_ps(100_000_000);
/// Rounds in which pagesets adapt.
const SETTLING: usize = 4;

/// Processes, each on a CPU of its own.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Bursts {
    /// Number of processes; they use the CPUs with the lowest ids.
    pub(super) processes: usize,
    /// Pages that a process maps at a time.
    pub(super) pages: usize,
    /// How often each maps and unmaps while it is measured.
    pub(super) rounds: usize,
    /// Work of the kernel for a page beside the allocator and zeroing.
    pub(super) fault: Time,
}

impl Program for Bursts {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        let cpus = cpus(machine).len();
        if self.processes == 0 || self.processes > cpus {
            let problem = format!("must be from 1 to the {cpus} CPUs of {}", machine.model.name);
            return Err(Unfit { field: "processes", problem });
        }
        Ok(())
    }

    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        2.0 * self.processes as f64 * self.pages as f64 * (self.rounds + SETTLING) as f64
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let world = system.sim.world;
        let page = self.fault.seconds() + zeroing_ns(system.sim.machine) / 1e9;
        world.set_second(Time::from_seconds(page * self.pages as f64 * ROUNDS_IN_SECOND));
        let (begin, settled) = (Cell::new((Time::ZERO, 0)), Cell::new(0));
        let mut threads = Threads::new();
        let mut random = fastrand::Rng::with_seed(world.seed());
        for cpu in cpus(system.sim.machine).into_iter().take(self.processes) {
            let (begin, settled) = (&begin, &settled);
            // Otherwise all processes would allocate and free at the same moments.
            let shift = Time::from_ns(random.f64() * self.pages as f64 * self.fault.seconds() * 1e9);
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                world.spend(shift);
                for _ in 0..SETTLING {
                    self.round(system);
                }
                settled.set(settled.get() + 1);
                if settled.get() == self.processes {
                    begin.set((system.spent(), system.operations()));
                }
                while settled.get() < self.processes {
                    world.sleep_until(world.now() + WAIT);
                    system.checkpoint();
                }
                world.spend(shift);
                for _ in 0..self.rounds {
                    self.round(system);
                }
            })?;
        }
        let ended = world.run(threads, stop)?;
        system.check_accounting();
        let mut outcome = Outcome::after(system, ended.into_iter().max().unwrap_or_default());
        let (spent, operations) = begin.get();
        let operations = (system.operations() - operations).max(1);
        outcome.metric("operation", "ns", (system.spent() - spent).seconds() * 1e9 / operations as f64);
        Ok(outcome)
    }
}

impl Bursts {
    fn round(&self, system: &System<'_, '_>) {
        let world = system.sim.world;
        let page_bytes = u64::from(system.sim.machine.model.page_bytes);
        let mut held = Vec::with_capacity(self.pages);
        for _ in 0..self.pages {
            let Ok(block) = system.alloc(&Request::page()) else {
                system.fault("the machine has too little memory for the processes".to_owned())
            };
            world.spend(self.fault);
            world.stream(system.place_of(block.node), page_bytes);
            system.checkpoint();
            held.push(block);
        }
        for block in held {
            system.free(&block);
            system.checkpoint();
        }
    }
}
