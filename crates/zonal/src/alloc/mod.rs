//! Allocation: finds a block of frames for a request.
//!
//! Most requests are for single frames. [`Allocator::pop_current`] serves them from the pageset slot of the current
//! CPU: it pops the top frame with one committing store. This path checks no watermark. Watermarks are checked at
//! refill, where the number of free frames of the zone changes. When the pop cannot complete,
//! [`Allocator::alloc_beyond`] locks the pageset and tries again. If the locked pageset cannot provide a block either,
//! the slow path scans a zonelist. A frame whose state shows that it cannot be allocated safely is *retired*: it leaves
//! the free memory, but no caller receives it. Related files: `alloc/slow_path.rs` is the slow path, `alloc/free.rs`
//! frees blocks, and `pageset/refill.rs` refills pagesets.

pub(crate) mod allocator;
mod bulk;
mod context;
pub mod explain;
mod failed_reclaim;
pub(crate) mod fences;
mod free;
mod free_refusal;
pub mod layout;
pub mod mempolicy;
mod past_full;
mod pressure;
mod ranges;
mod reclaim;
pub mod request;
pub(crate) mod retire;
pub(crate) mod runs;
mod scan;
mod shortage;
mod slow_path;
mod watch;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Allocator;
use crate::alloc::context::AllocContext;
use crate::alloc::mempolicy::RequestPolicy;
use crate::alloc::request::{Block, PageKind, Request, RequestFlags};
use crate::config::{InvalidFree, ZeroOn};
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::StackId;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{PagesetSlot, Popped};
use crate::platform::pageset_word::POP_STEPS;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount, Pfn, ZoneKind};
use crate::zone::counters::{NodeItem, ZoneItem};
use crate::zone::events::Event;
use crate::zone::frame_state::FrameState;
use crate::zone::frame_states::{CACHED_PAGE, allocated_page};
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    // Call tree of an allocation, fast path first:
    //
    // alloc
    //   pop_current                   fast path, for plain requests for one frame
    //     CpuLocal::pop_current       pops the top frame of the CPU's pageset slot with one committing store;
    //                                 on Linux a restartable sequence (`zonal-linux/src/sequences`)
    //     mark_popped                 marks the frame as allocated
    //       retire_popped             counts a frame that an invalid free pushed twice
    //   alloc_beyond                  all other requests
    //     refuse                      fails the request if fault injection chose it
    //     alloc_near                  tries the current CPU's pageset, under its lock
    //       pop_and_fold              pops from the slot and folds counters (`pageset/steps.rs`)
    //       pop_preferred             pops from the preferred zone's pageset
    //         pop                     pops a block and marks it as allocated (`admit`)
    //         pop_refilled            checks `low`, refills the pageset and pops
    //           refill                moves batches from the buddy (`pageset/refill.rs`)
    //       pop_near                  handles larger cached orders, and slots that are empty or of another zone
    //         zone_past_full          chooses the serving zone while the preferred zone is full (`past_full.rs`)
    //         pop_past_full           pops from the serving zone's pageset and makes it the CPU's slot
    //       split_preferred           checks `low`, for orders that are not cached
    //         split_free                allocates from the buddy (`zone/free_areas.rs`)
    //     alloc_slow                  slow path (`slow_path.rs`)
    //       resolve                   builds the allocation context (`context.rs`)
    //       find
    //         scan                    walks the zonelist at `low`, later at `min` (`scan.rs`)
    //           alloc_from            allocates from one zone: pageset, refill, else `alloc_from_buddy`
    //           node_reclaim          reclaims a nearby zone below its watermark (`reclaim.rs`)
    //         wake_background         wakes background reclaim
    //         reclaim_and_scan        repeats `direct_reclaim` and `scan`
    //         drain_allowed           drains the pagesets of all CPUs
    //         scan_last               scans a last time, ignoring full bits
    //       failure                   counts the failure and sums up the zones (`shortage.rs`)
    //
    /// Allocates one block.
    ///
    /// # Errors
    /// Returns [`AllocError::OutOfMemory`] when every step that the request permits has failed. Returns
    /// [`AllocError::Reentered`] when the caller is a handler that interrupted its own thread inside the allocator, and
    /// the request would have to wait for that thread. Other errors name the invalid part of the request. A request
    /// that fails with `OutOfMemory` may have reclaimed frames and drained pagesets.
    #[inline(always)]
    pub fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.flags.order == Order::PAGE
            && request.is_plain()
            && let Some(block) = self.pop_current(request.flags.kind)
        {
            return Ok(block);
        }
        // The fields are passed separately, so that a request built for this call never has to be stored in memory.
        if let Some(below) = request.address_limit() {
            return self.alloc_below(request.flags, request.policy, request.allowed, below);
        }
        self.alloc_beyond(request.flags, request.policy, request.allowed)
    }

    /// Pops a frame from the current CPU's pageset slot, or returns `None` if the pop needs the pageset's lock.
    #[inline(always)]
    fn pop_current(&self, kind: PageKind) -> Option<Block> {
        let local = self.state.platform.cpu_local();
        let (slot, popped) =
            local.pop_current(&self.state.platform, &self.state.slots, POP_STEPS[kind as usize]);
        self.mark_popped(slot, popped, kind)
    }

    /// Marks a popped frame as allocated.
    ///
    /// Returns `None` if no frame was popped, or if the frame is the second copy of one that was freed twice. With
    /// exact invalid-free checks no frame is ever on two stacks, so the state is not checked.
    #[inline(always)]
    fn mark_popped(&self, slot: &PagesetSlot<'m, P>, popped: Popped, kind: PageKind) -> Option<Block> {
        let frame = popped.offset(); // the offset of an empty pop is beyond all states
        let state = slot.states.get(frame as usize)?;
        // Acquire: pairs with the release store of the free. A load and a separate store are enough, because only this
        // CPU holds the popped frame, as in `FrameTable`.
        if self.invalid_free == InvalidFree::Checked && state.load(Acquire) != CACHED_PAGE {
            self.state.retire_popped(slot.zone.index());
            return None;
        }
        debug_assert!(
            state.load(Relaxed) == CACHED_PAGE,
            "frame {frame} was popped, but is not marked as cached"
        );
        // Release: pairs with the acquire of the free's exchange.
        state.store(allocated_page(kind), Release);
        let first = Pfn::new(slot.base.get().wrapping_add(frame));
        Some(Block { first, order: Order::PAGE, zone: slot.zone, node: slot.node })
    }

    /// Serves every request that [`Allocator::pop_current`] cannot serve.
    #[inline(never)]
    fn alloc_beyond(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        allowed: Option<&NodeMask>,
    ) -> Result<Block, AllocError> {
        let request = &Request { flags, policy, allowed, below: Pfn::new(0) };
        self.may_begin(request)?;
        if request.may_pop()
            && let Some(block) = self.alloc_near(request)
        {
            if self.hardening.zero == ZeroOn::EveryAllocation {
                self.state.zero(block.first, block.order.pages());
            }
            return Ok(block);
        }
        self.alloc_slow(request)
    }

    /// Allocates from the current CPU's pageset of the preferred zone or, while that zone is full, of the serving zone.
    ///
    /// Orders that are not cached are allocated from the preferred zone's buddy. Returns `None` when no block is
    /// available without waiting.
    fn alloc_near(&self, request: &Request<'_>) -> Option<Block> {
        let RequestFlags { order, kind, .. } = request.flags;
        let cpu = self.state.current_cpu_info()?;
        let node = &self.state.nodes[usize::from(cpu.node)];
        let preferred = node.preferred_zone()?;
        if request.is_strict() && !self.state.zones[preferred].is_own(cpu) {
            return None;
        }
        if order == Order::PAGE
            && let Some(slot) = self.state.slots.of(cpu.id)
            && slot.zone.index() == preferred
            && slot.has_frames()
        {
            return match self.state.lock_slot(slot, cpu)?.pop_and_fold(kind) {
                // Returns `None` when the frame is the second copy of one that was freed twice.
                Ok(frame) => self.mark_popped(slot, Popped::frame(frame), kind),
                Err(session) => self.pop_preferred(&session, StackId::PAGES, &request.flags),
            };
        }
        let preferred = &self.state.zones[preferred];
        match self.state.cached.stack(order) {
            Some(stack) => self.pop_near(request, stack, preferred, cpu),
            None => self.split_preferred(preferred, cpu, &request.flags),
        }
    }

    /// Handles the cases of [`Allocator::alloc_near`] in which the CPU's slot is empty or belongs to another zone, and
    /// the larger cached orders.
    #[inline(never)]
    fn pop_near(
        &self,
        request: &Request<'_>,
        stack: StackId,
        preferred: &Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<Block> {
        let Some(zone) = self.state.zone_past_full(request, stack, preferred, cpu) else {
            let session = self.state.own_pageset(preferred, cpu)?;
            return self.pop_preferred(&session, stack, &request.flags);
        };
        let slot = self.state.slot_of(zone, cpu).filter(|_| stack == StackId::PAGES);
        let session = match slot {
            Some(slot) => match self.state.lock_slot(slot, cpu)?.pop_and_fold(request.flags.kind) {
                Ok(frame) => return self.mark_popped(slot, Popped::frame(frame), request.flags.kind),
                Err(session) => session,
            },
            None => self.state.own_pageset(zone, cpu)?,
        };
        self.pop_past_full(session, preferred, stack, &request.flags)
    }

    /// Pops a block from the preferred zone's pageset, refilling it if it is empty.
    #[inline(always)]
    fn pop_preferred(
        &self,
        session: &PagesetSession<'_, 'm, P>,
        stack: StackId,
        flags: &RequestFlags,
    ) -> Option<Block> {
        let kept = if session.has(stack) { self.pop(session, stack, flags.order, flags.kind) } else { None };
        let block = match kept {
            Some(block) => block,
            None => self.pop_refilled(session, stack, flags)?,
        };
        session.count_hits(1);
        session.update_limits();
        Some(block)
    }

    /// Allocates a block from the preferred zone's buddy, for an order that is not cached; checks `low` as a scan
    /// would.
    fn split_preferred(&self, zone: &Zone<'m, P>, cpu: CpuInfo, flags: &RequestFlags) -> Option<Block> {
        let order = flags.order;
        if order > self.max_order || !self.state.preferred_passes(zone, cpu, flags) {
            return None;
        }
        let guard = self.state.own_pageset(zone, cpu)?;
        let block = self.split_free(zone, Some(cpu), order, flags.kind)?;
        guard.add_to(|pageset| &pageset.probes, 1);
        guard.count_hits(1); // the fast path's limits need no update
        Some(block)
    }

    /// Refills the empty pageset of the preferred zone and pops a block from it; checks `low` as a scan would.
    fn pop_refilled(
        &self,
        guard: &PagesetSession<'_, 'm, P>,
        stack: StackId,
        flags: &RequestFlags,
    ) -> Option<Block> {
        let zone = guard.zone;
        if !self.state.preferred_passes(zone, guard.cpu, flags) {
            return None;
        }
        let spare = spare(zone, flags.zone_limit, Watermark::Low);
        loop {
            if guard.refill(stack, spare) == 0 {
                guard.update_limits();
                return None;
            }
            if let Some(block) = self.pop(guard, stack, flags.order, flags.kind) {
                guard.add_to(|pageset| &pageset.probes, 1);
                return Some(block);
            }
        }
    }

    /// Pops the next block of a stack that can be marked as allocated.
    fn pop(
        &self,
        guard: &PagesetSession<'_, 'm, P>,
        stack: StackId,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        let zone = guard.zone;
        loop {
            let frame = guard.pop(stack, order)?;
            guard.count_kind(kind, order.pages().get() as i64, &self.state.nodes[zone.node].counters);
            if !self.admit(zone, frame, FrameState::Cached(order), order, kind) {
                continue;
            }
            match self.state.shared.tuning() {
                PagesetTuning::Depth | PagesetTuning::DepthPublished => {
                    guard.set_run(guard.depth().on_pop(order, guard));
                }
                PagesetTuning::Stepwise => guard.stepwise().on_pop(guard),
                PagesetTuning::Fixed => {}
            }
            return Some(block_at(zone, frame, order));
        }
    }

    /// Marks a block that was removed from a pageset or the buddy as allocated; returns `false` if it is retired
    /// instead.
    #[inline]
    fn admit(&self, zone: &Zone<'_, P>, frame: u32, from: FrameState, order: Order, kind: PageKind) -> bool {
        if !self.has_poison(zone, frame, from, order, kind) {
            return false;
        }
        let admitted = zone.frames.mark_allocated(frame, from, order, kind);
        if !admitted {
            self.state.nodes[zone.node].events.add(Event::Retired, order.pages().get());
        }
        admitted
    }

    /// Whether the poison of a block that was removed from a pageset or the buddy is unchanged; retires the block if
    /// not. Returns `true` if poisoning is off.
    #[inline]
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
        if let Some(poison) = self.hardening.poison
            && !self.state.is_poisoned(zone, frame, order, poison)
        {
            zone.frames.retire(frame, from, order, kind);
            return false;
        }
        true
    }

    /// Allocates a block from `zone`, whose watermark the caller has checked.
    ///
    /// The block comes from the pageset, which is refilled if it is empty, or otherwise directly from the buddy.
    fn alloc_from(
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
        if is_hit && !context.interleaved && !guard.serves_for_another() {
            guard.count_hits(1);
        } else {
            // Two words hold differences of the locality counters. One word is folded first, so that the sum of both
            // differences stays below the threshold.
            guard.fold_all_served();
            let word = &guard.zone_diffs;
            count_numa(zone, preferred, context, |item| zone.counters().increment(word, item, &guard));
        }
        guard.update_limits();
        Some(block)
    }

    /// Returns the stack that caches blocks for a request, and the current CPU; `None` if pagesets cannot serve it.
    fn cached_for(&self, context: &AllocContext<'_>) -> Option<(StackId, CpuInfo)> {
        let stack = self.state.cached.stack(context.order).filter(|_| context.placement.is_none());
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
        count_numa(zone, preferred, context, |item| zone.counters().add_total(item, 1));
        Some(block)
    }

    /// Allocates the next block of the buddy that can be marked as allocated.
    fn split_free(
        &self,
        zone: &Zone<'_, P>,
        cpu: Option<CpuInfo>,
        order: Order,
        kind: PageKind,
    ) -> Option<Block> {
        loop {
            let pages = order.pages().get() as i64;
            // The buddy calls this function under the free area's lock, as in a refill.
            let leaving = || zone.counters().add_total(ZoneItem::Free, -pages);
            let frame = zone.free_areas.alloc(order, zone.preferred_area(cpu), leaving)?;
            self.state.nodes[zone.node].counters.add_total(kind.item(), pages);
            if self.admit(zone, frame, FrameState::Free, order, kind) {
                return Some(block_at(zone, frame, order));
            }
        }
    }
}

