//! The data that the fast path needs of the pageset that a CPU uses now.
//!
//! A [`Head`] holds the state of the stack of single frames of one pageset. A [`PagesetSlot`] adds what else an
//! allocation or a free needs, on one cache line. [`PagesetSlots`] maps each CPU to the pageset that its single
//! frames come from and go to. A stale pageset slot is as good as one read a moment earlier, because it names a
//! pageset of the same CPU. Neighbours: `platform/cpu_local.rs` operates on these, `pageset/slot.rs` chooses the
//! slot, `platform/pageset_word.rs` defines the word.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::pageset_word::{GUARDS, free_slots_of};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, NodeId, Pfn, ZoneId};

/// Lock word of a head that was never used.
pub const UNINIT: u64 = 0;
/// Lock word of a head that is not locked.
pub const OPEN: u64 = GUARDS;
/// Lock word of a head that is locked by its own CPU.
pub const LOCKED: u64 = u64::MAX;
/// Lock word of a head that is locked from another CPU.
pub const LOCKED_REMOTELY: u64 = u64::MAX - 1;
/// The result of a failed pop: larger than every frame number.
pub const NO_FRAME: u64 = u64::MAX;

all_zero! {
    /// The state of the stack of single frames of one pageset.
    ///
    /// With `free_slots` = the lowest 27 bits of the word, the frames are `slots[free_slots..]`, and the next
    /// frame to pop is `slots[free_slots]`. Layout for restartable sequences: the fields are in the order
    /// declared, eight bytes apart where the platform's cells are plain integers.
    #[repr(C)]
    pub struct Head<P> {
        /// [`UNINIT`], [`OPEN`], [`LOCKED`] or [`LOCKED_REMOTELY`].
        pub lock_word: u64,
        /// The word that a pop and a push change.
        pub word: u64,
        /// Limit of pops: a pop that would store the word `next` fails if, wrapping,
        /// `(next + pop_limit) & lock_word != 0`.
        pub pop_limit: u64,
        /// Limit of pushes: a push that would store the word `next` fails if, wrapping,
        /// `(push_limit - next) & lock_word != 0`.
        pub push_limit: u64,
        /// Remote-lock flag: 1 while another CPU attempts to lock the head.
        remote_lock: u64,
    }
}

impl<P: Platform> Head<P> {
    /// Returns the remote-lock flag: 1 while another CPU attempts to lock the head.
    pub(super) const fn remote_lock(&self) -> &P::U64 {
        &self.remote_lock
    }

    /// Unlocks a locked head.
    #[inline(always)]
    pub(crate) fn open(&self) {
        self.lock_word.store(OPEN, Release); // Release: pairs with the acquire of the next use or lock.
    }

    // Loads of the word and the limits are relaxed: the lock word orders them.

    #[inline(always)]
    pub(super) fn pop(&self, slots: &[P::U32], step: u64, lock_word: u64) -> u64 {
        let word = self.word.load(Relaxed);
        let next = word.wrapping_add(step);
        if next.wrapping_add(self.pop_limit.load(Relaxed)) & lock_word != 0 {
            return NO_FRAME;
        }
        let frame = slots[free_slots_of(word)].load(Relaxed);
        self.word.store(next, Release); // Release: for code that checks how full the stack is.
        u64::from(frame)
    }

    #[inline(always)]
    pub(super) fn push(&self, slots: &[P::U32], step: u64, frame: u32, lock_word: u64) -> bool {
        let next = self.word.load(Relaxed).wrapping_sub(step);
        if self.push_limit.load(Relaxed).wrapping_sub(next) & lock_word != 0 {
            return false;
        }
        slots[free_slots_of(next)].store(frame, Relaxed);
        self.word.store(next, Release); // Release: as in `pop`.
        true
    }
}

/// The pageset of one CPU for one zone, as the fast path uses it.
///
/// Layout for restartable sequences: `head` comes first, then `slots_at`.
#[repr(C, align(64))]
pub struct PagesetSlot<'m, P: Platform> {
    /// State of the stack.
    pub head: &'m Head<P>,
    /// Address of the first element of `slots`.
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
    /// Whether the stack has a frame; the answer may be stale.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        free_slots_of(self.head.word.load(Relaxed)) < self.slots.len() // relaxed: may be stale
    }
}

/// The pageset slots of all CPUs, and which of them each CPU uses now.
///
/// Invariant: each element of `current` is the address of a slot in `table` that belongs to that CPU and whose
/// head has been initialized, or of the first slot.
pub struct PagesetSlots<'m, P: Platform> {
    /// The slots; the first belongs to no pageset, and every pop and push on it fails.
    pub(crate) table: &'m [PagesetSlot<'m, P>],
    /// Address of the slot in use, by CPU id.
    pub(crate) current: &'m [P::U64],
    /// Number of slots of each CPU: one for each zone, or just one.
    pub(crate) of_each: usize,
}

copy_view!(PagesetSlots);

impl<'m, P: Platform> PagesetSlots<'m, P> {
    /// The value before the slots are built.
    pub(crate) const NONE: Self = Self { table: &[], current: &[], of_each: 0 };

    /// Returns the address of the [`PagesetSlot`] that each CPU uses now, by CPU id, for restartable sequences.
    ///
    /// There is at least one element.
    #[inline(always)]
    pub fn current(&self) -> &'m [P::U64] {
        self.current
    }

    /// Returns the slot that a CPU uses now, or `None` for a CPU that the machine does not have.
    #[inline(always)]
    pub fn of(&self, cpu: CpuId) -> Option<&'m PagesetSlot<'m, P>> {
        let address = self.current.get(cpu.index())?.load(Acquire) as usize; // Acquire: pairs with `set`.
        self.table.get(address.wrapping_sub(self.table.as_ptr().addr()) / size_of::<PagesetSlot<'m, P>>())
    }

    /// Returns the slot on which every operation fails.
    #[inline(always)]
    pub fn nowhere(&self) -> &'m PagesetSlot<'m, P> {
        &self.table[0]
    }

    /// Returns the slot of a CPU for a zone, if there is one.
    pub(crate) fn at(&self, cpu: CpuId, zone: ZoneId) -> Option<&'m PagesetSlot<'m, P>> {
        let at = if self.of_each == 1 { 0 } else { zone.index() };
        let slot = self.table.get(1 + cpu.index() * self.of_each + at)?;
        (slot.slots_at != 0 && slot.zone == zone).then_some(slot)
    }

    pub(crate) fn set(&self, cpu: CpuId, slot: &'m PagesetSlot<'m, P>) {
        let (cell, address) = (&self.current[cpu.index()], core::ptr::from_ref(slot).expose_provenance());
        // Store only a new value, to keep the cache line shared. Release: the head was initialized before.
        if cell.load(Relaxed) != address as u64 {
            cell.store(address as u64, Release);
        }
    }
}
