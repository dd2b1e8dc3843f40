//! The way back: a block returns to the current CPU's pageset of its zone.
//!
//! Frames of the home zone go onto the stack there by [`Allocator::push_current`], which commits by one
//! store; all else goes through the pageset's lock. A free that is wrong is refused before
//! anything changes. Neighbours: `frame_table.rs` knows who is allocated, `refill.rs` drains a pageset
//! that is full.

use crate::Allocator;
use crate::alloc::request::PageKind;
use crate::error::FreeError;
use crate::pageset::StackId;
use crate::pageset::session::PagesetSession;
use crate::platform::Platform;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::PagesetSlot;
use crate::platform::pageset_word::PUSH_STEPS;
use crate::units::{Order, PageCount, Pfn};
use crate::zone::Zone;
use crate::zone::counters::ZoneItem;
use crate::zone::events::Event;
use crate::zone::frame_states::{CACHED_PAGE, allocated_page, mark_freed, mark_page_freed};
use crate::zone::quarantine::{Entry, Quarantined};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Frees the block of `order` that starts at `first`.
    ///
    /// # Errors
    /// When `first` does not start an allocated block of this order: the error names the frame and
    /// what it is instead; or [`FreeError::Reentered`]. Nothing has changed.
    #[inline(always)]
    pub fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        if order == Order::PAGE && self.push_current(first) { Ok(()) } else { self.free_beyond(first, order) }
    }

    /// A frame onto the stack at home; `false` when it is no allocated frame of that zone, or nothing can be given
    /// back now.
    #[inline(always)]
    fn push_current(&self, first: Pfn) -> bool {
        let prepare = move |slot: &PagesetSlot<'m, P>| {
            let offset = first.get().wrapping_sub(slot.base.get());
            let state = slot.states.get(usize::try_from(offset).ok()?)?;
            let step = match mark_page_freed(state, self.invalid_free) {
                Ok(()) => PUSH_STEPS[PageKind::User as usize],
                Err(found) => self.mark_other_kind_freed(state, found)?,
            };
            Some((step, offset as u32)) // zones span 2^32 frames at most
        };
        let refused =
            move |slot: &PagesetSlot<'m, P>, step, frame| self.free_slow(slot.zone.index(), frame, step);
        self.state.platform.cpu_local().push_current(
            &self.state.platform,
            &self.state.slots,
            prepare,
            refused,
        )
    }

    /// Marks a single frame of another kind than the usual one as cached, where `byte` was found; returns what
    /// giving it changes the word by, or `None` when it is not allocated.
    ///
    /// Inlined: a call would cost every loop around a free registers.
    #[inline(always)]
    fn mark_other_kind_freed(&self, state: &P::U8, byte: u8) -> Option<u64> {
        let kind = PageKind::ALL.into_iter().find(|&kind| allocated_page(kind) == byte)?;
        mark_freed(state, byte, CACHED_PAGE, self.invalid_free).ok()?;
        Some(PUSH_STEPS[kind as usize])
    }

    /// Gives a frame, already marked as kept, that the stack at home did not take at once. `false` when that would
    /// have to wait for the caller's own thread: the frame is allocated again.
    #[inline(never)]
    fn free_slow(&self, zone: usize, frame: u32, step: u64) -> bool {
        let kind = PageKind::ALL.into_iter().find(|&kind| PUSH_STEPS[kind as usize] == step);
        let kind = kind.expect("steps are of kinds");
        if self.state.platform.is_reentered() {
            self.state.zones[zone].frames.mark_allocated_again(frame, kind);
            return false;
        }
        let zone = &self.state.zones[zone];
        let mut session = None;
        if let Some(cpu) = self.state.current_cpu_info() {
            session = match self.state.slot_of(zone, cpu).map(|slot| self.state.lock_slot(slot, cpu)) {
                Some(Some(locked)) => match locked.push_and_fold(frame, kind) {
                    Ok(()) => return true,
                    Err(session) => Some(session),
                },
                Some(None) => None,
                None => self.state.own_pageset(zone, cpu),
            };
        }
        let pushed = self.push_beyond(session.as_ref(), zone, frame, kind);
        drop(session);
        if !pushed {
            self.free_to_buddy(zone, frame, Order::PAGE);
        }
        true
    }

    /// Frees whatever does not go onto the stack at home at once.
    #[inline(never)]
    fn free_beyond(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        let Some(zone) = self.zone_of(first) else { return Err(FreeError::NotManaged(first)) };
        if self.state.platform.is_reentered() {
            return Err(FreeError::Reentered(first));
        }
        let frame = zone.offset(first);
        let kind = zone
            .frames
            .release(frame, order, self.invalid_free)
            .map_err(|state| self.refusal(zone, first, order, state))?;
        if self.hardening.poison.is_some() || self.hardening.quarantine != PageCount::ZERO {
            self.free_hardened(zone, frame, order, kind);
        } else {
            self.free_block(zone, frame, order, kind);
        }
        Ok(())
    }

    /// Gives a block that is marked as kept back to its zone.
    fn free_block(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) {
        let stack = self.state.cached.stack(order);
        let session = match stack.and(self.state.current_cpu_info()) {
            Some(cpu) => self.state.own_pageset(zone, cpu),
            None => None,
        };
        let stack = stack.unwrap_or(StackId::PAGES);
        let pushed = self.push(session.as_ref(), zone, stack, frame, order, kind);
        drop(session);
        if !pushed {
            self.free_to_buddy(zone, frame, order);
        }
    }

    /// Pushes a block that is marked as kept onto a stack of the pageset; `false` when that has no room or there is no
    /// pageset to be had.
    #[inline]
    fn push(
        &self,
        session: Option<&PagesetSession<'_, 'm, P>>,
        zone: &Zone<'m, P>,
        stack: StackId,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) -> bool {
        let pages = -(order.pages().get() as i64);
        let counters = &self.state.nodes[zone.node].counters;
        let Some(session) = session else {
            counters.add_total(kind.item(), pages);
            return false;
        };
        session.count_kind(kind, pages, counters);
        let pushed = session.add(stack, frame, order);
        session.update_limits();
        pushed
    }

    /// Pushes a single frame, after a step that the word alone did not allow.
    #[cold]
    #[inline(never)]
    fn push_beyond(
        &self,
        session: Option<&PagesetSession<'_, 'm, P>>,
        zone: &Zone<'m, P>,
        frame: u32,
        kind: PageKind,
    ) -> bool {
        self.push(session, zone, StackId::PAGES, frame, Order::PAGE, kind)
    }

    /// Frees a block past the pagesets.
    #[cold]
    fn free_to_buddy(&self, zone: &Zone<'m, P>, frame: u32, order: Order) {
        let pages = order.pages().get();
        if zone.frames.mark_free(frame, order) && zone.free_areas.free(frame, order) {
            zone.counters().add_total(ZoneItem::Free, pages as i64);
            self.state.clear_full_bits_early(zone);
        } else {
            // Freed twice by a race that plain checks cannot see: count it as allocated again.
            self.state.nodes[zone.node].counters.add_total(PageKind::User.item(), pages as i64);
            self.state.nodes[zone.node].events.add(Event::Retired, pages);
        }
    }

    /// Poisons the block and passes it through quarantine, as far as these are on.
    #[cold]
    fn free_hardened(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) {
        if let Some(poison) = self.hardening.poison
            && let Some(contents) = self.state.platform.contents()
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
                Entry::Retired => {
                    return self.state.nodes[zone.node].events.add(Event::Retired, order.pages().get());
                }
            }
        }
        self.free_block(zone, frame, order, kind);
    }

    /// Frees all blocks that wait in a zone's quarantine.
    pub(super) fn flush_quarantine(&self, zone: &Zone<'m, P>) {
        // No more than it can hold: others may be filling it.
        for _ in 0..zone.quarantine.len() {
            let Some(oldest) = zone.leave_quarantine() else { return };
            self.release(zone, &oldest);
        }
    }

    #[cold]
    fn release(&self, zone: &Zone<'m, P>, block: &Quarantined) {
        match block.kind {
            Some(kind) => self.free_block(zone, block.frame, block.order, kind),
            None => self.state.nodes[zone.node].events.add(Event::Retired, block.order.pages().get()),
        }
    }
}
