//! The data that the fast path needs about the pageset that a CPU currently uses.
//!
//! A [`Head`] holds the state of one pageset's single-frame stack. A [`PagesetSlot`] adds the other data
//! that an allocation or a free needs, on one cache line. [`PagesetSlots`] maps each CPU to the pageset slot that its
//! single frames are allocated from and freed to. Using a stale slot is correct, because that slot also refers to a
//! pageset of the same CPU.
//!
//! Related files: `platform/cpu_local.rs` operates on these types, `pageset/slot.rs` chooses the slot of a CPU, and
//! `platform/pageset_word.rs` defines the word.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::pageset_word::{GUARDS, POP_NONE, PUSH_NONE, PagesetWord, Step, top_of};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, NodeId, Pfn, ZoneId, ZoneKind};

/// The value of a head's lock word.
///
/// An operation fails if a bit is set in both the lock word and the sum or difference of the new word and the limit
/// ([`Head::pop_limit`], [`Head::push_limit`]). `OPEN` selects the guard bits. The locked values select nearly all
/// bits. At least one of these is always set in the sum or difference, so every operation fails.
///
/// A head that has a slot is open before any thread can reach it, with limits that refuse every operation until the
/// pageset's first session. A head without a slot is zero until it is locked for the first time. Zero would let every
/// operation succeed, but operations reach heads only through slots. Every unlock stores `OPEN`, so zero never returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct LockWord(u64);

impl LockWord {
    /// The head is not locked.
    pub const OPEN: Self = Self(GUARDS);
    /// The head is locked by its own CPU.
    pub const LOCKED: Self = Self(u64::MAX);
    /// The head is locked from another CPU.
    pub const LOCKED_REMOTELY: Self = Self(u64::MAX - 1);

    /// Returns the lock word with this value of the cell.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the value to store in the cell.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the head is locked, by its own CPU or by another.
    #[inline(always)]
    #[must_use]
    pub const fn is_locked(self) -> bool {
        self.0 >= Self::LOCKED_REMOTELY.0
    }
}

/// The result of a pop: the offset of a frame in the pageset slot's zone, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Popped(u64);

impl Popped {
    /// No frame was popped.
    pub const NOTHING: Self = Self(u64::MAX);

    /// Returns the result for a frame at this offset in its zone.
    #[inline(always)]
    #[must_use]
    pub const fn frame(offset: u32) -> Self {
        Self(offset as u64)
    }

    /// Returns the result for the value that a sequence left in a register: the offset of a frame, or all bits set
    /// for nothing.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the offset, which is larger than that of every frame if nothing was popped.
    #[inline(always)]
    pub(crate) const fn offset(self) -> u64 {
        self.0
    }
}

/// A frame to push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Push {
    /// The value that the push subtracts from the word.
    pub step: Step,
    /// Offset of the frame in the pageset slot's zone.
    pub frame: u32,
}

all_zero! {
    /// The state of one pageset's single-frame stack.
    ///
    /// The lowest 27 bits of the word are `free_slots`. The frames in the stack are `slots[free_slots..]`, and the
    /// next frame to pop is `slots[free_slots]`.
    ///
    /// Restartable sequences depend on the layout: the fields are in the order declared, and eight bytes apart if the
    /// platform's cells are plain integers.
    #[repr(C)]
    pub struct Head<P> {
        /// Value of the [`LockWord`].
        pub lock_word: u64,
        /// The word that pops and pushes change.
        pub word: u64,
        /// Limit of pops: a pop that would store the word `next` fails if, wrapping,
        /// `(next + pop_limit) & lock_word != 0`.
        pub pop_limit: u64,
        /// Limit of pushes: a push that would store the word `next` fails if, wrapping,
        /// `(push_limit - next) & lock_word != 0`.
        pub push_limit: u64,
        /// Remote-lock flag: 1 while another CPU attempts to lock the head.
        pub(super) remote_lock: u32,
        /// 1 + index of the preferred zone for which the pageset serves blocks (`pageset/served.rs`); 0 if its own zone
        /// is preferred, and `u32::MAX` if the preferred zone is on the same node.
        pub(crate) serves_for: u32,
        /// Blocks served from the pageset to interleaving requests that chose its node, not yet counted in the totals
        /// (`pageset/served.rs`).
        pub(crate) interleave_hits: u32,
    }
}

