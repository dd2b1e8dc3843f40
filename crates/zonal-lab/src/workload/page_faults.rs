//! Processes that repeatedly map memory, touch every page and unmap the memory: page_fault1 of will-it-scale.
//!
//! Each process has its own address space and stays on its CPU. A fault costs the kernel's fault handling, the
//! allocation of the page, zeroing, and the LRU lists. Unmapping costs the LRU lists again and the frees, in batches.
//! The measurement starts after a warm-up. Related files: `workload/lru_lists.rs` models the lists.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::Request;

use super::held::{bytes_of_blocks, with_capacity};
use super::lru_lists::LruLists;
use super::measured::LockTime;
use super::observer::run_watching_pagesets;
use super::program::{Program, Unfit, check_figure, check_pinned, cpus, memory_mib, zeroing_ns};
use crate::bounds::{COUNT, SECONDS, STEP_NS, WORK_NS};
use crate::outcome::Outcome;
use crate::sim::{Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Number of pages that are freed in one batch when memory is unmapped. Linux: `SWAP_CLUSTER_MAX`.
pub(super) const UNMAP_BATCH: usize = 32;
/// Time within which processes start, in seconds, unless half of the warm-up is less.
const STARTS_WITHIN: f64 = 1.0;

/// Processes that touch new pages and unmap them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PageFaults {
    /// Processes, each on its own CPU, from the lowest ID.
    pub processes: usize,
    /// Memory that each process maps at a time, in MiB.
    pub mib_each: f64,
    /// Simulated seconds.
    pub seconds: f64,
    /// Unmeasured part of `seconds`, at the start.
    pub warm_up: f64,
    /// Kernel work per fault, in nanoseconds. Excludes allocation, zeroing and LRU lists.
    pub fault_ns: f64,
    /// Kernel work to unmap a page, in nanoseconds. Excludes LRU lists and the free.
    pub unmap_ns: f64,
    /// Pages added to the LRU lists in one batch.
    pub lru_batch: u32,
    /// Work under the LRU lock per page, in nanoseconds.
    pub lru_ns: f64,
    /// 1 if each process is in its own memory cgroup and so has its own LRU lists, otherwise 0 (the default).
    #[serde(default)]
    pub own_lists: u8,
}

impl Program for PageFaults {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_pinned("processes", self.processes, machine)?;
        check_figure("mib_each", self.mib_each, 0.01..=memory_mib(machine))?;
        check_span(self.seconds, self.warm_up)?;
        check_figure("fault_ns", self.fault_ns, STEP_NS)?;
        check_figure("unmap_ns", self.unmap_ns, WORK_NS)?;
        check_figure("lru_batch", f64::from(self.lru_batch), COUNT)?;
        check_figure("lru_ns", self.lru_ns, WORK_NS)?;
        check_figure("own_lists", f64::from(self.own_lists), 0.0..=1.0)
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        let page_ns = self.fault_ns + self.unmap_ns + zeroing_ns(machine);
        2.0 * self.processes as f64 * self.seconds * 1e9 / page_ns
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        bytes_of_blocks(machine, self.processes as f64 * self.pages(machine) as f64)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (sim, world) = (system.sim, system.sim.world);
        let span = Time::from_seconds(self.warm_up)..Time::from_seconds(self.seconds);
        let groups = if self.own_lists == 1 { self.processes } else { 1 };
        let kernel = Kernel {
            system,
            lists: (0..groups)
                .map(|_| LruLists::new(sim, self.lru_batch, Time::from_ns(self.lru_ns)))
                .collect(),
            pages: Cell::new(0),
            zone_lock: LockTime::within(&span),
            lists_lock: LockTime::within(&span),
            span: span.clone(),
        };
        let mut threads = Threads::new();
        let mine: Vec<usize> = cpus(sim.machine).into_iter().take(self.processes).collect();
        // Processes start at different times. Otherwise all processes would allocate at the same time and free at the
        // same time. In `pageset-tuning-2023` a process maps and unmaps its memory at least twice in a second.
        let mut random = fastrand::Rng::with_seed(world.seed());
        for (at, &cpu) in mine.iter().enumerate() {
            let kernel = &kernel;
            let start = Time::from_seconds((self.warm_up / 2.0).min(STARTS_WITHIN) * random.f64());
            threads.add(cpu, Role::Foreground, start, move || {
                self.process(kernel, &kernel.lists[at % groups]);
            })?;
        }
        let mut outcome = run_watching_pagesets(system, threads, mine[0], span.end, stop)?;
        let bytes = kernel.pages.get() as f64 * f64::from(sim.machine.model.page_bytes);
        let measured = |value: f64| (kernel.pages.get() > 0).then_some(value);
        let throughput = bytes / (span.end - span.start).seconds() / 1e9;
        outcome.sampled("throughput", "GB/s", measured(throughput));
        let (zone, lists) = (&kernel.zone_lock, &kernel.lists_lock);
        outcome.sampled("zone_lock_contention", "% of cycles", measured(zone.percent(mine.len())));
        outcome.sampled("lruvec_lock", "% of cycles", measured(lists.percent(mine.len())));
        Ok(outcome)
    }
}

