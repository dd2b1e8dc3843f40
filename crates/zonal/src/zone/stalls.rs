//! How long callers of a node were stalled by direct reclaim, in seconds of the last five minutes.
//!
//! Each second has a bucket with the time in which at least one caller was stalled. Linux: the `some` line of
//! `/proc/pressure/memory`, which has decaying averages instead. Related file: `reclaim/pressure.rs` records stalls.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::lock::Held;
use crate::platform::pressure::StallShares;
use crate::platform::{Atomic, Platform};
use crate::units::{Moment, SECOND_NS};

/// Whole seconds of the longest window, and the current second.
const BUCKETS: u64 = 301;

all_zero! {
    /// The stalls of a node's callers.
    ///
    /// Invariants while the lock is free: `stalled` callers are stalled now, and the time in which any was stalled is in
    /// the buckets up to `since`, which only grows. Bucket `s % 301` is of second `s`, for the 301 seconds up to that of
    /// `since`; it has at most a second.
    pub(crate) struct StallCells<P> {
        lock: lock,
        stalled: u64,
        since: u64,
        buckets: [u32; BUCKETS as usize],
    }
}

// Every access is relaxed, because the lock orders them.
impl<P: Platform> StallCells<P> {
    /// Records that a caller is stalled from now on.
    pub(crate) fn begin(&self, now: Moment) {
        let _held = self.settle(now);
        self.stalled.fetch_add(1, Relaxed);
    }

    /// Records that a caller is no longer stalled.
    pub(crate) fn end(&self, now: Moment) {
        let _held = self.settle(now);
        // The caller may have been forgotten.
        self.stalled.store(self.stalled.load(Relaxed).saturating_sub(1), Relaxed);
    }

    /// Records that no caller is stalled, because one of them may have died.
    pub(crate) fn forget_callers(&self, now: Moment) {
        let held = self.settle(now);
        self.stalled.store(0, Relaxed);
        held.repair_with(|| {});
    }

    /// Returns the shares of the windows that end now.
    pub(crate) fn shares(&self, now: Moment) -> StallShares {
        let _held = self.settle(now);
        // The clock may have been set back; the newest bucket then stays that of the latest time.
        let last = self.since.load(Relaxed) / SECOND_NS;
        let begun = now.ns().saturating_sub(last * SECOND_NS).min(SECOND_NS);
        let share = |seconds: u64| {
            let first = last.saturating_sub(seconds);
            let sum: u64 = (first..=last).map(|second| u64::from(self.bucket(second).load(Relaxed))).sum();
            (sum * 10_000 / (seconds * SECOND_NS + begun)).min(10_000) as u16
        };
        StallShares { last_10s: share(10), last_60s: share(60), last_300s: share(300) }
    }

    fn bucket(&self, second: u64) -> &P::U32 {
        &self.buckets[(second % BUCKETS) as usize]
    }

    /// Acquires the lock, empties the buckets of new seconds, and adds the time since the last call to the buckets if a caller is
    /// stalled. Adds nothing twice if the clock of another process is ahead.
    fn settle(&self, now: Moment) -> Held<'_, P::Lock> {
        let (held, now, since) = (Held::wait(&self.lock), now.ns(), self.since.load(Relaxed));
        let (last, second) = (since / SECOND_NS, now / SECOND_NS);
        if second > last {
            let from = (last + 1).max(second.saturating_sub(BUCKETS - 1));
            (from..=second).for_each(|second| self.bucket(second).store(0, Relaxed));
        }
        // After the buckets are empty, because a process may die between any two stores.
        self.since.store(now.max(since), Relaxed);
        let is_stalled = self.stalled.load(Relaxed) != 0;
        let mut at = since.max(second.saturating_sub(BUCKETS - 1) * SECOND_NS);
        while is_stalled && at < now {
            let until = (at / SECOND_NS + 1).saturating_mul(SECOND_NS).min(now);
            let bucket = self.bucket(at / SECOND_NS);
            let sum = u64::from(bucket.load(Relaxed)) + (until - at);
            bucket.store(sum.min(SECOND_NS) as u32, Relaxed);
            at = until;
        }
        held
    }
}
