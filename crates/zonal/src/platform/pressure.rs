//! What the allocator reports to the embedder about memory pressure.
//!
//! Related files: `reclaim/pressure.rs` detects pressure, `platform/mod.rs` has the method that the embedder implements.

use core::fmt;

use crate::units::{NodeId, PageCount};

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
    /// Sum of its zones' `low` watermarks.
    pub low: PageCount,
    /// Sum of its zones' `high` watermarks.
    pub high: PageCount,
    /// How much of the recent time direct reclaim stalled callers that prefer the node.
    pub stalled: StallShares,
}

/// Shares of the last 10, 60 and 300 seconds in which direct reclaim stalled at least one caller of a node.
///
/// The unit is a hundredth of a percent. Each window also includes the second that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StallShares {
    /// Share of the last 10 seconds.
    pub last_10s: u16,
    /// Share of the last 60 seconds.
    pub last_60s: u16,
    /// Share of the last 300 seconds.
    pub last_300s: u16,
}

/// Prints the shares as the kernel prints pressure: `avg10=1.20 avg60=0.20 avg300=0.04`.
impl fmt::Display for StallShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows = [("avg10", self.last_10s), ("avg60", self.last_60s), ("avg300", self.last_300s)];
        for (at, (name, share)) in windows.into_iter().enumerate() {
            let gap = if at == 0 { "" } else { " " };
            write!(f, "{gap}{name}={}.{:02}", share / 100, share % 100)?;
        }
        Ok(())
    }
}
