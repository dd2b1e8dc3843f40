//! Pairs of processes that exchange messages, as the benchmark netperf does over a network.
//!
//! The sender allocates pages for a burst of messages and works on them. Then the receiver wakes up, works on the
//! pages and frees them, and the sender wakes up again. A process that wakes up runs on an idle CPU. Pages are
//! therefore often freed on a different CPU than the one that allocated them, and a CPU alternates between sending
//! and receiving. Related files: `workload/measured.rs` defines the measurements.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::request::PageKind;
use zonal::{Block, Request};

use super::held::{bytes_of_blocks, with_capacity};
use super::measured::{Latencies, LockTime};
use super::observer::run_watching_pagesets;
use super::page_faults::check_span;
use super::program::{Program, Unfit, check_figure, check_pinned, cpus};
use crate::bounds::{COUNT, FACTOR, STEP_NS, WORK_NS};
use crate::outcome::Outcome;
use crate::sim::{Handoff, Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Pairs of processes that exchange messages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Number of pairs.
    pub pairs: usize,
    /// Mean pages in a burst. Sizes are uniformly distributed from 0.5 to 1.5 times this.
    pub burst: usize,
    /// The sender's work per page, in nanoseconds. Excludes the allocation.
    pub send_ns: f64,
    /// The receiver's work per page, in nanoseconds. Excludes the free.
    pub receive_ns: f64,
    /// Time from a wake-up until the process runs, in nanoseconds.
    pub wake_ns: f64,
    /// Probability that a process wakes up on another CPU of its node, in percent.
    pub moves_pct: f64,
    /// Simulated seconds.
    pub seconds: f64,
    /// Unmeasured part of `seconds`, at the start.
    pub warm_up: f64,
}

/// State shared by all pairs.
struct SharedState<'h, 's, 'm> {
    system: &'h System<'s, 'm>,
    span: Range<Time>,
    /// Idle CPUs, by node index.
    idle: RefCell<Vec<Vec<usize>>>,
    pages: Cell<u64>,
    busy: Cell<Time>,
    alloc: Latencies,
    free: Latencies,
    giving: LockTime,
    taking: LockTime,
}

impl Program for Exchange {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_pinned("pairs", self.pairs.saturating_mul(2), machine)?;
        check_figure("burst", self.burst as f64, COUNT)?;
        check_figure("send_ns", self.send_ns, WORK_NS)?;
        check_figure("receive_ns", self.receive_ns, WORK_NS)?;
        check_figure("wake_ns", self.wake_ns, STEP_NS)?;
        check_figure("moves_pct", self.moves_pct, FACTOR)?;
        check_span(self.seconds, self.warm_up)
    }

    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        // The processes of a pair never work at the same time.
        let page_ns = self.send_ns + self.receive_ns + 2.0 * self.wake_ns / self.burst as f64;
        2.0 * self.pairs as f64 * self.seconds * 1e9 / page_ns.max(1.0)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        // One burst is in flight while the sender allocates the next one.
        bytes_of_blocks(machine, 2.0 * self.pairs as f64 * 1.5 * self.burst as f64)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (sim, world) = (system.sim, system.sim.world);
        let span = Time::from_seconds(self.warm_up)..Time::from_seconds(self.seconds);
        let mine: Vec<usize> = cpus(sim.machine).into_iter().take(2 * self.pairs).collect();
        let shared = SharedState {
            system,
            idle: RefCell::new(vec![Vec::new(); sim.machine.model.nodes.len()]),
            pages: Cell::new(0),
            busy: Cell::default(),
            alloc: Latencies::within(&span),
            free: Latencies::within(&span),
            giving: LockTime::within(&span),
            taking: LockTime::within(&span),
            span: span.clone(),
        };
        let links: Vec<[Handoff<Vec<Block>>; 2]> = (0..self.pairs).map(|_| Default::default()).collect();
        let mut threads = Threads::new();
        for (pair, both) in mine.chunks(2).enumerate() {
            for (side, &cpu) in both.iter().enumerate() {
                let (shared, link) = (&shared, &links[pair]);
                let mut random = fastrand::Rng::with_seed(world.seed() ^ (cpu as u64 + 1) << 32);
                threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                    if side == 0 {
                        self.send(shared, link, &mut random);
                    } else {
                        self.receive(shared, link, &mut random);
                    }
                })?;
            }
        }
        let mut outcome = run_watching_pagesets(system, threads, mine[0], span.end, stop)?;
        self.measure(&shared, mine.len(), &mut outcome);
        Ok(outcome)
    }
}

