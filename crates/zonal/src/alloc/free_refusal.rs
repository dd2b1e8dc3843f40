//! What a refused free says of its frame. Cold: nothing here runs for a free that is right.
//!
//! A block has a state at its first frame only, so the block around a frame is looked for at the first frames
//! that it could have. Neighbours: `free.rs` refuses, `frame_table.rs` has the states.

use crate::Allocator;
use crate::error::FreeError;
use crate::platform::Platform;
use crate::units::{Order, Pfn};
use crate::zone::Zone;
use crate::zone::frame_states::FrameState;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Why `frame` of `zone` cannot be freed with order `given`, where `state` was found.
    #[cold]
    #[inline(never)]
    pub(super) fn refusal(
        &self,
        zone: &Zone<'m, P>,
        frame: Pfn,
        given: Order,
        state: FrameState,
    ) -> FreeError {
        match state {
            FrameState::NotManaged => FreeError::NotManaged(frame),
            FrameState::Free => self.refusal_inside(zone, frame),
            FrameState::Cached(_) => FreeError::NotAllocated(frame),
            FrameState::Quarantined(..) => FreeError::Quarantined(frame),
            // Another free came first, and the frame starts a new block since.
            FrameState::Allocated(allocated, _) if allocated == given => FreeError::NotAllocated(frame),
            FrameState::Allocated(allocated, _) => FreeError::WrongOrder { frame, allocated, given },
        }
    }

    /// The same for a frame where no block starts: by the block that it lies in, as of this moment.
    fn refusal_inside(&self, zone: &Zone<'m, P>, frame: Pfn) -> FreeError {
        let offset = zone.offset(frame);
        for order in (1..=self.max_order.get()).filter_map(Order::new) {
            let first = offset & !(order.pages().get() as u32 - 1);
            if zone.pfn(first) < zone.span.start {
                break;
            }
            match zone.frames.state(first) {
                FrameState::Free => {}
                FrameState::Allocated(found, _) if found >= order => {
                    return FreeError::InsideBlock { frame, block: zone.pfn(first), order: found };
                }
                FrameState::Quarantined(found, _) if found >= order => return FreeError::Quarantined(frame),
                // No block around the frame starts before one that ends before it, or before a hole.
                _ => break,
            }
        }
        FreeError::NotAllocated(frame)
    }
}
