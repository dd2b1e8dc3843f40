//! THE path: a block for a request.
//!
//! Most requests are served by [`Allocator::pop_home`]: the current CPU's pageset of the home zone
//! of its node, one try of a lock and no look at watermarks, for those are checked where free
//! frames change: at refill. Everything else is a scan of a zonelist. Vocabulary: to *claim* a
//! frame is to mark it as allocated; a frame that cannot be claimed is *withheld*. Neighbours:
//! `slow_path.rs` goes on when the pageset is empty, `free.rs` is the way back.

use crate::Allocator;
use crate::config::ZeroOn;
use crate::counters::{NodeItem, ZoneItem};
use crate::error::AllocError;
use crate::events::Event;
use crate::frame_table::FrameState;
use crate::pageset::{PagesetGuard, StackId};
use crate::pageset_tuning::PagesetTuning;
use crate::platform::Platform;
use crate::reach::Reach;
use crate::request::{Block, PageKind, Request};
use crate::units::{Order, PageCount};
use crate::watermarks::{Mark, Urgency};
use crate::zone::Zone;

impl<P: Platform> Allocator<'_, P> {
    /// Allocates one block.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when all that a request of its kind may try has been tried;
    /// other errors name what is wrong with the request. A failed request changes nothing.
    #[inline]
    pub fn alloc(&self, request: &Request<'_, P>) -> Result<Block, AllocError> {
        if request.is_plain() {
            // Single frames apart, so that the order is a constant on their way.
            let popped = if request.order == Order::PAGE {
                self.pop_home(request, Order::PAGE)
            } else {
                self.pop_home_block(request)
            };
            if let Some(block) = popped {
                return Ok(self.finish(block, self.hardening.zero == ZeroOn::EveryAllocation));
            }
        }
        self.alloc_slow(request)
    }

    /// [`Self::pop_home`] for blocks of more than a frame.
    #[inline(never)]
    fn pop_home_block(&self, request: &Request<'_, P>) -> Option<Block> {
        self.pop_home(request, request.order)
    }

    /// A block from the current CPU's pageset of its home zone, the one that is preferred; `None`
    /// when there is none to be had without waiting.
    #[inline(always)]
    fn pop_home(&self, request: &Request<'_, P>, order: Order) -> Option<Block> {
        let stack = self.cached.stack(order)?;
        let seat = self.current_seat()?;
        let zone = &self.zones[self.nodes[usize::from(seat.node)].home()?];
        let own = zone.is_own(seat);
        if request.is_strict() && !own {
            return None;
        }
        let guard = zone.try_pageset(seat)?;
        let block = self.pop(zone, &guard, stack, order, request.kind)?;
        zone.counters().update(&guard.zone_diffs, &guard, |counts| {
            counts.increment(ZoneItem::NumaHit);
            counts.increment(if own { ZoneItem::NumaLocal } else { ZoneItem::NumaOther });
        });
        Some(block)
    }

    /// The next block of a stack that can be claimed.
    #[inline(always)]
    fn pop(
        &self,
        zone: &Zone<'_, P>,
        guard: &PagesetGuard<'_, P>,
        stack: StackId,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        loop {
            let frame = guard.pop(stack, order)?;
            let counters = self.nodes[zone.node].counters();
            counters.add(&guard.node_diffs, kind.item(), order.pages().get() as i64, guard);
            if !self.admit(zone, frame, FrameState::Kept(order), order, kind) {
                continue;
            }
            match self.tuning() {
                PagesetTuning::Depth => guard.depth().on_take(order, guard),
                PagesetTuning::Stepwise => guard.stepwise().on_take(guard),
                PagesetTuning::Fixed => {}
            }
            return Some(Block { first: zone.pfn(frame), order, zone: zone.id, node: zone.node_id });
        }
    }

    /// Claims a block that left a pageset or the buddy; `false` when it must be withheld.
    #[inline]
    fn admit(&self, zone: &Zone<'_, P>, frame: u32, from: FrameState, order: Order, kind: PageKind) -> bool {
        if !zone.frames.claim(frame, from, order, kind) {
            self.nodes[zone.node].events.add(Event::Withheld, order.pages().get());
            return false;
        }
        self.hardening.poison.is_none_or(|poison| self.is_poisoned(zone, frame, order, poison))
    }

    #[cold]
    fn is_poisoned(&self, zone: &Zone<'_, P>, frame: u32, order: Order, poison: u64) -> bool {
        let contents = self.platform.contents().expect("checked when the allocator was made");
        let unchanged = contents.holds(zone.pfn(frame), order.pages(), poison);
        if !unchanged {
            self.nodes[zone.node].events.add(Event::PoisonFound, order.pages().get());
        }
        unchanged
    }

    /// A block from `zone`, whose watermark was checked: from the pageset, refilled if need be, or
    /// straight from the buddy.
    pub(crate) fn take_from(
        &self,
        zone: &Zone<'_, P>,
        preferred: &Zone<'_, P>,
        reach: &Reach<'_>,
        mark: Mark,
    ) -> Option<Block> {
        let Some((stack, seat)) = self.cached.stack(reach.order).zip(reach.seat) else {
            return self.take_from_buddy(zone, preferred, reach);
        };
        let Some(guard) = zone.try_pageset(seat) else {
            return self.take_from_buddy(zone, preferred, reach);
        };
        loop {
            if let Some(block) = self.pop(zone, &guard, stack, reach.order, reach.kind) {
                count_numa(zone, Some(&guard), preferred, reach);
                return Some(block);
            }
            let spare = spare(zone, reach, mark);
            if self.refill(zone, &guard, seat, stack, spare) == 0 {
                drop(guard);
                return self.take_from_buddy(zone, preferred, reach);
            }
        }
    }

    /// A block straight from the buddy: orders that are not cached, CPUs that are offline, and
    /// pagesets that somebody else has at the moment.
    fn take_from_buddy(
        &self,
        zone: &Zone<'_, P>,
        preferred: &Zone<'_, P>,
        reach: &Reach<'_>,
    ) -> Option<Block> {
        let order = reach.order;
        loop {
            let pages = order.pages().get() as i64;
            // Under the region's lock, as in a refill.
            let leaving = || zone.counters().add_total(ZoneItem::Free, -pages);
            let frame = zone.regions.take(order, zone.home(reach.seat), leaving)?;
            self.nodes[zone.node].counters().add_total(reach.kind.item(), pages);
            if self.admit(zone, frame, FrameState::NotAllocated, order, reach.kind) {
                count_numa(zone, None, preferred, reach);
                return Some(Block { first: zone.pfn(frame), order, zone: zone.id, node: zone.node_id });
            }
        }
    }

    /// Zeroes a block where that was asked for.
    #[inline]
    pub(crate) fn finish(&self, block: Block, zeroed: bool) -> Block {
        if zeroed && let Some(contents) = self.platform.contents() {
            contents.fill(block.first, block.order.pages(), 0);
        }
        block
    }
}

