//! Counts the instructions in a run's measured part, for each thread, if the machine allows it.
//!
//! Only instructions in user space are counted. Virtual machines often have no counters, and kernels may forbid their
//! use. In these cases nothing is counted, and [`Counting::why_not`] returns the reason. Related files:
//! `contender.rs` uses the counts.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use zonal::units::{Order, Pfn};
use zonal_workload::PageSource;

/// Whether instructions can be counted.
#[derive(Clone, Debug)]
pub struct Counting {
    missing: Option<String>,
}

impl Counting {
    /// Checks whether instructions can be counted.
    #[must_use]
    pub fn detect() -> Self {
        let why = |error| format!("the kernel provides no instruction counter on this machine ({error})");
        Self { missing: counter().err().map(why) }
    }

    /// Returns the reason why instructions are not counted, or `None` if they are.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        self.missing.as_deref()
    }
}

/// Creates a counter for the calling thread. The counter is not enabled yet.
fn counter() -> std::io::Result<Counter> {
    Builder::new().kind(Hardware::INSTRUCTIONS).build()
}

/// The sum over a run's lanes. Each *lane* is a thread.
#[derive(Default)]
pub(crate) struct Instructions {
    count: AtomicU64,
    lanes: AtomicUsize,
}

impl Instructions {
    fn add(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed); // relaxed: read after the lanes were joined
        self.lanes.fetch_add(1, Ordering::Relaxed); // relaxed: read after the lanes were joined
    }

    /// Returns the sum if each of `threads` lanes has counted, otherwise `None`.
    pub(crate) fn total(&self, threads: NonZeroUsize) -> Option<u64> {
        // Relaxed: the lanes were joined.
        let all = self.lanes.load(Ordering::Relaxed) == threads.get();
        all.then(|| self.count.load(Ordering::Relaxed)) // relaxed: the lanes were joined
    }
}

/// A source that counts the instructions of its thread in the measured part.
pub(crate) struct Metered<'a, S> {
    source: S,
    counter: Option<Counter>,
    into: &'a Instructions,
}

impl<'a, S> Metered<'a, S> {
    /// Creates a source that counts on the calling thread.
    pub(crate) fn new(source: S, counting: &Counting, into: &'a Instructions) -> Self {
        let counter = if counting.missing.is_none() { counter().ok() } else { None };
        Self { source, counter, into }
    }
}

impl<S: PageSource<Page = Pfn>> PageSource for Metered<'_, S> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.source.alloc(order)
    }

    #[inline(always)]
    fn free(&mut self, page: Pfn, order: Order) {
        self.source.free(page, order);
    }

    fn measuring_begins(&mut self) {
        // If a counter cannot be enabled, the lane has no count, and so the run has none.
        if self.counter.as_mut().is_some_and(|counter| counter.enable().is_err()) {
            self.counter = None;
        }
    }

    fn measuring_ends(&mut self) {
        let Some(counter) = &mut self.counter else { return };
        let read = counter.disable().and_then(|()| counter.read_count_and_time());
        // If other users shared the hardware counter, the count is only an estimate, so it is dropped.
        if let Some(read) = read.ok().filter(|read| read.time_running == read.time_enabled) {
            self.into.add(read.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_missing_if_one_lane_is_not_counted() {
        let instructions = Instructions::default();
        instructions.add(40);
        assert_eq!(instructions.total(NonZeroUsize::new(2).unwrap()), None);
        instructions.add(2);
        assert_eq!(instructions.total(NonZeroUsize::new(2).unwrap()), Some(42));
    }

    #[test]
    fn more_work_is_more_instructions() {
        let counting = Counting::detect();
        if let Some(why) = counting.why_not() {
            zonal_testing::skipped!("instructions cannot be counted here: {why}");
            return;
        }
        let count = |work: u64| {
            let into = Instructions::default();
            let mut metered = Metered::new(crate::harness::Cell::default(), &counting, &into);
            metered.measuring_begins();
            (0..work).for_each(|at| metered.free(Pfn::new(at), Order::PAGE));
            metered.measuring_ends();
            into.total(NonZeroUsize::MIN).unwrap()
        };
        let (little, much) = (count(1000), count(100_000));
        assert!(much > little * 10, "{little} and {much}");
    }
}
