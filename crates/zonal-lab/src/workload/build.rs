//! A parallel build. It consists of short jobs that compute, touch pages as they run, and free all their pages when
//! they end.
//!
//! Each CPU runs one job after the other. Job sizes are random and depend on the seed. The time of a whole build is
//! extrapolated from all the pages that it touches. The measurement starts after a warm-up. Related files:
//! `workload/page_faults.rs` is the same workload without the computation.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::Request;

use super::held::{bytes_of_blocks, with_capacity};
use super::lru_lists::LruLists;
use super::measured::LockTime;
use super::observer::run_watching_pagesets;
use super::page_faults::{UNMAP_BATCH, check_span};
use super::program::{Program, Unfit, check_figure, check_pinned, cpus, memory_mib, zeroing_ns};
use crate::bounds::{COUNT, STEP_NS, WORK_NS};
use crate::outcome::Outcome;
use crate::sim::{Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Value of `core_gain` at which jobs do not slow each other down.
const OWN_CORE: f64 = 2.0;

/// A parallel build.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Concurrent jobs, each on its own CPU, from the lowest ID.
    pub jobs: usize,
    /// Throughput of a core with two busy hyperthreads relative to one, 1 to 2. While a job waits for a lock, its
    /// core's other job computes faster. If omitted, each job has its own core.
    pub core_gain: Option<f64>,
    /// Mean memory of a job, in MiB. Sizes are uniformly distributed from 0.5 to 1.5 times this.
    pub job_mib: f64,
    /// Computation per page that a job touches, in nanoseconds.
    pub compute_ns: f64,
    /// Pages that a whole build touches.
    pub build_pages: f64,
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
}

/// State shared by all jobs.
struct SharedState<'h, 's, 'm> {
    system: &'h System<'s, 'm>,
    lists: LruLists,
    span: Range<Time>,
    pages: Cell<u64>,
    /// How long each job has waited for locks.
    waited: Vec<Cell<Time>>,
    taking: LockTime,
    giving: LockTime,
    listing: LockTime,
}

impl Program for Build {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_pinned("jobs", self.jobs, machine)?;
        check_figure("core_gain", self.core_gain.unwrap_or(OWN_CORE), 1.0..=2.0)?;
        check_figure("job_mib", self.job_mib, 0.01..=memory_mib(machine))?;
        check_figure("compute_ns", self.compute_ns, WORK_NS)?;
        check_figure("build_pages", self.build_pages, 0.0..=1e15)?;
        check_span(self.seconds, self.warm_up)?;
        check_figure("fault_ns", self.fault_ns, STEP_NS)?;
        check_figure("unmap_ns", self.unmap_ns, WORK_NS)?;
        check_figure("lru_batch", f64::from(self.lru_batch), COUNT)?;
        check_figure("lru_ns", self.lru_ns, WORK_NS)
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        let page_ns = self.compute_ns + self.fault_ns + self.unmap_ns + zeroing_ns(machine);
        2.0 * self.jobs as f64 * self.seconds * 1e9 / page_ns
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        bytes_of_blocks(machine, self.jobs as f64 * 1.5 * self.job_pages(machine))
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (sim, world) = (system.sim, system.sim.world);
        let span = Time::from_seconds(self.warm_up)..Time::from_seconds(self.seconds);
        let shared = SharedState {
            system,
            lists: LruLists::new(sim, self.lru_batch, Time::from_ns(self.lru_ns)),
            pages: Cell::new(0),
            waited: vec![Cell::default(); self.jobs],
            taking: LockTime::within(&span),
            giving: LockTime::within(&span),
            listing: LockTime::within(&span),
            span: span.clone(),
        };
        let mine: Vec<usize> = cpus(sim.machine).into_iter().take(self.jobs).collect();
        let mut threads = Threads::new();
        for (at, &cpu) in mine.iter().enumerate() {
            let shared = &shared;
            let mut random = fastrand::Rng::with_seed(world.seed() ^ (at as u64 + 1) << 32);
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                let mut core = Core::new(self.core_gain.unwrap_or(OWN_CORE), at, self.jobs);
                while world.now() < shared.span.end {
                    self.job(shared, &mut core, &mut random);
                }
            })?;
        }
        let mut outcome = run_watching_pagesets(system, threads, mine[0], span.end, stop)?;
        let measured = |value: f64| (shared.pages.get() > 0).then_some(value);
        let rate = shared.pages.get() as f64 / (span.end - span.start).seconds();
        let (taking, giving) = (shared.taking.percent(mine.len()), shared.giving.percent(mine.len()));
        outcome.sampled("build_time", "s", measured(self.build_pages / rate));
        outcome.sampled("zone_lock_contention", "% of cycles", measured(taking + giving));
        outcome.sampled("rmqueue", "% of cycles", measured(taking));
        outcome.sampled("free_unref_page_list", "% of cycles", measured(giving));
        let refilled = 100.0 * shared.taking.moved() as f64 / shared.pages.get() as f64;
        outcome.sampled("zone_pages", "% of pages", measured(refilled));
        outcome.sampled("lruvec_lock", "% of cycles", measured(shared.listing.percent(mine.len())));
        Ok(outcome)
    }
}

