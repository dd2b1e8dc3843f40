//! Refills: a refill moves frames from the buddy into a pageset.
//!
//! Frames move in batches, and each batch needs one acquisition of a free area's lock. Related files:
//! `pageset/drain.rs` moves frames back, `buddy/word_batch.rs` holds a batch, and `rules/pageset_tuning.rs` decides how
//! many frames to move.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::word_batch::WordBatch;
use crate::pageset::guard::AREA_HOLD_MAX;
use crate::pageset::session::PagesetSession;
use crate::pageset::{HOLD_MAX, StackId};
use crate::platform::tracepoint::{RetireCause, Tracepoint};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{Depths, TuningRule, ZoneLevel, blocks_of, words};
use crate::units::{Order, PageCount, PageKind};
use crate::zone::Shortness;
use crate::zone::counters::ZoneItem;
use crate::zone::frame_state::FrameState;

/// Batches between two checks whether a zone is still short of large blocks.
const LOOK_EVERY: u64 = 8;

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Refills `stack` from the zone's buddy; returns how many blocks the stack holds after the refill.
    ///
    /// `spare` is the number of free frames above the request's watermark. A refill moves at most these frames, or
    /// one block if there are fewer. Pagesets therefore do not cache the frames that are reserved for urgent requests.
    /// Nor does it move more than may move under one hold of the lock; what is missing comes with the next refill.
    #[cold]
    pub(crate) fn refill(&self, stack: StackId, spare: PageCount) -> u32 {
        let order = self.state.cached.order(stack);
        self.set_first_high();
        let may_move = PageCount::new(self.may_move().into());
        if may_move < order.pages() {
            return self.len(stack);
        }
        // The longest run of allocations that lets a refill grow is a quarter of the CPU's share in the spare frames. If refills
        // grew regardless of what is left, the last free frames would be in the pagesets of a few CPUs, and the other CPUs
        // would have to drain them.
        let cpus = self.state.nodes[self.zone.node].cpus_online().max(1);
        let run_max = PageCount::new(spare.get() / 4 / u64::from(cpus));
        let may_grow = self.state.shared.owns_blocks() && spare.get() >= u64::from(HOLD_MAX);
        let spare = spare.min(self.refill_most()).min(may_move);
        let size = self.refill_size(order, run_max).min(spare);
        let blocks = if stack.is_middle() { 1 } else { blocks_of(size, order) as u32 };
        let blocks = blocks.min(self.free_slots(stack));
        if blocks == 0 {
            return 0;
        }
        let exact = self.state.shared.tuning().is_past();
        let batches = self.batches();
        let (mut left, mut spare) = (blocks, if exact { u64::from(blocks) } else { spare.get() });
        while left > 0 {
            let kept_before = self.len(stack);
            let came = if order == Order::PAGE {
                let most = self.free_slots(stack).min(spare.clamp(1, u64::from(u32::MAX)) as u32);
                self.refill_frames(left.min(AREA_HOLD_MAX)..=most, may_grow)
            } else {
                let want = left.min((AREA_HOLD_MAX >> order.get()).max(1));
                self.refill_blocks(stack, want, may_grow)
            };
            let retired = came - (self.len(stack) - kept_before);
            self.count_retired(u64::from(retired) << order.get());
            self.add_to(|pageset| &pageset.refills, 1);
            self.count_moved(came << order.get());
            let frames = PageCount::new(u64::from(came) << order.get());
            self.state.platform.trace(Tracepoint::Refill { zone: self.zone.id, cpu: self.cpu.id, frames });
            if came == 0 {
                break;
            }
            left = left.saturating_sub(came);
            spare = spare.saturating_sub(frames.get());
        }
        self.note_shortness(batches);
        self.len(stack)
    }

    /// Returns how many frames a refill may move now, regardless of how many frames are above the watermark.
    fn refill_most(&self) -> PageCount {
        let rounds = self.state.shared.tuning().rounds_to_words();
        if self.zone.is_reclaimed() {
            let small_high = self.zone_limits().small_high();
            let most = words::refill_most(small_high, self.count());
            return if rounds { most } else { small_high.saturating_minus(self.count()) };
        }
        if !rounds {
            return PageCount::new(u64::MAX);
        }
        // The result is at least half a word, even if larger blocks fill the pageset. The next free drains these
        // blocks.
        words::refill_most(self.high_now(), self.count()).max(words::HALF_WORD)
    }

    fn refill_size(&self, order: Order, run_max: PageCount) -> PageCount {
        let (tuning, batch) = (self.state.shared.tuning(), self.zone_limits().batch);
        if tuning.rounds_to_words() && order == Order::PAGE {
            // A run of allocations that has come far above the period's minimum probably goes on.
            return words::refill_size(batch, self.run_so_far(Depths::alloc).min(run_max));
        }
        if tuning.rule() != TuningRule::Stepwise {
            return batch;
        }
        let figures = self.figures();
        let resize = self.update_stepwise(|state| state.refill(&figures, order, self.zone_level()));
        // `high` rises by the size of the refill, which is cut if it may not move under one hold of the lock.
        self.set_high(resize.high.min(self.high().plus(PageCount::new(HOLD_MAX.into()))));
        resize.size
    }

    /// Returns how far the depth rule has seen the count of allocated frames rise, or fall, in this period.
    pub(super) fn run_so_far(&self, direction: impl FnOnce(Depths) -> PageCount) -> PageCount {
        let is_known = self.state.shared.tuning().rule() == TuningRule::Depth;
        if is_known { direction(self.position()) } else { PageCount::ZERO }
    }

    /// Counts frames as allocated again, to correct for an invalid free that pushed and subtracted them a second time.
    pub(super) fn count_retired(&self, frames: u64) {
        if frames != 0 {
            self.count_kind(PageKind::User, frames as i64, &self.state.nodes[self.zone.node].counters);
            self.state.note_retired(self.zone.node, RetireCause::InvalidFree, None, PageCount::new(frames));
        }
    }

    /// Returns how many batches refills and drains have moved.
    pub(super) fn batches(&self) -> u64 {
        // Relaxed: the guard orders these accesses.
        self.refills.load(Relaxed).wrapping_add(self.drains.load(Relaxed))
    }

    /// Updates the record that shows whether the zone is short of huge blocks or free frames, after a refill or a
    /// drain.
    ///
    /// `before` is the number of batches before it.
    pub(super) fn note_shortness(&self, before: u64) {
        let stepwise = self.state.shared.tuning().rule() == TuningRule::Stepwise;
        // The check reads every free area, so it does not run for every batch, except while the stepwise rule lets
        // batches grow.
        let is_time = self.batches() / LOOK_EVERY != before / LOOK_EVERY;
        if is_time || (stepwise && !self.zone.is_short(Shortness::HugeBlocks)) {
            let huge = self.state.cached.order(StackId::LARGE).get();
            let enough = ((self.zone.managed().get() >> huge) / 64) << huge;
            self.zone.note_shortage(Shortness::HugeBlocks, !self.zone.free_areas.has_in_large(enough));
        }
        let is_below = stepwise && self.zone_level() == ZoneLevel::Below;
        if self.zone.note_shortage(Shortness::BelowHigh, is_below) {
            // The next push onto each of the zone's pagesets must drain it down to the lower limit for `high`.
            self.state.pagesets_of(self.zone).let_next_pushes_bail_out();
        }
    }

    /// Moves single frames to the pageset: at least the start of `range`, if available, and at most its end.
    ///
    /// Returns how many frames left their free areas. A frame whose state is not free is not pushed onto the stack.
    fn refill_frames(&self, range: RangeInclusive<u32>, may_grow: bool) -> u32 {
        let (zone, cpu) = (self.zone, self.cpu);
        // Often the batch is a single whole word.
        let (mut first, mut others) = (None, None);
        let mut push = |word, frames| match first {
            None => first = Some((word, frames)),
            Some(_) => others.get_or_insert_with(WordBatch::new).push(word, frames),
        };
        let mut came = if zone.refills_from_owned(cpu, Order::PAGE) {
            zone.take_owned_pages(cpu, range.clone(), || may_grow, &mut push)
        } else {
            0
        };
        if came == 0 {
            let preferred = zone.preferred_area(cpu);
            came = zone.free_areas.take_pages(preferred, range, &mut push, &mut self.leaving(Order::PAGE));
        }
        // The words are pushed in descending order, so that frames are allocated in ascending order.
        let cached = FrameState::Cached(Order::PAGE);
        let put = |(word, frames)| {
            self.put_word(word, zone.frames.step_word(word, frames, FrameState::Free, cached));
        };
        others.iter_mut().for_each(|others| others.words().iter().rev().copied().for_each(put));
        first.into_iter().for_each(put);
        came
    }

    /// Moves up to `want` larger blocks to the pageset; otherwise like [`Self::refill_frames`].
    fn refill_blocks(&self, stack: StackId, want: u32, may_grow: bool) -> u32 {
        let (zone, cpu, order) = (self.zone, self.cpu, self.state.cached.order(stack));
        let mut keep = |frame| {
            if zone.frames.step(frame, FrameState::Free, FrameState::Cached(order)) {
                self.push(stack, order, frame);
            }
        };
        if zone.refills_from_owned(cpu, order) {
            let came = zone.take_owned(cpu, order, want, || may_grow, &mut keep);
            if came > 0 {
                return came;
            }
        }
        let preferred = zone.preferred_area(cpu);
        zone.free_areas.take_blocks(order, preferred, want, &mut keep, &mut self.leaving(order))
    }

    /// Returns a function that counts the blocks that leave a free area.
    ///
    /// The function runs before the area's lock is released, so that no watermark check counts frames as free that are on
    /// their way to a pageset.
    fn leaving(&self, order: Order) -> impl FnMut(u32) + '_ {
        move |blocks| {
            let frames = u64::from(blocks) << order.get();
            self.zone.counters().update(&self.zone_diffs, self, [(ZoneItem::Free, -(frames as i64))]);
        }
    }
}
