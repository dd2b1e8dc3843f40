//! The restartable sequences for aarch64.
//!
//! The macro [`sequence!`] wraps each body. If the kernel interrupts the code between the labels `2:` and `3:`, it
//! continues at `4:`, which starts the sequence again. A body that finds nothing to do branches to `5:`. Branches do
//! not reach another section, so both labels follow the code and the code jumps over them. The word before `4:` is
//! the signature that the C library has registered with the kernel. In a body, `{line}` is the register with the
//! address of the CPU's line, `{count}` has the line's count, and `{spare}` is free for use.

use std::arch::asm;
use std::ptr::NonNull;

use super::super::area::Area;
use super::super::lines::Line;

/// Adds the common beginning and end of all sequences to a body. The body must end with the committing store.
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

/// Pops the last frame. Returns the frame and the remaining count.
///
/// # Safety
/// `area` must be the calling thread's area. `lines` must have one line for every CPU on which the thread can run,
/// and must be accessed only by sequences.
#[inline]
pub(super) unsafe fn pop(area: NonNull<Area>, lines: *const Line) -> (u32, u64) {
    let (frame, count): (u32, u64);
    // SAFETY: the caller guarantees a valid area and lines. The slots below the count contain frames.
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

/// Pushes a frame. Returns the new count.
///
/// # Safety
/// The requirements of [`pop`].
#[inline]
pub(super) unsafe fn push(area: NonNull<Area>, lines: *const Line, frame: u32) -> u64 {
    let count: u64;
    // SAFETY: the caller guarantees a valid area and lines. The slots from the count up to the capacity are free.
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

/// Pops the last `many` frames, or none if there are fewer. Returns the remaining count.
///
/// # Safety
/// Those of [`pop`]. In addition, `into` must have `many` elements.
pub(super) unsafe fn pop_many(area: NonNull<Area>, lines: *const Line, into: *mut u32, many: usize) -> u64 {
    let count: u64;
    // SAFETY: the caller guarantees valid pointers. After a restart, the sequence copies everything again.
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

/// Pushes `many` frames, or none if there are not enough free slots. Returns the new count.
///
/// # Safety
/// Those of [`pop`]. In addition, `from` must point to `many` frames.
pub(super) unsafe fn push_many(
    area: NonNull<Area>,
    lines: *const Line,
    from: *const u32,
    many: usize,
) -> u64 {
    let count: u64;
    // SAFETY: the caller guarantees valid pointers. All stores before the last one are to slots beyond the count.
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
