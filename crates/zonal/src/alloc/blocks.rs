//! Short paths for blocks of more than one frame that the current CPU's pageset holds or has a free slot for.
//!
//! They serve the requests whose scan would begin at the preferred zone, and lock the pageset once
//! (`pageset/block_steps.rs`). Related files: `alloc/mod.rs` and `alloc/free.rs` handle all other cases.

use crate::Allocator;
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::error::FreeError;
use crate::node_mask::NodeMask;
use crate::platform::Platform;
use crate::units::{Order, Pfn, ZoneId};
use crate::zone::frame_states::{mark_block_allocated, release_block};

impl<P: Platform> Allocator<'_, P> {
    /// Pops a block from the current CPU's pageset of the preferred zone, if it holds one and the CPU uses this pageset.
    ///
    /// A function of its own with few arguments, so that the usual case needs few registers. The arguments are the fields of
    /// the request that [`Request::accepts_slot`] checks.
    #[inline(never)]
    pub(super) fn pop_larger(
        &self,
        flags: RequestFlags,
        near: Option<&NodeMask>,
        allowed: Option<&NodeMask>,
    ) -> Option<Block> {
        let request = Request { flags, policy: None, allowed, near, below: Pfn::new(0) };
        if !request.may_pop() {
            return None;
        }
        let RequestFlags { order, kind, .. } = flags;
        let cpu = self.state.platform.current_cpu();
        let slot = self.state.slots.of(cpu).filter(|slot| slot.is_used() && request.accepts_slot(slot))?;
        let (stack, cpu) = (self.state.cached.stack(order)?, self.state.cpu_info(cpu)?);
        let frame = self.state.pop_block(&self.state.zones[slot.zone.index()], cpu, stack, order, kind)?;
        // Hardening leaves CPUs without slots, so the block needs no other check than that of its state.
        let state = slot.states.get(frame as usize)?;
        if !mark_block_allocated(state, order, kind) {
            self.note_invalid(slot.zone, frame, order);
            return None;
        }
        let first = Pfn::new(slot.base.get().wrapping_add(u64::from(frame)));
        Some(Block { first, order, zone: slot.zone, node: slot.node })
    }

    #[cold]
    #[inline(never)]
    fn note_invalid(&self, zone: ZoneId, frame: u32, order: Order) {
        self.state.note_invalid(&self.state.zones[zone.index()], frame, order);
    }

    /// Frees a block of more than one frame.
    #[inline(never)]
    pub(super) fn free_larger(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        if let Some(cpu) = self.state.current_cpu_info()
            && let Some(slot) = self.state.slots.of(cpu.id)
            && let Some(frame) = slot.offset(first)
            && !self.state.platform.is_reentered()
            // A frame outside the zone's span has no state of an allocated block here, so this fails for it.
            && let Ok(kind) = release_block(&slot.states[frame as usize], order, self.invalid_free)
        {
            let zone = &self.state.zones[slot.zone.index()];
            let stack = self.state.stack_for(zone, cpu, frame, order);
            if let Some(stack) = stack
                && self.state.push_block(zone, cpu, stack, frame, order, kind)
            {
                return Ok(());
            }
            self.state.finish_frees(cpu);
            self.state.free_block_beyond(zone, stack, frame, order, kind);
            return Ok(());
        }
        self.free_beyond(first, order)
    }
}
