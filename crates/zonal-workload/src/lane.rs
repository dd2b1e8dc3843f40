//! One thread at work: its source, its tally, and the timing of a few of its operations.
//!
//! If the plan wants latencies, every 1021st step is timed, each take and give in it by itself, less the cost of reading the
//! clock; the others run without any clock. 1021 is prime, so that the timed steps wander over all
//! places of a batch. Failed takes are not in the latencies. Neighbours: the routines call
//! [`Lane::each`], `driver.rs` collects the tallies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use zonal::units::Order;

use crate::{Latencies, PageSource};

/// One step in this many is timed.
const TIMED_EVERY: usize = 1021;
/// Steps before the first timed one, so that short runs have latencies too.
const TIMED_FIRST: usize = 61;
/// Longest latency told apart from longer ones: ten seconds.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// What a routine does many times in a row.
pub(super) trait Operation<P> {
    /// Takes and gives in one step.
    const MOVES: u64;

    /// One step; `false` when a take failed, or when there was nothing to do.
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool;
}

/// What a lane repeats.
pub(super) trait Routine<P>: Send {
    /// Comes before the measured part.
    fn prepare<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {}

    /// Does a bounded amount of work, a millisecond or so.
    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>);

    /// Whether a run may end here: what was measured so far is takes and gives in their usual mix.
    fn may_end(&self) -> bool {
        true
    }

    /// Comes after the measured part: gives back all that is still held.
    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>);
}

/// One thread at work.
pub(super) struct Lane<'a, S> {
    pub(super) source: S,
    over: &'a AtomicBool,
    until_timed: usize,
    clock_cost_ns: u64,
    pub(super) tally: Tally,
}

/// What a lane has done.
pub(super) struct Tally {
    /// Takes and gives that succeeded.
    pub(super) operations: u64,
    /// Takes that failed.
    pub(super) failed: u64,
    /// Of the timed operations, in nanoseconds.
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2);
        Self { operations: 0, failed: 0, latency: latency.expect("constant bounds are lawful") }
    }
}

impl<'a, S: PageSource> Lane<'a, S> {
    /// Does `count` steps, or fewer when one fails; gives how many succeeded.
    ///
    /// The operation comes by value, and nothing keeps a reference to it: its state can stay in
    /// registers while it calls the source.
    #[inline]
    pub(super) fn each<O: Operation<S::Page>>(&mut self, count: usize, mut operation: O) -> usize {
        let mut done = 0;
        while done < count {
            let plain = (count - done).min(self.until_timed);
            for at in 0..plain {
                if !operation.step(&mut self.source) {
                    self.until_timed -= at;
                    self.tally.failed += 1;
                    return self.counted::<O>(done + at);
                }
            }
            done += plain;
            self.until_timed -= plain;
            if done < count {
                let succeeded;
                (operation, succeeded) = self.timed(operation);
                if !succeeded {
                    self.tally.failed += 1;
                    return self.counted::<O>(done);
                }
                done += 1;
            }
        }
        self.counted::<O>(done)
    }

    /// A lane over `source` that ends when `over` becomes true.
    pub(super) fn new(source: S, over: &'a AtomicBool, latencies: Latencies) -> Self {
        let until_timed = match latencies {
            Latencies::Sampled => TIMED_FIRST,
            Latencies::Off => usize::MAX, // further than any run gets
        };
        Self { source, over, until_timed, clock_cost_ns: clock_cost_ns(), tally: Tally::new() }
    }

    /// Whether it is time to end.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) // nothing but the flag itself is read
    }

    fn counted<O: Operation<S::Page>>(&mut self, steps: usize) -> usize {
        self.tally.operations += steps as u64 * O::MOVES;
        steps
    }

    #[cold]
    fn timed<O: Operation<S::Page>>(&mut self, mut operation: O) -> (O, bool) {
        self.until_timed = TIMED_EVERY - 1;
        let (source, latency) = (&mut self.source, &mut self.tally.latency);
        let succeeded = operation.step(&mut Timed { source, latency, clock_cost_ns: self.clock_cost_ns });
        (operation, succeeded)
    }
}

/// A source whose takes and gives are timed.
struct Timed<'a, S> {
    source: &'a mut S,
    latency: &'a mut Histogram<u64>,
    clock_cost_ns: u64,
}

impl<S> Timed<'_, S> {
    fn record(&mut self, start: Instant) {
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(ns.saturating_sub(self.clock_cost_ns));
    }
}

impl<S: PageSource> PageSource for Timed<'_, S> {
    type Page = S::Page;

    fn take(&mut self, order: Order) -> Option<S::Page> {
        let start = Instant::now();
        let page = self.source.take(order)?;
        self.record(start);
        Some(page)
    }

    fn give(&mut self, page: S::Page, order: Order) {
        let start = Instant::now();
        self.source.give(page, order);
        self.record(start);
    }

    fn touch(&mut self, page: S::Page) {
        self.source.touch(page);
    }
}

/// The least time between two readings of the clock.
fn clock_cost_ns() -> u64 {
    let cost = |_| {
        let start = Instant::now();
        start.elapsed().as_nanos()
    };
    (0..100).map(cost).min().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// Latencies of single takes and gives, in nanoseconds, over the timed ones; to about 1 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// Operations that were timed; without any, all else is 0.
    pub samples: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 % of them took no longer.
    pub p99_ns: u64,
    /// 99.9 % of them took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(all: &Histogram<u64>) -> Self {
        Self {
            samples: all.len(),
            p50_ns: all.value_at_quantile(0.5),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            max_ns: all.max(),
        }
    }
}
