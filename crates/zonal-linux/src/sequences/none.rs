//! Stub for other architectures: no area is ever found there, so nothing here is called.

use std::num::NonZeroIsize;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use zonal::platform::cpu_local::{LockWord, Push};

/// Fails, and returns the first of `slots`.
///
/// # Safety
/// `slots` must have at least one entry.
pub(super) unsafe fn pop(_: NonZeroIsize, slots: *const AtomicU64, _: usize, _: u64) -> (*const u8, u64) {
    // SAFETY: the caller guarantees an entry.
    let first = unsafe { &*slots }.load(Relaxed); // relaxed: any entry is correct
    (std::ptr::with_exposed_provenance(first as usize), u64::MAX)
}

/// Fails.
///
/// # Safety
/// None needed.
pub(super) unsafe fn push(
    _: NonZeroIsize,
    _: u64,
    _: *const u8,
    _: usize,
    _: Push,
    refused: impl FnOnce() -> bool,
) -> bool {
    refused()
}

/// Fails.
///
/// # Safety
/// None needed.
pub(super) unsafe fn lock(_: NonZeroIsize, _: u32, _: *const u8) -> u64 {
    LockWord::LOCKED.bits()
}

/// Returns 0.
///
/// # Safety
/// None needed.
pub(super) unsafe fn current_cpu(_: NonZeroIsize) -> u64 {
    u64::from(u32::MAX)
}
