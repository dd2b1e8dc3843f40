//! What a pool tells of itself: how it was built, and how it stands.
//!
//! Neighbours: the core's snapshot is passed on as it is; front ends render it.

use std::fmt;

use zonal::machine::FrameRange;
use zonal::snapshot::{
    Accounting, Events, Locality, NodeSnapshot, PagesetSnapshot, Settings, Snapshot, ZoneSnapshot,
};
use zonal::units::{NodeId, PageCount, ZoneKind};
use zonal::verify::VerifyError;
use zonal::{NodeMask, Platform};

use super::handle::Pool;
use super::platform::LinuxPlatform;
use crate::error::Warning;
use crate::sequences::stranded_threads;
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

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnNodes => "each node's memory on that node",
            Self::NotBound => "not bound to nodes",
            Self::Emulated => "nodes emulated",
        })
    }
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

    /// Nodes whose memory the pool has, offline or not: what policies over the whole pool name.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeMask {
        self.ranges().map(|zone| zone.node).collect()
    }

    /// Frames of the pool, offline ones included.
    #[must_use]
    pub fn frames(&self) -> PageCount {
        self.ranges().map(|zone| zone.frames.count).sum()
    }

    /// The equation of the whole pool: `managed = free + in_pagesets + allocated`.
    #[must_use]
    pub fn accounting(&self) -> Accounting {
        self.core.allocator().accounting()
    }

    /// All zones, by node and kind.
    pub fn zones(&self) -> impl Iterator<Item = ZoneSnapshot> + '_ {
        self.core.allocator().zones()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeSnapshot> + '_ {
        self.core.allocator().nodes()
    }

    /// All pagesets that are or were in use.
    pub fn pagesets(&self) -> impl Iterator<Item = PagesetSnapshot> + '_ {
        self.core.allocator().pagesets()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.core.allocator().settings()
    }

    /// Frames in use by kind (user, cache, kernel), without what CPUs have counted for themselves since
    /// counters were last folded.
    #[must_use]
    pub fn allocated_approximate(&self) -> [PageCount; 3] {
        self.core.allocator().allocated_approximate()
    }

    /// The pool's state in the formats of Linux's `/proc` and `/sys`.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_, '_, LinuxPlatform> {
        self.core.allocator().snapshot()
    }

    /// What happened so far.
    #[must_use]
    pub fn events(&self) -> Events {
        self.core.allocator().events()
    }

    /// Where blocks came from, over all zones.
    #[must_use]
    pub fn locality(&self) -> Locality {
        self.core.allocator().locality()
    }

    /// The nodes that requests of `node` try, in this order.
    #[must_use]
    pub fn fallback_order(&self, node: NodeId) -> Vec<NodeId> {
        let mut order = Vec::new();
        self.core.allocator().fallback_order(node, |next| order.push(next));
        order
    }

    /// Bytes of metadata, most of them touched only when their frames are used.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.core.allocator().metadata_bytes()
    }

    /// Walks everything and gives the books. The pool's own threads are kept still, after those in a reclaimer
    /// have come back: the caller must not hold a lock that a reclaimer takes. Nobody else may use the pool
    /// meanwhile, or differences are found that are none.
    ///
    /// # Errors
    /// The first thing that does not hold.
    ///
    /// # Panics
    /// When called by a reclaimer: the pool cannot be still then.
    pub fn verify(&self) -> Result<Accounting, VerifyError> {
        let platform = self.core.platform();
        assert!(!platform.is_reclaiming(), "a pool cannot be verified while it reclaims");
        let _rest = platform.presence.rest_outside_reclaimers();
        self.core.allocator().verify()
    }

    /// How often a reclaimer panicked, which counts as having freed nothing.
    #[must_use]
    pub fn reclaimer_panics(&self) -> u64 {
        self.core.platform().reclaimers.panics()
    }

    /// Threads of this process, of whatever pool, that the kernel keeps on a CPU which they only visited: where
    /// `membarrier` is denied, a thread that empties the pagesets of another CPU goes there for a moment. It was
    /// let go there, but not back.
    #[must_use]
    pub fn stranded_threads(&self) -> u64 {
        stranded_threads()
    }

    /// Whether pagesets are used through restartable sequences, without atomic instructions, rather
    /// than through a lock each.
    ///
    /// A program that denies itself the system call `membarrier` after it has built such a pool must be let onto every
    /// CPU that uses the pool: [`verify`](Self::verify), changes of settings, and memory and CPUs that come and go
    /// otherwise wait for the pageset of a CPU that they may not run on, until they may.
    #[must_use]
    pub fn uses_sequences(&self) -> bool {
        self.core.platform().sequences.are_used()
    }
}
