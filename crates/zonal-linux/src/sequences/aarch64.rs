//! The restartable sequences for aarch64, where the register `tpidr_el0` contains the thread pointer.
//!
//! Each sequence stores the address of its descriptor in the area, then compares the CPU number. After that
//! comparison the only store that takes effect is the last one, just before label `30:`. The kernel continues an
//! aborted sequence at label `50:`, which must follow a signature. The address of the descriptor stays in the area
//! afterwards (see `sequences/resident.rs`). `Head` explains why the lock word is loaded first; that load must
//! acquire, because aarch64 may reorder loads.
//!
//! The instructions use these byte offsets. Area: CPU at 4, descriptor at 8. Pageset slot: address of the head at 0,
//! address of the slots at 8. Head: lock word at 0, word at 8, limits at 16 and 24. The word's lowest 27 bits are the
//! number of free slots.

use std::arch::asm;
use std::num::NonZeroIsize;
use std::sync::atomic::AtomicU64;

use zonal::platform::cpu_local::Push;

macro_rules! sequence {
    ([$($body:literal)*] [$($failed:literal)*] $($operands:tt)*) => {
        asm!(
            "mrs {own}, tpidr_el0",
            "add {own}, {own}, {area}",
            "adrp {t}, 40f",
            "add {t}, {t}, :lo12:40f",
            "str {t}, [{own}, #8]",
            "20:",
            "ldr {t:w}, [{own}, #4]",
            $($body,)*
            "30:",
            "b 60f",
            ".inst 0xd428bc00",
            "50:",
            $($failed,)*
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "40:",
            ".long 0, 0",
            ".quad 20b, 30b - 20b, 50b",
            ".popsection",
            "60:",
            own = out(reg) _,
            $($operands)*
            options(nostack),
        )
    };
}

/// Pops the top frame of the stack in the current CPU's pageset slot. Returns the address of that pageset slot and
/// the frame. On failure, returns the address of any pageset slot and all bits set.
///
/// # Safety
/// `area` must be the offset of the registered area. `table` must be the first of the pageset slots, and `current` must point to
/// the offsets from it of `count` pageset slots, indexed by CPU.
#[inline(always)]
pub(super) unsafe fn pop(
    area: NonZeroIsize,
    table: *const u8,
    current: *const AtomicU64,
    count: usize,
    step: u64,
) -> (*const u8, u64) {
    let (slot, frame);
    // SAFETY: the caller guarantees valid addresses. A pop that commits moves the word by one step within the limits.
    unsafe {
        sequence!([
            "cmp {t}, {count}"
            "b.hs 50f"
            "ldr {head}, [{current}, {t}, lsl #3]"
            "add {slot}, {slot}, {head}"
            "ldr {head}, [{slot}]"
            "ldar {lock_word}, [{head}]"
            "ldr {t}, [{head}, #8]"
            "add {next}, {t}, {step}"
            "ldr {other}, [{head}, #16]"
            "add {other}, {other}, {next}"
            "tst {other}, {lock_word}"
            "b.ne 50f"
            "ldr {other}, [{slot}, #8]"
            "and {t}, {t}, #0x7ffffff"
            "ldr {t:w}, [{other}, {t}, lsl #2]"
            "str {next}, [{head}, #8]"
        ] ["mov {t}, #-1"]
            area = in(reg) area.get(), current = in(reg) current, count = in(reg) count, step = in(reg) step,
            slot = inout(reg) table => slot, t = out(reg) frame, head = out(reg) _, next = out(reg) _,
            other = out(reg) _, lock_word = out(reg) _,
        );
    }
    (slot, frame)
}

