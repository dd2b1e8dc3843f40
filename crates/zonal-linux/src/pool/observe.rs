//! Reports about a pool: how it was built, and its current state.
//!
//! Neighbours: state comes unchanged from the `zonal` crate's snapshot; front ends render it.

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

/// Placement of a pool's memory on nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On each node, the memory of that node.
    OnNodes,
    /// Wherever frames were first used, because the kernel did not allow binding memory to nodes.
    NotBound,
    /// Anywhere, because nodes are emulated.
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
    /// Frames of the zone, including offline ones.
    pub frames: FrameRange,
}

impl Pool {
    /// Returns the ways in which the pool differs from what was requested. A pool with warnings works; what a warning
    /// says cannot be had is missing, such as huge pages or memory bound to its node.
    ///
    /// ```
    /// # use zonal_linux::Pool;
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// pool.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.core.warnings
    }

    /// Returns the machine the pool is built over.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }

    /// Returns where the pool's memory is placed.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let not_bound = |warning: &Warning| matches!(warning, Warning::NotBound { .. });
        match self.topology().is_emulated() {
            true => Placement::Emulated,
            false if self.warnings().iter().any(not_bound) => Placement::NotBound,
            false => Placement::OnNodes,
        }
    }

    /// Returns the size of a frame in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.core.memory().page_bytes()
    }

    /// Returns the frames of each zone, in the order of the zones' ids.
    pub fn ranges(&self) -> impl Iterator<Item = ZoneRange> + '_ {
        let zones = self.core.memory().zones().iter();
        zones.map(|zone| ZoneRange { node: zone.node, kind: zone.kind, frames: zone.range })
    }

    /// Returns the nodes with memory in the pool, offline or not, for policies over the whole pool.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeMask {
        self.ranges().map(|zone| zone.node).collect()
    }

    /// Returns the number of frames of the pool, including offline ones.
    #[must_use]
    pub fn frames(&self) -> PageCount {
        self.ranges().map(|zone| zone.frames.count).sum()
    }

    /// Returns the accounting of the whole pool: `managed = free + in_pagesets + allocated`. Exact when no other
    /// thread uses the pool.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(1).build()?;
    /// let pages: Vec<_> = (0..10).map(|_| pool.alloc(&PoolRequest::page())).collect::<Result<_, _>>()?;
    /// let accounting = pool.accounting();
    /// assert_eq!((accounting.managed.get(), accounting.allocated.get()), (16384, 10));
    /// println!("{accounting}"); // 16384 managed = 16320 free + 54 in pagesets + 10 allocated (balanced)
    /// # drop(pages);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn accounting(&self) -> Accounting {
        self.core.allocator().accounting()
    }

    /// Returns all zones, by node and kind.
    pub fn zones(&self) -> impl Iterator<Item = ZoneSnapshot> + '_ {
        self.core.allocator().zones()
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeSnapshot> + '_ {
        self.core.allocator().nodes()
    }

    /// Returns all pagesets that are or were in use.
    pub fn pagesets(&self) -> impl Iterator<Item = PagesetSnapshot> + '_ {
        self.core.allocator().pagesets()
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.core.allocator().settings()
    }

    /// Returns the frames in use by kind (user, cache, kernel), not counting per-CPU differences that have not been
    /// folded.
    #[must_use]
    pub fn allocated_approximate(&self) -> [PageCount; 3] {
        self.core.allocator().allocated_approximate()
    }

    /// Returns the pool's state, which can be written in the formats of Linux's `/proc` and `/sys`.
    ///
    /// ```
    /// # let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// print!("{}", pool.snapshot().buddyinfo()); // as /proc/buddyinfo; also zoneinfo, vmstat, numastat
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_, '_, LinuxPlatform> {
        self.core.allocator().snapshot()
    }

    /// Returns the counts of events so far.
    ///
    /// ```
    /// # let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// let before = pool.events();
    /// // ... the program runs ...
    /// let events = pool.events();
    /// println!("{} requests failed", events.failures - before.failures);
    /// println!("{events}"); // one line each for zonelists, reclaim, pagesets and failures
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn events(&self) -> Events {
        self.core.allocator().events()
    }

    /// Returns where blocks were allocated from, summed over all zones.
    #[must_use]
    pub fn locality(&self) -> Locality {
        self.core.allocator().locality()
    }

    /// Returns the nodes that requests preferring `node` try, in order.
    #[must_use]
    pub fn fallback_order(&self, node: NodeId) -> Vec<NodeId> {
        let mut order = Vec::new();
        self.core.allocator().fallback_order(node, |next| order.push(next));
        order
    }

    /// Returns the bytes of metadata, most of which is touched only when its frames are used.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.core.allocator().metadata_bytes()
    }

    /// Walks all metadata, checks its invariants and returns the accounting. The pool's own threads are stopped
    /// meanwhile, after those in a reclaimer have returned: the caller must not hold a lock that a reclaimer takes.
    /// No other thread may use the pool meanwhile, or false differences are reported.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// drop(pool.alloc(&PoolRequest::page())?);
    /// // At the end of a program or test: everything is free, and nothing was lost or counted twice.
    /// let accounting = pool.verify()?;
    /// assert!(accounting.balance() && accounting.allocated.get() == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first invariant that does not hold.
    ///
    /// # Panics
    /// When called by a reclaimer, because the pool cannot be stopped then.
    pub fn verify(&self) -> Result<Accounting, VerifyError> {
        let platform = self.core.platform();
        assert!(!platform.is_reclaiming(), "a pool cannot be verified while it reclaims");
        let _pause = platform.presence.pause_outside_reclaimers();
        self.core.allocator().verify()
    }

    /// Returns how often a reclaimer panicked; such a call counts as no frames freed.
    #[must_use]
    pub fn reclaimer_panics(&self) -> u64 {
        self.core.platform().reclaimers.panics()
    }

    /// Returns the number of threads of this process, for all pools, that are stuck on a CPU that they only
    /// visited. Where `membarrier` is denied, a thread that drains the pagesets of another CPU briefly moves to
    /// that CPU. The kernel allowed these threads to move there, but not back.
    #[must_use]
    pub fn stranded_threads(&self) -> u64 {
        stranded_threads()
    }

    /// Whether pagesets are accessed through restartable sequences, without atomic instructions, instead of a lock
    /// each.
    ///
    /// A program that denies itself the system call `membarrier` after it has built such a pool must be allowed to
    /// run on every CPU that uses the pool. Otherwise [`verify`](Self::verify), changes of settings, and hotplug of
    /// memory and CPUs wait for the pagesets of a CPU on which they may not run until they may.
    #[must_use]
    pub fn uses_sequences(&self) -> bool {
        self.core.platform().sequences.are_used()
    }
}