impl Exchange {
    fn measure(&self, shared: &SharedState<'_, '_, '_>, cpus: usize, outcome: &mut Outcome) {
        let model = &shared.system.sim.machine.model;
        let seconds = (shared.span.end - shared.span.start).seconds();
        let bytes = shared.pages.get() as f64 * f64::from(model.page_bytes);
        let busy = shared.busy.get().seconds() / seconds;
        let measured = |value: f64| (shared.pages.get() > 0 && busy > 0.0).then_some(value);
        outcome.sampled("throughput", "MB/s", measured(bytes / seconds / 1e6));
        outcome.sampled("cpu_idle", "%", measured(100.0 * (1.0 - busy / cpus as f64)));
        outcome.sampled("runnable", "processes", measured(busy));
        outcome.sampled("alloc_p99", "us", shared.alloc.percentile_us(99.0));
        outcome.sampled("free_p99", "us", shared.free.percentile_us(99.0));
        let contention = (shared.taking.percent(cpus) + shared.giving.percent(cpus)) * cpus as f64 / busy;
        outcome.sampled("zone_lock_contention", "% of cycles", measured(contention));
    }
}

impl Exchange {
    fn send(
        &self,
        shared: &SharedState<'_, '_, '_>,
        link: &[Handoff<Vec<Block>>; 2],
        random: &mut fastrand::Rng,
    ) {
        let (system, world) = (shared.system, shared.system.sim.world);
        let request = Request::page().kind(PageKind::Kernel);
        let mut since = world.now();
        while world.now() < shared.span.end {
            let count = (self.burst as f64 * (0.5 + random.f64())) as usize;
            let mut burst = with_capacity(system, count.max(1));
            for _ in 0..count.max(1) {
                let taken = shared.alloc.of(world, || shared.taking.of(system, || system.alloc(&request)));
                let Ok(block) = taken else {
                    system.fault("the machine has too little memory for the messages".to_owned())
                };
                burst.push(block);
                world.spend(Time::from_ns(self.send_ns));
                system.checkpoint();
            }
            link[0].put(world, burst, Time::from_ns(self.wake_ns));
            self.rest(shared, since, random, || link[1].take(world));
            since = world.now();
        }
        link[0].put(world, Vec::new(), Time::from_ns(self.wake_ns));
    }

    fn receive(
        &self,
        shared: &SharedState<'_, '_, '_>,
        link: &[Handoff<Vec<Block>>; 2],
        random: &mut fastrand::Rng,
    ) {
        let (system, world) = (shared.system, shared.system.sim.world);
        let mut since = world.now();
        loop {
            let burst = self.rest(shared, since, random, || link[0].take(world));
            since = world.now();
            if burst.is_empty() {
                return;
            }
            for block in &burst {
                world.spend(Time::from_ns(self.receive_ns));
                shared.free.of(world, || shared.giving.of(system, || system.free(block)));
                system.checkpoint();
            }
            if shared.span.contains(&world.now()) {
                shared.pages.set(shared.pages.get() + burst.len() as u64);
            }
            link[1].put(world, Vec::new(), Time::from_ns(self.wake_ns));
        }
    }

    /// Releases the CPU while `wait` blocks. Afterwards the process continues on the same CPU or on another idle CPU.
    fn rest<T>(
        &self,
        shared: &SharedState<'_, '_, '_>,
        since: Time,
        random: &mut fastrand::Rng,
        wait: impl FnOnce() -> T,
    ) -> T {
        let world = shared.system.sim.world;
        let (begin, end) = (since.max(shared.span.start), world.now().min(shared.span.end));
        shared.busy.set(shared.busy.get() + end.saturating_sub(begin));
        let node = world.node();
        shared.idle.borrow_mut()[node].push(world.cpu());
        let result = wait();
        let idle = &mut shared.idle.borrow_mut()[node];
        let own = idle.iter().position(|&cpu| cpu == world.cpu());
        let moves = random.f64() * 100.0 < self.moves_pct;
        let at = own.filter(|_| !moves).unwrap_or_else(|| random.usize(..idle.len()));
        world.move_to(idle.swap_remove(at));
        result
    }
}
