//! The sequences for x86-64.
//!
//! Each is framed by [`sequence!`]. The kernel restarts the code from `2:` to `3:` at `4:`; a body that finds
//! nothing to do branches to `5:`. Both are out of the way in a section of their own, and so is the
//! description that the kernel reads. The bytes before `4:` are the signature that the C library has
//! registered with the kernel. In a body `{line}` is replaced by the CPU's line and `{count}` by its count;
//! `{spare}` is free to use.

use std::arch::asm;
use std::ptr::NonNull;

use super::super::area::Area;
use super::super::lines::Line;

/// Wraps a body in the common beginning and end of all sequences.
macro_rules! sequence {
    ($area:expr, $lines:expr, [$($body:literal),* $(,)?], $($operands:tt)*) => {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "7: lea {spare}, [rip + 6b]",
            "mov [{area} + 8], {spare}",
            "2: mov {line:e}, [{area} + 4]",
            "shl {line}, 6",
            "add {line}, {lines}",
            "mov {count}, [{line}]",
            $($body,)*
            "3:",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 7b",
            "5: mov {count}, -1",
            "jmp 3b",
            ".popsection",
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
                "sub {count}, 1",
                "jb 5f",
                "mov {spare}, [{line} + 8]",
                "mov {frame:e}, [{spare} + 4 * {count}]",
                "mov [{line}], {count}",
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
                "cmp {count}, [{line} + 16]",
                "jae 5f",
                "mov {spare}, [{line} + 8]",
                "mov [{spare} + 4 * {count}], {frame:e}",
                "add {count}, 1",
                "mov [{line}], {count}",
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
                "sub {count}, {many}",
                "jb 5f",
                "mov rsi, [{line} + 8]",
                "lea rsi, [rsi + 4 * {count}]",
                "mov rdi, {into}",
                "mov rcx, {many}",
                "rep movsd",
                "mov [{line}], {count}",
            ],
            count = out(reg) count,
            into = in(reg) into,
            many = in(reg) many,
            out("rsi") _,
            out("rdi") _,
            out("rcx") _,
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
                "lea {spare}, [{count} + {many}]",
                "cmp {spare}, [{line} + 16]",
                "ja 5f",
                "mov rdi, [{line} + 8]",
                "lea rdi, [rdi + 4 * {count}]",
                "mov {count}, {spare}",
                "mov rsi, {from}",
                "mov rcx, {many}",
                "rep movsd",
                "mov [{line}], {count}",
            ],
            count = out(reg) count,
            from = in(reg) from,
            many = in(reg) many,
            out("rsi") _,
            out("rdi") _,
            out("rcx") _,
        );
    }
    count
}
