//! Takes and gives at home that trip for no other reason than a counter's threshold (M4).
//!
//! A run in one direction does so every one and a half thresholds, as a rule. Then the one step is done under the
//! head's lock, and what the differences have become is folded into the totals; limits stay as
//! they are. Neighbours: `alloc.rs` and `free.rs` come here first when a step trips,
//! `counters.rs` has the rule.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::alloc::request::PageKind;
use crate::platform::cpu_local::{CpuLocal, OPEN};
use crate::platform::pageset_slot::Home;
use crate::platform::pageset_word::{GIVE_STEPS, GUARDS, HOME_LANE, ROOM_GUARD, TAKE_STEPS, Word, room_of};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::zone::Seat;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Takes the frame on top of the stack at home; `None` when the take trips for the sake of the
    /// stack, or is disturbed.
    pub(crate) fn take_and_fold(&self, kind: PageKind) -> Option<(&Home<'m, P>, u32)> {
        // Accesses of the word and the slots are relaxed: the gate orders them.
        self.under_lock(|home, seat, word| {
            let next = word.wrapping_add(TAKE_STEPS[kind as usize]);
            let reach = next.wrapping_add(home.head.take_limit.load(Relaxed));
            let frame = (reach & ROOM_GUARD == 0).then(|| home.slots[room_of(word)].load(Relaxed))?;
            home.head.word.store(self.folded(home, seat, Word::from_bits(next), kind, 1).bits(), Relaxed);
            Some((home, frame))
        })
    }

    /// Puts a frame of zone `zone`, marked as kept, on top of the stack at home; `false` when that is
    /// of another zone, or the give trips for the sake of the stack or is disturbed.
    pub(crate) fn give_and_fold(&self, zone: usize, frame: u32, kind: PageKind) -> bool {
        if self.state.shared.tuning() == PagesetTuning::Depth && self.is_period_over(zone) {
            return false; // one that is counted under the pageset's guard closes it
        }
        let given = self.under_lock(|home, seat, word| {
            let next = word.wrapping_sub(GIVE_STEPS[kind as usize]);
            let reach = home.head.give_limit.load(Relaxed).wrapping_sub(next);
            (home.zone.index() == zone && reach & ROOM_GUARD == 0).then(|| {
                home.slots[room_of(next)].store(frame, Relaxed);
                home.head
                    .word
                    .store(self.folded(home, seat, Word::from_bits(next), kind, -1).bits(), Relaxed);
            })
        });
        given.is_some()
    }

    fn is_period_over(&self, zone: usize) -> bool {
        let pageset = self.state.pagesets[zone].pagesets.get(self.state.platform.current_cpu().index());
        pageset.is_some_and(|pageset| pageset.depth().is_period_over(self.state.platform.now()))
    }

    /// Does `work` with the home of the caller's CPU and its word, if that can be locked at once.
    fn under_lock<R>(&self, work: impl FnOnce(&'m Home<'m, P>, Seat, u64) -> Option<R>) -> Option<R> {
        let cpu = self.state.platform.current_cpu();
        let home = self.state.homes.of(cpu)?;
        let seat = self.state.seat(cpu)?;
        let gate = self.state.platform.cpu_local().lock(cpu, home.head)?;
        let done = if gate == OPEN { work(home, seat, home.head.word.load(Relaxed)) } else { None };
        home.head.open();
        done
    }

    /// `word` after a step of `amount`, with what is beyond the thresholds moved to the totals.
    #[inline]
    fn folded(&self, home: &Home<'m, P>, seat: Seat, word: Word, kind: PageKind, amount: i64) -> Word {
        let zone = &self.state.zones[home.zone.index()];
        let counters = &self.state.nodes[zone.node].counters;
        let difference = word.difference(kind as usize);
        let left = counters.kept_of(difference, amount);
        counters.fold_difference(&[kind.item()], difference - left);
        let word = word.with_difference(kind as usize, left);
        let served = word.difference(HOME_LANE);
        if amount < 0 || word.bits().wrapping_add(home.head.take_limit.load(Relaxed)) & GUARDS == 0 {
            return word;
        }
        let left = -zone.counters().overstep();
        self.state.fold_served(zone, self.state.pagesets_of(zone).of(seat), seat, served - left);
        word.with_difference(HOME_LANE, left)
    }
}
