//! Access to the current CPU's pagesets without atomic instructions, by restartable sequences.
//!
//! A sequence is a few instructions that end in one store. If the kernel preempts or migrates the thread, or delivers
//! a signal to it, before that store, the thread continues at the sequence's *abort* address. The sequence has then
//! changed nothing, and its caller falls back to the slow path. A remote drain excludes sequences with the lock word
//! in the pageset's `Head` and with `membarrier(2)`, a memory barrier that restarts running sequences. The contract
//! of [`Head`] orders the accesses. Each thread has an *area* that the C library registers with the kernel. A
//! sequence leaves the address of its descriptor there, so the library must never be unloaded. [`TryLock`] is used
//! instead where an area or the barrier is missing, where the library can be unloaded, or where threads may act as a
//! CPU other than their own. `sequences/x86_64.rs` and `sequences/aarch64.rs` contain the instructions,
//! `sequences/current_cpu.rs` finds the area, and `sequences/resident.rs` prevents unloading. Source: Linux
//! `rseq(2)`, `membarrier(2)`.

pub(crate) mod current_cpu;
mod once;
pub(crate) mod resident;
pub(crate) mod shared_count;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod instructions;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod instructions;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "none.rs"]
mod instructions;

use std::num::NonZeroIsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use zonal::Platform;
use zonal::platform::cpu_local::{
    CpuLocal, Head, LockWord, PagesetSlot, PagesetSlots, Popped, Push, Step, TryLock, lock_remotely,
};
use zonal::units::CpuId;

use crate::topology::affinity::CpuSet;
use current_cpu::{AreaUse, area_offset, ask_the_kernel};
use once::Once;
use resident::stays_in_memory;

/// Access to the pagesets of the current CPU, on every platform whose cells are standard atomics.
#[derive(Clone, Copy, Debug)]
pub struct Sequences {
    /// Offset of each thread's area from its thread pointer; `None` if sequences cannot be used.
    area: Option<NonZeroIsize>,
    /// Id of the allocator's CPU that is the machine's CPU 0; not 0 if processes share a pool.
    first_cpu: u32,
}

/// The instructions contain these values as literals.
const _: () =
    assert!(LockWord::LOCKED.bits() == u64::MAX && LockWord::LOCKED_REMOTELY.bits() == u64::MAX - 1);

/// Stops the build if the offsets in the instructions differ from those of the structures.
const fn assert_layout<P: Platform>() {
    use std::mem::offset_of;
    assert!(size_of::<PagesetSlot<P>>() == 64);
    assert!(offset_of!(PagesetSlot<P>, head) == 0);
    assert!(offset_of!(PagesetSlot<P>, slots_at) == 8);
    assert!(offset_of!(Head<P>, lock_word) == 0);
    assert!(offset_of!(Head<P>, word) == 8);
    assert!(offset_of!(Head<P>, pop_limit) == 16);
    assert!(offset_of!(Head<P>, push_limit) == 24);
}

// The bound on the cells: the instructions access standard atomics only.
impl<P: Platform<U32 = AtomicU32, U64 = AtomicU64>> CpuLocal<P> for Sequences {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return pop_by_lock(platform, slots, step) };
        let (table, current) = (slots.table().as_ptr(), slots.current());
        let (first, count) = (current.as_ptr(), current.len());
        // SAFETY: `area` is valid for all threads. The limits keep the index into the stack below its number of
        // slots.
        let (slot, frame) = unsafe { instructions::pop(area, table.cast(), first, count, step.bits()) };
        // SAFETY: a sequence returns the first pageset slot, or the one at an offset in `current`.
        (unsafe { &*slot.cast() }, Popped::from_bits(frame))
    }

    #[inline(always)]
    fn pop_current_if<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return pop_if_by_lock(platform, slots, step, accepts) };
        // SAFETY: `area` is valid for all threads.
        let cpu = unsafe { instructions::current_cpu(area) };
        let slot = slot_of(slots, cpu)?;
        if !accepts(slot) {
            return None;
        }
        let head = std::ptr::from_ref(slot.head).cast();
        // SAFETY: `area` is valid for all threads. The limits keep the index into the stack below its number of
        // slots.
        let frame = unsafe { instructions::pop_from(area, cpu, head, slot.slots_at, step.bits()) };
        Some((slot, Popped::from_bits(frame)))
    }

    #[inline(always)]
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return push_by_lock(platform, slots, prepare, refused) };
        // SAFETY: `area` is valid for all threads.
        let cpu = unsafe { instructions::current_cpu(area) };
        let Some(slot) = slot_of(slots, cpu) else { return false };
        let Some(push) = prepare(slot) else { return false };
        let head = std::ptr::from_ref(slot.head).cast();
        let refused = || refused(slot, push);
        // SAFETY: `area` is valid for all threads. The limits keep the index into the stack below its number of
        // slots.
        unsafe { instructions::push(area, cpu, head, slot.slots_at, push, refused) }
    }

    #[inline(always)]
    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, step: Step) -> Popped {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return TryLock.pop_from(cpu, slot, step) };
        let (cpu, head) = (u64::from(self.real(cpu)), std::ptr::from_ref(slot.head).cast());
        // SAFETY: `area` is valid for all threads. The limits keep the index into the stack below its number of
        // slots.
        Popped::from_bits(unsafe { instructions::pop_from(area, cpu, head, slot.slots_at, step.bits()) })
    }

    #[inline(always)]
    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return TryLock.push_to(cpu, slot, push) };
        let (cpu, head) = (u64::from(self.real(cpu)), std::ptr::from_ref(slot.head).cast());
        // SAFETY: `area` is valid for all threads. The limits keep the index into the stack below its number of
        // slots.
        unsafe { instructions::push(area, cpu, head, slot.slots_at, push, || false) }
    }

    #[inline]
    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool {
        const { assert_layout::<P>() };
        let Some(area) = self.area else { return TryLock.lock(cpu, head) };
        // SAFETY: `area` is valid for all threads.
        let lock_word = unsafe { instructions::lock(area, self.real(cpu), std::ptr::from_ref(head).cast()) };
        lock_word != LockWord::LOCKED.bits()
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        match self.area {
            Some(_) => lock_remotely(head, || restart_sequences(CpuId::new(self.real(cpu)))),
            None => TryLock.lock_remote(cpu, head),
        }
    }
}

