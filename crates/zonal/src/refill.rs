//! Frames on their way between a pageset and the buddy: refill and drain.
//!
//! Frames move in batches, one acquisition of the zone's lock each; what a batch holds is put
//! together, and taken apart, outside the lock. Neighbours: `alloc.rs` refills, `free.rs` drains,
//! `pageset_tuning.rs` says how much.

use crate::Allocator;
use crate::counters::ZoneItem;
use crate::events::Event;
use crate::lock::Held;
use crate::pageset::{CachedOrders, PagesetGuard, StackId};
use crate::pageset_tuning::{HighLimits, PagesetFigures, PagesetTuning, ZoneLevel, blocks_of};
use crate::platform::Platform;
use crate::request::PageKind;
use crate::units::{Order, PageCount};
use crate::zone::{Seat, Shortness, Zone};

/// Most frames or blocks moved under one acquisition of a zone's lock.
const BATCH_MAX: usize = 64;

/// How often a drain of another CPU's pageset is tried before that pageset is left alone.
const DRAIN_TRIES: u32 = 32;

/// Runs of frames within words of 64: what moves under the lock.
struct Batch {
    words: [(u32, u64); BATCH_MAX],
    len: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { words: [(0, 0); BATCH_MAX], len: 0 }
    }

    /// Adds frames of one word.
    fn push(&mut self, first: u32, frames: u64) {
        self.words[self.len] = (first, frames);
        self.len += 1;
    }

    /// Adds a frame, to the last word when it is of that; `false` when that has the frame already.
    fn add(&mut self, frame: u32) -> bool {
        let (first, bit) = (frame & !63, 1 << (frame & 63));
        match self.words[..self.len].last_mut() {
            Some((last, frames)) if *last == first => {
                let fresh = *frames & bit == 0;
                *frames |= bit;
                fresh
            }
            _ => {
                self.push(first, bit);
                true
            }
        }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, u64)> + '_ {
        self.words[..self.len].iter().copied()
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Fills `stack` from the zone's buddy with a batch, of which `spare` frames lie above the
    /// watermark the request was checked against; beyond these just one block is taken, so that
    /// no pageset holds what urgent requests should find. Gives how many blocks came.
    #[cold]
    pub(crate) fn refill(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        own: bool,
        stack: StackId,
        spare: PageCount,
    ) -> u32 {
        let order = self.cached.order(stack);
        self.set_first_high(zone, guard, own);
        let spare = if zone.is_reclaimed() {
            let small_high = zone.pageset_limits(own).small_high();
            spare.min(small_high.saturating_minus(guard.count()))
        } else {
            spare
        };
        let size = self.refill_size(zone, guard, own, order).min(spare);
        let blocks = (blocks_of(size, order) as u32).min(guard.room(stack));
        if blocks == 0 {
            return 0;
        }
        let (mut left, mut spare) = (blocks, spare.get());
        while left > 0 {
            let kept_before = guard.len(stack);
            let came = if order == Order::PAGE {
                let most = guard.room(stack).min(spare.clamp(1, u64::from(u32::MAX)) as u32);
                refill_frames(zone, guard, stack, left.min(BATCH_MAX as u32), most)
            } else {
                refill_blocks(zone, guard, stack, order, left.min(BATCH_MAX as u32))
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
        self.note_shortness(zone);
        guard.len(stack)
    }

    fn refill_size(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        own: bool,
        order: Order,
    ) -> PageCount {
        let figures = self.figures(zone, guard, own);
        if self.tuning() != PagesetTuning::Stepwise {
            return figures.batch;
        }
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
        let held = zone.is_short(Shortness::HugeBlocks) || self.tuning() == PagesetTuning::Fixed;
        if held { limits.held_at_min() } else { limits }
    }

    /// Sets `high` of a pageset that was never used to where tuning starts.
    pub(crate) fn set_first_high(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, own: bool) {
        if guard.high() == PageCount::ZERO {
            guard.set_high(self.high_limits(zone, own).min());
        }
    }

    /// Frames the pageset may hold now.
    #[inline]
    pub(crate) fn high_now(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat) -> PageCount {
        if zone.holds_pagesets_down() { self.high_held_down(zone, guard, seat) } else { guard.high() }
    }

    /// As [`Self::high_now`]: the lower limit while large blocks are scarce, or under the stepwise
    /// rule below `watermarks.high`; 4 batches while the zone is reclaimed.
    #[cold]
    fn high_held_down(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat) -> PageCount {
        let figures = self.figures(zone, guard, zone.is_own(seat));
        let below = zone.is_short(Shortness::BelowHigh);
        let level = if below { ZoneLevel::Below } else { ZoneLevel::Above };
        let high = figures.drain_bar(level).min(figures.limits.max());
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
            let order = self.cached.order(stack);
            while left > 0 && guard.len(stack) > 0 {
                let blocks = (left >> order.get()).clamp(1, BATCH_MAX as u64) as u32;
                let gone = self.drain_stack(zone, guard, stack, blocks.min(guard.len(stack)));
                left = left.saturating_sub(gone.get());
            }
        }
        self.note_shortness(zone);
        self.clear_marks_early(zone);
    }

    /// Empties the pageset of the CPU at `seat`. Waits for it a little, but not for long: its holder
    /// may be the very context that this one has interrupted.
    pub(crate) fn drain_seat(&self, zone: &Zone<'m, P>, seat: Seat) {
        if zone.pagesets[seat.cpu.index()].count() == PageCount::ZERO {
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
        let mut refused = 0;
        if order == Order::PAGE {
            let mut batch = Batch::new();
            let frames = core::iter::from_fn(|| guard.pop(stack, order)).take(blocks as usize);
            let add = |frame| zone.frames.let_go(frame, order) && batch.add(frame);
            refused += frames.map(add).filter(|&added| !added).count() as u64;
            let held = zone.lock();
            refused +=
                batch.iter().map(|(first, frames)| give_frames(zone, &held, first, frames)).sum::<u64>();
        } else {
            let held = zone.lock();
            for _ in 0..blocks {
                let Some(frame) = guard.pop(stack, order) else { break };
                let given = zone.frames.let_go(frame, order) && zone.buddy.give(&held, frame, order);
                refused += u64::from(!given);
            }
        }
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
            guard.count_kind(PageKind::User, frames as i64, &self.nodes[zone.node].counters());
            self.nodes[zone.node].events.add(Event::Withheld, frames);
        }
    }

    /// Renews the notes what the zone is short of.
    fn note_shortness(&self, zone: &Zone<'_, P>) {
        let huge = self.cached.order(StackId::LARGE).get();
        let free: u64 = (huge..=self.max_order.get())
            .map(|order| {
                zone.buddy.free_blocks(Order::new(order).expect("up to the largest")) << (order - huge)
            })
            .sum();
        zone.note_short(Shortness::HugeBlocks, free < (zone.managed().get() >> huge) / 64);
        let stepwise = self.tuning() == PagesetTuning::Stepwise;
        zone.note_short(Shortness::BelowHigh, stepwise && zone_level(zone) == ZoneLevel::Below);
    }
}

