//! Frames on their way between a pageset and the buddy: refill and drain.
//!
//! Frames move in batches, one acquisition of a region's lock each. Neighbours: `alloc.rs` refills,
//! `free.rs` drains, `word_batch.rs` is what moves, `pageset_tuning.rs` says how much.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::word_batch::{BATCH_MAX, WordBatch};
use crate::pageset::state::MachineState;
use crate::pageset::{CachedOrders, PagesetGuard, StackId};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::words;
use crate::rules::pageset_tuning::{HighLimits, PagesetFigures, PagesetTuning, ZoneLevel, blocks_of};
use crate::units::PageKind;
use crate::units::{Order, PageCount};
use crate::zone::counters::ZoneItem;
use crate::zone::events::Event;
use crate::zone::{Seat, Shortness, Zone};

/// How often a drain of another CPU's pageset is tried before that pageset is left alone.
const DRAIN_TRIES: u32 = 32;

/// Frames moved under one hold of a lock, at most; a block that is larger moves alone.
const FRAMES_MAX: u64 = 512;

/// Batches between two looks whether a zone is still short of large blocks.
const LOOK_EVERY: u64 = 8;

impl<'m, P: Platform> MachineState<'m, P> {
    /// Fills `stack` from the zone's buddy with a batch, of which `spare` frames lie above the
    /// watermark the request was checked against; beyond these just one block is taken, so that
    /// no pageset holds what urgent requests should find. Gives how many blocks came.
    #[cold]
    pub(crate) fn refill(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        seat: Seat,
        stack: StackId,
        spare: PageCount,
    ) -> u32 {
        let (own, home) = (zone.is_own(seat), zone.home(Some(seat)));
        let order = self.cached.order(stack);
        self.set_first_high(zone, guard, own);
        let spare = spare.min(self.refill_most(zone, guard, seat));
        let size = self.refill_size(zone, guard, own, order).min(spare);
        let blocks = (blocks_of(size, order) as u32).min(guard.room(stack));
        if blocks == 0 {
            return 0;
        }
        let exact = self.shared.tuning() == PagesetTuning::DepthPublished;
        let (mut left, mut spare) = (blocks, if exact { u64::from(blocks) } else { spare.get() });
        while left > 0 {
            let kept_before = guard.len(stack);
            let came = if order == Order::PAGE {
                let most = guard.room(stack).min(spare.clamp(1, u64::from(u32::MAX)) as u32);
                refill_frames(zone, guard, home, left.min(BATCH_MAX as u32)..=most)
            } else {
                refill_blocks(zone, guard, stack, order, home, left.min(BATCH_MAX as u32))
            };
            let withheld = came - (guard.len(stack) - kept_before);
            self.count_withheld(zone, guard, u64::from(withheld) << order.get());
            guard.bump(|pageset| &pageset.refills);
            if came == 0 {
                break;
            }
            left = left.saturating_sub(came);
            spare = spare.saturating_sub(u64::from(came) << order.get());
        }
        self.note_shortness(zone, guard);
        guard.len(stack)
    }

    /// Frames that a refill may bring now, whatever lies above the watermark.
    fn refill_most(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat) -> PageCount {
        let rounds = self.shared.tuning().rounds_to_words();
        if zone.is_reclaimed() {
            let small_high = zone.pageset_limits(zone.is_own(seat)).small_high();
            let most = words::refill_most(small_high, guard.count());
            return if rounds { most } else { small_high.saturating_minus(guard.count()) };
        }
        if !rounds {
            return PageCount::new(u64::MAX);
        }
        // Half a word always: larger blocks that fill the pageset are drained by the next free.
        words::refill_most(self.high_now(zone, guard, seat), guard.count()).max(words::HALF_WORD)
    }

    fn refill_size(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        own: bool,
        order: Order,
    ) -> PageCount {
        let (tuning, batch) = (self.shared.tuning(), zone.pageset_limits(own).batch);
        if tuning.rounds_to_words() && order == Order::PAGE {
            return words::refill_size(batch);
        }
        if tuning != PagesetTuning::Stepwise {
            return batch;
        }
        let figures = self.figures(zone, guard, own);
        let resize = guard.stepwise().refill(&figures, order, zone_level(zone), guard);
        guard.set_high(resize.high);
        resize.size
    }

    /// The figures that tuning goes by.
    pub(crate) fn figures(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        own: bool,
    ) -> PagesetFigures {
        let limits = self.high_limits(zone, own);
        PagesetFigures {
            count: guard.count(),
            high: guard.high(),
            batch: zone.pageset_limits(own).batch,
            limits,
        }
    }