/// Returns the pageset slot that `cpu` uses, or `None` for a CPU that the machine does not have.
#[inline(always)]
fn slot_of<'m, P>(slots: &PagesetSlots<'m, P>, cpu: u64) -> Option<&'m PagesetSlot<'m, P>>
where
    P: Platform<U32 = AtomicU32, U64 = AtomicU64>,
{
    // Relaxed: the entry belongs to this CPU, and every pageset slot is initialized before the table is shared.
    let offset = slots.current().get(cpu as usize)?.load(Relaxed) as usize;
    // SAFETY: every entry is the offset of a slot in the table.
    let slot = unsafe { slots.table().as_ptr().byte_add(offset) };
    // SAFETY: slots live as long as their table.
    Some(unsafe { &*slot })
}

// The fallbacks are separate functions, so that each caller contains the instructions of one implementation only.

#[inline(never)]
fn pop_by_lock<'m, P: Platform>(
    platform: &P,
    slots: &PagesetSlots<'m, P>,
    step: Step,
) -> (&'m PagesetSlot<'m, P>, Popped) {
    TryLock.pop_current(platform, slots, step)
}

#[inline(never)]
fn pop_if_by_lock<'m, P: Platform>(
    platform: &P,
    slots: &PagesetSlots<'m, P>,
    step: Step,
    accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
    TryLock.pop_current_if(platform, slots, step, accepts)
}

#[inline(never)]
fn push_by_lock<'m, P: Platform>(
    platform: &P,
    slots: &PagesetSlots<'m, P>,
    prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
    refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
) -> bool {
    TryLock.push_current(platform, slots, prepare, refused)
}

impl Sequences {
    /// Returns access by sequences where this process supports them, and by lock elsewhere.
    pub(crate) fn detect() -> Self {
        let area = area_offset(AreaUse::Sequences).and_then(NonZeroIsize::new);
        Self { area: area.filter(|_| has_barrier() && stays_in_memory()), first_cpu: 0 }
    }

    /// Returns access by sequences, with each thread's area at this offset from its thread pointer.
    pub(crate) const fn at(area: isize) -> Self {
        Self { area: NonZeroIsize::new(area), first_cpu: 0 }
    }

    /// Returns access by lock, without sequences.
    pub(crate) const fn none() -> Self {
        Self { area: None, first_cpu: 0 }
    }

    /// Returns the same access for an allocator in which the machine's CPUs have ids from `first`.
    pub(crate) const fn with_first_cpu(self, first_cpu: u32) -> Self {
        Self { first_cpu, ..self }
    }

    /// Returns the machine's number of a CPU.
    #[inline(always)]
    const fn real(self, cpu: CpuId) -> u32 {
        cpu.get().wrapping_sub(self.first_cpu)
    }

    /// Whether sequences are used.
    pub(crate) const fn are_used(self) -> bool {
        self.area.is_some()
    }

