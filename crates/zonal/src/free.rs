//! The way back: a block returns to the current CPU's pageset of its zone.
//!
//! A free that is wrong is refused before anything changes. Neighbours: `frame_table.rs` knows who
//! is allocated, `refill.rs` drains a pageset that is full.

use crate::Allocator;
use crate::counters::ZoneItem;
use crate::error::FreeError;
use crate::events::Event;
use crate::frame_table::FrameState;
use crate::pageset::{PagesetGuard, StackId};
use crate::pageset_tuning::PagesetTuning;
use crate::platform::Platform;
use crate::quarantine::{Entry, Quarantined};
use crate::refill::zone_level;
use crate::request::PageKind;
use crate::units::{Order, PageCount, Pfn};
use crate::zone::{Seat, Zone};

impl<P: Platform> Allocator<'_, P> {
    /// Frees the block of `order` that starts at `first`.
    ///
    /// # Errors
    /// When `first` does not start an allocated block of this order: the error names the frame and
    /// what it is instead, and nothing has changed.
    #[inline]
    pub fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        let Some(zone) = self.zone_of(first) else { return Err(FreeError::NotManaged(first)) };
        // Single frames apart, so that the order is a constant on their way.
        if order == Order::PAGE {
            self.free_in(zone, first, Order::PAGE)
        } else {
            self.free_block_in(zone, first, order)
        }
    }

    /// [`Self::free_in`] for blocks of more than a frame.
    #[inline(never)]
    fn free_block_in(&self, zone: &Zone<'_, P>, first: Pfn, order: Order) -> Result<(), FreeError> {
        self.free_in(zone, first, order)
    }

    #[inline(always)]
    fn free_in(&self, zone: &Zone<'_, P>, first: Pfn, order: Order) -> Result<(), FreeError> {
        let frame = zone.offset(first);
        let kind =
            zone.frames.release(frame, order, self.misuse).map_err(|state| refusal(first, order, state))?;
        if self.hardening.poison.is_some() || self.hardening.quarantine != PageCount::ZERO {
            self.free_hardened(zone, frame, order, kind);
        } else {
            self.give(zone, frame, order, kind);
        }
        Ok(())
    }

    /// Gives a block that is marked as kept back to its zone.
    #[inline(always)]
    fn give(&self, zone: &Zone<'_, P>, frame: u32, order: Order, kind: PageKind) {
        let pages = -(order.pages().get() as i64);
        let counters = self.nodes[zone.node].counters();
        if let Some(stack) = self.cached.stack(order)
            && let Some(seat) = self.current_seat()
            && let Some(guard) = zone.try_pageset(seat)
        {
            counters.add(&guard.node_diffs, kind.item(), pages, &guard);
            if self.push(zone, &guard, seat, stack, frame, order) {
                return;
            }
        } else {
            counters.add_total(kind.item(), pages);
        }
        self.give_to_buddy(zone, frame, order);
    }

    /// Puts a block onto its stack, drains when there is too much; `false` when there is no room.
    #[inline(always)]
    fn push(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        seat: Seat,
        stack: StackId,
        frame: u32,
        order: Order,
    ) -> bool {
        if guard.room(stack) == 0 && !self.make_room(zone, guard, seat, stack) {
            return false;
        }
        guard.push(stack, order, frame);
        match self.tuning() {
            PagesetTuning::Depth => self.on_give_by_depth(zone, guard, seat, order),
            PagesetTuning::Stepwise => {
                guard.stepwise().on_give(order, zone.pageset_limits(zone.is_own(seat)).batch, guard);
            }
            PagesetTuning::Fixed => {}
        }
        if guard.count() >= self.high_now(zone, guard, seat) {
            self.drain_surplus(zone, guard, seat, stack);
        }
        true
    }

    #[inline]
    fn on_give_by_depth(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat, order: Order) {
        let limits = || self.high_limits(zone, zone.is_own(seat));
        if let Some(high) = guard.depth().on_give(order, self.platform.now(), limits, guard) {
            guard.set_high(high);
        }
    }

    /// Drains a stack that is full; `false` when the pageset is closed.
    #[cold]
    fn make_room(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat, stack: StackId) -> bool {
        let order = self.cached.order(stack);
        let half = u64::from(guard.len(stack)).div_ceil(2) << order.get();
        let batch = zone.pageset_limits(zone.is_own(seat)).batch;
        self.drain(zone, guard, stack, batch.min(PageCount::new(half)));
        guard.room(stack) > 0
    }

    /// Drains a pageset that has reached `high`, or has none yet.
    #[cold]
    fn drain_surplus(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, seat: Seat, stack: StackId) {
        let own = zone.is_own(seat);
        self.set_first_high(zone, guard, own);
        if guard.count() < self.high_now(zone, guard, seat) {
            return;
        }
        let figures = self.figures(zone, guard, own);
        let mut size = figures.batch;
        if self.tuning() == PagesetTuning::Stepwise {
            let resize = guard.stepwise().drain(&figures, zone_level(zone), guard);
            guard.set_high(resize.high);
            size = resize.size;
        }
        let surplus = figures.count.saturating_minus(self.high_now(zone, guard, seat));
        self.drain(zone, guard, stack, size.max(surplus).min(figures.count));
        // While large blocks are scarce, or limits fell, `high` itself follows.
        guard.set_high(self.high_limits(zone, own).clamp(guard.high()));
    }

    /// Frees a block past the pagesets.
    #[cold]
    fn give_to_buddy(&self, zone: &Zone<'_, P>, frame: u32, order: Order) {
        let pages = order.pages().get();
        if zone.frames.let_go(frame, order) && zone.regions.give(frame, order) {
            zone.counters().add_total(ZoneItem::Free, pages as i64);
            self.clear_marks_early(zone);
        } else {
            // Freed twice by a race that plain checks cannot see: count it as allocated again.
            self.nodes[zone.node].counters().add_total(PageKind::User.item(), pages as i64);
            self.nodes[zone.node].events.add(Event::Withheld, pages);
        }
    }

    /// Poisons the block and passes it through quarantine, as far as these are on.
    #[cold]
    fn free_hardened(&self, zone: &Zone<'_, P>, frame: u32, order: Order, kind: PageKind) {
        if let Some(poison) = self.hardening.poison
            && let Some(contents) = self.platform.contents()
        {
            contents.fill(zone.pfn(frame), order.pages(), poison);
        }
        // The oldest blocks make room, each in turn; no more of them than there can be.
        for _ in 0..=zone.quarantine.len() {
            match zone.enter_quarantine(frame, order, kind) {
                Entry::Done => return,
                Entry::TooLarge => break,
                Entry::Oldest(oldest) => self.release(zone, &oldest),
                // Freed twice by a race that plain checks cannot see; it is in there once.
                Entry::Withheld => {
                    return self.nodes[zone.node].events.add(Event::Withheld, order.pages().get());
                }
            }
        }
        self.give(zone, frame, order, kind);
    }

    /// Frees all blocks that wait in a zone's quarantine.
    pub(crate) fn flush_quarantine(&self, zone: &Zone<'_, P>) {
        // No more than it can hold: others may be filling it.
        for _ in 0..zone.quarantine.len() {
            let Some(oldest) = zone.leave_quarantine() else { return };
            self.release(zone, &oldest);
        }
    }

    #[cold]
    fn release(&self, zone: &Zone<'_, P>, block: &Quarantined) {
        match block.kind {
            Some(kind) => self.give(zone, block.frame, block.order, kind),
            None => self.nodes[zone.node].events.add(Event::Withheld, block.order.pages().get()),
        }
    }
}

#[cold]
fn refusal(frame: Pfn, given: Order, state: FrameState) -> FreeError {
    match state {
        FrameState::NotManaged => FreeError::NotManaged(frame),
        FrameState::NotAllocated | FrameState::Kept(_) => FreeError::NotAllocated(frame),
        FrameState::Quarantined(..) => FreeError::Quarantined(frame),
        FrameState::Allocated(allocated, _) => FreeError::WrongOrder { frame, allocated, given },
    }
}