impl<P: Platform> Head<P> {
    /// Unlocks a locked head.
    #[inline(always)]
    pub(crate) fn open(&self) {
        self.assert_locked();
        // The platform's restartable sequences acquire the lock word, too.
        // Release: publishes the holder's writes; pairs with `Head::load_lock_word`, `TryLock::lock`, `lock_remotely`.
        self.lock_word.store(LockWord::OPEN.bits(), Release);
    }

    /// Panics in builds with `--cfg zonal_transitions` if the head is not locked: only the holder takes the rows
    /// that begin with `held` in the table of transitions.
    #[inline(always)]
    pub(crate) fn assert_locked(&self) {
        if cfg!(zonal_transitions) {
            let lock_word = LockWord(self.lock_word.load(Relaxed)); // relaxed: the caller has stored it
            assert!(
                lock_word.is_locked(),
                "a pageset is changed by a thread that has not locked it: {lock_word:?}"
            );
        }
    }

    /// Prepares the head of a pageset whose stack has `slots` slots, which no session has used yet. Every pop and push
    /// fails until the first session sets limits.
    ///
    /// The allocator is not shared yet, so the stores are relaxed.
    pub(crate) fn prepare(&self, slots: u32) {
        self.word.store(PagesetWord::empty(slots).0, Relaxed);
        self.pop_limit.store(POP_NONE, Relaxed);
        self.push_limit.store(PUSH_NONE, Relaxed);
        self.lock_word.store(LockWord::OPEN.bits(), Relaxed);
    }

    /// Makes the head as [`Head::prepare`] leaves it, whatever its lock word: the process of its CPU has died.
    pub(crate) fn reset(&self, slots: u32) {
        // Relaxed: a process that begins to use the head has joined after this.
        [&self.remote_lock, &self.serves_for, &self.interleave_hits]
            .iter()
            .for_each(|cell| cell.store(0, Relaxed));
        self.prepare(slots);
    }

    // Loads of the word, the limits and the slots are relaxed, because the acquire of the lock word orders them.

    #[inline(always)]
    pub(super) fn pop(&self, slots: &[P::U32], step: Step, lock_word: LockWord) -> Popped {
        let word = self.word.load(Relaxed);
        let next = word.wrapping_add(step.bits());
        if next.wrapping_add(self.pop_limit.load(Relaxed)) & lock_word.0 != 0 {
            return Popped::NOTHING;
        }
        let frame = slots[top_of(word)].load(Relaxed);
        // Release: orders earlier accesses before the word; unpaired: other CPUs load the word relaxed.
        self.word.store(next, Release);
        Popped::frame(frame)
    }

    #[inline(always)]
    pub(super) fn push(&self, slots: &[P::U32], push: Push, lock_word: LockWord) -> bool {
        let next = self.word.load(Relaxed).wrapping_sub(push.step.bits());
        if self.push_limit.load(Relaxed).wrapping_sub(next) & lock_word.0 != 0 {
            return false;
        }
        slots[top_of(next)].store(push.frame, Relaxed);
        // Release: orders the slot before the word; unpaired: other CPUs load the word relaxed.
        self.word.store(next, Release);
        true
    }

    /// Loads the lock word.
    #[inline(always)]
    pub(super) fn load_lock_word(&self) -> LockWord {
        // Acquire: takes the last holder's writes; pairs with `Head::open`, `lock_remotely`.
        LockWord(self.lock_word.load(Acquire))
    }
}

/// The pageset of one CPU for one zone, as the fast path uses it.
///
/// Restartable sequences depend on the layout: `head` is the first field and `slots_at` the second.
#[repr(C, align(64))]
pub struct PagesetSlot<'m, P: Platform> {
    /// State of the stack.
    pub head: &'m Head<P>,
    /// Address of the first element in `slots`.
    pub slots_at: usize,
    /// The stack of single frames.
    pub slots: &'m [P::U32],
    /// States of the zone's frames, from `base`; then their holders, if processes share the allocator.
    pub(crate) states: &'m [P::U8],
    pub(crate) base: Pfn,
    pub(crate) zone: ZoneId,
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    /// Whether the CPU of the pageset is on the zone's node.
    pub(crate) is_own: bool,
}

copy_view!(PagesetSlot);

