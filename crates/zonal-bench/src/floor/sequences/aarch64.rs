//! The sequences for aarch64.
//!
//! Each is framed by [`sequence!`]. The kernel restarts the code from `2:` to `3:` at `4:`; a body that finds
//! nothing to do branches to `5:`. The range of branches is too short for another section, so both labels
//! follow a jump. The word before `4:` is the signature that the C library has registered with the kernel. In
//! a body `{line}` is replaced by the CPU's line and `{count}` by its count; `{spare}` is free to use.

use std::arch::asm;
use std::ptr::NonNull;

use super::super::area::Area;
use super::super::lines::Line;

/// Wraps a body in the common beginning and end of all sequences. The body ends with the committing store.
macro_rules! sequence {
    ($area:expr, $lines:expr, [$($body:literal),* $(,)?], $($operands:tt)*) => {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .word 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "7: adrp {spare}, 6b",
            "add {spare}, {spare}, :lo12:6b",
            "str {spare}, [{area}, #8]",
            "2: ldr {line:w}, [{area}, #4]",
            "add {line}, {lines}, {line}, lsl #6",
            "ldr {count}, [{line}]",
            $($body,)*
            "3: b 8f",
            ".inst 0xd428bc00",
            "4: b 7b",
            "5: mov {count}, #-1",
            "8:",
            area = in(reg) $area.as_ptr(),
            lines = in(reg) $lines,
            line = out(reg) _,
            spare = out(reg) _,
            $($operands)*
            options(nostack),
        )
    };
}

/// Pops the last frame; returns it and the remaining count.
///
/// # Safety
/// `area` must be the calling thread's; `lines` must have one line for every CPU that the thread can run on,
/// and be accessed by sequences only.
#[inline]
pub(super) unsafe fn pop(area: NonNull<Area>, lines: *const Line) -> (u32, u64) {
    let (frame, count): (u32, u64);
    // SAFETY: the caller's promises. Below the count the array has frames.
    unsafe {
        sequence!(
            area,
            lines,
            [
                "cbz {count}, 5f",
                "sub {count}, {count}, #1",
                "ldr {spare}, [{line}, #8]",
                "ldr {frame:w}, [{spare}, {count}, lsl #2]",
                "str {count}, [{line}]",
            ],
            count = out(reg) count,
            frame = out(reg) frame,
        );
    }
    (frame, count)
}

/// Pushes a frame; returns the new count.
///
/// # Safety
/// The requirements of [`pop`].
#[inline]
pub(super) unsafe fn push(area: NonNull<Area>, lines: *const Line, frame: u32) -> u64 {
    let count: u64;
    // SAFETY: the caller's promises. Below the capacity the array has free slots.
    unsafe {
        sequence!(
            area,
            lines,
            [
                "ldr {spare}, [{line}, #16]",
                "cmp {count}, {spare}",
                "b.hs 5f",
                "ldr {spare}, [{line}, #8]",
                "str {frame:w}, [{spare}, {count}, lsl #2]",
                "add {count}, {count}, #1",
                "str {count}, [{line}]",
            ],
            count = out(reg) count,
            frame = in(reg) frame,
        );
    }
    count
}

/// Pops the last `many` frames, or none if there are fewer; returns the remaining count.
///
/// # Safety
/// The requirements of [`pop`]; `into` must have `many` elements.
pub(super) unsafe fn pop_many(area: NonNull<Area>, lines: *const Line, into: *mut u32, many: usize) -> u64 {
    let count: u64;
    // SAFETY: the caller's promises. After a restart, everything is copied again.
    unsafe {
        sequence!(
            area,
            lines,
            [
                "subs {count}, {count}, {many}",
                "b.lo 5f",
                "ldr {spare}, [{line}, #8]",
                "add {spare}, {spare}, {count}, lsl #2",
                "mov {at}, #0",
                "9: cmp {at}, {many}",
                "b.hs 12f",
                "ldr {frame:w}, [{spare}, {at}, lsl #2]",
                "str {frame:w}, [{into}, {at}, lsl #2]",
                "add {at}, {at}, #1",
                "b 9b",
                "12: str {count}, [{line}]",
            ],
            count = out(reg) count,
            into = in(reg) into,
            many = in(reg) many,
            at = out(reg) _,
            frame = out(reg) _,
        );
    }
    count
}

/// Pushes `many` frames, or none if there are not enough free slots; returns the new count.
///
/// # Safety
/// The requirements of [`pop`]; there must be `many` frames at `from`.
pub(super) unsafe fn push_many(
    area: NonNull<Area>,
    lines: *const Line,
    from: *const u32,
    many: usize,
) -> u64 {
    let count: u64;
    // SAFETY: the caller's promises. What is written before the last store is beyond the count.
    unsafe {
        sequence!(
            area,
            lines,
            [
                "ldr {spare}, [{line}, #16]",
                "add {at}, {count}, {many}",
                "cmp {at}, {spare}",
                "b.hi 5f",
                "ldr {spare}, [{line}, #8]",
                "add {spare}, {spare}, {count}, lsl #2",
                "mov {at}, #0",
                "9: cmp {at}, {many}",
                "b.hs 12f",
                "ldr {frame:w}, [{from}, {at}, lsl #2]",
                "str {frame:w}, [{spare}, {at}, lsl #2]",
                "add {at}, {at}, #1",
                "b 9b",
                "12: add {count}, {count}, {many}",
                "str {count}, [{line}]",
            ],
            count = out(reg) count,
            from = in(reg) from,
            many = in(reg) many,
            at = out(reg) _,
            frame = out(reg) _,
        );
    }
    count
}
