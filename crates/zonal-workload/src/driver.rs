//! Starts, watches and stops the lanes of a run, and adds up their results.
//!
//! Lanes prepare, wait until all lanes are ready, and then repeat their routine until the run is over. Only the
//! repetitions are measured. Related files: `lane.rs` has the code that runs on each thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::lane::{Lane, Routine, Tally};
use crate::{Latency, PageSource, Plan, cpu_time};

/// Interval between two progress reports.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the measured part began.
    pub elapsed: Duration,
    /// Pairs so far, on all threads.
    pub pairs: u64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Time of the measured part.
    pub elapsed: Duration,
    /// Sum of the times that each thread spent in the measured part.
    pub thread_time: Duration,
    /// Sum of the CPU times that each thread used in the measured part, not including time waiting for a processor.
    pub cpu_time: Duration,
    /// Pairs on all threads: half of the successful allocations and frees.
    pub pairs: u64,
    /// Number of requests that found no block.
    pub failed: u64,
    /// Latencies of single allocations and frees.
    pub latency: Latency,
    /// Number of threads that worked on pairs, alone or in couples.
    pub threads: usize,
    /// How many teams these threads form: single threads or couples.
    pub teams: usize,
}

impl Measurement {
    /// Returns the time that a team spent for each pair, or `None` without pairs.
    #[must_use]
    pub fn ns_per_pair(&self) -> Option<f64> {
        self.per_pair(self.thread_time)
    }

    /// Returns the CPU time that a team spent for each pair, which is the mean of both threads for a couple. Returns
    /// `None` without pairs.
    #[must_use]
    pub fn cpu_ns_per_pair(&self) -> Option<f64> {
        self.per_pair(self.cpu_time)
    }

    fn per_pair(&self, time: Duration) -> Option<f64> {
        let time_ns = time.as_secs_f64() * 1e9 * self.teams as f64 / self.threads as f64;
        (self.pairs > 0).then(|| time_ns / self.pairs as f64)
    }

    /// Returns the pairs per second of all threads together.
    #[must_use]
    pub fn pairs_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.pairs as f64 / seconds } else { 0.0 }
    }
}

/// A run to be executed.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) stop: &'a AtomicBool,
}

/// The work of one lane, from its source to its tally.
type Work<'a> = Box<dyn FnOnce(&Shared) -> Finished + Send + 'a>;

/// State that the lanes and their driver share.
struct Shared {
    ready: AtomicUsize,
    open: AtomicBool,
    over: AtomicBool,
    counts: Vec<Count>,
}

/// Operations of one lane so far, on its own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

struct Finished {
    start: Instant,
    end: Instant,
    cpu_time: Duration,
    tally: Tally,
}