    /// The limits within which `pageset.high` may move now: those of the zone, held at the lower
    /// one while large blocks are scarce or nothing is tuned, and within the pageset's slots.
    pub(crate) fn high_limits(&self, zone: &Zone<'_, P>, own: bool) -> HighLimits {
        let limits = zone.pageset_limits(own);
        let limits = HighLimits::new(limits.high_min, limits.high_max);
        let held = match self.shared.tuning() {
            PagesetTuning::Fixed => true,
            PagesetTuning::DepthPublished => false,
            PagesetTuning::Depth | PagesetTuning::Stepwise => zone.is_short(Shortness::HugeBlocks),
        };
        if held { limits.held_at_min() } else { limits }
    }

    /// Sets `high` of a pageset that was never used to where tuning starts.
    pub(crate) fn set_first_high(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, own: bool) {
        if guard.high() == PageCount::ZERO {
            guard.set_high(self.high_limits(zone, own).min());
        }
    }

    /// The count at which the pageset drains now.
    #[inline]
    pub(crate) fn high_now(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat) -> PageCount {
        if zone.holds_pagesets_down() {
            self.high_held_down(zone, guard, seat)
        } else {
            self.rounded_bar(guard.high(), guard)
        }
    }

    /// The count at which a pageset drains whose `high` is this.
    fn rounded_bar(&self, high: PageCount, guard: &PagesetGuard<'_, P>) -> PageCount {
        let slots = PageCount::new(guard.page_slots().len() as u64);
        if self.shared.tuning().rounds_to_words() { words::bar(high, slots) } else { high }
    }

    /// As [`Self::high_now`]: the lower limit while large blocks are scarce, or under the stepwise
    /// rule below `watermarks.high`; 4 batches while the zone is reclaimed.
    #[cold]
    fn high_held_down(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat) -> PageCount {
        let figures = self.figures(zone, guard, zone.is_own(seat));
        let below = zone.is_short(Shortness::BelowHigh);
        let level = if below { ZoneLevel::Below } else { ZoneLevel::Above };
        let high = figures.drain_bar(level).min(figures.limits.max());
        let high = self.rounded_bar(high, guard);
        if zone.is_reclaimed() { high.min(zone.pageset_limits(true).small_high()) } else { high }
    }

    /// Gives `frames` of the pageset back to the zone, `first` stack first, then larger blocks.
    pub(crate) fn drain(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        first: StackId,
        frames: PageCount,
    ) {
        let mut left = frames.get();
        for stack in core::iter::once(first).chain(CachedOrders::stacks_downwards()) {
            if left == 0 {
                break;
            }
            let order = self.cached.order(stack);
            while left > 0 && guard.len(stack) > 0 {
                let most = (FRAMES_MAX >> order.get()).clamp(1, BATCH_MAX as u64);
                let blocks = (left >> order.get()).clamp(1, most) as u32;
                let gone = self.drain_stack(zone, guard, stack, blocks.min(guard.len(stack)));
                left = left.saturating_sub(gone.get());
            }
        }
        self.note_shortness(zone, guard);
        self.clear_marks_early(zone);
    }

    /// Empties the pageset of the CPU at `seat`. Waits for it a little, but not for long: its holder
    /// may be the very context that this one has interrupted.
    pub(crate) fn drain_seat(&self, zone: &Zone<'m, P>, seat: Seat) {
        if self.pagesets_of(zone).of(seat).count() == PageCount::ZERO {
            return;
        }
        for round in 0..DRAIN_TRIES {
            if let Some(guard) = self.try_pageset(zone, seat) {
                self.drain(zone, &guard, StackId::PAGES, guard.count());
                if seat.cpu != self.platform.current_cpu() {
                    guard.bump(|pageset| &pageset.remote_drains);
                }
                self.set_limits(zone, &guard, seat);
                return;
            }
            self.platform.relax(round);
        }
    }

    /// One batch of blocks from the top of `stack`; gives the frames that left the pageset.
    fn drain_stack(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        stack: StackId,
        blocks: u32,
    ) -> PageCount {
        let order = self.cached.order(stack);
        let refused = if order == Order::PAGE {
            drain_frames(zone, guard, blocks)
        } else {
            drain_blocks(zone, guard, stack, order, blocks)
        };
        let moved = u64::from(blocks) << order.get();
        let refused = refused << order.get();
        zone.counters().add(&guard.zone_diffs, ZoneItem::Free, (moved - refused) as i64, guard);
        self.count_withheld(zone, guard, refused);
        guard.bump(|pageset| &pageset.drains);
        PageCount::new(moved)
    }

