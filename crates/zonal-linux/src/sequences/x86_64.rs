//! The restartable sequences for x86-64, where the segment `fs` contains the thread's area.
//!
//! Each sequence stores the address of its descriptor in the area, then compares the CPU number. After that
//! comparison the only store that takes effect is the last one, just before label `30:`. The kernel continues an
//! aborted sequence at label `50:`, which must follow a signature. The address of the descriptor stays in the area
//! afterwards (see `sequences/resident.rs`). `Head` explains why the lock word is loaded first; x86-64 never reorders
//! a load with another load.
//!
//! A pageset slot's offset is added to the address of the first slot, so the register holds the address of a slot wherever a
//! sequence is aborted. The instructions use these byte offsets. Area: CPU at 4, descriptor at 8. Pageset slot: address of the head at 0,
//! address of the slots at 8. Head: lock word at 0, word at 8, limits at 16 and 24. The word's lowest 27 bits are the
//! number of free slots.

use std::arch::asm;
use std::num::NonZeroIsize;
use std::sync::atomic::AtomicU64;

use zonal::platform::cpu_local::Push;

macro_rules! sequence {
    ([$($body:literal)*] [$($failed:literal)*] $($operands:tt)*) => {
        asm!(
            "lea {t}, [rip + 40f]",
            "mov qword ptr fs:[{area} + 8], {t}",
            "20:",
            $($body,)*
            "30:",
            ".pushsection .text.unlikely.zonal_sequences, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "50:",
            $($failed,)*
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "40:",
            ".long 0, 0",
            ".quad 20b, 30b - 20b, 50b",
            ".popsection",
            "60:",
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
            "mov {t:e}, fs:[{area} + 4]"
            "cmp {t}, {count_lock_word}"
            "jae 50f"
            "add {slot}, [{current} + {t} * 8]"
            "mov {head}, [{slot}]"
            "mov {count_lock_word}, [{head}]"
            "mov {t}, [{head} + 8]"
            "add {next}, {t}"
            "mov {limit}, [{head} + 16]"
            "add {limit}, {next}"
            "test {count_lock_word}, {limit}"
            "jnz 50f"
            "mov {limit}, [{slot} + 8]"
            "and {t:e}, 0x7ffffff"
            "mov {t:e}, [{limit} + {t} * 4]"
            "mov [{head} + 8], {next}"
        ] ["mov {t}, -1" "jmp 60f"]
            area = in(reg) area.get(), current = in(reg) current, count_lock_word = inout(reg) count => _,
            next = inout(reg) step => _, slot = inout(reg) table => slot, t = out(reg) frame,
            head = out(reg) _, limit = out(reg) _,
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
            "cmp dword ptr fs:[{area} + 4], {cpu_lock_word:e}"
            "jne 50f"
            "mov {cpu_lock_word}, [{head}]"
            "mov {t}, [{head} + 8]"
            "add {next}, {t}"
            "mov {limit}, [{head} + 16]"
            "add {limit}, {next}"
            "test {cpu_lock_word}, {limit}"
            "jnz 50f"
            "and {t:e}, 0x7ffffff"
            "mov {t:e}, [{slots} + {t} * 4]"
            "mov [{head} + 8], {next}"
        ] ["mov {t}, -1" "jmp 60f"]
            area = in(reg) area.get(), cpu_lock_word = inout(reg) cpu => _, head = in(reg) head,
            slots = in(reg) slots, next = inout(reg) step => _, t = out(reg) frame, limit = out(reg) _,
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
            "cmp dword ptr fs:[{area} + 4], {cpu_lock_word:e}"
            "jne 50f"
            "mov {cpu_lock_word}, [{head}]"
            "mov {next}, [{head} + 8]"
            "sub {next}, {step}"
            "mov {t}, [{head} + 24]"
            "sub {t}, {next}"
            "test {cpu_lock_word}, {t}"
            "jnz 50f"
            "mov {t:e}, {next:e}"
            "and {t:e}, 0x7ffffff"
            "mov [{slots} + {t} * 4], {frame:e}"
            "mov [{head} + 8], {next}"
        ] ["jmp {refused}"]
            area = in(reg) area.get(), cpu_lock_word = inout(reg) cpu => _, head = in(reg) head,
            slots = in(reg) slots, step = in(reg) push.step.bits(), frame = in(reg) push.frame, t = out(reg) _,
            next = out(reg) _, refused = label { return refused() },
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
            "cmp dword ptr fs:[{area} + 4], {cpu:e}"
            "jne 50f"
            "mov {t}, [{head}]"
            "cmp {t}, -2"
            "jae 50f"
            "mov qword ptr [{head}], -1"
        ] ["mov {t}, -1" "jmp 60f"]
            area = in(reg) area.get(), cpu = in(reg) cpu, head = in(reg) head, t = out(reg) lock_word,
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
        asm!("mov {cpu:e}, fs:[{area} + 4]", cpu = out(reg) cpu, area = in(reg) area.get(),
            options(nostack, preserves_flags, readonly));
    }
    cpu
}