impl Run<'_> {
    /// Runs one routine on each lane; returns an error when a thread cannot be started.
    ///
    /// Only the code of a lane depends on the types of the source and the routine.
    pub(super) fn drive<S, R>(
        &self,
        make_source: &(impl Fn(usize) -> S + Sync),
        routines: Vec<R>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> io::Result<Measurement>
    where
        S: PageSource,
        R: Routine<S::Page>,
    {
        let mut works: Vec<Work<'_>> = Vec::with_capacity(routines.len());
        for (index, mut routine) in routines.into_iter().enumerate() {
            works.push(Box::new(move |shared| {
                let lane = Lane::new(make_source(index), &shared.over, self.plan.latencies);
                self.work(shared, lane, &mut routine, &shared.counts[index])
            }));
        }
        self.drive_lanes(works, on_progress)
    }

    fn drive_lanes(
        &self,
        works: Vec<Work<'_>>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> io::Result<Measurement> {
        let shared = Shared {
            ready: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            over: AtomicBool::new(false),
            counts: works.iter().map(|_| Count::default()).collect(),
        };
        let finished = thread::scope(|scope| {
            let mut lanes = Vec::new();
            for (index, work) in works.into_iter().enumerate() {
                let shared = &shared;
                let lane = thread::Builder::new().name(format!("lane {index}"));
                match lane.spawn_scoped(scope, move || work(shared)) {
                    Ok(lane) => lanes.push(lane),
                    Err(error) => {
                        shared.end(&lanes); // the scope waits for the threads already started
                        return Err(error);
                    }
                }
            }
            self.watch(&shared, &lanes, on_progress);
            let ended = |lane: ScopedJoinHandle<'_, Finished>| {
                lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            Ok(lanes.into_iter().map(ended).collect::<Vec<_>>())
        })?;
        Ok(self.sum(&finished))
    }

    /// Runs one lane on its own thread.
    fn work<S, R>(&self, shared: &Shared, mut lane: Lane<'_, S>, routine: &mut R, count: &Count) -> Finished
    where
        S: PageSource,
        R: Routine<S::Page>,
    {
        routine.prepare(&mut lane);
        warm_up(&mut lane, routine, self.plan.warm_up);
        lane.tally = Tally::new();
        shared.wait_for_start();
        lane.source.measuring_begins();
        let (start, used_before) = (Instant::now(), cpu_time::of_this_thread());
        measured_part(&mut lane, routine, self.stop, count);
        let (end, used_after) = (Instant::now(), cpu_time::of_this_thread());
        lane.source.measuring_ends();
        let tally = std::mem::replace(&mut lane.tally, Tally::new());
        routine.finish(&mut lane);
        Finished { start, end, cpu_time: used_after.saturating_sub(used_before), tally }
    }

    /// Starts the measured part when all lanes are ready, and ends it when its time is over.
    fn watch<T>(
        &self,
        shared: &Shared,
        lanes: &[ScopedJoinHandle<'_, T>],
        on_progress: &mut dyn FnMut(Progress),
    ) {
        let broken = || lanes.iter().any(ScopedJoinHandle::is_finished); // ended before the start: panicked
        let stopped = || self.stop.load(Ordering::Relaxed); // relaxed: only a flag
        // Acquire: takes the preparation of the lanes; pairs with `Shared::wait_for_start`.
        while shared.ready.load(Ordering::Acquire) < lanes.len() && !broken() {
            if stopped() {
                shared.over.store(true, Ordering::Relaxed); // relaxed: the lanes may read the flag later
            }
            thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        shared.start_lanes(lanes);
        while start.elapsed() < self.plan.duration && !stopped() && !broken() {
            thread::sleep(PROGRESS_EVERY.min(self.plan.duration.saturating_sub(start.elapsed())));
            on_progress(Progress { elapsed: start.elapsed(), pairs: shared.operations() / 2 });
        }
        shared.over.store(true, Ordering::Relaxed); // relaxed: only a flag
    }

    fn sum(&self, finished: &[Finished]) -> Measurement {
        let mut all = Tally::new();
        for lane in finished {
            all.operations += lane.tally.operations;
            all.failed += lane.tally.failed;
            all.latency += &lane.tally.latency;
        }
        let start = finished.iter().map(|lane| lane.start).min();
        let end = finished.iter().map(|lane| lane.end).max();
        Measurement {
            elapsed: start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start),
            thread_time: finished.iter().map(|lane| lane.end - lane.start).sum(),
            cpu_time: finished.iter().map(|lane| lane.cpu_time).sum(),
            pairs: all.operations / 2,
            failed: all.failed,
            latency: Latency::from(&all.latency),
            threads: self.plan.threads.get(),
            teams: self.plan.workload.teams(self.plan.threads),
        }
    }
}

/// Runs the same work before the measured part, until the routine reaches a point where a run may end.
#[inline(never)]
fn warm_up<S: PageSource, R: Routine<S::Page>>(lane: &mut Lane<'_, S>, routine: &mut R, time: Duration) {
    let start = Instant::now();
    while !lane.is_over() && (start.elapsed() < time || !routine.may_end()) {
        routine.round(lane);
    }
}

/// Runs the measured part, at least one round. It is a separate function, so that profilers can distinguish it.
#[inline(never)]
fn measured_part<S: PageSource, R: Routine<S::Page>>(
    lane: &mut Lane<'_, S>,
    routine: &mut R,
    stop: &AtomicBool,
    count: &Count,
) {
    // Relaxed: the flag only ends the loop, and no other data depends on it.
    while !stop.load(Ordering::Relaxed) {
        routine.round(lane);
        count.0.store(lane.tally.operations, Ordering::Relaxed); // relaxed: for progress only
        if lane.is_over() && routine.may_end() {
            return;
        }
    }
}

impl Shared {
    fn wait_for_start(&self) {
        // Release: publishes the preparation of the lane; pairs with `watch`.
        self.ready.fetch_add(1, Ordering::Release);
        // Acquire: takes what preceded the start; pairs with `Shared::start_lanes`.
        while !self.open.load(Ordering::Acquire) {
            thread::park();
        }
    }

    fn start_lanes<T>(&self, lanes: &[ScopedJoinHandle<'_, T>]) {
        // Release: publishes what preceded the start; pairs with `Shared::wait_for_start`.
        self.open.store(true, Ordering::Release);
        lanes.iter().for_each(|lane| lane.thread().unpark());
    }

    /// Ends all lanes, including those that wait for the start.
    fn end<T>(&self, lanes: &[ScopedJoinHandle<'_, T>]) {
        self.over.store(true, Ordering::Relaxed); // relaxed: only a flag
        self.start_lanes(lanes);
    }

    fn operations(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum() // relaxed: for progress
    }
}
