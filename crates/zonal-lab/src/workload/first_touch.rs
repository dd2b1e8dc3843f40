//! Processes that concurrently allocate and touch their own memory, as measured by Lameter in 2006.
//!
//! Each process has its own address space, stays on its CPU and allocates pages, by default from its node. A page's
//! cost consists of the kernel's fault handling, the allocation, zeroing, and the program's own work.

use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::Request;

use super::placement::Placement;
use super::program::{Program, Unfit, check_figure, check_pinned, cpus, memory_mib};
use crate::bounds::WORK_NS;
use crate::outcome::Outcome;
use crate::sim::{Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Processes that touch memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FirstTouch {
    /// Processes, each on its own CPU, from the lowest ID.
    pub cpus: usize,
    /// Memory of each process, in GiB.
    pub gib_each: f64,
    /// Kernel work per fault, in nanoseconds. Excludes allocation and zeroing.
    pub fault_ns: f64,
    /// The program's own work per page, in nanoseconds.
    pub user_ns: f64,
    /// Placement of the pages. Local if omitted.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "String"))]
    pub policy: Placement,
}

impl Program for FirstTouch {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_pinned("cpus", self.cpus, machine)?;
        check_figure("gib_each", self.gib_each, 0.0..=memory_mib(machine) / 1024.0)?;
        check_figure("fault_ns", self.fault_ns, WORK_NS)?;
        check_figure("user_ns", self.user_ns, WORK_NS)?;
        self.policy.check(machine)
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        self.cpus as f64 * self.gib_each * f64::from(1 << 30) / f64::from(machine.model.page_bytes)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (world, machine) = (system.sim.world, system.sim.machine);
        let page_bytes = u64::from(machine.model.page_bytes);
        let pages = (self.gib_each * f64::from(1 << 30)) as u64 / page_bytes;
        let (fault, user) = (Time::from_ns(self.fault_ns), Time::from_ns(self.user_ns));
        let policy = match self.policy.policy(system.sim.allocator) {
            Ok(policy) => policy,
            Err(error) => system.fault(error.to_string()),
        };
        let mut request = Request::page();
        if let Some(policy) = &policy {
            request = request.policy(policy);
        }
        let request = &request;
        let mut threads = Threads::new();
        for &cpu in cpus(machine).iter().take(self.cpus) {
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                for _ in 0..pages {
                    let Ok(block) = system.alloc(request) else {
                        system.fault("the machine has too little memory for the processes".to_owned())
                    };
                    world.spend(fault);
                    world.stream(system.place_of(block.node), page_bytes);
                    world.spend_user(user);
                    system.checkpoint();
                }
            })?;
        }
        let ended = world.run(threads, stop)?;
        let ids: Vec<_> = world.thread_ids(ended.len()).collect();
        system.check_accounting();
        let last = ended.iter().copied().max().unwrap_or_default();
        let first = ended.iter().copied().min().unwrap_or_default();
        let mut outcome = Outcome::after(system, last);
        let total: f64 = ended.iter().map(|time| time.seconds()).sum();
        let user: f64 = ids.iter().map(|&id| world.account_of(id).user.seconds()).sum();
        let measured = |value: f64| (pages > 0).then_some(value);
        outcome.sampled("wall", "s", measured(last.seconds()));
        outcome.sampled("min_wall", "s", measured(first.seconds()));
        outcome.sampled("sys", "s", measured(total - user));
        outcome.sampled("user", "s", measured(user));
        outcome.sampled("total_cpu", "s", measured(total));
        Ok(outcome)
    }
}