    /// Frames that came back twice through misuse are counted as allocated again: the free that
    /// was wrong counted them down.
    pub(crate) fn count_withheld(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, frames: u64) {
        if frames != 0 {
            guard.count_kind(PageKind::User, frames as i64, &self.nodes[zone.node].counters);
            self.nodes[zone.node].events.add(Event::Withheld, frames);
        }
    }

    /// Renews the notes what the zone is short of.
    fn note_shortness(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>) {
        let stepwise = self.shared.tuning() == PagesetTuning::Stepwise;
        // Relaxed: the guard orders them.
        let batches = guard.refills.load(Relaxed).wrapping_add(guard.drains.load(Relaxed));
        // It takes a look at every region: not each time, but where batches grow to many.
        if batches % LOOK_EVERY == 0 || (stepwise && !zone.is_short(Shortness::HugeBlocks)) {
            let huge = self.cached.order(StackId::LARGE).get();
            let enough = ((zone.managed().get() >> huge) / 64) << huge;
            zone.note_short(Shortness::HugeBlocks, !zone.regions.has_in_large(enough));
        }
        zone.note_short(Shortness::BelowHigh, stepwise && zone_level(zone) == ZoneLevel::Below);
    }
}

/// Whether the zone has more free than `watermarks.high`.
pub(crate) fn zone_level<P: Platform>(zone: &Zone<'_, P>) -> ZoneLevel {
    if zone.free() > zone.watermarks().high { ZoneLevel::Above } else { ZoneLevel::Below }
}

/// Takes single frames, as many as `range` starts with and never more than it ends with; gives how
/// many left their regions. Those that are somebody's are not kept.
fn refill_frames<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    home: usize,
    range: RangeInclusive<u32>,
) -> u32 {
    // Most often one whole word is all that comes.
    let (mut first, mut others) = (None, None);
    let mut push = |word, frames| match first {
        None => first = Some((word, frames)),
        Some(_) => others.get_or_insert_with(WordBatch::new).push(word, frames),
    };
    let came = zone.regions.take_pages(home, range, &mut push, &mut leaving(zone, guard, Order::PAGE));
    // Pushed from the top down, so that frames are handed out in ascending order.
    let others = others.iter().flat_map(|others| others.iter().rev());
    for (word, frames) in others.chain(first) {
        guard.push_word(word, zone.frames.mark_word_cached(word, frames));
    }
    came
}

/// Gives back the `count` uppermost single frames; gives how many were refused.
fn drain_frames<P: Platform>(zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, count: u32) -> u64 {
    if count == u64::BITS
        && let Some(word) = guard.whole_word_on_top()
    {
        guard.drop_frames(count);
        let gone = zone.frames.mark_word_free(word, !0);
        return u64::from(gone.count_zeros()) + zone.regions.give_word(word, gone);
    }
    let (mut batch, mut strange) = (WordBatch::new(), 0);
    let twice = batch.add(guard.pop_frames(count).filter(let_go(zone, Order::PAGE, &mut strange)));
    u64::from(twice) + strange + zone.regions.give_batch(&batch)
}

/// Gives back the uppermost blocks of a larger order; gives how many were refused.
fn drain_blocks<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    stack: StackId,
    order: Order,
    blocks: u32,
) -> u64 {
    let mut strange = 0;
    let popped = core::iter::from_fn(|| guard.pop(stack, order)).take(blocks as usize);
    let twice = zone.regions.give_blocks(order, popped.filter(let_go(zone, order, &mut strange)));
    twice + strange
}

/// Marks blocks on their way to the buddy; holds back those that were not kept, and counts them.
fn let_go<P: Platform>(zone: &Zone<'_, P>, order: Order, strange: &mut u64) -> impl FnMut(&u32) -> bool {
    move |&frame| {
        let lets = zone.frames.mark_free(frame, order);
        *strange += u64::from(!lets);
        lets
    }
}

/// As [`refill_frames`], for up to `want` larger blocks.
fn refill_blocks<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    stack: StackId,
    order: Order,
    home: usize,
    want: u32,
) -> u32 {
    let mut keep = |frame| {
        if zone.frames.mark_cached(frame, order) {
            guard.push(stack, order, frame);
        }
    };
    zone.regions.take_blocks(order, home, want, &mut keep, &mut leaving(zone, guard, order))
}

/// Counts blocks that leave a region: before its lock goes, so that no check takes frames for free
/// that are on their way to a pageset.
fn leaving<P: Platform>(zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, order: Order) -> impl FnMut(u32) {
    move |blocks| {
        let frames = u64::from(blocks) << order.get();
        zone.counters().add(&guard.zone_diffs, ZoneItem::Free, -(frames as i64), guard);
    }
}
