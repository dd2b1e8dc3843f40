//! Requests under a cpuset or a binding policy for which the CPU's pageset slot is of the wrong zone, mostly because they
//! exclude the CPU's own node: a frame from the current CPU's pageset of the nearest zone that may serve the request.
//!
//! A scan of the CPU's zonelist would begin at this zone. As for plain requests, no watermark is checked, because it was
//! checked when the frames left the zone. Related files: `alloc/in_turn.rs` does the same for interleaving policies,
//! `zonelist/nearest_zones.rs` remembers the zone, and `alloc/mod.rs` tries these functions first.

use crate::Allocator;
use crate::alloc::mempolicy::{Mode, RequestPolicy};
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::StackId;
use crate::pageset::session::PagesetSession;
use crate::platform::Platform;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{PagesetSlot, Popped};
use crate::platform::pageset_word::POP_STEPS;
use crate::rules::watermarks::Urgency;
use crate::units::{Order, PageKind, Pfn, ZoneId};

use crate::zone::{CpuInfo, Zone};
use crate::zonelist::allowed_nodes::AllowedNodes;
use crate::zonelist::candidates::{Candidates, NodeFilter};
use crate::zonelist::nearest_zones::Lookup;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates for a request that [`Request::is_confined`].
    #[inline(never)]
    pub(super) fn alloc_confined(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
    ) -> Result<Block, AllocError> {
        let request = &Request { flags, policy, allowed, near, below: Pfn::new(0) };
        let popped = match policy {
            Some(policy) if request.is_in_turn() => self.pop_in_turn(flags, policy, allowed),
            _ => self.pop_nearest(request),
        };
        match popped {
            Some(block) => Ok(block),
            None => self.alloc_beyond(flags, policy, near, allowed),
        }
    }

    /// Pops a frame from the nearest zone, or returns `None` if the pop needs the pageset's lock.
    #[inline(always)]
    pub(super) fn pop_nearest(&self, request: &Request<'_>) -> Option<Block> {
        let cpu = self.state.current_cpu_info()?;
        // The pop from the CPU's slot has failed, if the slot belongs to the nearest zone.
        if self.state.slots.of(cpu.id).is_some_and(|slot| request.accepts_slot(slot)) {
            return None;
        }
        let slot = self.nearest_slot(self.nearest(request, cpu)?, cpu)?;
        let kind = request.flags.kind;
        let popped = self.state.platform.cpu_local().pop_from(cpu.id, slot, POP_STEPS[kind as usize]);
        self.mark_popped(slot, popped, kind)
    }

    /// Pops a frame from the nearest zone under the lock of the pageset; does not refill the pageset.
    pub(super) fn pop_nearest_by_lock(&self, request: &Request<'_>, cpu: CpuInfo) -> Option<Block> {
        let zone = self.nearest(request, cpu)?;
        let kind = request.flags.kind;
        if let Some(slot) = self.nearest_slot(zone, cpu) {
            return self.pop_slot_by_lock(slot, cpu, kind);
        }
        let session = self.state.own_pageset(&self.state.zones[zone.index()], cpu)?;
        let serves = session.has(StackId::PAGES) && !session.serves_for_another();
        if serves { self.pop_in(&session, kind) } else { None }
    }

    /// Returns the zone whose pageset would serve the request on the current CPU.
    pub(super) fn nearest_zone(&self, request: &Request<'_>, cpu: CpuInfo) -> Option<&Zone<'m, P>> {
        let zone = &self.state.zones[self.nearest(request, cpu)?.index()];
        let pageset = self.state.pagesets_of(zone).of(cpu);
        let serves = pageset.has(StackId::PAGES) && !pageset.serves_for_another();
        serves.then_some(zone)
    }

    /// Returns the zone at which a scan for the request would begin.
    #[inline(always)]
    fn nearest(&self, request: &Request<'_>, cpu: CpuInfo) -> Option<ZoneId> {
        if self.state.shared.zonelist_cache().sets_up_past_disallowed() {
            return None; // the scan may skip this zone
        }
        let nodes = request.nearest_of()?;
        let lists = self.state.lists.read(usize::from(cpu.node)).version();
        let lookup = Lookup { cpu: cpu.index, limit: request.flags.zone_limit, lists };
        let recalled = self.state.nearest.recall(lookup, &nodes);
        recalled.or_else(|| self.look_up(lookup, nodes, cpu))
    }

    /// Finds the nearest zone in the CPU's zonelist, and records it.
    #[cold]
    fn look_up(&self, lookup: Lookup, nodes: AllowedNodes<'_>, cpu: CpuInfo) -> Option<ZoneId> {
        let mut listed = None;
        let list = self.state.lists.read(usize::from(cpu.node));
        let lookup = Lookup { lists: list.version(), ..lookup };
        let filter = NodeFilter::new(nodes, nodes.len(), &mut listed);
        let (_, zone) = Candidates::new(list, lookup.limit, Some(filter)).next(0, None).ok()??;
        self.state.nearest.record_zone(lookup, &nodes, zone);
        Some(zone)
    }

    /// Returns the CPU's slot for the zone, unless a pageset that serves for another zone counts its blocks as misses.
    #[inline(always)]
    fn nearest_slot(&self, zone: ZoneId, cpu: CpuInfo) -> Option<&'m PagesetSlot<'m, P>> {
        self.state.slots.at(cpu.index, zone).filter(|slot| slot.is_preferred())
    }

    /// Pops a frame from the pageset of `slot` under its lock.
    pub(super) fn pop_slot_by_lock(
        &self,
        slot: &PagesetSlot<'m, P>,
        cpu: CpuInfo,
        kind: PageKind,
    ) -> Option<Block> {
        if !slot.has_frames() {
            return None;
        }
        let locked = self.state.lock_slot(slot, cpu)?;
        let popped = if slot.is_preferred() { locked.pop_and_fold(kind) } else { Err(locked.session()) };
        match popped {
            // Returns `None` when the frame is the second copy of one that was freed twice.
            Ok(frame) => self.mark_popped(slot, Popped::frame(frame), kind),
            Err(session) if session.serves_for_another() => None,
            Err(session) => self.pop_in(&session, kind),
        }
    }

    fn pop_in(&self, session: &PagesetSession<'_, 'm, P>, kind: PageKind) -> Option<Block> {
        let block = self.pop(session, StackId::PAGES, Order::PAGE, kind);
        session.count_hits(i64::from(block.is_some()));
        session.update_limits();
        block
    }
}

impl<'r> Request<'r> {
    /// Returns the nodes of which the nearest to the CPU serves the request first, or `None` if another rule
    /// chooses the first node.
    #[inline(always)]
    fn nearest_of(&self) -> Option<AllowedNodes<'r>> {
        // Urgent requests ignore cpusets, but not those of a caller that is reclaiming.
        let follows = self.allowed.is_none() || self.flags.urgency != Urgency::Atomic;
        if !follows || self.is_strict() || self.flags.order != Order::PAGE || !self.may_pop_current() {
            return None;
        }
        match self.policy {
            None => Some(AllowedNodes::new(self.allowed?, None)),
            Some(policy) if policy.mode() == Mode::Bind => {
                Some(AllowedNodes::new(policy.nodes(), self.allowed))
            }
            Some(_) => None,
        }
    }
}
