//! Waiting for the lock of a zone with more CPUs than this machine has, measured in the simulator.
//!
//! The machine and its costs are those of the experiment `pageset-tuning-2023`, whose source tunes pagesets to end this
//! waiting. The program is shorter: its CPUs first allocate and free once in a period of tuning, which simulates quickly,
//! until tuning has settled, and then without a pause. All rules are given the same costs. Related files:
//! `mechanisms/m2.rs` measures natively.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::thread;

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::PageCount;
use zonal::{Block, Config, Request};
use zonal_lab::experiment::{Source, built_in, load};
use zonal_lab::in_parallel;
use zonal_lab::sim::{Role, RunError, SimulateError, SimulatedMachine, Threads, Time};
use zonal_lab::system::System;
use zonal_lab::workload::Workload;

use super::super::{Sizes, stops};
use super::RULES;

/// The experiment whose machine and costs are used.
const EXPERIMENT: &str = "pageset-tuning-2023";
/// Other work for each page, in nanoseconds: about a page fault and the unmapping, without the zeroing, which is simulated.
pub(super) const OTHER_NS: f64 = 2000.0;
/// Periods of tuning before the measurement.
const PERIODS: u32 = 5;
/// Length of such a period in seconds: longer than the second after which a period may end, but not twice as long.
const PERIOD: f64 = 1.2;
/// How often a CPU that never waits allocates and frees its pages without a pause before the measurement, and while it lasts.
/// The stepwise rule grows pagesets during this warm-up.
const WARM_UP: f64 = 15.0;
const MEASURED: f64 = 4.0;

/// Waiting with one number of CPUs, under each rule.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Waits {
    /// Number of CPUs.
    pub(super) cpus: u32,
    /// Percentage of their time for which the CPUs wait for locks.
    pub(super) waiting: Vec<f64>,
    /// Time in which a CPU allocates and frees a page and does its other work, in microseconds.
    pub(super) us: Vec<f64>,
}

/// Measures waiting with each number of CPUs.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<Waits>> {
    let machine = machine(sizes);
    let runs: Vec<(u32, PagesetTuning)> =
        sizes.waiting_cpus.iter().flat_map(|&cpus| RULES.map(|(_, tuning)| (cpus, tuning))).collect();
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let simulated = |&(cpus, tuning): &_| simulate(&machine, cpus, tuning, sizes, stop).ok_or(());
    let found: Vec<Waited> = in_parallel(&runs, threads, simulated).ok()?;
    let waits = |(&cpus, found): (&u32, &[Waited])| Waits {
        cpus,
        waiting: found.iter().map(|waited| waited.percent).collect(),
        us: found.iter().map(|waited| waited.us).collect(),
    };
    Some(sizes.waiting_cpus.iter().zip(found.chunks(RULES.len())).map(waits).collect())
}

/// Returns the machine of the experiment, whose nodes have just enough memory for pagesets that hold all pages.
fn machine(sizes: &Sizes) -> SimulatedMachine {
    let known = built_in(EXPERIMENT).expect("the experiment is built in");
    let plan = load(&Source::BuiltIn(known)).expect("a built-in experiment is valid");
    let is_fault = |workload: &Workload| matches!(workload, Workload::PageFaults(_));
    let run = plan.runs.iter().find(|run| is_fault(&run.workload)).expect("the experiment has page faults");
    let mut machine = run.machine();
    let cpus = machine.model.nodes.iter().map(|node| node.cpus.len()).max().unwrap_or(1);
    // `high` may rise to an eighth of the zone's share for each CPU.
    let frames = PageCount::new((2 * 8 * cpus * sizes.waiting_pages) as u64);
    for zone in &mut machine.model.zones {
        zone.managed = zone.managed.min(frames);
        (zone.present, zone.spanned) = (zone.managed, zone.managed);
    }
    machine
}

/// What one run shows.
#[derive(Clone, Copy, Debug)]
struct Waited {
    percent: f64,
    us: f64,
}

/// Simulates `cpus` CPUs under one rule. Returns `None` if the caller wants to stop.
fn simulate(
    machine: &SimulatedMachine,
    cpus: u32,
    tuning: PagesetTuning,
    sizes: &Sizes,
    stop: &AtomicBool,
) -> Option<Waited> {
    if stops(stop) {
        return None;
    }
    let widest = machine.model.zones.iter().map(|zone| zone.spanned).max().unwrap_or(PageCount::ZERO);
    let config =
        Config { tuning, free_area_min: widest, past: zonal_history::PAST, ..machine.model.config() };
    let run = machine.simulate(&config, sizes.seed, |sim| {
        let system = System::new(sim);
        Program::new(&system, sizes.waiting_pages, cpus).run(sizes.seed, stop)
    });
    match run.and_then(|run| run.map_err(SimulateError::from)) {
        Ok(waited) => Some(waited),
        Err(SimulateError::Run(RunError::Interrupted)) => None,
        Err(error) => panic!("the simulated machine runs: {error}"),
    }
}

