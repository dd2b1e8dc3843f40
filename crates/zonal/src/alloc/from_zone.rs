//! Allocation from one zone, which a scan has chosen or the preferred zone is: from the pageset, else from the buddy.
//!
//! Related files: `alloc/scan.rs` chooses the zone, `alloc/mod.rs` calls these functions for the preferred zone, and
//! `pageset/refill.rs` refills pagesets.

use crate::Allocator;
use crate::alloc::context::AllocContext;
use crate::alloc::request::{Block, PageKind};
use crate::pageset::state::MachineState;
use crate::pageset::{HOLD_MAX, StackId};
use crate::platform::Platform;
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount, ZoneKind};
use crate::zone::counters::ZoneItem;
use crate::zone::events::Event;
use crate::zone::frame_state::FrameState;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates a block from `zone`, whose watermark the caller has checked.
    ///
    /// The block comes from the pageset, which is refilled if it is empty, or otherwise directly from the buddy.
    pub(super) fn alloc_from(
        &self,
        zone: &Zone<'m, P>,
        preferred: &Zone<'m, P>,
        context: &AllocContext<'_>,
        watermark: Watermark,
    ) -> Option<Block> {
        let Some((stack, cpu)) = self.cached_for(context) else {
            return self.alloc_from_buddy(zone, preferred, context);
        };
        let Some(guard) = self.state.own_pageset_still(zone, cpu) else {
            return self.alloc_from_buddy(zone, preferred, context);
        };
        let block = loop {
            if let Some(block) = self.pop(&guard, stack, context.order, context.kind) {
                break block;
            }
            let spare = spare(zone, context.limit, watermark);
            if guard.refill(stack, spare) == 0 {
                guard.update_limits();
                drop(guard);
                return self.alloc_from_buddy(zone, preferred, context);
            }
        };
        // While the pageset serves for another zone, the counter that otherwise counts hits counts misses, so a hit is
        // counted separately.
        let is_hit = preferred.node == zone.node && (context.from == zone.node) == zone.is_own(cpu);
        if is_hit && (!guard.serves_for_another() || !self.state.uses(zone, cpu)) {
            guard.count_hits(1);
        } else {
            // Two words hold differences of the locality counters. One word is folded first, so that the sum of both
            // differences stays below the threshold.
            guard.fold_all_served();
            let word = &guard.zone_diffs;
            count_numa(zone, preferred, context, |item| zone.counters().increment(word, item, &guard));
        }
        if context.is_interleave_hit(zone) {
            self.state.count_interleave_hit(zone.id, &guard.head);
        }
        guard.update_limits();
        Some(block)
    }

    /// Returns the stack that caches blocks for a request, and the current CPU; `None` if pagesets cannot serve it.
    fn cached_for(&self, context: &AllocContext<'_>) -> Option<(StackId, CpuInfo)> {
        let is_kept = |stack: &StackId| context.placement.is_none() && !stack.is_middle();
        let stack = self.state.cached.stack(context.order).filter(is_kept);
        stack.zip(context.cpu)
    }

    /// Allocates a block directly from the buddy.
    ///
    /// Used for orders that are not cached, for CPUs that are offline, and while another thread holds the pageset's
    /// lock.
    fn alloc_from_buddy(
        &self,
        zone: &Zone<'_, P>,
        preferred: &Zone<'_, P>,
        context: &AllocContext<'_>,
    ) -> Option<Block> {
        let block = match context.placement {
            None => self.split_free(zone, context.cpu, context.order, context.kind)?,
            Some(placement) => self.alloc_placed(zone, context, placement)?,
        };
        count_beside_pagesets(zone, preferred, context);
        Some(block)
    }

    /// Allocates the next block of the buddy that can be marked as allocated.
    pub(super) fn split_free(
        &self,
        zone: &Zone<'_, P>,
        cpu: Option<CpuInfo>,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        let frame = self.take_free(zone, cpu, order, kind)?;
        self.state.count_taken(zone, order, kind);
        Some(block_at(zone, frame, order))
    }

    /// Removes the next block from the buddy that can be marked as allocated. The caller counts its frames as allocated.
    pub(super) fn take_free(
        &self,
        zone: &Zone<'_, P>,
        cpu: Option<CpuInfo>,
        order: Order,
        kind: PageKind,
    ) -> Option<u32> {
        loop {
            let pages = order.pages().get() as i64;
            // The buddy calls this function under the free area's lock, as in a refill.
            let leaving = || zone.counters().add_total(ZoneItem::Free, -pages);
            let frame = zone.free_areas.alloc(order, zone.preferred_area(cpu), leaving)?;
            if self.admit(zone, frame, FrameState::Free, order, kind) {
                return Some(frame);
            }
            self.state.count_taken(zone, order, kind); // the block is retired
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Counts a block that left the buddy as allocated, in the totals.
    pub(super) fn count_taken(&self, zone: &Zone<'_, P>, order: Order, kind: PageKind) {
        self.nodes[zone.node].counters.add_total(kind.item(), order.pages().get() as i64);
    }

    /// Counts a probe and a block that the preferred zone served to a CPU, while the CPU's pageset is locked.
    #[cold]
    pub(super) fn count_split_in_totals(&self, zone: &Zone<'_, P>, cpu: CpuInfo) {
        self.nodes[zone.node].events.add(Event::Probes, 1);
        zone.counters().add_total(ZoneItem::NumaHit, 1);
        let local = if zone.is_own(cpu) { ZoneItem::NumaLocal } else { ZoneItem::NumaOther };
        zone.counters().add_total(local, 1);
    }
}

pub(super) fn block_at<P: Platform>(zone: &Zone<'_, P>, frame: u32, order: Order) -> Block {
    Block { first: zone.pfn(frame), order, zone: zone.id, node: zone.node_id }
}

/// Counts which zone and node served a request from the buddy or by range.
pub(super) fn count_beside_pagesets<P: Platform>(
    zone: &Zone<'_, P>,
    preferred: &Zone<'_, P>,
    context: &AllocContext<'_>,
) {
    let count = |item| zone.counters().add_total(item, 1);
    count_numa(zone, preferred, context, count);
    if context.is_interleave_hit(zone) {
        count(ZoneItem::InterleaveHit);
    }
}

/// Counts which zone and node served a block.
///
/// `preferred` is the first zone that could have served the block.
fn count_numa<P: Platform>(
    zone: &Zone<'_, P>,
    preferred: &Zone<'_, P>,
    context: &AllocContext<'_>,
    count: impl Fn(ZoneItem),
) {
    if preferred.node == zone.node {
        count(ZoneItem::NumaHit);
    } else {
        count(ZoneItem::NumaMiss); // the scan counts `NumaForeign` for `preferred`
    }
    count(if context.from == zone.node { ZoneItem::NumaLocal } else { ZoneItem::NumaOther });
}

/// Returns how many frames a refill may move from `zone` to a pageset in addition to the requested block.
///
/// A refill stops at the watermark of the scan, without the discount that an urgent request gets. Frames below `min`
/// are reserved for urgent requests, which could not allocate them from other CPUs' pagesets.
pub(super) fn spare<P: Platform>(zone: &Zone<'_, P>, limit: ZoneKind, watermark: Watermark) -> PageCount {
    let keep = zone.watermarks().discounted(watermark, Urgency::Normal).plus(zone.reserve(limit));
    zone.free_before(PageCount::new(HOLD_MAX.into())).saturating_minus(keep)
}
