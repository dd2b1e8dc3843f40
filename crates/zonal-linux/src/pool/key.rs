//! Keys that distinguish the pools of a process in per-thread data.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies one pool of this process; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolKey(NonZeroU64);

impl PoolKey {
    /// Returns a key that no pool had before.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness of the numbers matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("2^64 pools are never made"))
    }
}