    /// Returns the CPU that runs the caller, or `None` if sequences are not used. A thread that the C library did not
    /// start has no area; for such a thread, returns a CPU number that no machine has.
    #[inline]
    pub(crate) fn current_cpu(self) -> Option<CpuId> {
        // SAFETY: `area` is valid for all threads.
        let cpu = unsafe { instructions::current_cpu(self.area?) } as u32;
        // The number is negative if the kernel does not maintain it.
        Some(CpuId::new(if cpu.cast_signed() >= 0 { cpu } else { beyond_all_cpus() }))
    }
}

/// Returns a number that no machine has, and a different number for each CPU. The allocator spreads unknown CPUs by
/// their numbers.
#[cold]
fn beyond_all_cpus() -> u32 {
    u32::MAX - ask_the_kernel()
}

/// `membarrier` commands and flags; Linux `membarrier(2)`.
const BARRIER_RSEQ: libc::c_int = 1 << 7;
const REGISTER_RSEQ: libc::c_int = 1 << 8;
const ON_CPU: libc::c_int = 1;

fn membarrier(command: libc::c_int, flags: libc::c_int, cpu: libc::c_int) -> bool {
    // SAFETY: the call neither reads nor writes memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) == 0 }
}

/// Whether the kernel has the barrier. The first call registers the process for it.
fn has_barrier() -> bool {
    static REGISTERED: Once = Once::new();
    REGISTERED.is(|| membarrier(REGISTER_RSEQ, 0, 0) && membarrier(BARRIER_RSEQ, ON_CPU, 0))
}

/// Restarts the sequences running on `cpu`, and returns whether that succeeded. An absent CPU runs no sequences.
fn restart_sequences(cpu: CpuId) -> bool {
    let number = libc::c_int::try_from(cpu.get()).unwrap_or(libc::c_int::MAX);
    membarrier(BARRIER_RSEQ, ON_CPU, number)
        // The kernel is older than the flag, or the CPU number is out of range: restart the sequences on all CPUs.
        || membarrier(BARRIER_RSEQ, 0, 0)
        // The last resort if a seccomp filter, installed after registration, denies `membarrier`.
        || move_to(cpu)
}

/// Restarts the sequences running on all of `cpus`, and returns whether that succeeded.
fn restart_all_sequences(mut cpus: impl Iterator<Item = CpuId>) -> bool {
    membarrier(BARRIER_RSEQ, 0, 0) || cpus.all(restart_sequences)
}

/// Moves the calling thread to `cpu` and back. The move preempts the thread running on `cpu`, which restarts its
/// sequence. Returns whether the calling thread ran on `cpu`.
#[cold]
fn move_to(cpu: CpuId) -> bool {
    let Some(there) = CpuSet::one(cpu) else { return false };
    // If a seccomp filter hides the thread's affinity, the thread may run on any CPU afterwards.
    let usual = CpuSet::of_this_thread().unwrap_or(CpuSet::all());
    move_by(&usual, &there, CpuSet::apply)
}

/// Moves the calling thread to `there`, then back to the `usual` CPUs. If the usual CPUs have gone offline meanwhile,
/// the thread may run on any CPU. A thread that cannot move back at all is counted.
fn move_by(usual: &CpuSet, there: &CpuSet, go: impl Fn(&CpuSet) -> bool) -> bool {
    let came = go(there);
    if came && !go(usual) && !go(&CpuSet::all()) {
        STRANDED.fetch_add(1, Relaxed); // relaxed: a statistic
    }
    came
}

static STRANDED: AtomicU64 = AtomicU64::new(0);

/// Returns how many threads of this process could not leave a CPU to which [`move_to`] moved them.
pub(crate) fn stranded_threads() -> u64 {
    STRANDED.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn moved_thread_returns_or_is_counted_as_stranded() {
        let usual = CpuSet::of_this_thread().unwrap();
        let [there, all] = [CpuSet::one(CpuId::new(77)).unwrap(), CpuSet::all()];
        let move_to = |lets: &dyn Fn(&CpuSet) -> bool| {
            let (went, before) = (RefCell::new(Vec::new()), stranded_threads());
            let came = move_by(&usual, &there, |set| {
                went.borrow_mut().push(set.clone());
                lets(set)
            });
            (came, went.into_inner(), stranded_threads() - before)
        };
        let [usual, there, all] = [&usual, &there, &all].map(CpuSet::clone);
        assert_eq!(move_to(&|_| true), (true, vec![there.clone(), usual.clone()], 0));
        assert_eq!(move_to(&|_| false), (false, vec![there.clone()], 0));
        assert_eq!(move_to(&|to| *to != usual), (true, vec![there.clone(), usual.clone(), all.clone()], 0));
        assert_eq!(move_to(&|to| *to == there), (true, vec![there.clone(), usual.clone(), all.clone()], 1));
    }
}
