//! Allocation and free: the control flow. Every request climbs the same four rungs, and a free mirrors them.
//!
//! | rung | a request | a free |
//! |---|---|---|
//! | route | chooses a pageset of the current CPU, and its stack | finds the zone, and marks the block as cached |
//! | pop, push | pops with one committing step, which may fold a counter | pushes in the same way |
//! | locked | locks the pageset, refills it and pops | locks the pageset, pushes, and drains it if it is full |
//! | slow | scans the zonelist, wakes reclaim, reclaims, drains, or fails | merges the block into the buddy |
//!
//! Pops check no watermark, because watermarks are checked where a zone's free frames change: at refills and in the slow path.
//! Related files: `alloc/route.rs` has the rules of the first rung, `alloc/serve.rs` allocates from one zone, `alloc/slow.rs`
//! and `alloc/scan.rs` have the last rung. `alloc/release.rs` marks freed blocks, `alloc/freed.rs` frees marked blocks.
//! Call tree:
//!
//! ```text
//! alloc                              free
//!   pop_fast                           push_fast
//!     CpuLocal::pop_current              release_page
//!                                        CpuLocal::push_current    on Linux a restartable sequence, like pops
//!                                        put_refused               if the step did not complete
//!   serve_folding                      free_routed
//!     fold_and_pop                       route_of_free
//!   alloc_routed                         FrameTable::release, or refuse_free
//!     route_to_slot                      push_routed
//!     pop_routed                         put_or_defer
//!     alloc_locked                         finish_own_frees
//!       serve_locked                       put_cached             poisons, and puts into quarantine
//!         may_begin                          put
//!         route_by_zone                        push_locked
//!         pop_locked                           merge
//!           PagesetSession::refill
//!       alloc_slow
//!         scan, reclaim, scan_last
//! ```

mod bulk;
mod failed;
mod freed;
mod release;
mod route;
mod scan;
mod serve;
mod slow;

