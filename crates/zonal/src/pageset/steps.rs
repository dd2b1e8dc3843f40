//! Single frames popped and pushed under the lock although nothing but a counter's threshold (M4) is in the way.
//!
//! A run in one direction trips so every one and a half thresholds, as a rule. Then what the differences have become is
//! folded into the totals, and the limits of steps without the lock stay as they are. Neighbours:
//! `zone/counters.rs` has the rule, `session.rs` sets limits.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::platform::pageset_word::{GIVE_STEPS, GUARDS, HOME_LANE, ROOM_GUARD, TAKE_STEPS, Word, room_of};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::units::PageKind;

// Accesses of limits and slots are relaxed: the lock orders them.
impl<P: Platform> PagesetSession<'_, '_, P> {
    /// Takes the frame on top of the stack of single frames; `None` when more than a counter is in the way.
    pub(crate) fn pop_and_fold(&self, kind: PageKind) -> Option<u32> {
        let word = self.word().bits();
        let next = word.wrapping_add(TAKE_STEPS[kind as usize]);
        if next.wrapping_add(self.head.take_limit.load(Relaxed)) & ROOM_GUARD != 0 {
            return None;
        }
        let frame = self.page_slots()[room_of(word)].load(Relaxed);
        self.set_word(self.folded(Word::from_bits(next), kind, 1));
        self.depth().moved(1, self);
        Some(frame)
    }

    /// Whether a frame may be pushed without a look at the tuning: one that ends a period is counted first.
    pub(crate) fn may_push(&self) -> bool {
        self.state.shared.tuning() != PagesetTuning::Depth
            || !self.depth().is_period_over(self.state.platform.now())
    }

    /// Puts a frame onto the stack of single frames; `false` when more than a counter is in the way.
    pub(crate) fn push_and_fold(&self, frame: u32, kind: PageKind) -> bool {
        let next = self.word().bits().wrapping_sub(GIVE_STEPS[kind as usize]);
        if self.head.give_limit.load(Relaxed).wrapping_sub(next) & ROOM_GUARD != 0 {
            return false;
        }
        self.page_slots()[room_of(next)].store(frame, Relaxed);
        self.set_word(self.folded(Word::from_bits(next), kind, -1));
        self.depth().moved(-1, self);
        true
    }

    /// `word` after a step of `amount`, with what is beyond the thresholds moved to the totals.
    #[inline]
    fn folded(&self, word: Word, kind: PageKind, amount: i64) -> Word {
        let counters = &self.state.nodes[self.zone.node].counters;
        let difference = word.difference(kind as usize);
        let left = counters.kept_of(difference, amount);
        counters.fold_difference(&[kind.item()], difference - left);
        let word = word.with_difference(kind as usize, left);
        let served = word.difference(HOME_LANE);
        if amount < 0 || word.bits().wrapping_add(self.head.take_limit.load(Relaxed)) & GUARDS == 0 {
            return word;
        }
        let left = -self.zone.counters().overstep();
        self.state.fold_served(self.zone, self, self.seat, served - left);
        word.with_difference(HOME_LANE, left)
    }
}
