//! The restartable sequences for x86-64.
//!
//! The macro [`sequence!`] wraps each body. If the kernel interrupts the code between the labels `2:` and `3:`, it
//! continues at `4:`, which starts the sequence again. A body that finds nothing to do branches to `5:`. Both labels
//! are in a separate section, away from the fast path, and so is the descriptor that the kernel reads. The bytes before
//! `4:` are the signature that the C library has registered with the kernel. In a body, `{line}` is the register with
//! the address of the CPU's line, `{count}` has the line's count, and `{spare}` is free for use.

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
