//! Measurements that programs make of their own operations within a virtual time span.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use crate::sim::{Time, World};
use crate::system::System;

/// The total time that threads waited for locks within a span, and the frames that they moved under a zone's lock.
pub(super) struct LockTime {
    span: Range<Time>,
    sum: Cell<Time>,
    moved: Cell<u64>,
}

impl LockTime {
    pub(super) fn within(span: &Range<Time>) -> Self {
        Self { span: span.clone(), sum: Cell::default(), moved: Cell::new(0) }
    }

    /// Runs `work` and adds the time for which it waits for locks.
    pub(super) fn of<R>(&self, system: &System<'_, '_>, work: impl FnOnce() -> R) -> R {
        let world = system.sim.world;
        if !self.span.contains(&world.now()) {
            return work();
        }
        let account = |world: &World| world.account_of(world.thread());
        let before = account(world);
        let result = work();
        let after = account(world);
        self.sum.set(self.sum.get() + (after.lock_wait - before.lock_wait));
        self.moved.set(self.moved.get() + (after.moved - before.moved));
        result
    }

    /// Returns how many frames the measured work moved under a zone's lock.
    pub(super) fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// Returns the total waiting time, in percent of the time that `threads` threads have in the span.
    pub(super) fn percent(&self, threads: usize) -> f64 {
        let all = (self.span.end - self.span.start).seconds() * threads as f64;
        100.0 * self.sum.get().seconds() / all
    }
}

/// The latencies of operations within a span, stored as a histogram because a run has many more operations than
/// distinct latencies.
pub(super) struct Latencies {
    span: Range<Time>,
    /// Number of operations, by latency.
    counts: RefCell<BTreeMap<Time, u64>>,
}

impl Latencies {
    pub(super) fn within(span: &Range<Time>) -> Self {
        Self { span: span.clone(), counts: RefCell::default() }
    }

    /// Runs `work` and records its duration.
    pub(super) fn of<R>(&self, world: &World, work: impl FnOnce() -> R) -> R {
        let before = world.now();
        let result = work();
        if self.span.contains(&before) {
            *self.counts.borrow_mut().entry(world.now() - before).or_default() += 1;
        }
        result
    }

    /// Returns the latency, in microseconds, that `percent` percent of the operations did not exceed. Returns `None` if
    /// there were no operations.
    pub(super) fn percentile_us(&self, percent: f64) -> Option<f64> {
        let counts = self.counts.borrow();
        let all: u64 = counts.values().sum();
        let at = (all.saturating_sub(1) as f64 * percent / 100.0) as u64;
        let mut passed = 0;
        let reached = counts.iter().find(|(_, count)| {
            passed += **count;
            passed > at
        });
        reached.map(|(time, _)| time.ps() as f64 / 1e6)
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
