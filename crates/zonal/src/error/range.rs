//! The errors of range allocations.
//!
//! Related files: `ranges/mod.rs` allocates ranges.

use core::fmt;

use crate::error::online::OnlineError;
use crate::error::used::UsedFrames;
use crate::machine::FrameRange;
use crate::units::{PageCount, Pfn};

/// Reason why a range was not allocated; nothing of it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// The range is empty or does not lie within one zone.
    NotInZone(OnlineError),
    /// Some frames of the range are not free.
    InUse {
        /// The range.
        range: FrameRange,
        /// The first block of these.
        first: UsedFrames,
        /// Number of frames in the range that are not free.
        used: PageCount,
    },
    /// Other threads freed frames of the range while it was being allocated.
    Changing(FrameRange),
    /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
    /// waiting for that thread.
    Reentered(Pfn),
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInZone(error) => error.fmt(f),
            Self::InUse { range, first, used } => {
                let (block, state) = (first.block, first.state);
                write!(
                    f,
                    "{used} of the range ({range}) are not free; the first block of these ({block}) is {state}"
                )
            }
            Self::Changing(range) => {
                write!(f, "other threads freed frames of the range ({range}) meanwhile; repeat the call")
            }
            Self::Reentered(frame) => write!(
                f,
                "the range at frame {frame} is requested by a signal or interrupt handler that interrupted its own \
                 thread inside the allocator, and would have to wait for that thread; request it later"
            ),
        }
    }
}

impl core::error::Error for RangeError {}