/// State shared by all processes.
struct Kernel<'h, 's, 'm> {
    system: &'h System<'s, 'm>,
    /// Lists of each memory cgroup.
    lists: Vec<LruLists>,
    span: Range<Time>,
    pages: Cell<u64>,
    zone_lock: LockTime,
    lists_lock: LockTime,
}

impl PageFaults {
    /// Returns the number of pages that a process maps at a time.
    fn pages(&self, machine: &SimulatedMachine) -> usize {
        let bytes = (self.mib_each * f64::from(1 << 20)) as u64;
        (bytes / u64::from(machine.model.page_bytes)).max(1) as usize
    }

    fn process(&self, kernel: &Kernel<'_, '_, '_>, lists: &LruLists) {
        let (system, sim) = (kernel.system, kernel.system.sim);
        let world = sim.world;
        let page_bytes = u64::from(sim.machine.model.page_bytes);
        let pages = self.pages(sim.machine);
        let mut blocks = with_capacity(system, pages);
        while world.now() < kernel.span.end {
            while blocks.len() < pages && world.now() < kernel.span.end {
                world.spend(Time::from_ns(self.fault_ns));
                let Ok(block) = kernel.zone_lock.of(system, || system.alloc(&Request::page())) else {
                    system.fault("the machine has too little memory for the processes".to_owned())
                };
                let node = system.place_of(block.node);
                world.stream(node, page_bytes);
                kernel.lists_lock.of(system, || lists.add(sim, node));
                kernel.pages.set(kernel.pages.get() + u64::from(kernel.span.contains(&world.now())));
                blocks.push(block);
                system.checkpoint();
            }
            for batch in blocks.chunks(UNMAP_BATCH) {
                world.spend(Time::from_ns(self.unmap_ns * batch.len() as f64));
                let node = system.place_of(batch[0].node);
                kernel.lists_lock.of(system, || lists.change(sim, node, batch.len() as u32));
                kernel.zone_lock.of(system, || batch.iter().for_each(|block| system.free(block)));
                system.checkpoint();
            }
            blocks.clear();
        }
    }
}

/// Refuses a run whose warm-up leaves no time for the measurement.
pub(super) fn check_span(seconds: f64, warm_up: f64) -> Result<(), Unfit> {
    check_figure("seconds", seconds, SECONDS)?;
    check_figure("warm_up", warm_up, 0.0..=*SECONDS.end())?;
    if warm_up >= seconds {
        let problem = format!("is {warm_up}, must be less than seconds = {seconds}");
        return Err(Unfit { field: "warm_up", problem });
    }
    Ok(())
}
