//! The description of frames that are in use.
//!
//! Related files: `ranges/mod.rs` lists such frames, errors of ranges contain them.

use core::fmt;

use crate::machine::FrameRange;
use crate::units::PageKind;

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
    /// In quarantine, or out of use after invalid frees.
    Quarantined,
    /// Kept by a fence ([`Allocator::fence`](crate::Allocator::fence)).
    Fenced,
    /// Retired ([`Allocator::retire`](crate::Allocator::retire)).
    Retired,
    /// Being split by another thread.
    BeingSplit,
    /// In a hole or offline.
    NotManaged,
}

impl fmt::Display for UsedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocated(PageKind::User) => "allocated (user)",
            Self::Allocated(PageKind::Cache) => "allocated (cache)",
            Self::Allocated(PageKind::Kernel) => "allocated (kernel)",
            Self::InRun => "allocated with the frames before it",
            Self::Cached => "cached in a pageset",
            Self::Quarantined => "in quarantine",
            Self::Fenced => "kept by a fence",
            Self::Retired => "retired",
            Self::BeingSplit => "being split",
            Self::NotManaged => "not managed",
        })
    }
}
