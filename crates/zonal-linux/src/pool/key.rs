//! Tells the pools of a process apart in what is kept per thread.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// One pool of this process; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolKey(NonZeroU64);

impl PoolKey {
    /// A key that no pool had before.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the numbers' being different matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("2^64 pools are never made"))
    }
}
