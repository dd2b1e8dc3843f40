//! Runs a plan on all cores of the host.
//!
//! Host threads remove runs from a queue. Each run is a separate simulated machine on one host thread, so results do
//! not depend on the number of threads. Related files: `experiment/queue.rs` chooses the next run,
//! `experiment/collect.rs` builds results from the outcomes.

use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use zonal_machine::Escaped;

use super::collect::collect;
use super::plan::{Plan, Run};
use super::queue::Queue;
use super::results::Results;
use super::trials::{Change, Extra};
use crate::checks::{Fault, panic_text};
use crate::figures::quantity;
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulateError};
use crate::system::System;

/// Interval between two checks of the stop flag.
const PATIENCE: Duration = Duration::from_millis(50);

/// Options for running a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Seed of the experiment.
    pub seed: u64,
    /// Number of host threads.
    pub jobs: NonZeroUsize,
    /// Host memory that concurrent runs may use, in bytes.
    pub memory_bytes: u64,
}

/// Progress of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// Number of completed runs.
    pub done: usize,
    /// Total number of runs.
    pub total: usize,
    /// Estimated completed share of the work, from 0 to 1.
    pub share: f64,
    /// Descriptions of the current runs, in the order in which they started.
    pub running: Vec<String>,
}

/// Reason why an experiment has no results.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// A run failed.
    #[error("experiment {}, {}, seed {seed}: {}", Escaped(experiment), Escaped(run), Escaped(reason))]
    Run {
        /// Name of the experiment.
        experiment: String,
        /// Case and variant.
        run: String,
        /// Seed of the experiment.
        seed: u64,
        /// Description of the failure.
        reason: String,
    },
    /// The host does not have the memory that a run needs. No run was started.
    #[error(
        "experiment {}, {}: needs {} of this host's memory, of which {} may be used; use a smaller machine or a smaller workload",
        Escaped(experiment), Escaped(run), size(*needed), size(*available)
    )]
    Memory {
        /// Name of the experiment.
        experiment: String,
        /// Case and variant.
        run: String,
        /// Maximum memory that the run needs, in bytes.
        needed: u64,
        /// Memory that runs may use, in bytes.
        available: u64,
    },
}

fn size(bytes: u64) -> String {
    quantity((bytes >> 20) as f64, "MiB")
}

impl Plan {
    /// Checks that each run by itself fits into `available` bytes of host memory.
    ///
    /// # Errors
    /// Returns [`Failure::Memory`] with the run that needs the most memory.
    pub fn check_memory(&self, available: u64) -> Result<(), Failure> {
        match self.runs.iter().max_by_key(|run| run.host_bytes) {
            Some(run) if run.host_bytes > available => Err(Failure::Memory {
                experiment: self.name.clone(),
                run: run.text(),
                needed: run.host_bytes,
                available,
            }),
            _ => Ok(()),
        }
    }
}

/// Installs a panic hook that does not print [`Fault`]s, because [`run()`] returns them to its caller. The previous
/// hook reports all other panics. The hook affects the whole process.
pub fn silence_faults() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Fault>() {
            before(info);
        }
    }));
}

/// Reason why a run has no outcome.
enum Stopped {
    Interrupted,
    Failed(String),
}

enum Event {
    Begun(usize),
    Ended(usize, Result<Outcome, Stopped>),
}

