//! Why a free was refused. Cold: nothing here runs for a valid free.
//!
//! A block has a state at its first frame only. The block around a frame is found by checking every first frame that it
//! could have. Neighbours: `alloc/free.rs` refuses, `zone/frame_states.rs` holds the states.

use crate::Allocator;
use crate::error::FreeError;
use crate::platform::Platform;
use crate::units::{Order, Pfn};
use crate::zone::Zone;
use crate::zone::frame_states::FrameState;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Returns why `frame` of `zone`, found in `state`, cannot be freed with order `given`.
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
            // Another free came first, and the frame has started a new block since.
            FrameState::Allocated(allocated, _) if allocated == given => FreeError::NotAllocated(frame),
            FrameState::Allocated(allocated, _) => FreeError::WrongOrder { frame, allocated, given },
        }
    }

    /// Returns the error for a frame where no block starts, from the block that contains it now.
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
                // This block ends before `frame`, or there is a hole; no block around `frame` can start earlier.
                _ => break,
            }
        }
        FreeError::NotAllocated(frame)
    }
}
