//! Measuring contenders beside each other: who runs when, and what is kept.
//!
//! For each workload every contender gets a pool of its own, which it keeps over all rounds, so that
//! metadata is warm as in a system that runs. A *round* runs each contender once on each number of
//! threads; the next round begins with the next contender, so that none always follows the same one
//! or always has the machine at its coolest. Rounds that warm up come first and are not kept: what
//! adapts to its load needs a while. Threads are not pinned. Neighbours: `contender.rs` does one run,
//! `report.rs` sums up.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zonal::units::PageCount;
use zonal_workload::{Latencies, Plan, Workload};

use crate::contender::{Entry, Ready};
use crate::counting::Counting;
use crate::report::{Report, Samples, Skipped};

/// What to measure, and how much of it.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The workloads, one after the other. Not [`Workload::Touch`]: not all contenders have memory.
    pub workloads: Vec<Workload>,
    /// Numbers of threads; each is measured in every round.
    pub threads: Vec<NonZeroUsize>,
    /// Rounds that are kept.
    pub rounds: NonZeroUsize,
    /// Time of the measured part of one run; a run does at least one round of its workload.
    pub round_time: Duration,
    /// Time of the rounds that come first and are not kept, for each workload: one round at least.
    pub warm_up: Duration,
    /// Frames of each pool.
    pub frames: PageCount,
    /// Start of all random choices.
    pub seed: u64,
}

/// What is about to run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Runs that were kept.
    pub done: usize,
    /// Runs that will be kept, altogether.
    pub total: usize,
    /// The workload of the next run.
    pub workload: Workload,
    /// The contender of the next run.
    pub contender: &'a str,
}

/// The contenders that could be made, with their entries' places.
type Field = Vec<(usize, Box<dyn Ready>)>;

impl Bench {
    /// Measures `entries` until all is done or `stop` becomes true; what was finished is in the report.
    ///
    /// # Errors
    /// When the system refuses a thread.
    ///
    /// # Panics
    /// When [`Workload::Touch`] is among the workloads, or a contender breaks.
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

    /// Makes the contenders of a workload.
    fn field(
        &self,
        entries: &[Entry],
        workload: Workload,
        stop: &AtomicBool,
        skipped: &mut Vec<Skipped>,
    ) -> Field {
        let mut field = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            if is_set(stop) {
                break;
            }
            match entry.make_for(workload, self.frames) {
                Ok(ready) => field.push((place, ready)),
                Err(reason) => skipped.push(Skipped { workload, contender: entry.name().into(), reason }),
            }
        }
        field
    }

    /// All rounds of a workload; `on_run` is told how many runs were kept and who comes next.
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
                    // A run that was stopped is half a run.
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
            warm_up: Duration::ZERO, // whole rounds do that
            seed: self.seed,
            pages: self.frames,
            latencies: Latencies::Off,
        }
    }
}

/// All of `field`, another one first in each round.
fn rotated<T>(field: &[T], round: usize) -> impl Iterator<Item = &T> {
    let first = round % field.len().max(1);
    field[first..].iter().chain(&field[..first])
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) // nothing but the flag itself is read
}