/// Runs a plan to its end or until `stop` becomes true. If the plan is stopped, the results contain the runs
/// completed so far.
///
/// # Errors
/// If a run needs more memory than is available, returns this error before any run starts. Otherwise returns the
/// first failure of a run; the other runs are then stopped.
pub fn run(
    plan: &Plan,
    options: &Options,
    mut progress: impl FnMut(&Progress),
    stop: &AtomicBool,
) -> Result<Results, Failure> {
    plan.check_memory(options.memory_bytes)?;
    let jobs = Jobs::of(plan, options.seed);
    let queue = &Queue::new(&jobs.runs, plan.runs.len(), options.memory_bytes);
    let halt = &AtomicBool::new(false);
    let mut state = Running::new(plan, &jobs, options.seed);
    let end = || {
        queue.close();
        // Relaxed: the flag only requests a stop, and no data is published with it.
        halt.store(true, Relaxed);
    };
    // Relaxed: this flag also only requests a stop.
    if stop.load(Relaxed) {
        end();
    }
    thread::scope(|scope| {
        let (sender, events) = mpsc::channel();
        for _ in 0..options.jobs.get().min(jobs.runs.len()) {
            let (sender, jobs) = (sender.clone(), &jobs);
            scope.spawn(move || work(jobs, queue, &sender, halt));
        }
        drop(sender);
        progress(&state.progress());
        loop {
            match events.recv_timeout(PATIENCE) {
                Ok(event) => {
                    state.take(event);
                    if state.failure.is_some() {
                        end();
                    }
                    progress(&state.progress());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // Relaxed: as above.
            if stop.load(Relaxed) {
                end();
            }
        }
    });
    match state.failure {
        Some(failure) => Err(failure),
        None => {
            let mut outcomes = state.outcomes;
            for &(_, of) in &jobs.same {
                outcomes.push(outcomes[of].clone());
            }
            let same = jobs.same.iter().map(|&(change, _)| change);
            let changes: Vec<Change> = jobs.changes.iter().copied().chain(same).collect();
            Ok(collect(plan, options.seed, outcomes, &changes))
        }
    }
}

/// All runs: those of the plan, and then those with a [`Change`].
struct Jobs {
    runs: Vec<Run>,
    /// Seeds, by index of the run.
    seeds: Vec<u64>,
    /// Changes, by index of the run after the plan's.
    changes: Vec<Change>,
    /// Changes that make no difference, each with the plan's run whose outcome they have.
    same: Vec<(Change, usize)>,
}

impl Jobs {
    fn of(plan: &Plan, seed: u64) -> Self {
        let mut jobs =
            Self { runs: plan.runs.clone(), seeds: Vec::new(), changes: Vec::new(), same: Vec::new() };
        jobs.seeds = plan.runs.iter().map(|run| run.seed(seed)).collect();
        for extra in plan.extras() {
            if !extra.differs_from(&plan.runs[extra.change.of]) {
                jobs.same.push((extra.change, extra.change.of));
                continue;
            }
            let Extra { change, run, more_seed } = extra;
            jobs.seeds.push(run.seed(seed.wrapping_add(more_seed)));
            jobs.runs.push(run);
            jobs.changes.push(change);
        }
        jobs
    }
}

/// Runs simulations until the queue is empty. This is the body of a host thread.
fn work(jobs: &Jobs, queue: &Queue<'_>, events: &Sender<Event>, halt: &AtomicBool) {
    while let Some(place) = queue.take() {
        // The receiver exists until all host threads have ended.
        let _ = events.send(Event::Begun(place));
        let (run, seed) = (&jobs.runs[place], jobs.seeds[place]);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| simulate(run, seed, halt)));
        queue.give_back(place);
        let outcome = match outcome {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(SimulateError::Run(RunError::Interrupted))) => Err(Stopped::Interrupted),
            Ok(Err(error)) => Err(Stopped::Failed(error.to_string())),
            Err(payload) => Err(Stopped::Failed(panic_text(&*payload))),
        };
        if matches!(outcome, Err(Stopped::Failed(_))) {
            queue.close();
        }
        let _ = events.send(Event::Ended(place, outcome));
    }
}

fn simulate(run: &Run, seed: u64, halt: &AtomicBool) -> Result<Outcome, SimulateError> {
    let program = run.workload.program();
    let outcome = run.machine().simulate(&run.config, seed, |sim| {
        let system = System::new(sim);
        if let Some(before) = &run.before {
            system.occupy(before, run.config.max_order);
        }
        program.run(&system, halt)
    })?;
    Ok(outcome?)
}

/// The outcomes received so far.
struct Running<'p> {
    plan: &'p Plan,
    runs: &'p [Run],
    seed: u64,
    /// Outcomes by index of the run.
    outcomes: Vec<Option<Outcome>>,
    running: Vec<usize>,
    done: usize,
    work_done: f64,
    failure: Option<Failure>,
}

impl<'p> Running<'p> {
    fn new(plan: &'p Plan, jobs: &'p Jobs, seed: u64) -> Self {
        let (runs, outcomes) = (&*jobs.runs, vec![None; jobs.runs.len()]);
        Self { plan, runs, seed, outcomes, running: Vec::new(), done: 0, work_done: 0.0, failure: None }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Begun(place) => self.running.push(place),
            Event::Ended(place, outcome) => {
                self.running.retain(|&running| running != place);
                match outcome {
                    Ok(mut outcome) => {
                        if place >= self.plan.runs.len() {
                            // Only the metrics of such a run are shown.
                            (outcome.series, outcome.causes) = (Vec::new(), Vec::new());
                        }
                        self.outcomes[place] = Some(outcome);
                        self.done += 1;
                        self.work_done += weight(&self.runs[place]);
                    }
                    Err(Stopped::Interrupted) => {}
                    Err(Stopped::Failed(reason)) => {
                        let run = self.runs[place].text();
                        let (experiment, seed) = (self.plan.name.clone(), self.seed);
                        self.failure.get_or_insert(Failure::Run { experiment, run, seed, reason });
                    }
                }
            }
        }
    }

    fn progress(&self) -> Progress {
        let all: f64 = self.runs.iter().map(weight).sum();
        Progress {
            done: self.done,
            total: self.runs.len(),
            share: self.work_done / all,
            running: self.running.iter().map(|&place| self.runs[place].text()).collect(),
        }
    }
}

/// Returns the relative cost of a run.
fn weight(run: &Run) -> f64 {
    run.operations.max(1.0)
}
