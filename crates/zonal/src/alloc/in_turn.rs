//! Requests under interleaving policies: a frame from the current CPU's pageset of the node whose turn it is.
//!
//! The pageset is the CPU's pageset of that node's preferred zone. A scan of the node's zonelist would begin at this zone.
//! As for plain requests, no watermark is checked, because it was checked when the frames left the zone. The turn is used
//! only if the pageset serves the request. Otherwise the slow path uses the same turn. Related files:
//! `alloc/mempolicy.rs` has the turns, `alloc/mod.rs` tries these functions first, and `pageset/served.rs` counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::alloc::mempolicy::{NodeTurn, RequestPolicy, is_in};
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::node_mask::NodeMask;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::PagesetSlot;
use crate::platform::pageset_word::POP_STEPS;
use crate::platform::{Atomic, Platform};
use crate::rules::watermarks::Urgency;
use crate::units::{CpuId, ZoneId};
use crate::zone::{CpuInfo, Zone};

/// The pageset slot of the node whose turn it is, and that turn.
type SlotInTurn<'m, P> = (&'m PagesetSlot<'m, P>, NodeTurn);

impl<'m, P: Platform> Allocator<'m, P> {
    /// Pops a frame from the node whose turn it is, or returns `None` if the pop needs the pageset's lock.
    #[inline(always)]
    pub(super) fn pop_in_turn(
        &self,
        flags: RequestFlags,
        policy: &dyn RequestPolicy,
        allowed: Option<&NodeMask>,
    ) -> Option<Block> {
        let (state, kind) = (&self.state, flags.kind);
        let cpu = state.current_cpu_info()?;
        let (slot, turn) = self.slot_in_turn(flags, policy, allowed, cpu)?;
        let popped = state.platform.cpu_local().pop_from(cpu.id, slot, POP_STEPS[kind as usize]);
        let block = self.mark_popped(slot, popped, kind)?;
        policy.use_turn(cpu.id, turn);
        state.count_interleave_hit(slot.zone, slot.head);
        Some(block)
    }

    /// Pops a frame from the node whose turn it is, under the lock of the pageset; does not refill the pageset.
    pub(super) fn pop_in_turn_by_lock(&self, request: &Request<'_>) -> Option<Block> {
        let (policy, kind) = (request.policy?, request.flags.kind);
        let cpu = self.state.current_cpu_info()?;
        let (slot, turn) = self.slot_in_turn(request.flags, policy, request.allowed, cpu)?;
        let block = self.pop_slot_by_lock(slot, cpu, kind)?;
        policy.use_turn(cpu.id, turn);
        self.state.count_interleave_hit(slot.zone, slot.head);
        Some(block)
    }

    /// Returns the zone whose pageset would serve the request on the current CPU.
    pub(super) fn zone_in_turn(&self, request: &Request<'_>) -> Option<&Zone<'m, P>> {
        let cpu = self.state.current_cpu_info()?;
        let (slot, _) = self.slot_in_turn(request.flags, request.policy?, request.allowed, cpu)?;
        slot.has_frames().then(|| &self.state.zones[slot.zone.index()])
    }

    /// Returns the slot of a CPU for the zone at which a scan for the request would begin.
    #[inline(always)]
    fn slot_in_turn(
        &self,
        flags: RequestFlags,
        policy: &dyn RequestPolicy,
        allowed: Option<&NodeMask>,
        cpu: CpuInfo,
    ) -> Option<SlotInTurn<'m, P>> {
        // Urgent requests ignore cpusets, but not those of a caller that is reclaiming.
        if allowed.is_some() && flags.urgency == Urgency::Atomic {
            return None;
        }
        let mut turn = policy.next_turn(cpu.id)?;
        if !is_in(turn.node(), |at| self.usable(allowed, at)) {
            turn = self.next_usable_turn(policy, allowed, cpu.id)?;
        }
        let node = turn.node();
        let zone = ZoneId::from_index(self.state.nodes[self.state.place_of(node)?].preferred_zone()?);
        let slot = self.state.slots.at(cpu.index, zone)?;
        // A pageset that serves for another zone counts its blocks as misses.
        let suits = slot.kind <= flags.zone_limit && slot.node == node && slot.is_preferred();
        suits.then_some((slot, turn))
    }

    #[cold]
    #[inline(never)]
    fn next_usable_turn(
        &self,
        policy: &dyn RequestPolicy,
        allowed: Option<&NodeMask>,
        cpu: CpuId,
    ) -> Option<NodeTurn> {
        policy.next_usable_turn(cpu, &|at| self.usable(allowed, at))
    }

    /// Returns a word of the mask of nodes that have memory and that the cpuset allows.
    #[inline]
    fn usable(&self, allowed: Option<&NodeMask>, at: usize) -> u64 {
        let memory = self.state.shared.memory_nodes.0[at].load(Relaxed); // relaxed: as in `memory_nodes`
        memory & allowed.map_or(u64::MAX, |nodes| nodes.words()[at])
    }
}