/// A hyperthread, and the time that it has gained because its core's other hyperthread waited.
struct Core {
    job: usize,
    /// Index of the job on the other hyperthread.
    other: usize,
    /// Time gained for each unit of time that the other hyperthread waits.
    gain: f64,
    /// The other hyperthread's waiting time that has been used.
    used: Time,
    /// Time gained, but not yet used.
    gained: Time,
}

impl Core {
    fn new(core_gain: f64, job: usize, jobs: usize) -> Self {
        // A hyperthread alone computes at rate 1, and one of two at rate `core_gain / 2`.
        let gain = if (job ^ 1) < jobs { 2.0 / core_gain - 1.0 } else { 0.0 };
        Self { job, other: (job ^ 1).min(jobs - 1), gain, used: Time::ZERO, gained: Time::ZERO }
    }

    /// Returns how long a computation takes that would take `compute` if the other hyperthread did not wait.
    fn left_of(&mut self, compute: Time, shared: &SharedState<'_, '_, '_>) -> Time {
        let world = shared.system.sim.world;
        shared.waited[self.job].set(world.account_of(world.thread()).lock_wait);
        let waited = shared.waited[self.other].get();
        self.gained += waited.saturating_sub(self.used).scaled(self.gain);
        self.used = waited;
        let saved = self.gained.min(compute);
        self.gained = self.gained.saturating_sub(saved);
        compute.saturating_sub(saved)
    }
}

impl Build {
    /// Returns the mean page count of a job.
    fn job_pages(&self, machine: &SimulatedMachine) -> f64 {
        self.job_mib * f64::from(1 << 20) / f64::from(machine.model.page_bytes)
    }

    fn job(&self, shared: &SharedState<'_, '_, '_>, core: &mut Core, random: &mut fastrand::Rng) {
        let (system, sim) = (shared.system, shared.system.sim);
        let world = sim.world;
        let page_bytes = f64::from(sim.machine.model.page_bytes);
        let size = (self.job_pages(sim.machine) * (0.5 + random.f64())) as usize;
        let (fault, compute) = (Time::from_ns(self.fault_ns), Time::from_ns(self.compute_ns));
        let mut blocks = with_capacity(system, size.max(1));
        for _ in 0..size.max(1) {
            if world.now() >= shared.span.end {
                break;
            }
            world.spend_user(core.left_of(compute, shared));
            world.spend(fault);
            let Ok(block) = shared.taking.of(system, || system.alloc(&Request::page())) else {
                system.fault("the machine has too little memory for the jobs".to_owned())
            };
            let node = system.place_of(block.node);
            world.stream(node, page_bytes as u64);
            shared.listing.of(system, || shared.lists.add(sim, node));
            shared.pages.set(shared.pages.get() + u64::from(shared.span.contains(&world.now())));
            blocks.push(block);
            system.checkpoint();
        }
        for batch in blocks.chunks(UNMAP_BATCH) {
            world.spend(Time::from_ns(self.unmap_ns * batch.len() as f64));
            let node = system.place_of(batch[0].node);
            shared.listing.of(system, || shared.lists.change(sim, node, batch.len() as u32));
            shared.giving.of(system, || batch.iter().for_each(|block| system.free(block)));
            system.checkpoint();
        }
    }
}
