//! What the fast path needs of the pageset that a CPU uses now, as plain data.
//!
//! A [`Head`] is what decides about the stack of single frames of one pageset; a [`PagesetSlot`] stands beside it what else
//! a take or a give needs, on one cache line; [`PagesetSlots`] says for each CPU which of its pagesets single frames come from
//! and go to. A stale answer is as good as one of a moment earlier, because it names a pageset of the same CPU.
//! Neighbours: `cpu_local.rs` operates on these, `pageset/slot.rs` chooses, `pageset_word.rs` is the word.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::pageset_word::{GUARDS, free_slots_of};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, NodeId, Pfn, ZoneId};

/// Gate of a head that was never used.
pub const UNINIT: u64 = 0;
/// Gate of a head that is not locked.
pub const OPEN: u64 = GUARDS;
/// Gate of a head that was locked on its own CPU.
pub const LOCKED: u64 = u64::MAX;
/// Gate of a head that was locked from another CPU.
pub const LOCKED_REMOTELY: u64 = u64::MAX - 1;
/// What a take that tripped or was disturbed gives, above every frame.
pub const NO_FRAME: u64 = u64::MAX;

all_zero! {
    /// What decides about the stack of single frames of one pageset.
    ///
    /// With `free_slots` = the lowest 27 bits of the word, the frames lie in `slots[free_slots..]`, the next one to
    /// take first. Offsets of the fields, for restartable sequences: they stand in the order given,
    /// eight bytes apart where the platform's cells are plain integers.
    #[repr(C)]
    pub struct Head<P> {
        /// [`UNINIT`], [`OPEN`], [`LOCKED`] or [`LOCKED_REMOTELY`].
        pub lock_word: u64,
        /// What a take and a give change.
        pub word: u64,
        /// A take to the word `next` trips when `(next + pop_limit) & lock_word != 0`, wrapping.
        pub pop_limit: u64,
        /// A give to the word `next` trips when `(push_limit - next) & lock_word != 0`, wrapping.
        pub push_limit: u64,
        /// 1 while somebody is about to shut the gate from another CPU.
        remote_lock: u64,
    }
}

impl<P: Platform> Head<P> {
    /// 1 while somebody is about to shut the gate from another CPU.
    pub(super) const fn remote_lock(&self) -> &P::U64 {
        &self.remote_lock
    }

    /// Opens a locked head.
    #[inline(always)]
    pub(crate) fn open(&self) {
        self.lock_word.store(OPEN, Release); // pairs with the acquire of the next to use or lock it
    }

    // Loads of the word and the limits are relaxed: the gate orders them.

    #[inline(always)]
    pub(super) fn pop(&self, slots: &[P::U32], step: u64, lock_word: u64) -> u64 {
        let word = self.word.load(Relaxed);
        let next = word.wrapping_add(step);
        if next.wrapping_add(self.pop_limit.load(Relaxed)) & lock_word != 0 {
            return NO_FRAME;
        }
        let frame = slots[free_slots_of(word)].load(Relaxed);
        self.word.store(next, Release); // for those who look at how full it is
        u64::from(frame)
    }

    #[inline(always)]
    pub(super) fn push(&self, slots: &[P::U32], step: u64, frame: u32, lock_word: u64) -> bool {
        let next = self.word.load(Relaxed).wrapping_sub(step);
        if self.push_limit.load(Relaxed).wrapping_sub(next) & lock_word != 0 {
            return false;
        }
        slots[free_slots_of(next)].store(frame, Relaxed);
        self.word.store(next, Release); // as in `take`
        true
    }
}

/// A CPU's pageset of one zone. For restartable sequences: `head` comes first, then `slots_at`.
#[repr(C, align(64))]
pub struct PagesetSlot<'m, P: Platform> {
    /// What decides about the stack.
    pub head: &'m Head<P>,
    /// Address of the first of `slots`.
    pub slots_at: usize,
    /// The stack of single frames.
    pub slots: &'m [P::U32],
    /// States of the zone's frames, from `base`.
    pub(crate) states: &'m [P::U8],
    pub(crate) base: Pfn,
    pub(crate) zone: ZoneId,
    pub(crate) node: NodeId,
}

copy_view!(PagesetSlot);

impl<P: Platform> PagesetSlot<'_, P> {
    /// Whether the stack has a frame, as of some moment.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        free_slots_of(self.head.word.load(Relaxed)) < self.slots.len() // relaxed: a look
    }
}

/// The homes of all CPUs, and which of them each CPU uses now.
///
/// Invariant: `current` holds addresses of homes in `table`, each of the CPU it stands for and of
/// a head that was used before.
pub struct PagesetSlots<'m, P: Platform> {
    /// The first leads nowhere: all takes and gives trip there.
    pub(crate) table: &'m [PagesetSlot<'m, P>],
    /// By CPU id.
    pub(crate) current: &'m [P::U64],
    /// Homes of each CPU: one for each zone, or just one.
    pub(crate) of_each: usize,
}

copy_view!(PagesetSlots);

impl<'m, P: Platform> PagesetSlots<'m, P> {
    /// Before they are made.
    pub(crate) const NONE: Self = Self { table: &[], current: &[], of_each: 0 };

    /// By CPU id, for restartable sequences: the address of the [`PagesetSlot`] that the CPU uses now. There
    /// is one at least.
    #[inline(always)]
    pub fn current(&self) -> &'m [P::U64] {
        self.current
    }

    /// The home that a CPU uses now; `None` for one that the machine does not have.
    #[inline(always)]
    pub fn of(&self, cpu: CpuId) -> Option<&'m PagesetSlot<'m, P>> {
        let address = self.current.get(cpu.index())?.load(Acquire) as usize; // pairs with `set`
        self.table.get(address.wrapping_sub(self.table.as_ptr().addr()) / size_of::<PagesetSlot<'m, P>>())
    }

    /// A home where everything trips.
    #[inline(always)]
    pub fn nowhere(&self) -> &'m PagesetSlot<'m, P> {
        &self.table[0]
    }

    /// The home of a CPU for a zone, where there is one.
    pub(crate) fn at(&self, cpu: CpuId, zone: ZoneId) -> Option<&'m PagesetSlot<'m, P>> {
        let at = if self.of_each == 1 { 0 } else { zone.index() };
        let slot = self.table.get(1 + cpu.index() * self.of_each + at)?;
        (slot.slots_at != 0 && slot.zone == zone).then_some(slot)
    }

    pub(crate) fn set(&self, cpu: CpuId, slot: &'m PagesetSlot<'m, P>) {
        let (cell, address) = (&self.current[cpu.index()], core::ptr::from_ref(slot).expose_provenance());
        // Read before it is written to leave the line shared. Release: the head was used before.
        if cell.load(Relaxed) != address as u64 {
            cell.store(address as u64, Release);
        }
    }
}
