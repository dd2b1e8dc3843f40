//! What the allocator tells the embedder about memory pressure.
//!
//! Related files: `alloc/pressure.rs` detects pressure, `platform/mod.rs` has the method that the embedder implements.

use crate::units::{NodeId, PageCount};
pub use crate::zone::stalls::StallShares;

/// What has happened to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PressureKind {
    /// A request found a zone of the node below its watermark `low`. The next event of this kind follows
    /// [`AboveHigh`](Self::AboveHigh).
    BelowLow,
    /// All zones of the node are above their watermark `high` again. Detected after reclaim, and by each tick.
    AboveHigh,
    /// Direct reclaim begins to stall callers that prefer the node.
    Stalling,
    /// A request that prefers the node is about to fail.
    Failing,
}

/// An event of memory pressure on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PressureEvent {
    /// The node.
    pub node: NodeId,
    /// What has happened.
    pub kind: PressureKind,
    /// Free frames of the node.
    pub free: PageCount,
    /// Sum of the watermarks `low` of its zones.
    pub low: PageCount,
    /// Sum of the watermarks `high` of its zones.
    pub high: PageCount,
    /// How much of the recent time direct reclaim stalled callers that prefer the node.
    pub stalled: StallShares,
}