use crate::Allocator;
use crate::alloc::route::{Role, Route};
use crate::alloc::serve::spare;
use crate::config::InvalidFree;
use crate::error::{AllocError, FreeError};
use crate::node_mask::NodeMask;
use crate::pageset::StackId;
use crate::pageset::deferred::FreedBlock;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{PagesetSlot, Popped, Push};
use crate::platform::pageset_word::POP_STEPS;
use crate::request::policy::{RequestPolicy, Turn};
use crate::request::{Block, Request, RequestFlags};
use crate::rules::watermarks::Watermark;
use crate::units::{Order, Pfn};
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates one block.
    ///
    /// # Errors
    /// Returns [`AllocError::OutOfMemory`] when every step that the request permits has failed. Returns
    /// [`AllocError::Reentered`] when the caller is a handler that interrupted its own thread inside the allocator, and
    /// the request would have to wait for that thread. Other errors name the invalid part of the request. A request
    /// that fails with `OutOfMemory` may have reclaimed frames and drained pagesets.
    #[inline(always)]
    pub fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        // The fields are passed separately, so that a request built for this call never has to be stored in memory.
        let popped = self.state.pop_fast(request);
        let Request { flags, policy, near, allowed, below } = *request;
        match popped {
            Some(Some(block)) => Ok(block),
            Some(None) => self.state.serve_folding(flags, policy, near, allowed, below),
            None => self.state.alloc_routed(flags, policy, near, allowed, below),
        }
    }

    /// Frees the block of `order` that starts at `first`.
    ///
    /// # Errors
    /// Returns an error that names the frame and its actual state if no allocated block of this order starts at
    /// `first`. Returns [`FreeError::Reentered`] if the free would have to wait for the caller's own thread and cannot
    /// be [deferred](Platform::is_reentered). The block and its accounting are unchanged in both cases.
    #[inline(always)]
    pub fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        if order == Order::PAGE && self.state.push_fast(first) {
            return Ok(());
        }
        self.state.free_routed(first, order)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Pops a single frame from the CPU's slot, if the slot belongs to the zone at which a scan for the request would begin.
    ///
    /// This is route and pop in one. Returns `None` if the request needs another slot, and `Some(None)` if the pop failed.
    #[inline(always)]
    fn pop_fast(&self, request: &Request<'_>) -> Option<Option<Block>> {
        if request.flags.order != Order::PAGE {
            return None;
        }
        let (kind, local) = (request.flags.kind, self.platform.cpu_local());
        let step = POP_STEPS[kind as usize];
        let (slot, popped) = if request.is_plain() {
            local.pop_current(&self.platform, &self.slots, step)
        } else if request.may_pop_current() {
            local.pop_current_if(&self.platform, &self.slots, step, |slot| request.accepts_slot(slot))?
        } else {
            return None;
        };
        Some(self.mark_popped(slot, popped, kind))
    }

    /// Pops like [`Self::pop_fast`] under the pageset's lock, if a counter must be folded, which is the commonest reason why that
    /// did not serve a request. A slot that serves for another zone is left to the route, which may find that the preferred
    /// zone serves again.
    #[inline(never)]
    fn serve_folding(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
        below: Pfn,
    ) -> Result<Block, AllocError> {
        let request = Request { flags, policy, allowed, near, below };
        if let Some(cpu) = self.current_cpu_info()
            && let Some(slot) = self.slots.of(cpu.id).filter(|slot| request.accepts_slot(slot))
            && let Some(popped) = self.fold_and_pop(slot, cpu, flags.kind, false)
            && let Some(block) = self.mark_popped(slot, popped, flags.kind)
        {
            return Ok(block);
        }
        self.alloc_routed(flags, policy, near, allowed, below)
    }

    /// Serves every request that [`Self::pop_fast`] does not serve: routes it to a slot, and pops.
    ///
    /// Later rungs get copies of the request and the route, so that these are not stored in memory for a request that is served
    /// here.
    #[inline(never)]
    fn alloc_routed(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
        below: Pfn,
    ) -> Result<Block, AllocError> {
        let request = Request { flags, policy, allowed, near, below };
        let route = self.route_to_slot(&request);
        // A pop needs no permission to begin: it does not wait, and no requests are refused while there are slots.
        if let Some(route) = &route
            && let Some(block) = self.pop_routed(route, &request)
        {
            return Ok(block);
        }
        self.alloc_locked(route, request)
    }

    /// Climbs the rungs after the pop.
    #[inline(never)]
    fn alloc_locked(&self, route: Option<Route<'m, P>>, request: Request<'_>) -> Result<Block, AllocError> {
        self.serve_locked(route, &request)?.map_or_else(|| self.alloc_slow(&request), Ok)
    }

    /// Serves a request under the lock of its pageset; returns `None` if it needs the slow path.
    fn serve_locked(
        &self,
        route: Option<Route<'m, P>>,
        request: &Request<'_>,
    ) -> Result<Option<Block>, AllocError> {
        self.may_begin(request)?;
        let route = route.or_else(|| self.route_by_zone(request));
        let block = route.and_then(|route| self.pop_locked(&route, request));
        Ok(block.inspect(|block| self.zero_new(Some(request), block.first, block.order.pages())))
    }

    /// Pops a block from the slot of the route with one committing step.
    #[inline(always)]
    fn pop_routed(&self, route: &Route<'m, P>, request: &Request<'_>) -> Option<Block> {
        let RequestFlags { order, kind, .. } = request.flags;
        let (slot, stack) = (route.slot?, route.stack?);
        if stack != StackId::PAGES {
            let frame = self.pop_block(&self.pagesets[route.zone.index()], route.cpu, stack, order, kind)?;
            return self.mark_popped_block(slot, frame, order, kind);
        }
        if !route.is_beside() {
            return None; // `pop_fast` has tried
        }
        // If the pageset has begun to serve for another zone since the route was found, because another thread of the CPU ran,
        // the block counts as a miss. Only these statistics are wrong, so the pop does not check it again, which would cost
        // every such pop instructions.
        let popped = self.platform.cpu_local().pop_from(route.cpu.id, slot, POP_STEPS[kind as usize]);
        let popped =
            if popped == Popped::NOTHING { self.fold_and_pop(slot, route.cpu, kind, true)? } else { popped };
        let block = self.mark_popped(slot, popped, kind)?;
        self.count_turn(route, request);
        Some(block)
    }

    /// Pops a block under the lock of the route's pageset, which is refilled if it is empty; orders that are not cached
    /// come from the buddy.
    ///
    /// Returns `None` when no block is available without waiting, or the zone fails its watermark.
    fn pop_locked(&self, route: &Route<'m, P>, request: &Request<'_>) -> Option<Block> {
        let (zone, cpu, flags) = (&self.zones[route.zone.index()], route.cpu, &request.flags);
        let Some(stack) = route.stack else { return self.split_preferred(zone, cpu, flags) };
        // A CPU that is served elsewhere returns to its slot of the preferred zone, unless the route is to the pageset that it
        // uses.
        if flags.order == Order::PAGE
            && request.may_pass(StackId::PAGES)
            && !(matches!(route.role, Role::ServingFor(_)) && self.uses(zone, cpu))
            && self.is_served_elsewhere(cpu)
        {
            self.serve_from_preferred(cpu);
        }
        if let Role::ServingFor(preferred) = route.role {
            if let Some(slot) = route.slot
                && let Some(popped) = self.fold_and_pop(slot, cpu, flags.kind, false)
            {
                return self.mark_popped(slot, popped, flags.kind);
            }
            let preferred = &self.zones[preferred.index()];
            return self.serve_instead(self.own_pageset(zone, cpu)?, preferred, stack, flags);
        }
        let session = self.own_pageset(zone, cpu)?;
        if route.is_beside() && session.serves_for_another() {
            return None;
        }
        let mut refills = 0;
        let block = loop {
            if let Some(block) = self.pop(&session, stack, flags.order, flags.kind) {
                break block;
            }
            if refills == 0 && !self.preferred_passes(zone, cpu, flags) {
                return None;
            }
            refills += 1;
            if session.refill(stack, spare(zone, flags.zone_limit, Watermark::Low)) == 0 {
                session.update_limits();
                return None;
            }
        };
        if refills > 0 {
            session.add_to(|pageset| &pageset.probes, 1);
        }
        session.count_hits(1);
        session.update_limits();
        drop(session);
        self.count_turn(route, request);
        Some(block)
    }

    /// Serves a request that the pagesets of the current CPU cannot serve.
    #[cold]
    fn alloc_slow(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.serve(request, &self.resolve(request, Turn::Next)?)
    }

    /// Pushes a frame of the slot's zone onto the CPU's slot: route and push in one.
    ///
    /// Returns `false` if the frame is not an allocated frame of that zone, or if the free would have to wait for the
    /// caller's own thread.
    #[inline(always)]
    fn push_fast(&self, first: Pfn) -> bool {
        let (local, slots) = (self.platform.cpu_local(), &self.slots);
        let refused = move |slot: &PagesetSlot<'m, P>, push: Push| self.put_refused(slot.zone, push);
        // Two copies of the path, so that a private pool's has no code for holders.
        if self.claims_by_exchange {
            let prepare = move |slot: &_| self.release_page(slot, first, InvalidFree::Exact);
            return local.push_current(&self.platform, slots, prepare, refused);
        }
        let prepare = move |slot: &_| self.release_page_otherwise(slot, first);
        local.push_current(&self.platform, slots, prepare, refused)
    }

    /// Serves every free that [`Self::push_fast`] does not serve.
    #[inline(never)]
    fn free_routed(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        let cpu = self.current_cpu_info();
        let Some((zone, slot)) = self.route_of_free(cpu, first, order) else {
            return Err(FreeError::NotManaged(first));
        };
        let frame = zone.offset(first);
        let claimed = if zone.holders().are_kept() {
            if self.must_wait_for_handover(zone, frame) {
                return Err(FreeError::Reentered(first));
            }
            self.claim_held_block(zone, frame, order)
        } else {
            zone.frames.release(frame, order, self.config().invalid_free)
        };
        let Some(kind) = claimed else { return self.refuse_free(zone, first, order) };
        let block = FreedBlock { zone: zone.id, frame, order, kind };
        if let (Some(cpu), Some(slot)) = (cpu, slot)
            && self.push_routed(zone, cpu, slot, block)
        {
            return Ok(());
        }
        if self.put_or_defer(zone, block) { Ok(()) } else { Err(FreeError::Reentered(first)) }
    }

    /// Pushes a frame onto `slot`, or a larger block onto a stack of `zone`'s pageset, with one committing step.
    #[inline(always)]
    fn push_routed(
        &self,
        zone: &Zone<'m, P>,
        cpu: CpuInfo,
        slot: &'m PagesetSlot<'m, P>,
        block: FreedBlock,
    ) -> bool {
        if block.order == Order::PAGE {
            return self.platform.cpu_local().push_to(cpu.id, slot, block.push())
                || self.fold_and_push(cpu, slot, block);
        }
        let pagesets = self.pagesets_of(zone);
        let pageset = pagesets.of(cpu);
        let stack = self.stack_for(zone, pageset, block.frame, block.order);
        stack.is_some_and(|stack| self.push_block(pagesets, pageset, cpu, stack, block))
    }

    /// Frees a block that is marked as cached, or defers that, if it would have to wait for the caller's own thread.
    ///
    /// Returns `false` if the CPU has deferred too many frees already. The block is then marked as allocated again.
    fn put_or_defer(&self, zone: &Zone<'m, P>, block: FreedBlock) -> bool {
        if self.platform.is_reentered() {
            return self.defer_free(zone, block);
        }
        self.finish_own_frees();
        self.put_cached(zone, block);
        true
    }

    /// Frees a block that is marked as cached: to the CPU's pageset of the zone or, if that cannot hold it, to the buddy.
    fn put(&self, zone: &Zone<'m, P>, block: FreedBlock) {
        if !self.push_locked(zone, block) {
            self.merge(zone, block.frame, block.order);
        }
    }

    /// Pushes a block onto a stack of the CPU's pageset under the pageset's lock, and drains a full pageset. Counts the block
    /// as freed in any case.
    ///
    /// Returns `false` if the block must go to the buddy.
    #[inline]
    fn push_locked(&self, zone: &Zone<'m, P>, block: FreedBlock) -> bool {
        let FreedBlock { frame, order, kind, .. } = block;
        let (cpu, counters) = (self.current_cpu_info(), &self.nodes[zone.node].counters);
        let stack = cpu.and_then(|cpu| self.stack_for(zone, self.pagesets_of(zone).of(cpu), frame, order));
        let session = match (cpu, stack) {
            (Some(cpu), None) if self.count_merge(zone, cpu, order, kind) => return false,
            (Some(cpu), Some(_)) => self.own_pageset(zone, cpu),
            _ => None,
        };
        let (Some(session), Some(stack)) = (session, stack) else {
            counters.add_total(kind.item(), -block.pages());
            return false;
        };
        session.count_kind(kind, -block.pages(), counters);
        let pushed = session.add(stack, frame, order);
        session.update_limits();
        session.end();
        pushed
    }
}
