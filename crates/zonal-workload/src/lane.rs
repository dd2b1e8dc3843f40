//! One working thread: its source, its tally, and the timing of a few operations.
//!
//! If the plan requests latencies, every 1021st step is timed. Each allocation and free in a timed step is measured
//! separately, and the cost of reading the clock is subtracted. Other steps never read a clock. 1021 is prime, so over
//! time the timed steps cover all positions in a batch. The latencies do not include failed allocations. Related files:
//! the routines call [`Lane::each`], and `driver.rs` collects the tallies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use zonal::units::Order;

use crate::{Latencies, PageSource};

/// One step in this many is timed.
const TIMED_EVERY: usize = 1021;
/// Steps before the first timed step. It is small, so that short runs have latencies too.
const TIMED_FIRST: usize = 61;
/// Largest recorded latency, ten seconds. Longer latencies are recorded as this value.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// An operation that a routine does many times in a row.
pub(super) trait Operation<P> {
    /// Number of allocations and frees in one step.
    const MOVES: u64;

    /// Performs one step. Returns `false` if an allocation failed or if there was nothing to do.
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool;
}

/// The work that a lane repeats.
pub(super) trait Routine<P>: Send {
    /// Prepares the routine before the measured part.
    fn prepare<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {}

    /// Performs a bounded amount of work, which takes about a millisecond.
    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>);

    /// Whether a run may end now, because the work so far has the usual mix of allocations and frees.
    fn may_end(&self) -> bool {
        true
    }

    /// Frees all frames still held, after the measured part.
    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>);
}

/// One working thread.
pub(super) struct Lane<'a, S> {
    pub(super) source: S,
    over: &'a AtomicBool,
    until_timed: usize,
    clock_cost_ns: u64,
    pub(super) tally: Tally,
}

/// Counts of a lane's operations.
pub(super) struct Tally {
    /// Allocations and frees that succeeded.
    pub(super) operations: u64,
    /// Allocations that failed.
    pub(super) failed: u64,
    /// Latencies of the timed operations, in nanoseconds.
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2);
        Self { operations: 0, failed: 0, latency: latency.expect("constant bounds are valid") }
    }
}

impl<'a, S: PageSource> Lane<'a, S> {
    /// Performs `count` steps, or fewer if one fails. Returns the number of steps that succeeded.
    ///
    /// The operation is passed by value and nothing keeps a reference to it, so its state can stay in registers while
    /// it calls the source.
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

    /// Creates a lane with `source` that ends when `over` becomes true.
    pub(super) fn new(source: S, over: &'a AtomicBool, latencies: Latencies) -> Self {
        let until_timed = match latencies {
            Latencies::Sampled => TIMED_FIRST,
            Latencies::Off => usize::MAX, // no run has this many steps
        };
        Self { source, over, until_timed, clock_cost_ns: clock_cost_ns(), tally: Tally::new() }
    }

    /// Whether the run is over.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) // relaxed: only a flag
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

/// A source whose allocations and frees are timed.
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

    fn alloc(&mut self, order: Order) -> Option<S::Page> {
        let start = Instant::now();
        let page = self.source.alloc(order)?;
        self.record(start);
        Some(page)
    }

    fn free(&mut self, page: S::Page, order: Order) {
        let start = Instant::now();
        self.source.free(page, order);
        self.record(start);
    }

    fn touch(&mut self, page: S::Page) {
        self.source.touch(page);
    }
}

/// Returns the shortest time between two readings of the clock.
fn clock_cost_ns() -> u64 {
    let cost = |_| {
        let start = Instant::now();
        start.elapsed().as_nanos()
    };
    (0..100).map(cost).min().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// Latencies of the timed allocations and frees, in nanoseconds, accurate to about 1 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// Number of operations that were timed. If it is 0, all other fields are 0 too.
    pub samples: u64,
    /// Latency that half of the timed operations did not exceed.
    pub p50_ns: u64,
    /// Latency that 99 % of the timed operations did not exceed.
    pub p99_ns: u64,
    /// Latency that 99.9 % of the timed operations did not exceed.
    pub p999_ns: u64,
    /// Longest latency.
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
