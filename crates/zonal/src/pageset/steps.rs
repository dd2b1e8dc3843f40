//! Pops and pushes of single frames under the lock, for steps that left the fast path only to fold counters.
//!
//! The fast path bails out when the difference of a counter would exceed its threshold (mechanism M4 of the README). A
//! run of pops or pushes normally bails out once every one and a half thresholds. The code here then folds the
//! differences into the totals and does not change the limits of the fast path. It needs less state than a session, and
//! creates a session if other work is necessary. Related files: `zone/counters.rs` has the rule for folding, and
//! `pageset/session.rs` sets limits.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::deferred::FreedBlock;
use crate::pageset::state::MachineState;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{PagesetSlot, Popped};
use crate::platform::pageset_word::{
    FREE_SLOTS_GUARD, GUARDS, POP_STEPS, PUSH_STEPS, PagesetWord, SERVED_LANE, top_of,
};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::TuningRule;
use crate::units::PageKind;
use crate::zone::CpuInfo;
use crate::zone::counters::SERVED_OVERSTEP;

// Accesses to the word, the limits and the slots are relaxed, because the lock orders them.
impl<'m, P: Platform> MachineState<'m, P> {
    /// Pops a frame from a slot of the caller's CPU under the pageset's lock, if a pop without it failed only because a
    /// counter must be folded, or for no reason of the pageset.
    ///
    /// With `is_beside`, the slot must not serve for another zone.
    #[inline(always)]
    pub(crate) fn fold_and_pop(
        &self,
        slot: &PagesetSlot<'m, P>,
        cpu: CpuInfo,
        kind: PageKind,
        is_beside: bool,
    ) -> Option<Popped> {
        let (head, step) = (slot.head, POP_STEPS[kind as usize]);
        // Only a counter can make a pop fail if the stack has a frame and the limit of free slots allows a pop.
        // Relaxed: may be stale.
        let (word, limit) = (head.word.load(Relaxed), head.pop_limit.load(Relaxed));
        if top_of(word) >= slot.slots.len()
            || word.wrapping_add(step.bits()).wrapping_add(limit) & FREE_SLOTS_GUARD != 0
            || !self.platform.cpu_local().lock(cpu.id, head)
        {
            return None;
        }
        let word = head.word.load(Relaxed);
        let next = word.wrapping_add(step.bits());
        let trips = next.wrapping_add(head.pop_limit.load(Relaxed)) & FREE_SLOTS_GUARD != 0;
        let pops = !trips && (!is_beside || slot.is_preferred());
        let popped = pops.then(|| {
            let (top, below) = (&slot.slots[top_of(word)], &slot.slots[top_of(next)..]);
            head.word.store(self.after_step(slot, cpu, next, kind, 1), Relaxed);
            Popped::frame(sink_if_alone::<P>(top.load(Relaxed), below))
        });
        head.open();
        popped
    }

    /// Pushes a frame onto a slot under the pageset's lock, if only a counter that must be folded prevents a push without it.
    ///
    /// Leaves the push to a session if the CPU has deferred frees, or if this free ends a period of the depth rule: the
    /// session must account for the free first.
    #[inline(always)]
    pub(crate) fn fold_and_push(&self, cpu: CpuInfo, slot: &PagesetSlot<'m, P>, block: FreedBlock) -> bool {
        let (head, step) = (slot.head, PUSH_STEPS[block.kind as usize]);
        // Only a counter can make a push fail if the limit of free slots allows a push. Relaxed: may be stale.
        let (word, limit) = (head.word.load(Relaxed), head.push_limit.load(Relaxed));
        if limit.wrapping_sub(word.wrapping_sub(step.bits())) & FREE_SLOTS_GUARD != 0
            || self.deferred[cpu.index as usize].has_blocks()
            || !self.platform.cpu_local().lock(cpu.id, head)
        {
            return false;
        }
        let next = head.word.load(Relaxed).wrapping_sub(step.bits());
        let trips = head.push_limit.load(Relaxed).wrapping_sub(next) & FREE_SLOTS_GUARD != 0;
        let pageset = self.pagesets[slot.zone.index()].of(cpu);
        let is_depth = self.shared.tuning().rule() == TuningRule::Depth;
        let pushes = !(trips || is_depth && pageset.is_period_over(self.platform.now()));
        if pushes {
            slot.slots[top_of(next)].store(block.frame, Relaxed);
            head.word.store(self.after_step(slot, cpu, next, block.kind, -1), Relaxed);
        }
        head.open();
        pushes
    }

    /// Returns the word to store for `next`, the word after a step of `amount`; the parts of differences that exceed the
    /// thresholds move to the totals.
    #[inline]
    fn after_step(
        &self,
        slot: &PagesetSlot<'m, P>,
        cpu: CpuInfo,
        next: u64,
        kind: PageKind,
        amount: i64,
    ) -> u64 {
        let (zone, word) = (&self.zones[slot.zone.index()], PagesetWord(next));
        let counters = &self.nodes[zone.node].counters;
        let left = counters.leave(kind.item(), word.difference(kind as usize) - amount, amount);
        let word = word.with_difference(kind as usize, left);
        if amount < 0 || word.0.wrapping_add(slot.head.pop_limit.load(Relaxed)) & GUARDS == 0 {
            return word.0;
        }
        let left = -SERVED_OVERSTEP;
        let pageset = self.pagesets_of(zone).of(cpu);
        self.fold_served(zone, pageset, cpu, word.difference(SERVED_LANE) - left);
        word.with_difference(SERVED_LANE, left).0
    }
}

// As above, the lock orders the accesses.
/// Returns the frame to give out: `top`, or the frame below it if `top` is alone among the frames of another word.
///
/// A thread that moves to another CPU between an allocation and a free leaves such a frame there. The other frames of
/// its word, whose states are on the same cache line, are on the CPU that it came from, so if both CPUs used their top
/// frame again and again, the line would move with each step. `top` takes the place below, and one frame is on no stack
/// at any time. Frames in sequence are left alone.
#[inline]
fn sink_if_alone<P: Platform>(top: u32, below: &[P::U32]) -> u32 {
    let Some([second, third]) = below.first_chunk() else { return top };
    let (frame, word) = (second.load(Relaxed), third.load(Relaxed) / u64::BITS);
    if frame / u64::BITS != word || top / u64::BITS == word || top.abs_diff(frame) == 1 {
        return top;
    }
    second.store(top, Relaxed);
    frame
}
