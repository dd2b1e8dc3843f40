//! Loads: traces, and programs that suit a machine.

use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use zonal::Config;
use zonal_machine::state::Sample;
use zonal_machine::{KernelVersion, MachineModel, Rules, predict};

use super::bursts::Bursts;
use super::effect::Figures;
use super::question::{Asked, LoadKind, Question, WhatIfError};
use crate::checks::panic_text;
use crate::parallel::in_parallel;
use crate::replay::{OwnTrace, ReplayError};
use crate::sim::{Hardware, RunError, SimulateError, SimulatedMachine, Time};
use crate::system::{Counts, System};
use crate::workload::{Exchange, FirstTouch, Overflow, Placement, Program};

/// Work for a page beside the allocator, in nanoseconds.
const WORK_NS: f64 = 500.0;
/// Simulated seconds from which the number of operations is estimated.
const SECOND: f64 = 1.0;
/// Simulated seconds of programs that do not estimate their operations.
const SECONDS_DEFAULT: f64 = 0.05;
/// Most CPUs that run a program while mechanisms are compared. `scaling.rs` looks at more.
const CPUS_MAX: usize = 16;
/// Most pages that a process maps at a time.
const PAGES_MAX: u64 = 4096;
/// How often a process maps and unmaps at least.
const ROUNDS: usize = 2;
const MIB: f64 = (1 << 20) as f64;

/// A load on a machine.
pub(super) enum Load<'a> {
    Trace {
        trace: &'a OwnTrace<'a>,
        operations: u64,
        /// The events that runs have read.
        events: AtomicU64,
    },
    Program {
        kind: LoadKind,
        program: Box<dyn Program + Sync>,
        model: &'a MachineModel,
        before: Option<&'a Sample>,
    },
}

/// A run.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) config: Config,
    pub(super) hardware: Hardware,
    pub(super) seed: u64,
}

impl<'a> Load<'a> {
    pub(super) fn new(question: &Question<'a>) -> Result<Self, WhatIfError> {
        match question.load {
            Asked::Trace(trace) => {
                Ok(Self::Trace { trace, operations: question.operations, events: AtomicU64::new(u64::MAX) })
            }
            Asked::Kind(kind) => {
                let cpus: usize = question.machine.online_nodes().map(|node| node.cpus.len()).sum();
                let cpus = cpus.min(CPUS_MAX);
                Self::program(kind, question.machine, question.before, cpus, question.operations)
            }
        }
    }

    /// Returns a program for the first `cpus` CPUs, with about `operations` operations a run.
    pub(super) fn program(
        kind: LoadKind,
        model: &'a MachineModel,
        before: Option<&'a Sample>,
        cpus: usize,
        operations: u64,
    ) -> Result<Self, WhatIfError> {
        let machine = SimulatedMachine { model: model.clone(), hardware: Hardware::default() };
        let free: u64 = match before {
            Some(state) => state.zones.iter().map(|zone| zone.free).sum(),
            None => model.zones.iter().map(|zone| zone.managed.get()).sum(),
        };
        let free_mib = free as f64 * f64::from(model.page_bytes) / MIB;
        let make = |seconds: f64| -> Box<dyn Program + Sync> {
            match kind {
                LoadKind::PageFaults => {
                    let pages = (free_mib * MIB / f64::from(model.page_bytes) / 2.0 / cpus as f64) as usize;
                    let pages = pages.clamp(1, beyond_a_pageset(model));
                    let rounds = operations as usize / 2 / pages / cpus.max(1);
                    Box::new(Bursts {
                        processes: cpus,
                        pages,
                        rounds: rounds.max(ROUNDS),
                        fault: Time::from_ns(WORK_NS),
                    })
                }
                LoadKind::FirstTouch => {
                    let pages = (operations as f64).min(free_mib * MIB / 2.0 / f64::from(model.page_bytes));
                    let gib = pages * f64::from(model.page_bytes) / MIB / 1024.0;
                    Box::new(FirstTouch {
                        cpus,
                        gib_each: gib / cpus as f64,
                        fault_ns: WORK_NS,
                        user_ns: 0.0,
                        policy: Placement::default(),
                    })
                }
                LoadKind::Exchange => Box::new(Exchange {
                    pairs: (cpus / 2).max(1),
                    burst: 64,
                    send_ns: WORK_NS,
                    receive_ns: WORK_NS,
                    wake_ns: 2000.0,
                    moves_pct: 10.0,
                    seconds,
                    warm_up: seconds / 5.0,
                }),
                LoadKind::Overflow => Box::new(Overflow {
                    nodes: model.online_nodes().filter(|node| !node.cpus.is_empty()).count().min(8),
                    burst_pages: 512,
                    pause_ms: 0.0,
                    fault_ns: WORK_NS,
                    churn_pages: 64,
                    churn_ms: 1.0,
                    seconds,
                    warm_up: seconds / 5.0,
                }),
            }
        };
        let in_second = make(SECOND).operations(&machine);
        let seconds = if in_second > 0.0 { operations as f64 / in_second } else { SECONDS_DEFAULT };
        let program = make(seconds);
        program.check(&machine).map_err(|unfit| WhatIfError::unfit(kind, unfit))?;
        Ok(Self::Program { kind, program, model, before })
    }

