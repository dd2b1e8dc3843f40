//! The errors of allocations of given frames, and the description of frames that are in use.
//!
//! Related files: `alloc/ranges.rs` allocates ranges.

use core::fmt;

use crate::error::OnlineError;
use crate::machine::FrameRange;
use crate::units::{PageCount, PageKind, Pfn};

/// A part of a range that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsedFrames {
    /// The frames of the block, which may begin before the range and end after it.
    pub block: FrameRange,
    /// State of the frames.
    pub state: UsedState,
}

/// The states of frames that are not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UsedState {
    /// Allocated as this kind.
    Allocated(PageKind),
    /// Allocated as a later block of a run.
    InRun,
    /// Free in a pageset, or moving to or from one.
    Cached,
    /// In quarantine, or retired.
    Quarantined,
    /// Being split by another thread.
    BeingSplit,
    /// In a hole or offline.
    NotManaged,
}

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
        /// Number of frames of the range that are not free.
        used: PageCount,
    },
    /// Other threads freed frames of the range while it was being allocated.
    Changing(FrameRange),
    /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
    /// waiting for that thread.
    Reentered(Pfn),
}

impl fmt::Display for UsedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocated(PageKind::User) => "allocated (user)",
            Self::Allocated(PageKind::Cache) => "allocated (cache)",
            Self::Allocated(PageKind::Kernel) => "allocated (kernel)",
            Self::InRun => "allocated with the frames before it",
            Self::Cached => "cached in a pageset",
            Self::Quarantined => "in quarantine or retired",
            Self::BeingSplit => "being split",
            Self::NotManaged => "not managed",
        })
    }
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
