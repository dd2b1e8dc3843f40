//! No sequences for this architecture: no area is ever found, so nothing here is called.

use std::num::NonZeroIsize;

use zonal::cpu_local::NOTHING;

/// Fails.
///
/// # Safety
/// None needed.
pub(super) unsafe fn take(_: NonZeroIsize, homes: *const u8, _: usize, _: u64) -> (*const u8, u64) {
    (homes, NOTHING)
}

/// Fails.
///
/// # Safety
/// None needed.
pub(super) unsafe fn give(_: NonZeroIsize, _: u32, _: *const u8, _: usize, _: u64, _: u32) -> u64 {
    NOTHING
}

/// Fails.
///
/// # Safety
/// None needed.
pub(super) unsafe fn lock(_: NonZeroIsize, _: u32, _: *const u8) -> u64 {
    NOTHING
}

/// No CPU.
///
/// # Safety
/// None needed.
pub(super) unsafe fn current_cpu(_: NonZeroIsize) -> u32 {
    u32::MAX
}