/// The program: every CPU allocates pages and frees all of them.
struct Program<'p, 's, 'm> {
    system: &'p System<'s, 'm>,
    pages: usize,
    cpus: u32,
    /// Seconds in which a CPU that never waits allocates and frees its pages.
    once: f64,
    /// Start and end of the measurement.
    span: (Time, Time),
    /// Sums over all CPUs within the measurement.
    waited: Cell<Time>,
    allocated: Cell<u64>,
}

impl<'p, 's, 'm> Program<'p, 's, 'm> {
    fn new(system: &'p System<'s, 'm>, pages: usize, cpus: u32) -> Self {
        let machine = system.sim.machine;
        let zeroing_ns = f64::from(machine.model.page_bytes) / machine.hardware.cpu_gb_s;
        let once = pages as f64 * (OTHER_NS + zeroing_ns) / 1e9;
        let settled = f64::from(PERIODS) * PERIOD;
        let start = settled + WARM_UP * once;
        let span = (Time::from_seconds(start), Time::from_seconds(start + MEASURED * once));
        Self { system, pages, cpus, once, span, waited: Cell::default(), allocated: Cell::default() }
    }

    fn run(&self, seed: u64, stop: &AtomicBool) -> Result<Waited, RunError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut threads = Threads::new();
        for cpu in 0..self.cpus as usize {
            // CPUs start at different times, so that they do not all allocate at the same time.
            let start = Time::from_seconds(self.once * random.f64());
            threads.add(cpu, Role::Foreground, start, move || self.cpu(start))?;
        }
        self.system.sim.world.run(threads, stop)?;
        let all = (self.span.1 - self.span.0).seconds() * f64::from(self.cpus);
        let percent = 100.0 * self.waited.get().seconds() / all;
        Ok(Waited { percent, us: 1e6 * all / self.allocated.get().max(1) as f64 })
    }

    /// Runs one CPU.
    fn cpu(&self, start: Time) {
        let world = self.system.sim.world;
        let mut blocks = Vec::with_capacity(self.pages);
        for period in 1..=PERIODS {
            self.once(&mut blocks);
            world.sleep_until(start + Time::from_seconds(f64::from(period) * PERIOD));
        }
        while world.now() < self.span.1 {
            self.once(&mut blocks);
        }
    }

    /// Allocates all pages, and frees them.
    fn once(&self, blocks: &mut Vec<Block>) {
        let world = self.system.sim.world;
        for _ in 0..self.pages {
            let Ok(block) = self.waiting(|| self.system.alloc(&Request::page())) else {
                self.system.fault("the machine has too little memory for the program".to_owned())
            };
            let is_measured = self.span.0 <= world.now() && world.now() < self.span.1;
            self.allocated.set(self.allocated.get() + u64::from(is_measured));
            world.stream(
                self.system.place_of(block.node),
                u64::from(self.system.sim.machine.model.page_bytes),
            );
            world.spend(Time::from_ns(OTHER_NS));
            blocks.push(block);
            self.system.checkpoint();
        }
        while let Some(block) = blocks.pop() {
            self.waiting(|| self.system.free(&block));
            self.system.checkpoint();
        }
    }

    /// Runs `work` and, within the measurement, adds the time for which it waits for locks.
    fn waiting<R>(&self, work: impl FnOnce() -> R) -> R {
        let world = self.system.sim.world;
        let waited = || world.account_of(world.thread()).lock_wait;
        let before = waited();
        let result = work();
        if self.span.0 <= world.now() && world.now() < self.span.1 {
            self.waited.set(self.waited.get() + (waited() - before));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes { waiting_cpus: vec![4, 100], waiting_pages: 512, ..Sizes::for_this_machine() }
    }

    #[test]
    fn many_cpus_wait_for_the_lock_of_fixed_pagesets_and_few_do_not() {
        let [few, many] =
            <[Waits; 2]>::try_from(measure(&sizes(), &AtomicBool::new(false)).unwrap()).unwrap();
        assert!(few.waiting.iter().all(|&waiting| waiting < 2.0), "{few:?}");
        assert!(many.waiting[0] > 20.0 && many.waiting[0] < 100.0, "{many:?}");
        // The published rule drains a batch at a time.
        assert!(many.waiting[1..].iter().all(|&waiting| waiting < many.waiting[0]), "{many:?}");
        assert!(many.waiting[2..].iter().all(|&waiting| waiting < many.waiting[0] / 10.0), "{many:?}");
        assert!(many.us[1..].iter().all(|&us| us < many.us[0]), "{many:?}");
    }

    #[test]
    fn a_simulation_is_the_same_each_time_with_the_same_seed() {
        let sizes = Sizes { waiting_cpus: vec![30], ..sizes() };
        let run = |seed| measure(&Sizes { seed, ..sizes.clone() }, &AtomicBool::new(false)).unwrap();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_stopped_simulation_returns_nothing() {
        assert_eq!(measure(&sizes(), &AtomicBool::new(true)), None);
    }
}
