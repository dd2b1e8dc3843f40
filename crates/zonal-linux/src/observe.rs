//! What a pool tells of itself: how it was built, and how it stands.
//!
//! Neighbours: the core's snapshot is passed on as it is; front ends render it.

use zonal::machine::FrameRange;
use zonal::units::{NodeId, PageCount, ZoneKind};

use crate::error::Warning;
use crate::memory::Binding;
use crate::pool::Pool;
use crate::topology::Topology;

/// Where a pool's memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each node's memory is on that node.
    OnNodes,
    /// The kernel did not let memory be bound; frames lie where they were first used.
    NotBound,
    /// Nodes are emulated: their memory lies anywhere.
    Emulated,
}

/// The frames of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneRange {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// Its frames, offline ones included.
    pub frames: FrameRange,
}

impl Pool {
    /// What is not as it was asked for.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.core.warnings
    }

    /// The machine the pool is built over.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }

    /// Where the pool's memory lies.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let not_bound = |warning: &Warning| matches!(warning, Warning::NotBound { .. });
        match self.topology().is_emulated() {
            true => Placement::Emulated,
            false if self.warnings().iter().any(not_bound) => Placement::NotBound,
            false => Placement::OnNodes,
        }
    }

    /// Bytes of a frame.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.core.memory().page_bytes()
    }

    /// The frames of each zone, in the order of the zones' ids.
    pub fn ranges(&self) -> impl Iterator<Item = ZoneRange> + '_ {
        let zones = self.core.memory().zones().iter();
        zones.map(|zone| ZoneRange { node: zone.node, kind: zone.kind, frames: zone.range })
    }

    /// Frames of the pool, offline ones included.
    #[must_use]
    pub fn frames(&self) -> PageCount {
        self.ranges().map(|zone| zone.frames.count).sum()
    }

    /// How often a reclaimer panicked, which counts as having freed nothing.
    #[must_use]
    pub fn reclaimer_panics(&self) -> u64 {
        self.core.platform().reclaimers.panics()
    }

    /// Whether the current CPU is read from the area that the C library shares with the kernel,
    /// which is one load, rather than asked for.
    #[must_use]
    pub fn reads_cpu_from_shared_area(&self) -> bool {
        self.core.platform().cpus.is_shared_area()
    }
}
