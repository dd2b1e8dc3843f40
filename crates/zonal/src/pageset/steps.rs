//! Pops and pushes of single frames under the lock, for steps that left the fast path only to fold counters.
//!
//! The fast path bails out when the difference of a counter would exceed its threshold (mechanism M4 of the README). A
//! run of pops or pushes normally bails out once every one and a half thresholds. The code here then folds the
//! differences into the totals and does not change the limits of the fast path. It needs less state than a session, and
//! creates a session if other work is necessary. Related files: `zone/counters.rs` has the rule for folding, and
//! `pageset/session.rs` sets limits.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::PagesetSlot;
use crate::platform::pageset_word::{
    FREE_SLOTS_GUARD, GUARDS, POP_STEPS, PUSH_STEPS, PagesetWord, SERVED_LANE, top_of,
};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::TuningRule;
use crate::units::PageKind;
use crate::zone::CpuInfo;

/// The locked pageset in a CPU's slot; no field except the lock word has been read yet.
#[must_use]
pub(crate) struct LockedSlot<'a, 'm, P: Platform> {
    state: &'a MachineState<'m, P>,
    slot: &'m PagesetSlot<'m, P>,
    cpu: CpuInfo,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset of `slot`, which the caller's CPU, `cpu`, uses now; returns `None` if it is locked already.
    #[inline]
    pub(crate) fn lock_slot<'a>(
        &'a self,
        slot: &'m PagesetSlot<'m, P>,
        cpu: CpuInfo,
    ) -> Option<LockedSlot<'a, 'm, P>> {
        if !self.platform.cpu_local().lock(cpu.id, slot.head) {
            return None;
        }
        Some(LockedSlot { state: self, slot, cpu })
    }
}

// Accesses to the word, the limits and the slots are relaxed, because the lock orders them.
impl<'a, 'm, P: Platform> LockedSlot<'a, 'm, P> {
    /// Pops the top frame of the single-frame stack and unlocks the pageset.
    ///
    /// # Errors
    /// Returns the session if more work than a fold is necessary.
    #[inline(always)]
    pub(crate) fn pop(self, kind: PageKind) -> Result<u32, PagesetSession<'a, 'm, P>> {
        let head = self.slot.head;
        let word = head.word.load(Relaxed);
        let next = word.wrapping_add(POP_STEPS[kind as usize].bits());
        if next.wrapping_add(head.pop_limit.load(Relaxed)) & FREE_SLOTS_GUARD != 0 {
            return Err(self.session());
        }
        let frame = self.slot.slots[top_of(word)].load(Relaxed);
        head.word.store(self.folded(PagesetWord::from_bits(next), kind, 1).bits(), Relaxed);
        head.open();
        Ok(frame)
    }

    /// Pushes a frame onto the stack of single frames and unlocks the pageset.
    ///
    /// # Errors
    /// Returns the session if more work than a fold is necessary, or if this free ends a period of the depth rule. In
    /// that case the session must account for the free first.
    #[inline(always)]
    pub(crate) fn push(self, frame: u32, kind: PageKind) -> Result<(), PagesetSession<'a, 'm, P>> {
        let head = self.slot.head;
        let next = head.word.load(Relaxed).wrapping_sub(PUSH_STEPS[kind as usize].bits());
        let trips = head.push_limit.load(Relaxed).wrapping_sub(next) & FREE_SLOTS_GUARD != 0;
        if trips || self.is_period_over() {
            return Err(self.session());
        }
        self.slot.slots[top_of(next)].store(frame, Relaxed);
        head.word.store(self.folded(PagesetWord::from_bits(next), kind, -1).bits(), Relaxed);
        head.open();
        Ok(())
    }

    fn is_period_over(&self) -> bool {
        let pageset = self.state.pagesets[self.slot.zone.index()].of(self.cpu);
        self.state.shared.tuning().rule() == TuningRule::Depth
            && pageset.depth().is_period_over(self.state.platform.now())
    }

    #[cold]
    pub(crate) fn session(self) -> PagesetSession<'a, 'm, P> {
        PagesetSession::of_locked(self.state, &self.state.zones[self.slot.zone.index()], self.cpu)
    }

    /// Returns `word` after a step of `amount`; the parts of differences that exceed the thresholds move to the totals.
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
