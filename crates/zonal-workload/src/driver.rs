//! Starting, watching and stopping the lanes of a run, and adding up what they did.
//!
//! Lanes prepare, wait at a gate until all are ready, then repeat their routine until the run is
//! over; only that part is measured. Neighbours: `lane.rs` is what runs on each thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::lane::{Lane, Routine, Tally};
use crate::{Latency, PageSource, Plan, cpu_time};

/// Time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the measured part began.
    pub elapsed: Duration,
    /// Pairs so far, on all threads.
    pub pairs: u64,
}

/// What came out of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Time of the measured part.
    pub elapsed: Duration,
    /// The same, added up over all threads.
    pub thread_time: Duration,
    /// CPU time that all threads together used in it: without what they waited for a processor.
    pub cpu_time: Duration,
    /// Pairs on all threads: half the takes and gives that succeeded.
    pub pairs: u64,
    /// Requests that found no block.
    pub failed: u64,
    /// Of single takes and gives.
    pub latency: Latency,
    /// Threads that did pairs, alone or as couples.
    pub threads: usize,
    /// In how many teams they worked.
    pub teams: usize,
}

impl Measurement {
    /// Time of a pair on the team that did it; `None` without pairs.
    #[must_use]
    pub fn ns_per_pair(&self) -> Option<f64> {
        self.per_pair(self.thread_time)
    }

    /// CPU time of a pair on the team that did it: of a couple, the mean of both. `None` without
    /// pairs.
    #[must_use]
    pub fn cpu_ns_per_pair(&self) -> Option<f64> {
        self.per_pair(self.cpu_time)
    }

    fn per_pair(&self, time: Duration) -> Option<f64> {
        let time_ns = time.as_secs_f64() * 1e9 * self.teams as f64 / self.threads as f64;
        (self.pairs > 0).then(|| time_ns / self.pairs as f64)
    }

    /// Pairs in a second, on all threads together.
    #[must_use]
    pub fn pairs_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.pairs as f64 / seconds } else { 0.0 }
    }
}

/// A run to be driven.
pub(super) struct Run<'a, M> {
    pub(super) plan: &'a Plan,
    pub(super) make_source: &'a M,
    pub(super) stop: &'a AtomicBool,
}

/// What the lanes and their driver share.
struct Shared {
    ready: AtomicUsize,
    open: AtomicBool,
    over: AtomicBool,
    counts: Vec<Count>,
}

/// Operations of one lane so far, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

struct Finished {
    start: Instant,
    end: Instant,
    cpu_time: Duration,
    tally: Tally,
}

impl<M> Run<'_, M> {
    /// Runs one routine on each lane; an error when a thread cannot be started.
    pub(super) fn drive<S, R>(
        &self,
        routines: Vec<R>,
        on_progress: impl FnMut(Progress),
    ) -> io::Result<Measurement>
    where
        S: PageSource,
        M: Fn(usize) -> S + Sync,
        R: Routine<S::Page>,
    {
        let shared = Shared {
            ready: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            over: AtomicBool::new(false),
            counts: routines.iter().map(|_| Count::default()).collect(),
        };
        let finished = thread::scope(|scope| {
            let start = |(index, mut routine)| {
                let shared = &shared;
                let work = move || self.work(shared, &mut routine, index);
                thread::Builder::new().name(format!("lane {index}")).spawn_scoped(scope, work)
            };
            let mut lanes = Vec::new();
            for routine in routines.into_iter().enumerate() {
                match start(routine) {
                    Ok(lane) => lanes.push(lane),
                    Err(error) => {
                        shared.end(&lanes); // the scope waits for those already there
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

    /// One lane from its source to its tally, on its own thread.
    fn work<S, R>(&self, shared: &Shared, routine: &mut R, index: usize) -> Finished
    where
        S: PageSource,
        M: Fn(usize) -> S + Sync,
        R: Routine<S::Page>,
    {
        let mut lane = Lane::new((self.make_source)(index), &shared.over, self.plan.latencies);
        routine.prepare(&mut lane);
        warm_up(&mut lane, routine, self.plan.warm_up);
        lane.tally = Tally::new();
        shared.wait_at_gate();
        lane.source.measuring_begins();
        let (start, used_before) = (Instant::now(), cpu_time::of_this_thread());
        measured_part(&mut lane, routine, self.stop, &shared.counts[index]);
        let (end, used_after) = (Instant::now(), cpu_time::of_this_thread());
        lane.source.measuring_ends();
        let tally = std::mem::replace(&mut lane.tally, Tally::new());
        routine.finish(&mut lane);
        Finished { start, end, cpu_time: used_after.saturating_sub(used_before), tally }
    }

    /// Opens the gate when all lanes are ready, and ends the run when it is time.
    fn watch<T>(
        &self,
        shared: &Shared,
        lanes: &[ScopedJoinHandle<'_, T>],
        mut on_progress: impl FnMut(Progress),
    ) {
        let broken = || lanes.iter().any(ScopedJoinHandle::is_finished); // panicked: none ends before the gate
        let stopped = || self.stop.load(Ordering::Relaxed); // nothing but the flag itself is read
        // Acquire pairs with the lanes' release: they are prepared.
        while shared.ready.load(Ordering::Acquire) < lanes.len() && !broken() {
            if stopped() {
                shared.over.store(true, Ordering::Relaxed); // a hint; lanes also see it later
            }
            thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        shared.open_gate(lanes);
        while start.elapsed() < self.plan.duration && !stopped() && !broken() {
            thread::sleep(PROGRESS_EVERY.min(self.plan.duration.saturating_sub(start.elapsed())));
            on_progress(Progress { elapsed: start.elapsed(), pairs: shared.operations() / 2 });
        }
        shared.over.store(true, Ordering::Relaxed); // lanes read nothing but the flag
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

/// What comes before the measured part: the same work, up to where a run may end.
#[inline(never)]
fn warm_up<S: PageSource, R: Routine<S::Page>>(lane: &mut Lane<'_, S>, routine: &mut R, time: Duration) {
    let start = Instant::now();
    while !lane.is_over() && (start.elapsed() < time || !routine.may_end()) {
        routine.round(lane);
    }
}

/// The measured part: one round at least. A function of its own, so that profilers can tell it from
/// the rest.
#[inline(never)]
fn measured_part<S: PageSource, R: Routine<S::Page>>(
    lane: &mut Lane<'_, S>,
    routine: &mut R,
    stop: &AtomicBool,
    count: &Count,
) {
    // Relaxed: nothing but the flag itself is read.
    while !stop.load(Ordering::Relaxed) {
        routine.round(lane);
        count.0.store(lane.tally.operations, Ordering::Relaxed); // for progress only
        if lane.is_over() && routine.may_end() {
            return;
        }
    }
}

impl Shared {
    fn wait_at_gate(&self) {
        self.ready.fetch_add(1, Ordering::Release); // pairs with the acquire in `watch`
        // Acquire pairs with the release that opens the gate.
        while !self.open.load(Ordering::Acquire) {
            thread::park();
        }
    }

    fn open_gate<T>(&self, lanes: &[ScopedJoinHandle<'_, T>]) {
        self.open.store(true, Ordering::Release); // pairs with the acquire at the gate
        lanes.iter().for_each(|lane| lane.thread().unpark());
    }

    /// Ends all lanes, those at the gate too.
    fn end<T>(&self, lanes: &[ScopedJoinHandle<'_, T>]) {
        self.over.store(true, Ordering::Relaxed); // lanes read nothing but the flag
        self.open_gate(lanes);
    }

    fn operations(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum() // for progress only
    }
}