/// Whether the zone has more free than `watermarks.high`.
pub(crate) fn zone_level<P: Platform>(zone: &Zone<'_, P>) -> ZoneLevel {
    if zone.free() > zone.watermarks().high { ZoneLevel::Above } else { ZoneLevel::Below }
}

/// Takes single frames; gives how many left the buddy. Those that are somebody's are not kept.
fn refill_frames<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    stack: StackId,
    want: u32,
    most: u32,
) -> u32 {
    let mut batch = Batch::new();
    let held = zone.lock();
    let came = zone.buddy.take_pages(&held, want, most, &mut |first, frames| batch.push(first, frames));
    // Before the lock goes, so that no check takes frames for free that are on their way here.
    zone.counters().add(&guard.zone_diffs, ZoneItem::Free, -i64::from(came), guard);
    drop(held);
    // Pushed from the top down, so that frames are handed out in ascending order.
    for (first, mut frames) in batch.iter().rev() {
        while frames != 0 {
            let bit = 63 - frames.leading_zeros();
            if zone.frames.keep(first + bit, Order::PAGE) {
                guard.push(stack, Order::PAGE, first + bit);
            }
            frames &= !(1 << bit);
        }
    }
    came
}

/// As [`refill_frames`], for larger blocks.
fn refill_blocks<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    stack: StackId,
    order: Order,
    want: u32,
) -> u32 {
    let held = zone.lock();
    let mut came = 0;
    while came < want
        && let Some(frame) = zone.buddy.take(&held, order)
    {
        if zone.frames.keep(frame, order) {
            guard.push(stack, order, frame);
        }
        came += 1;
    }
    // Under the zone's lock, as in `refill_frames`.
    let frames = u64::from(came) << order.get();
    zone.counters().add(&guard.zone_diffs, ZoneItem::Free, -(frames as i64), guard);
    came
}

/// Frees frames of one word; gives how many were refused because they are free already.
fn give_frames<P: Platform>(zone: &Zone<'_, P>, held: &Held<'_, P::Lock>, first: u32, frames: u64) -> u64 {
    if zone.buddy.give_word(held, first, frames) {
        return 0;
    }
    let bits = (0..64).filter(|bit| frames & (1 << bit) != 0);
    bits.filter(|&bit| !zone.buddy.give_word(held, first, 1 << bit)).count() as u64
}
