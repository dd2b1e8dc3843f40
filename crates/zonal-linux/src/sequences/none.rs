//! Stubs for other architectures. No restartable-sequence area is found there, so these functions are never called.

use std::num::NonZeroIsize;
use std::sync::atomic::AtomicU64;

use zonal::platform::cpu_local::{LockWord, Push};

/// Pops nothing, and returns `table`.
///
/// # Safety
/// This function has no safety requirements.
pub(super) unsafe fn pop(
    _: NonZeroIsize,
    table: *const u8,
    _: *const AtomicU64,
    _: usize,
    _: u64,
) -> (*const u8, u64) {
    (table, u64::MAX)
}

/// Pops nothing.
///
/// # Safety
/// This function has no safety requirements.
pub(super) unsafe fn pop_from(_: NonZeroIsize, _: u64, _: *const u8, _: usize, _: u64) -> u64 {
    u64::MAX
}

/// Pushes nothing, and returns the result of `refused`.
///
/// # Safety
/// This function has no safety requirements.
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

/// Locks nothing, and returns `LockWord::LOCKED`.
///
/// # Safety
/// This function has no safety requirements.
pub(super) unsafe fn lock(_: NonZeroIsize, _: u32, _: *const u8) -> u64 {
    LockWord::LOCKED.bits()
}

/// Returns `u32::MAX`, which is no CPU.
///
/// # Safety
/// This function has no safety requirements.
pub(super) unsafe fn current_cpu(_: NonZeroIsize) -> u64 {
    u64::from(u32::MAX)
}