impl<P: Platform> PagesetSlot<'_, P> {
    /// Whether the stack has a frame; the result may be stale.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        top_of(self.head.word.load(Relaxed)) < self.slots.len() // relaxed: may be stale
    }

    /// Whether the pageset's zone is the preferred zone of its CPU; the result may be stale.
    #[inline(always)]
    pub(crate) fn is_preferred(&self) -> bool {
        self.head.serves_for.load(Relaxed) == 0 // relaxed: may be stale
    }

    /// Whether a pop without the pageset's lock would succeed; the result may be stale.
    pub(crate) fn allows_pop(&self, step: Step) -> bool {
        let next = self.head.word.load(Relaxed).wrapping_add(step.bits());
        let limited = next.wrapping_add(self.head.pop_limit.load(Relaxed));
        self.has_frames() && limited & self.head.load_lock_word().bits() == 0
    }
}

/// The pageset slots of all CPUs, and the slot that each CPU currently uses.
///
/// Invariants: each element in `current` is the offset of a slot in `table`, in bytes, which either belongs to the CPU or is the
/// first slot. The table holds references, so each process has its own; the offsets are the same in all. The head of the first slot is locked for good. The word and the limits of every other head describe its
/// stack from the start, so that its lock word may be [`LockWord::OPEN`].
pub struct PagesetSlots<'m, P: Platform> {
    /// The slots; the first belongs to no pageset, and every pop and push on it fails.
    table: &'m [PagesetSlot<'m, P>],
    /// Offset of the slot in use, by CPU id from `first_cpu`.
    current: &'m [P::U64],
    /// Id of the process's first CPU; 0 unless processes share the allocator.
    first_cpu: u32,
    /// Number of slots for each CPU: one for each zone, or just one.
    pub(crate) of_each: usize,
}

copy_view!(PagesetSlots);

impl<'m, P: Platform> PagesetSlots<'m, P> {
    /// Creates the slots of the CPUs from `first_cpu`, with `of_each` slots each. The table has the null slot first; it is empty
    /// before the slots are built.
    pub(crate) const fn new(
        table: &'m [PagesetSlot<'m, P>],
        current: &'m [P::U64],
        first_cpu: u32,
        of_each: usize,
    ) -> Self {
        Self { table, current, first_cpu, of_each }
    }

    /// Returns all slots; the first belongs to no pageset.
    #[inline(always)]
    pub fn table(&self) -> &'m [PagesetSlot<'m, P>] {
        self.table
    }

    /// Returns the offset in [`Self::table`], in bytes, of the slot that each of the process's CPUs currently uses, by CPU id from the
    /// process's first, for restartable sequences.
    #[inline(always)]
    pub fn current(&self) -> &'m [P::U64] {
        self.current
    }

    /// Returns the slot that a CPU currently uses, or `None` for a CPU that the machine does not have.
    #[inline(always)]
    pub fn of(&self, cpu: CpuId) -> Option<&'m PagesetSlot<'m, P>> {
        // Acquire: takes what led to the change of the slot; pairs with `PagesetSlots::set`.
        let offset = self.current.get(self.at_of(cpu))?.load(Acquire) as usize;
        self.table.get(offset / size_of::<PagesetSlot<'m, P>>())
    }

    /// Returns the position of a CPU in [`Self::current`], which is beyond its end for CPUs of other processes.
    #[inline(always)]
    const fn at_of(&self, cpu: CpuId) -> usize {
        cpu.get().wrapping_sub(self.first_cpu) as usize
    }

    /// Returns the slot on which every operation fails.
    #[inline(always)]
    pub fn null_slot(&self) -> &'m PagesetSlot<'m, P> {
        &self.table[0]
    }

    /// Returns the slot of the CPU with index `cpu` for a zone, if there is one.
    #[inline(always)]
    pub(crate) fn at(&self, cpu: u32, zone: ZoneId) -> Option<&'m PagesetSlot<'m, P>> {
        let at = if self.of_each == 1 { 0 } else { zone.index() };
        let slot = self.table.get(1 + cpu as usize * self.of_each + at)?;
        (slot.slots_at != 0 && slot.zone == zone).then_some(slot)
    }

    pub(crate) fn set(&self, cpu: CpuId, slot: &'m PagesetSlot<'m, P>) {
        let offset = core::ptr::from_ref(slot).addr() - self.table.as_ptr().addr();
        let cell = &self.current[self.at_of(cpu)];
        // An unchanged value is not stored, so that the cache line stays shared.
        if cell.load(Relaxed) != offset as u64 {
            // Release: publishes what led to the change of the slot; pairs with `PagesetSlots::of`.
            cell.store(offset as u64, Release);
        }
    }
}