/// Counts where a block came from, once a block. `preferred` is the first zone that could have
/// served it.
fn count_numa<P: Platform>(
    zone: &Zone<'_, P>,
    guard: Option<&PagesetGuard<'_, P>>,
    preferred: &Zone<'_, P>,
    reach: &Reach<'_>,
) {
    let count = |item: ZoneItem| match guard {
        Some(guard) => zone.counters().increment(&guard.zone_diffs, item, guard),
        None => zone.counters().add_total(item, 1),
    };
    if preferred.node == zone.node {
        count(ZoneItem::NumaHit);
    } else {
        count(ZoneItem::NumaMiss);
        preferred.counters().add_total(ZoneItem::NumaForeign, 1);
    }
    count(if reach.from == zone.node { ZoneItem::NumaLocal } else { ZoneItem::NumaOther });
    if reach.interleaved && reach.target == zone.node {
        count(ZoneItem::InterleaveHit);
    }
}

/// Frames that come at once at most: 32 batches, and what rounding to whole words adds.
const LARGEST_REFILL: PageCount = PageCount::new(32 * 63 + 64);

/// Frames of `zone` that a refill may take beyond the block asked for. Refills stop at the mark of
/// the scan, and at `min` even where the request may go further: what lies below is for requests
/// that are urgent, and those cannot look into the pagesets of other CPUs.
fn spare<P: Platform>(zone: &Zone<'_, P>, reach: &Reach<'_>, mark: Mark) -> PageCount {
    let keep = zone.watermarks().discounted(mark, Urgency::Normal).plus(zone.reserve(reach.limit));
    zone.free_before(LARGEST_REFILL).saturating_minus(keep)
}

impl PageKind {
    /// The counter of frames allocated as this kind.
    #[inline]
    pub(crate) const fn item(self) -> NodeItem {
        match self {
            Self::User => NodeItem::User,
            Self::Cache => NodeItem::Cache,
            Self::Kernel => NodeItem::Kernel,
        }
    }
}
