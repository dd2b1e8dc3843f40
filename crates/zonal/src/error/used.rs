//! The description of frames that are in use.
//!
//! Related files: `ranges/mod.rs` lists such frames, errors of ranges contain them.

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

/// The kinds of allocated frames, as [`UsedState`] prints them.
const KINDS: [&str; PageKind::COUNT] = ["user", "cache", "kernel"];

messages! {
    /// The states of frames that are not free.
    pub enum UsedState {
        /// Allocated as this kind.
        Allocated(kind: PageKind) => ("allocated ({})", KINDS[kind as usize]),
        /// Allocated as a later block of a run.
        InRun => "allocated with the frames before it",
        /// Free in a pageset, or moving to or from one.
        Cached => "cached in a pageset",
        /// In quarantine, or out of use after invalid frees.
        Quarantined => "in quarantine",
        /// Kept by a fence ([`Allocator::fence`](crate::Allocator::fence)).
        Fenced => "kept by a fence",
        /// Retired ([`Allocator::retire`](crate::Allocator::retire)).
        Retired => "retired",
        /// Being split by another thread.
        BeingSplit => "being split",
        /// In a hole or offline.
        NotManaged => "not managed",
    }
}
