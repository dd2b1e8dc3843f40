//! Keys that identify the pools of a process in thread-local data.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies one pool of this process. A key is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolKey(NonZeroU64);

impl PoolKey {
    /// Returns a key that no other pool of this process has or had.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: the numbers must only be unique, and they order no other memory accesses.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("2^64 pools are never made"))
    }

    /// Returns the number by which probes and events identify the pool.
    #[inline]
    pub(super) const fn get(self) -> u64 {
        self.0.get()
    }
}
