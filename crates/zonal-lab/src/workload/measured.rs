//! What programs measure of themselves within a span of the run.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::hands::Hands;
use crate::sim::{Time, World};

/// A sum of time that threads waited for locks, within a span.
pub(super) struct LockTime {
    span: Range<Time>,
    sum: Cell<Time>,
}

impl LockTime {
    pub(super) fn within(span: &Range<Time>) -> Self {
        Self { span: span.clone(), sum: Cell::default() }
    }

    /// Does `work`, and adds what it waits for locks.
    pub(super) fn of<R>(&self, hands: &Hands<'_, '_>, work: impl FnOnce() -> R) -> R {
        let world = hands.sim.world;
        if !self.span.contains(&world.now()) {
            return work();
        }
        let waited = |world: &World| world.account_of(world.thread()).lock_wait;
        let before = waited(world);
        let result = work();
        self.sum.set(self.sum.get() + (waited(world) - before));
        result
    }

    /// In percent of the time of so many threads over the span.
    pub(super) fn percent(&self, threads: usize) -> f64 {
        let all = (self.span.end - self.span.start).seconds() * threads as f64;
        100.0 * self.sum.get().seconds() / all
    }
}

/// How long single operations took, within a span.
pub(super) struct Latencies {
    span: Range<Time>,
    picoseconds: RefCell<Vec<u64>>,
}

impl Latencies {
    pub(super) fn within(span: &Range<Time>) -> Self {
        Self { span: span.clone(), picoseconds: RefCell::default() }
    }

    /// Does `work`, and notes how long it took.
    pub(super) fn of<R>(&self, world: &World, work: impl FnOnce() -> R) -> R {
        let before = world.now();
        let result = work();
        if self.span.contains(&before) {
            self.picoseconds.borrow_mut().push((world.now() - before).ps());
        }
        result
    }

    /// The time that so many percent of the operations did not exceed, in microseconds; 0 when there
    /// were none.
    pub(super) fn percentile_us(&self, percent: f64) -> f64 {
        let all = &mut *self.picoseconds.borrow_mut();
        if all.is_empty() {
            return 0.0;
        }
        let at = ((all.len() - 1) as f64 * percent / 100.0) as usize;
        *all.select_nth_unstable(at).1 as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_a_share_of_the_time_of_all_threads() {
        let seconds = |seconds: u64| Time::from_ns(seconds as f64 * 1e9);
        let waits = LockTime::within(&(seconds(1)..seconds(5)));
        waits.sum.set(seconds(1));
        assert_eq!(waits.percent(2), 12.5);
    }
}
