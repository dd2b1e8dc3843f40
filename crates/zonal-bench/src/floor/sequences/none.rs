//! Stubs for architectures without sequences. No thread has an area there, so these functions are never called.

use std::ptr::NonNull;

use super::super::area::Area;
use super::super::lines::Line;

const NEVER: &str = "without an area there is no way to the arrays";

pub(super) unsafe fn pop(_area: NonNull<Area>, _lines: *const Line) -> (u32, u64) {
    unreachable!("{NEVER}")
}

pub(super) unsafe fn push(_area: NonNull<Area>, _lines: *const Line, _frame: u32) -> u64 {
    unreachable!("{NEVER}")
}

pub(super) unsafe fn pop_many(
    _area: NonNull<Area>,
    _lines: *const Line,
    _into: *mut u32,
    _many: usize,
) -> u64 {
    unreachable!("{NEVER}")
}

pub(super) unsafe fn push_many(
    _area: NonNull<Area>,
    _lines: *const Line,
    _from: *const u32,
    _many: usize,
) -> u64 {
    unreachable!("{NEVER}")
}