fn block_at<P: Platform>(zone: &Zone<'_, P>, frame: u32, order: Order) -> Block {
    Block { first: zone.pfn(frame), order, zone: zone.id, node: zone.node_id }
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
    if context.interleaved && context.target == zone.node {
        count(ZoneItem::InterleaveHit);
    }
}

/// Largest number of frames that one refill moves: 32 batches, plus rounding up to whole words.
const LARGEST_REFILL: PageCount = PageCount::new(32 * 63 + 64);

/// Returns how many frames a refill may move from `zone` to a pageset in addition to the requested block.
///
/// A refill stops at the watermark of the scan, without the discount that an urgent request gets. Frames below `min`
/// are reserved for urgent requests, which could not allocate them from other CPUs' pagesets.
fn spare<P: Platform>(zone: &Zone<'_, P>, limit: ZoneKind, watermark: Watermark) -> PageCount {
    let keep = zone.watermarks().discounted(watermark, Urgency::Normal).plus(zone.reserve(limit));
    zone.free_before(LARGEST_REFILL).saturating_minus(keep)
}

impl PageKind {
    /// Returns the counter of frames allocated as this kind.
    #[inline]
    pub(crate) const fn item(self) -> NodeItem {
        match self {
            Self::User => NodeItem::User,
            Self::Cache => NodeItem::Cache,
            Self::Kernel => NodeItem::Kernel,
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Counts a popped frame that is the second copy of a frame freed twice.
    ///
    /// The first copy has been allocated already, so the frame's state does not change. The second copy is counted as
    /// allocated, because the invalid free had subtracted it.
    #[cold]
    fn retire_popped(&self, zone: usize) {
        self.nodes[self.zones[zone].node].events.add(Event::Retired, 1);
    }

    /// Whether a scan at `low`, which begins at the preferred zone, would also end there, because the zone's watermark
    /// allows the request.
    #[inline]
    fn preferred_passes(&self, zone: &Zone<'m, P>, cpu: CpuInfo, flags: &RequestFlags) -> bool {
        !self.platform.is_reclaiming()
            && self.is_online(cpu)
            && zone.watermarks_allow(flags.order, flags.urgency, flags.zone_limit, Watermark::Low)
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

    /// Zeroes a block.
    #[cold]
    pub(super) fn zero(&self, first: Pfn, count: PageCount) {
        if let Some(contents) = self.platform.contents() {
            contents.fill(first, count, 0);
        }
    }
}
