//! Measures contenders side by side. This file decides the order of the runs and which samples count.
//!
//! For each workload, every contender has one pool for all rounds, so that its metadata is warm as in a running
//! system. A *round* runs each contender once with each number of threads. Each round begins with a different
//! contender, so that no contender always follows the same one or always runs first, on the coolest machine. Warm-up
//! rounds come first and their samples are dropped, because allocators that adapt to their load need time. Threads
//! are not pinned. Related files: `contender.rs` does one run, and `report.rs` summarises the samples.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zonal::units::PageCount;
use zonal_workload::{Latencies, Plan, Workload};

use crate::contender::{Entry, Ready};
use crate::counting::Counting;
use crate::report::{Report, Samples, Skipped};

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The workloads, in order. [`Workload::Touch`] is not allowed, because not all contenders have memory.
    pub workloads: Vec<Workload>,
    /// The numbers of threads. Every round measures each of them.
    pub threads: Vec<NonZeroUsize>,
    /// Number of measured rounds, without warm-up rounds.
    pub rounds: NonZeroUsize,
    /// Duration of one run's measured part. A run does at least one round of its workload even if that takes longer.
    pub round_time: Duration,
    /// Total warm-up duration for each workload. There is at least one.
    pub warm_up: Duration,
    /// Frames per pool.
    pub frames: PageCount,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The progress of a bench, which is reported before each run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Number of measured runs done so far, without warm-up runs.
    pub done: usize,
    /// Total number of measured runs.
    pub total: usize,
    /// The workload of the next run.
    pub workload: Workload,
    /// The contender of the next run.
    pub contender: &'a str,
}

/// The contenders that could be created, each with the index of its entry.
type Field = Vec<(usize, Box<dyn Ready>)>;

impl Bench {
    /// Measures `entries` until all runs are done or `stop` becomes true. The report contains all completed runs.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread.
    ///
    /// # Panics
    /// Panics if [`Workload::Touch`] is among the workloads, or a contender panics.
    pub fn run(
        &self,
        entries: &[Entry],
        stop: &AtomicBool,
        mut on_progress: impl FnMut(Progress<'_>),
    ) -> io::Result<Report> {
        assert!(!self.workloads.contains(&Workload::Touch), "`touch` measures memory, not allocators");
        let counting = Counting::detect();
        let mut report = Report::new(&counting);
        let runs = entries.len() * self.threads.len() * self.rounds.get();
        let total = runs * self.workloads.len();
        for (at, &workload) in self.workloads.iter().enumerate() {
            let field = self.field(entries, workload, stop, &mut report.skipped);
            let on_run = |kept: usize, place: usize| {
                let (done, contender) = (at * runs + kept, entries[place].name());
                on_progress(Progress { done, total, workload, contender });
            };
            let samples = self.measure(workload, &field, &counting, stop, on_run)?;
            report.add(workload, entries, &samples);
        }
        Ok(report)
    }

    /// Creates the contenders for a workload.
    fn field(
        &self,
        entries: &[Entry],
        workload: Workload,
        stop: &AtomicBool,
        skipped: &mut Vec<Skipped>,
    ) -> Field {
        let threads = self.threads.iter().map(|threads| threads.get()).max().unwrap_or(1);
        let mut field = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            if is_set(stop) {
                break;
            }
            match entry.make_for(workload, self.frames, threads) {
                Ok(ready) => field.push((place, ready)),
                Err(reason) => skipped.push(Skipped { workload, contender: entry.name().into(), reason }),
            }
        }
        field
    }

    /// Measures all rounds of a workload. Before each run, calls `on_run` with the number of measured runs done and the
    /// next contender's index.
    fn measure(
        &self,
        workload: Workload,
        field: &Field,
        counting: &Counting,
        stop: &AtomicBool,
        mut on_run: impl FnMut(usize, usize),
    ) -> io::Result<Samples> {
        let (mut samples, mut kept, mut rounds_kept) = (Samples::default(), 0, 0);
        let start = Instant::now();
        for round in 0.. {
            let warms_up = round == 0 || (rounds_kept == 0 && start.elapsed() < self.warm_up);
            for &threads in &self.threads {
                let plan = self.plan(workload, threads);
                for (place, ready) in rotated(field, round) {
                    if is_set(stop) {
                        return Ok(samples);
                    }
                    on_run(kept, *place);
                    let sample = ready.measure(&plan, counting, stop)?;
                    // A run that was stopped is incomplete, so its sample is dropped.
                    if !warms_up && !is_set(stop) {
                        samples.add(threads, *place, sample);
                        kept += 1;
                    }
                }
            }
            rounds_kept += usize::from(!warms_up);
            if rounds_kept == self.rounds.get() {
                break;
            }
        }
        Ok(samples)
    }

    fn plan(&self, workload: Workload, threads: NonZeroUsize) -> Plan {
        Plan {
            workload,
            threads,
            duration: self.round_time,
            warm_up: Duration::ZERO, // whole rounds are the warm-up
            seed: self.seed,
            pages: self.frames,
            latencies: Latencies::Off,
        }
    }
}

/// Returns all of `field`, starting with a different element in each round.
fn rotated<T>(field: &[T], round: usize) -> impl Iterator<Item = &T> {
    let first = round % field.len().max(1);
    field[first..].iter().chain(&field[..first])
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) // relaxed: only the flag itself is read
}
