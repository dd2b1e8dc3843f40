//! Pops and pushes of single frames under the lock that only a counter's threshold (M4) kept off the fast path.
//!
//! A run in one direction normally bails out once every one and a half thresholds. Then the differences are folded into
//! the totals, and the limits of the fast path stay as they are. This needs less than a session; if more is needed, it
//! becomes a session. Neighbours: `zone/counters.rs` has the rule, `pageset/session.rs` sets limits.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{LockWord, PagesetSlot};
use crate::platform::pageset_word::{
    FREE_SLOTS_GUARD, GUARDS, POP_STEPS, PUSH_STEPS, PagesetWord, SERVED_LANE, free_slots_of,
};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::units::PageKind;
use crate::zone::CpuInfo;

/// The locked pageset that a CPU uses now, before anything except its word was read.
#[must_use]
pub(crate) struct LockedSlot<'a, 'm, P: Platform> {
    state: &'a MachineState<'m, P>,
    slot: &'m PagesetSlot<'m, P>,
    cpu: CpuInfo,
    /// The lock word before it was locked.
    lock_word: LockWord,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset that the caller's CPU, `cpu`, uses now; returns `None` if it is locked already.
    #[inline]
    pub(crate) fn lock_slot<'a>(
        &'a self,
        slot: &'m PagesetSlot<'m, P>,
        cpu: CpuInfo,
    ) -> Option<LockedSlot<'a, 'm, P>> {
        let lock_word = self.platform.cpu_local().lock(cpu.id, slot.head)?;
        Some(LockedSlot { state: self, slot, cpu, lock_word })
    }
}

// Accesses of the word, the limits and the slots are relaxed: the lock orders them.
impl<'a, 'm, P: Platform> LockedSlot<'a, 'm, P> {
    /// Pops the top frame of the stack of single frames and unlocks.
    ///
    /// # Errors
    /// Returns the session if more than a counter needs attention.
    #[inline(always)]
    pub(crate) fn pop_and_fold(self, kind: PageKind) -> Result<u32, PagesetSession<'a, 'm, P>> {
        let head = self.slot.head;
        let word = head.word.load(Relaxed);
        let next = word.wrapping_add(POP_STEPS[kind as usize].bits());
        if self.lock_word != LockWord::OPEN
            || next.wrapping_add(head.pop_limit.load(Relaxed)) & FREE_SLOTS_GUARD != 0
        {
            return Err(self.session());
        }
        let frame = self.slot.slots[free_slots_of(word)].load(Relaxed);
        head.word.store(self.folded(PagesetWord::from_bits(next), kind, 1).bits(), Relaxed);
        head.open();
        Ok(frame)
    }

    /// Pushes a frame onto the stack of single frames and unlocks.
    ///
    /// # Errors
    /// Returns the session if more than a counter needs attention, or if the free ends a period of the depth rule,
    /// which the session has to count first.
    #[inline(always)]
    pub(crate) fn push_and_fold(self, frame: u32, kind: PageKind) -> Result<(), PagesetSession<'a, 'm, P>> {
        let head = self.slot.head;
        let next = head.word.load(Relaxed).wrapping_sub(PUSH_STEPS[kind as usize].bits());
        let trips = head.push_limit.load(Relaxed).wrapping_sub(next) & FREE_SLOTS_GUARD != 0;
        if self.lock_word != LockWord::OPEN || trips || self.is_period_over() {
            return Err(self.session());
        }
        self.slot.slots[free_slots_of(next)].store(frame, Relaxed);
        head.word.store(self.folded(PagesetWord::from_bits(next), kind, -1).bits(), Relaxed);
        head.open();
        Ok(())
    }

    fn is_period_over(&self) -> bool {
        let pageset = self.state.pagesets[self.slot.zone.index()].of(self.cpu);
        self.state.shared.tuning() == PagesetTuning::Depth
            && pageset.depth().is_period_over(self.state.platform.now())
    }

    #[cold]
    fn session(self) -> PagesetSession<'a, 'm, P> {
        PagesetSession::of_locked(
            self.state,
            &self.state.zones[self.slot.zone.index()],
            self.cpu,
            self.lock_word,
        )
    }

    /// Returns `word` after a step of `amount`, with what exceeds the thresholds moved to the totals.
    #[inline]
    fn folded(&self, word: PagesetWord, kind: PageKind, amount: i64) -> PagesetWord {
        let zone = &self.state.zones[self.slot.zone.index()];
        let counters = &self.state.nodes[zone.node].counters;
        let difference = word.difference(kind as usize);
        let left = counters.remainder_of(difference, amount);
        counters.fold_difference(&[kind.item()], difference - left);
        let word = word.with_difference(kind as usize, left);
        let served = word.difference(SERVED_LANE);
        if amount < 0 || word.bits().wrapping_add(self.slot.head.pop_limit.load(Relaxed)) & GUARDS == 0 {
            return word;
        }
        let left = -zone.counters().overstep();
        let pageset = self.state.pagesets[zone.id.index()].of(self.cpu);
        self.state.fold_served(zone, pageset, self.cpu, served - left);
        word.with_difference(SERVED_LANE, left)
    }
}
