//! The errors of range allocations.
//!
//! Related files: `ranges/mod.rs` allocates ranges.

use crate::error::online::OnlineError;
use crate::error::used::UsedFrames;
use crate::machine::FrameRange;
use crate::units::{PageCount, Pfn};

messages! {
    /// Reason why a range was not allocated; nothing of it is.
    pub enum RangeError: core::error::Error {
        /// The range is empty or does not lie within one zone.
        NotInZone(error: OnlineError) => "{error}",
        /// Some frames of the range are not free.
        InUse {
            /// The range.
            range: FrameRange,
            /// The first block of these.
            first: UsedFrames,
            /// Number of frames in the range that are not free.
            used: PageCount,
        } =>
            ("{used} of the range ({range}) are not free; the first block of these ({}) is {}", first.block, first.state),
        /// Other threads freed frames of the range while it was being allocated.
        Changing(range: FrameRange) =>
            "other threads freed frames of the range ({range}) meanwhile; repeat the call",
        /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
        /// waiting for that thread.
        Reentered(frame: Pfn) =>
            "the range at frame {frame} is requested by a signal or interrupt handler that interrupted its own \
             thread inside the allocator, and would have to wait for that thread; request it later",
    }
}
