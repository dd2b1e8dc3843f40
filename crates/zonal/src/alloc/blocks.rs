//! Short paths for blocks of more than one frame that the current CPU's pageset holds or has a free slot for.
//!
//! They serve the requests whose scan would begin at the preferred zone, and lock the pageset once
//! (`pageset/block_steps.rs`). Related files: `alloc/mod.rs` and `alloc/free.rs` handle all other cases.

use crate::Allocator;
use crate::alloc::from_zone::block_at;
use crate::alloc::mempolicy::RequestPolicy;
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::error::{AllocError, FreeError};
use crate::node_mask::NodeMask;
use crate::platform::Platform;
use crate::units::{Order, Pfn};
use crate::zone::events::Event;
use crate::zone::frame_state::FrameState;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates a block of more than one frame; the arguments are the fields of the request.
    #[inline(never)]
    pub(super) fn alloc_larger(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
        below: Pfn,
    ) -> Result<Block, AllocError> {
        let request = Request { flags, policy, allowed, near, below };
        if let Some(block) = self.pop_larger(&request) {
            return Ok(block);
        }
        match request.address_limit() {
            Some(below) => self.alloc_below(flags, policy, allowed, below),
            None => self.alloc_beyond(flags, policy, near, allowed),
        }
    }

    /// Pops a block from the current CPU's pageset of the preferred zone, if it holds one and the CPU uses this pageset.
    #[inline(always)]
    pub(super) fn pop_larger(&self, request: &Request<'_>) -> Option<Block> {
        if !request.may_pop() {
            return None;
        }
        let RequestFlags { order, kind, .. } = request.flags;
        let cpu = self.state.platform.current_cpu();
        let slot = self.state.slots.of(cpu).filter(|slot| slot.is_used() && request.accepts_slot(slot))?;
        let (stack, cpu) = (self.state.cached.stack(order)?, self.state.cpu_info(cpu)?);
        let zone = &self.state.zones[slot.zone.index()];
        let frame = self.state.pop_block(zone, cpu, stack, order, kind)?;
        let is_allocated = zone.frames.mark_allocated(frame, FrameState::Cached(order), order, kind);
        if !is_allocated {
            self.state.nodes[zone.node].events.add(Event::Retired, order.pages().get());
            return None;
        }
        Some(block_at(zone, frame, order))
    }

    /// Frees a block of more than one frame.
    #[inline(never)]
    pub(super) fn free_larger(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        let cpu = self.state.current_cpu_info();
        if let Some(cpu) = cpu
            && let Some(slot) = self.state.slots.of(cpu.id)
            && let Some(frame) = slot.offset(first)
            && !self.state.platform.is_reentered()
        {
            // A frame outside the zone's span has no state of an allocated block here, so the release fails.
            let zone = &self.state.zones[slot.zone.index()];
            if let Ok(kind) = zone.frames.release(frame, order, self.invalid_free) {
                self.state.free_block(zone, frame, order, kind);
                return Ok(());
            }
        }
        self.free_beyond(first, order)
    }
}
