//! Allocation from one zone: from the pageset of the current CPU, else from the buddy.
//!
//! A block whose state shows that it cannot be allocated safely is *retired*: it leaves the free memory, but no caller
//! receives it. Related files: `alloc/route.rs` and `alloc/scan.rs` choose the zone, `pageset/refill.rs` refills pagesets, and
//! `pageset/steps.rs` and `pageset/block_steps.rs` pop without a session.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::config::{InvalidFree, ZonelistCache};
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{HOLD_MAX, StackId};
use crate::platform::pageset_slot::{PagesetSlot, Popped};
use crate::platform::tracepoint::RetireCause;
use crate::platform::{Atomic, Platform};
use crate::request::context::AllocContext;
use crate::request::{Block, PageKind, RequestFlags};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount, Pfn, ZoneId, ZoneKind};
use crate::zone::counters::{NodeItem, ZoneItem};
use crate::zone::events::Event;
use crate::zone::frame_state::{FrameState, check_transition};
use crate::zone::frame_states::{CACHED_PAGE, allocated_page, mark_block_allocated};
use crate::zone::runs::Run;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> MachineState<'m, P> {
    /// Marks a popped frame as allocated.
    ///
    /// Returns `None` if no frame was popped, or if the frame is the second copy of one that was freed twice. With
    /// exact invalid-free checks no frame is ever on two stacks, so the state is not checked.
    #[inline(always)]
    pub(super) fn mark_popped(
        &self,
        slot: &PagesetSlot<'m, P>,
        popped: Popped,
        kind: PageKind,
    ) -> Option<Block> {
        let frame = popped.offset(); // the offset of an empty pop is beyond all states
        let state = slot.states.get(frame as usize)?;
        // A load and a separate store are enough, because only this CPU holds the popped frame, as in `FrameTable`.
        // Acquire: takes the owner's writes; pairs with `mark_freed`, `exchange_leading`, `step_byte`, `replace_all`.
        if self.config().invalid_free == InvalidFree::Checked && state.load(Acquire) != CACHED_PAGE {
            self.note_popped_twice(slot.zone, frame as u32, Order::PAGE); // a zone spans at most 2^32 frames
            return None;
        }
        debug_assert!(
            state.load(Relaxed) == CACHED_PAGE,
            "frame {frame} was popped, but is not marked as cached"
        );
        check_transition(CACHED_PAGE, allocated_page(kind));
        // Release: publishes the mark to the free; pairs with `mark_freed`, `exchange_leading`, `step_byte`, `are_all`.
        state.store(allocated_page(kind), Release);
        let first = Pfn::new(slot.base.get().wrapping_add(frame));
        Some(Block { first, order: Order::PAGE, zone: slot.zone, node: slot.node })
    }

    /// Marks a popped block of more than one frame as allocated; returns `None` in the cases of [`Self::mark_popped`].
    #[inline(always)]
    pub(super) fn mark_popped_block(
        &self,
        slot: &PagesetSlot<'m, P>,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        // Hardening leaves CPUs without slots, so the block needs no other check than that of its state.
        if !mark_block_allocated(slot.states.get(frame as usize)?, order, kind) {
            self.note_popped_twice(slot.zone, frame, order);
            return None;
        }
        let first = Pfn::new(slot.base.get().wrapping_add(u64::from(frame)));
        Some(Block { first, order, zone: slot.zone, node: slot.node })
    }

    /// Counts a popped block that is the second copy of one that was freed twice.
    ///
    /// The first copy has been allocated already, so the block's state does not change. The second copy is counted as
    /// allocated, because the invalid free had subtracted it.
    #[cold]
    #[inline(never)]
    fn note_popped_twice(&self, zone: ZoneId, frame: u32, order: Order) {
        self.note_invalid(&self.zones[zone.index()], frame, order);
    }

    /// Pops the next block of a stack that can be marked as allocated.
    pub(super) fn pop(
        &self,
        guard: &PagesetSession<'_, 'm, P>,
        stack: StackId,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        let zone = guard.zone;
        loop {
            let frame = guard.pop(stack, order)?;
            guard.count_kind(kind, order.pages().get() as i64, &self.nodes[zone.node].counters);
            if !self.admit(zone, frame, FrameState::Cached(order), order, kind) {
                continue;
            }
            if stack.is_middle() {
                guard.note_last_middle(frame);
            }
            guard.account_step(order.pages().get() as i64, order);
            return Some(block_at(zone, frame, order));
        }
    }

    /// Pops a block from the pageset of the serving zone, or returns `None` if the stack is empty.
    ///
    /// In the default mode of the zonelist cache, this pageset becomes the CPU's slot for single frames.
    pub(super) fn serve_instead(
        &self,
        session: PagesetSession<'_, 'm, P>,
        preferred: &Zone<'m, P>,
        stack: StackId,
        flags: &RequestFlags,
    ) -> Option<Block> {
        let block = self.pop(&session, stack, flags.order, flags.kind)?;
        let (zone, cpu) = (session.zone, session.cpu);
        let missed = zone.node != preferred.node;
        let counts = ZoneItem::of_served(!missed, zone.is_own(cpu)).map(|item| (item, 1));
        zone.counters().update(&session.zone_diffs, &session, counts);
        session.add_to(|pageset| &pageset.probes, 2); // the preferred zone and this one were checked
        if flags.order == Order::PAGE && self.shared.zonelist_cache() == ZonelistCache::On {
            self.nodes[usize::from(cpu.node)].note_served_elsewhere();
            session.serve_instead_of(preferred);
            self.use_pageset(zone, &session, cpu);
        }
        session.update_limits();
        drop(session);
        if missed {
            self.count_foreign(preferred, cpu);
        }
        Some(block)
    }

    /// Allocates a block from the CPU's own blocks or from the preferred zone's buddy, for an order that is not cached or a
    /// middle order. Checks `low` as a scan would before a block leaves the buddy.
    pub(super) fn split_preferred(
        &self,
        zone: &Zone<'m, P>,
        cpu: CpuInfo,
        flags: &RequestFlags,
    ) -> Option<Block> {
        let order = flags.order;
        let frame = self.take_owned(zone, cpu, flags).or_else(|| {
            let may_split = order <= self.config().max_order && self.preferred_passes(zone, cpu, flags);
            may_split.then(|| self.take_free(zone, cpu, order, flags.kind)).flatten()
        })?;
        if !self.count_split(zone, cpu, frame, order, flags.kind) {
            self.count_taken(zone, order, flags.kind);
            match self.own_pageset(zone, cpu) {
                Some(guard) => {
                    guard.note_last_middle(frame);
                    guard.add_to(|pageset| &pageset.probes, 1);
                    guard.count_hits(1); // the fast path's limits need no update
                }
                None => {
                    self.nodes[zone.node].events.add(Event::Probes, 1);
                    let items = ZoneItem::of_served(true, zone.is_own(cpu));
                    items.into_iter().for_each(|item| zone.counters().add_total(item, 1));
                }
            }
        }
        Some(block_at(zone, frame, order))
    }

    /// Takes a block from those that the CPU owns, and marks it as allocated.
    fn take_owned(&self, zone: &Zone<'m, P>, cpu: CpuInfo, flags: &RequestFlags) -> Option<u32> {
        let may_grow = || {
            self.shared.owns_blocks()
                && self.preferred_passes(zone, cpu, flags)
                && spare(zone, flags.zone_limit, Watermark::Low) >= PageCount::new(HOLD_MAX.into())
        };
        loop {
            let mut taken = None;
            zone.take_owned(cpu, flags.order, 1, may_grow, |frame| taken = Some(frame));
            let frame = taken?;
            if self.admit(zone, frame, FrameState::Free, flags.order, flags.kind) {
                return Some(frame);
            }
            self.count_taken(zone, flags.order, flags.kind); // the block is retired
        }
    }

    /// Whether a scan at `low`, which begins at `zone`, would also end there, because the zone's watermark
    /// allows the request.
    pub(super) fn preferred_passes(&self, zone: &Zone<'m, P>, cpu: CpuInfo, flags: &RequestFlags) -> bool {
        !self.platform.is_reclaiming()
            && self.is_online(cpu)
            && zone.watermarks_allow(flags.order, flags.urgency, flags.zone_limit, Watermark::Low)
    }

    /// Allocates a block from `zone`, whose watermark the caller has checked.
    ///
    /// The block comes from the pageset, which is refilled if it is empty, or otherwise directly from the buddy.
    pub(super) fn serve_from(
        &self,
        zone: &Zone<'m, P>,
        preferred: &Zone<'m, P>,
        context: &AllocContext<'_>,
        watermark: Watermark,
    ) -> Option<Block> {
        let cpu = context.cpu;
        let locked =
            self.cached_for(context).and_then(|stack| Some((stack, self.own_pageset_still(zone, cpu)?)));
        let Some((stack, guard)) = locked else { return self.serve_from_buddy(zone, preferred, context) };
        let block = loop {
            if let Some(block) = self.pop(&guard, stack, context.flags.order, context.flags.kind) {
                break block;
            }
            let spare = spare(zone, context.flags.zone_limit, watermark);
            if guard.refill(stack, spare) == 0 {
                guard.update_limits();
                drop(guard);
                return self.serve_from_buddy(zone, preferred, context);
            }
        };
        // While the pageset serves for another zone, the counter that otherwise counts hits counts misses, so a hit is
        // counted separately.
        let is_hit = preferred.node == zone.node && (context.from == zone.node) == zone.is_own(cpu);
        if is_hit && (!guard.serves_for_another() || !self.uses(zone, cpu)) {
            guard.count_hits(1);
        } else {
            let items = ZoneItem::of_served(preferred.node == zone.node, context.from == zone.node);
            zone.counters().update(&guard.zone_diffs, &guard, items.map(|item| (item, 1)));
        }
        if context.is_interleave_hit(zone) {
            self.count_interleave_hit(zone.id, &guard.head);
        }
        guard.update_limits();
        Some(block)
    }

    /// Whether [`Self::serve_from`] would find a block: in the current CPU's pageset or in the buddy.
    pub(super) fn has_block_for(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> bool {
        let cpu = context.cpu;
        let has = |stack| cpu.exists() && self.pagesets_of(zone).of(cpu).has(stack);
        self.cached_for(context).is_some_and(|stack| has(stack) || zone.has_owned(cpu, context.flags.order))
            || zone.free_areas.largest_order() >= Some(context.flags.order)
                && context.has_block_in_reach(zone)
    }

    /// Counts which zone served a request for a range.
    pub(crate) fn count_contiguous(&self, context: &AllocContext<'_>, served: ZoneId) {
        let zone = &self.zones[served.index()];
        let preferred = self.find_in_zones(context, Some).unwrap_or(zone);
        context.count_beside_pagesets(zone, preferred);
        if zone.node != preferred.node {
            self.count_foreign(preferred, context.cpu);
        }
    }

    /// Returns the stack that caches blocks for a request; `None` if pagesets cannot serve it.
    fn cached_for(&self, context: &AllocContext<'_>) -> Option<StackId> {
        let is_kept = |stack: &StackId| context.is_block::<P>() && !stack.is_middle();
        self.cached.stack(context.flags.order).filter(is_kept)
    }

    /// Allocates a block directly from the buddy.
    ///
    /// Used for orders that are not cached, for CPUs that are offline, and while another thread holds the pageset's
    /// lock.
    fn serve_from_buddy(
        &self,
        zone: &Zone<'_, P>,
        preferred: &Zone<'_, P>,
        context: &AllocContext<'_>,
    ) -> Option<Block> {
        let block = if context.is_block::<P>() {
            let frame = self.take_free(zone, context.cpu, context.flags.order, context.flags.kind)?;
            self.count_taken(zone, context.flags.order, context.flags.kind);
            block_at(zone, frame, context.flags.order)
        } else {
            self.take_placed(zone, context)?
        };
        context.count_beside_pagesets(zone, preferred);
        Some(block)
    }

    /// Removes the next block from the buddy that can be marked as allocated. The caller counts its frames as allocated.
    pub(super) fn take_free(
        &self,
        zone: &Zone<'_, P>,
        cpu: CpuInfo,
        order: Order,
        kind: PageKind,
    ) -> Option<u32> {
        loop {
            let frame = self.take_block(zone, cpu, order)?;
            if self.admit(zone, frame, FrameState::Free, order, kind) {
                return Some(frame);
            }
            self.count_taken(zone, order, kind); // the block is retired
        }
    }

    /// Removes the next block from the buddy.
    fn take_block(&self, zone: &Zone<'_, P>, cpu: CpuInfo, order: Order) -> Option<u32> {
        // The buddy calls this function under the free area's lock, as in a refill.
        let leaving = || zone.counters().add_total(ZoneItem::Free, -(order.pages().get() as i64));
        zone.free_areas.alloc(order, zone.preferred_area(cpu), leaving)
    }

    /// Allocates from the buddy for a request that not every block suits: a run, or a block below an address limit.
    fn take_placed(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> Option<Block> {
        let (order, kind, max) = (context.flags.order, context.flags.kind, self.config().max_order);
        let pages = order.pages().get();
        loop {
            let leaving = || zone.counters().add_total(ZoneItem::Free, -(pages as i64));
            let frame = match context.below {
                Some(limit) if limit < zone.span.end() => {
                    zone.free_areas.take_below(order, context.reach(zone), leaving)?
                }
                _ => self.take_block(zone, context.cpu, order)?,
            };
            self.nodes[zone.node].counters.add_total(kind.item(), pages as i64);
            if !self.is_unused(zone, frame, order, kind) {
                continue;
            }
            let run = Run { first: frame, count: context.count.get() };
            zone.frames.mark_run(run, max, kind);
            // Without a rest, the frame after the run may be beyond what 32 bits can number.
            if !P::ONLY_BLOCKS && run.count < pages {
                let rest = Run { first: frame + run.count as u32, count: pages - run.count };
                self.return_unused(zone, rest, max, kind);
            }
            return Some(block_at(zone, frame, order));
        }
    }

    /// Whether a block that left the buddy can be allocated; retires it if not.
    ///
    /// Under [`InvalidFree::Checked`](crate::config::InvalidFree::Checked), racing frees may have listed an allocated
    /// block as free. With poisoning, the contents may have changed.
    fn is_unused(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) -> bool {
        if zone.frames.state(frame) != FrameState::Free {
            self.note_invalid(zone, frame, order);
            return false;
        }
        self.has_poison(zone, frame, FrameState::Free, order, kind)
    }

    /// Frees frames that left the buddy, were counted as allocated, and are not needed.
    fn return_unused(&self, zone: &Zone<'m, P>, run: Run, max: Order, kind: PageKind) {
        self.nodes[zone.node].counters.add_total(kind.item(), -(run.count as i64));
        for (frame, order) in run.blocks(max) {
            zone.frames.set(frame, FrameState::Cached(order));
            self.merge(zone, frame, order);
        }
    }

    /// Marks a run that left the buddy as allocated. If poison or a state shows that some of its frames cannot be
    /// allocated, retires these, frees the others and returns `false`.
    pub(crate) fn mark_taken(&self, zone: &Zone<'m, P>, run: Run, kind: PageKind) -> bool {
        self.nodes[zone.node].counters.add_total(kind.item(), run.count as i64);
        let checks =
            self.config().hardening.poison.is_some() || self.config().invalid_free == InvalidFree::Checked;
        let is_unused = |&frame: &u32| self.is_unused(zone, frame, Order::PAGE, kind);
        if checks && run.frames().filter(is_unused).count() as u64 != run.count {
            for first in run.frames().filter(|&frame| zone.frames.state(frame) == FrameState::Free) {
                self.return_unused(zone, Run { first, count: 1 }, Order::PAGE, kind);
            }
            return false;
        }
        zone.frames.mark_run(run, self.config().max_order, kind);
        true
    }

    /// Marks a block that was removed from a pageset or the buddy as allocated; returns `false` if it is retired
    /// instead.
    fn admit(&self, zone: &Zone<'_, P>, frame: u32, from: FrameState, order: Order, kind: PageKind) -> bool {
        if !self.has_poison(zone, frame, from, order, kind) {
            return false;
        }
        let admitted = zone.frames.step(frame, from, FrameState::Allocated(order, kind));
        if !admitted {
            self.note_invalid(zone, frame, order);
        }
        admitted
    }

    /// Whether the poison of a block that was removed from a pageset or the buddy is unchanged; retires the block if
    /// not. Returns `true` if poisoning is off.
    fn has_poison(
        &self,
        zone: &Zone<'_, P>,
        frame: u32,
        from: FrameState,
        order: Order,
        kind: PageKind,
    ) -> bool {
        // The poison is checked before the block is marked as allocated, because no thread can free the block until
        // then.
        if let Some(poison) = self.config().hardening.poison
            && !self.is_poisoned(zone, frame, order, poison)
        {
            self.retire_changed(zone, frame, from, order, kind);
            return false;
        }
        true
    }

    /// Retires a block that was removed from a pageset or the buddy, and whose poison has changed. The second copy of a block
    /// that was freed twice has another state than `from`, which does not change.
    #[cold]
    #[inline(never)]
    fn retire_changed(&self, zone: &Zone<'_, P>, frame: u32, from: FrameState, order: Order, kind: PageKind) {
        let (run, retired) = (Run { first: frame, count: order.pages().get() }, FrameState::Retired(kind));
        if !zone.frames.step(frame, from, retired) {
            return self.note_invalid(zone, frame, order);
        }
        run.frames().skip(1).for_each(|frame| zone.frames.set(frame, retired));
        self.count_bad(zone, frame, order, RetireCause::Poison);
    }

    #[cold]
    pub(crate) fn is_poisoned(&self, zone: &Zone<'_, P>, frame: u32, order: Order, poison: u64) -> bool {
        let contents = self.platform.contents().expect("checked when the allocator was made");
        contents.holds(zone.pfn(frame), order.pages(), poison)
    }

    /// Counts a block that left the buddy as allocated, in the totals.
    pub(super) fn count_taken(&self, zone: &Zone<'_, P>, order: Order, kind: PageKind) {
        self.nodes[zone.node].counters.add_total(kind.item(), order.pages().get() as i64);
    }
}

impl PageKind {
    /// Returns the counter of frames allocated as this kind.
    pub(crate) const fn item(self) -> NodeItem {
        match self {
            Self::User => NodeItem::User,
            Self::Cache => NodeItem::Cache,
            Self::Kernel => NodeItem::Kernel,
        }
    }
}

impl AllocContext<'_> {
    /// Whether any block of its order will do, so that pagesets may serve the request.
    fn is_block<P: Platform>(&self) -> bool {
        P::ONLY_BLOCKS && !P::RESTRICTS || self.count == self.flags.order.pages() && self.below.is_none()
    }

    /// Whether a block of `zone` is one that interleaving requested from this node.
    const fn is_interleave_hit<P: Platform>(&self, zone: &Zone<'_, P>) -> bool {
        P::RESTRICTS && self.interleaved && self.target == zone.node
    }

    /// Whether the free areas of `zone` have a block for the request below its address limit, if it has one.
    pub(super) fn has_block_in_reach<P: Platform>(&self, zone: &Zone<'_, P>) -> bool {
        let is_limited = P::RESTRICTS && self.below.is_some_and(|limit| limit < zone.span.end());
        !is_limited || zone.free_areas.has_block_below(self.flags.order, self.reach(zone))
    }

    /// Counts which zone and node served the request from the buddy or by range.
    fn count_beside_pagesets<P: Platform>(&self, zone: &Zone<'_, P>, preferred: &Zone<'_, P>) {
        // The scan counts `NumaForeign` for `preferred`, the first zone that could have served the block.
        let items = ZoneItem::of_served(preferred.node == zone.node, self.from == zone.node);
        let hit = self.is_interleave_hit(zone).then_some(ZoneItem::InterleaveHit);
        items.into_iter().chain(hit).for_each(|item| zone.counters().add_total(item, 1));
    }
}

pub(super) fn block_at<P: Platform>(zone: &Zone<'_, P>, frame: u32, order: Order) -> Block {
    Block { first: zone.pfn(frame), order, zone: zone.id, node: zone.node_id }
}

/// Returns how many frames a refill may move from `zone` to a pageset in addition to the requested block.
///
/// A refill stops at the watermark of the scan, without the discount that an urgent request gets. Frames below `min`
/// are reserved for urgent requests, which could not allocate them from other CPUs' pagesets.
pub(super) fn spare<P: Platform>(zone: &Zone<'_, P>, limit: ZoneKind, watermark: Watermark) -> PageCount {
    let keep = zone.watermarks().discounted(watermark, Urgency::Normal).plus(zone.reserve(limit));
    zone.count_free_before(PageCount::new(HOLD_MAX.into())).saturating_minus(keep)
}
