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
mod blocks;
mod bulk;
mod context;
pub mod explain;
mod failed_reclaim;
pub(crate) mod fences;
mod free;
mod free_refusal;
mod from_zone;
mod in_turn;
pub mod layout;
pub mod mempolicy;
mod nearest;
mod past_full;
mod pressure;
mod range_reclaim;
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
use crate::alloc::from_zone::{block_at, spare};
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
use crate::platform::tracepoint::RetireCause;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::watermarks::Watermark;
use crate::units::{Order, PageCount, Pfn};
use crate::zone::counters::NodeItem;
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
    //   pop_current_for               the same for requests with a zone limit, nodes or a policy, if the zone suits them
    //     mark_popped                 marks the frame as allocated
    //       retire_popped             counts a frame that an invalid free pushed twice
    //   pop_larger                    pops a block of more than one frame that the pageset in the slot holds (`blocks.rs`)
    //   alloc_confined                requests under a cpuset or a policy (`nearest.rs`)
    //     pop_in_turn                 pops as `pop_current` does, from the CPU's pageset of the node whose turn it is
    //     pop_nearest                 pops from the CPU's pageset of the nearest zone that may serve the request
    //   alloc_beyond                  all other requests
    //     pop_folding                 pops from the slot and folds counters (`pageset/steps.rs`)
    //     refuse                      fails the request if fault injection chose it
    //     alloc_near                  tries the current CPU's pageset, under its lock
    //       pop_in_turn_by_lock       the same for interleaving policies
    //       pop_nearest_by_lock       the same for a cpuset or a binding policy without the CPU's own node
    //       pop_preferred             pops from the preferred zone's pageset
    //         pop                     pops a block and marks it as allocated (`admit`)
    //         pop_refilled            checks `low`, refills the pageset and pops
    //           refill                moves batches from the buddy (`pageset/refill.rs`)
    //       pop_near                  handles stacks that are empty, and slots of another zone
    //         zone_past_full          chooses the serving zone while the preferred zone is full (`past_full.rs`)
    //         pop_past_full           pops from the serving zone's pageset and makes it the CPU's slot
    //       split_preferred           checks `low`, for orders that are not cached, and orders 4 to 8
    //         take_free                 takes a block from the buddy (`zone/free_areas.rs`)
    //         count_split               counts it without a session (`pageset/block_steps.rs`)
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
        // Both branches do the same. The compiler makes better code for one frame if larger blocks leave first: a request
        // with a zone limit and its free then take 127 instead of 134 instructions.
        if request.flags.order != Order::PAGE {
            return self.pop_fast(request).map_or_else(|| self.alloc_otherwise(request), Ok);
        }
        self.pop_fast(request).map_or_else(|| self.alloc_otherwise(request), Ok)
    }

    /// Serves a request for which the pageset in the current CPU's slot does not suffice.
    #[inline(always)]
    fn alloc_otherwise(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        // The fields are passed separately, so that a request built for this call never has to be stored in memory.
        if let Some(below) = request.address_limit() {
            return self.alloc_below(request.flags, request.policy, request.allowed, below);
        }
        if request.is_confined() {
            return self.alloc_confined(request.flags, request.policy, request.near, request.allowed);
        }
        self.alloc_beyond(request.flags, request.policy, request.near, request.allowed)
    }

    /// Pops a block from the pageset in the current CPU's slot, if the slot suits the request and no more work is necessary.
    #[inline(always)]
    fn pop_fast(&self, request: &Request<'_>) -> Option<Block> {
        if request.flags.order != Order::PAGE {
            self.pop_larger(request.flags, request.near, request.allowed)
        } else if request.is_plain() {
            self.pop_current(request.flags.kind)
        } else {
            self.pop_current_for(request)
        }
    }

    /// Pops a frame from the current CPU's pageset slot, or returns `None` if the pop needs the pageset's lock.
    #[inline(always)]
    fn pop_current(&self, kind: PageKind) -> Option<Block> {
        let local = self.state.platform.cpu_local();
        let (slot, popped) =
            local.pop_current(&self.state.platform, &self.state.slots, POP_STEPS[kind as usize]);
        self.mark_popped(slot, popped, kind)
    }

    /// Pops a frame as [`Self::pop_current`] does, if the slot belongs to the zone at which a scan for the request would
    /// begin.
    #[inline(always)]
    fn pop_current_for(&self, request: &Request<'_>) -> Option<Block> {
        if !request.may_pop_current() {
            return None;
        }
        let (kind, local) = (request.flags.kind, self.state.platform.cpu_local());
        let (step, accepts) = (POP_STEPS[kind as usize], |slot: &_| request.accepts_slot(slot));
        let (slot, popped) = local.pop_current_if(&self.state.platform, &self.state.slots, step, accepts)?;
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
            self.state.retire_popped(slot.zone.index(), frame as u32); // a zone spans at most 2^32 frames
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

    /// Serves every request that the short paths cannot serve.
    #[inline(never)]
    fn alloc_beyond(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
    ) -> Result<Block, AllocError> {
        let request = &Request { flags, policy, allowed, near, below: Pfn::new(0) };
        // Needs no permission to begin: it does not wait, and no requests are refused while there are slots.
        if request.flags.order == Order::PAGE
            && request.may_pop()
            && let Some(block) = self.pop_folding(request)
        {
            return Ok(block);
        }
        self.may_begin(request)?;
        if request.may_pop()
            && let Some(block) = self.alloc_near(request)
        {
            if self.state.hardening.zero == ZeroOn::EveryAllocation {
                self.state.zero(block.first, block.order.pages());
            }
            return Ok(block);
        }
        self.alloc_slow(request)
    }

    /// Pops a frame from the current CPU's pageset slot when the fast path failed only because a counter must be folded.
    #[inline]
    fn pop_folding(&self, request: &Request<'_>) -> Option<Block> {
        let (kind, cpu) = (request.flags.kind, self.state.current_cpu_info()?);
        let slot = self.state.slots.of(cpu.id)?;
        if !slot.needs_only_a_fold(POP_STEPS[kind as usize]) || !request.accepts_slot(slot) {
            return None;
        }
        let frame = self.state.lock_slot(slot, cpu)?.pop_and_fold(kind).ok()?;
        self.mark_popped(slot, Popped::frame(frame), kind)
    }

    /// Allocates from the current CPU's pageset of the preferred zone or, while that zone is full, of the serving zone.
    ///
    /// Orders that are not cached are allocated from the preferred zone's buddy. Returns `None` when no block is
    /// available without waiting.
    fn alloc_near(&self, request: &Request<'_>) -> Option<Block> {
        if request.is_in_turn() {
            return self.pop_in_turn_by_lock(request);
        }
        let order = request.flags.order;
        let cpu = self.state.current_cpu_info()?;
        let node = &self.state.nodes[usize::from(cpu.node)];
        let preferred = node.preferred_zone()?;
        if !request.accepts_zone(&self.state.zones[preferred], cpu) {
            return if request.is_confined() { self.pop_nearest_by_lock(request, cpu) } else { None };
        }
        if order == Order::PAGE
            && let Some(slot) = self.state.slots.of(cpu.id)
            && slot.zone.index() == preferred
            && slot.has_frames()
        {
            let session = self.state.own_pageset(&self.state.zones[preferred], cpu)?;
            return self.pop_preferred(&session, StackId::PAGES, &request.flags);
        }
        let preferred = &self.state.zones[preferred];
        match self.state.cached.stack(order) {
            Some(stack)
                if stack != StackId::PAGES && self.state.pagesets_of(preferred).of(cpu).has(stack) =>
            {
                self.pop_preferred(&self.state.own_pageset(preferred, cpu)?, stack, &request.flags)
            }
            Some(stack) if !stack.is_middle() => self.pop_near(request, stack, preferred, cpu),
            _ => self.split_preferred(preferred, cpu, &request.flags),
        }
    }

    /// Handles the cases of [`Allocator::alloc_near`] in which the CPU's slot is empty or belongs to another zone, and
    /// stacks of larger blocks that are empty.
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

    /// Allocates a block from the preferred zone's buddy, for an order that is not cached or a middle order; checks `low` as a scan
    /// would.
    fn split_preferred(&self, zone: &Zone<'m, P>, cpu: CpuInfo, flags: &RequestFlags) -> Option<Block> {
        let order = flags.order;
        if order > self.max_order || !self.state.preferred_passes(zone, cpu, flags) {
            return None;
        }
        let frame = self.take_free(zone, Some(cpu), order, flags.kind)?;
        if !self.state.count_split(zone, cpu, frame, order, flags.kind) {
            self.state.count_taken(zone, order, flags.kind);
            match self.state.own_pageset(zone, cpu) {
                Some(guard) => {
                    guard.note_last_middle(frame);
                    guard.add_to(|pageset| &pageset.probes, 1);
                    guard.count_hits(1); // the fast path's limits need no update
                }
                None => self.state.count_split_in_totals(zone, cpu),
            }
        }
        Some(block_at(zone, frame, order))
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
            if stack != StackId::PAGES {
                guard.note_block(order.pages().get() as u32);
            }
            if stack.is_middle() {
                guard.note_last_middle(frame);
            }
            match self.state.shared.tuning() {
                PagesetTuning::Depth | PagesetTuning::DepthPublished => {
                    guard.set_run(guard.depth().on_pop(order, guard));
                }
                PagesetTuning::Stepwise => guard.set_run(guard.stepwise().on_pop(guard)),
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
            self.state.note_invalid(zone, frame, order);
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
        if let Some(poison) = self.state.hardening.poison
            && !self.state.is_poisoned(zone, frame, order, poison)
        {
            let first = Some(zone.pfn(frame));
            self.state.note_retired(zone.node, RetireCause::Poison, first, order.pages());
            zone.frames.retire(frame, from, order, kind);
            return false;
        }
        true
    }
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
    fn retire_popped(&self, zone: usize, frame: u32) {
        self.note_invalid(&self.zones[zone], frame, Order::PAGE);
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
        contents.holds(zone.pfn(frame), order.pages(), poison)
    }

    /// Zeroes a block.
    #[cold]
    pub(super) fn zero(&self, first: Pfn, count: PageCount) {
        if let Some(contents) = self.platform.contents() {
            contents.fill(first, count, 0);
        }
    }
}