/// Pops the top frame from the stack of `cpu` at `slots`. Returns the frame or, on failure, all bits set.
///
/// # Safety
/// `area` must be the offset of the registered area, and `head` must be the head of the stack at `slots`.
#[inline(always)]
pub(super) unsafe fn pop_from(area: NonZeroIsize, cpu: u64, head: *const u8, slots: usize, step: u64) -> u64 {
    let frame;
    // SAFETY: the caller guarantees valid addresses. A pop that commits moves the word by one step within the limits.
    unsafe {
        sequence!([
            "cmp {t:w}, {cpu:w}"
            "b.ne 50f"
            "ldar {lock_word}, [{head}]"
            "ldr {t}, [{head}, #8]"
            "add {next}, {t}, {step}"
            "ldr {other}, [{head}, #16]"
            "add {other}, {other}, {next}"
            "tst {other}, {lock_word}"
            "b.ne 50f"
            "and {t}, {t}, #0x7ffffff"
            "ldr {t:w}, [{slots}, {t}, lsl #2]"
            "str {next}, [{head}, #8]"
        ] ["mov {t}, #-1"]
            area = in(reg) area.get(), cpu = in(reg) cpu, head = in(reg) head, slots = in(reg) slots,
            step = in(reg) step, t = out(reg) frame, next = out(reg) _, other = out(reg) _,
            lock_word = out(reg) _,
        );
    }
    frame
}

/// Pushes a frame on the stack of `cpu` and returns true, or returns the result of `refused`.
///
/// # Safety
/// `area` must be the offset of the registered area, and `head` must be the head of the stack at `slots`.
#[inline(always)]
pub(super) unsafe fn push(
    area: NonZeroIsize,
    cpu: u64,
    head: *const u8,
    slots: usize,
    push: Push,
    refused: impl FnOnce() -> bool,
) -> bool {
    // SAFETY: the caller guarantees valid addresses. The slot written is not part of the stack until the word
    // includes it.
    unsafe {
        sequence!([
            "cmp {t:w}, {cpu:w}"
            "b.ne 50f"
            "ldar {lock_word}, [{head}]"
            "ldr {next}, [{head}, #8]"
            "sub {next}, {next}, {step}"
            "ldr {t}, [{head}, #24]"
            "sub {t}, {t}, {next}"
            "tst {t}, {lock_word}"
            "b.ne 50f"
            "and {t}, {next}, #0x7ffffff"
            "str {frame:w}, [{slots}, {t}, lsl #2]"
            "str {next}, [{head}, #8]"
        ] ["b {refused}"]
            area = in(reg) area.get(), cpu = in(reg) cpu, head = in(reg) head, slots = in(reg) slots,
            step = in(reg) push.step.bits(), frame = in(reg) push.frame, t = out(reg) _, next = out(reg) _,
            lock_word = out(reg) _, refused = label { return refused() },
        );
    }
    true
}

/// Locks an unlocked head of `cpu` and returns its previous lock word, or `LockWord::LOCKED`.
///
/// # Safety
/// `area` must be the offset of the registered area, and `head` must point to a head.
#[inline(always)]
pub(super) unsafe fn lock(area: NonZeroIsize, cpu: u32, head: *const u8) -> u64 {
    let lock_word;
    // SAFETY: the caller guarantees valid addresses.
    unsafe {
        sequence!([
            "cmp {t:w}, {cpu:w}"
            "b.ne 50f"
            "ldar {t}, [{head}]"
            "cmn {t}, #2"
            "b.hs 50f"
            "mov {shut}, #-1"
            "str {shut}, [{head}]"
        ] ["mov {t}, #-1"]
            area = in(reg) area.get(), cpu = in(reg) cpu, head = in(reg) head, t = out(reg) lock_word,
            shut = out(reg) _,
        );
    }
    lock_word
}

/// Returns the CPU number in the area, which the kernel maintains. The 32-bit load zero-extends the number.
///
/// # Safety
/// `area` must be the offset of the registered area.
#[inline(always)]
pub(super) unsafe fn current_cpu(area: NonZeroIsize) -> u64 {
    let cpu: u64;
    // SAFETY: the caller guarantees the offset. `pure` is absent because the kernel changes the field at any time.
    unsafe {
        asm!("mrs {tp}, tpidr_el0", "add {tp}, {tp}, {area}", "ldr {cpu:w}, [{tp}, #4]",
            tp = out(reg) _, cpu = out(reg) cpu, area = in(reg) area.get(),
            options(nostack, preserves_flags, readonly));
    }
    cpu
}