    pub(super) fn about(&self) -> String {
        match self {
            Self::Trace { trace, operations, events } => {
                // Relaxed: all runs have ended.
                let events = events.load(Relaxed).min(*operations);
                let lacks = ", which lacks some of the recorded CPUs: the nth recorded CPU is its nth";
                let lacks = if trace.has_recorded_cpus { "" } else { lacks };
                format!("the first {events} events of the trace on {}{lacks}", trace.model().name)
            }
            Self::Program { kind, .. } => format!("{}: {}", kind.name(), kind.about()),
        }
    }

    /// Runs all jobs on `threads` host threads, and returns their figures in order.
    pub(super) fn run_all(
        &self,
        jobs: &[Job],
        threads: NonZeroUsize,
        stop: &AtomicBool,
        ended: &(impl Fn(usize, usize) + Sync),
    ) -> Result<Vec<Figures>, WhatIfError> {
        let count = AtomicUsize::new(0);
        in_parallel(jobs, threads, |job| {
            let run = panic::catch_unwind(AssertUnwindSafe(|| self.run(job, stop)));
            // Relaxed: the number is only shown.
            ended(count.fetch_add(1, Relaxed) + 1, jobs.len());
            run.unwrap_or_else(|payload| Err(WhatIfError::Run(panic_text(&*payload))))
        })
    }

    fn run(&self, job: &Job, stop: &AtomicBool) -> Result<Figures, WhatIfError> {
        match self {
            Self::Trace { trace, operations, events } => {
                let run = trace.run(&job.hardware, &job.config, job.seed, *operations, stop, &|_| ());
                let run = run.map_err(|error| match error {
                    ReplayError::Run(RunError::Interrupted) => WhatIfError::Interrupted,
                    error => error.into(),
                })?;
                // Relaxed: all runs store the same number.
                events.store(run.events, Relaxed);
                let row = &run.row;
                Ok(Figures {
                    operation_ns: run.operation_ns,
                    local_percent: percent(row.hit, row.hit + row.miss, 100.0),
                    failed_percent: percent(row.failed, row.failed + row.served, 0.0),
                    marks: run.marks,
                    moves: row.refills + row.drains,
                    seconds: run.seconds,
                })
            }
            Self::Program { program, model, before, .. } => {
                let machine = SimulatedMachine { model: (*model).clone(), hardware: job.hardware.clone() };
                let simulated = machine.simulate(&job.config, job.seed, |sim| {
                    let system = System::new(sim);
                    if let Some(before) = before {
                        system.occupy(before, job.config.max_order);
                    }
                    let outcome = program.run(&system, stop)?;
                    let counts = system.counts();
                    let of_all = system.spent().seconds() * 1e9 / counts.operations.max(1) as f64;
                    let event = |name: &str| counts.events.get(name).copied().unwrap_or(0);
                    Ok(Figures {
                        operation_ns: outcome.get("operation").unwrap_or(of_all),
                        local_percent: percent(counts.hit, counts.hit + counts.miss, 100.0),
                        failed_percent: failed_percent(&counts),
                        marks: event("marks"),
                        moves: event("refills") + event("drains"),
                        seconds: outcome.seconds / sim.world.second().seconds(),
                    })
                });
                let stopped = |error: RunError| match error {
                    RunError::Interrupted => WhatIfError::Interrupted,
                    error => WhatIfError::Run(error.to_string()),
                };
                match simulated {
                    Ok(run) => run.map_err(stopped),
                    Err(SimulateError::Run(error)) => Err(stopped(error)),
                    Err(error) => Err(WhatIfError::Run(error.to_string())),
                }
            }
        }
    }
}

/// Returns twice the frames that a pageset of fixed size holds on the machine.
fn beyond_a_pageset(model: &MachineModel) -> usize {
    let zones = predict(model, &Rules::of(KernelVersion::NEWEST)).zones;
    let most = zones.iter().map(|zone| zone.limits.high_min.get()).max().unwrap_or(0);
    (2 * most).clamp(64, PAGES_MAX) as usize
}

/// Returns how many requests failed, in percent. Operations are also frees.
pub(super) fn failed_percent(counts: &Counts) -> f64 {
    let failures = counts.events.get("failures").copied().unwrap_or(0);
    percent(failures, failures + counts.hit + counts.miss, 0.0)
}

/// Returns a part in percent, or `empty` if the whole is zero.
fn percent(part: u64, all: u64, empty: f64) -> f64 {
    if all == 0 { empty } else { part as f64 / all as f64 * 100.0 }
}
