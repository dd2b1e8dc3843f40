//! Methods of `Pool` that report how the pool was built and what its current state is.
//!
//! The current state is the snapshot of the crate `zonal`, unchanged. Command-line programs print it.

use std::fmt;

use zonal::machine::FrameRange;
use zonal::snapshot::{Accounting, Events, Locality, NodeSnapshot, PagesetSnapshot, Snapshot, ZoneSnapshot};
use zonal::units::{NodeId, PageCount, ZoneKind};
use zonal::verify::VerifyError;
use zonal::{Config, NodeMask, Platform};

use super::handle::Pool;
use super::platform::LinuxPlatform;
use crate::error::Warning;
use crate::sequences::stranded_threads;
use crate::topology::Topology;

/// How the memory of a pool is placed on nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each zone's memory is bound to that zone's node.
    OnNodes,
    /// The kernel did not allow binding memory to nodes, so by default each page is on the node of the CPU that first
    /// accessed it.
    NotBound,
    /// Nodes are emulated, so the node of a frame does not determine where its memory is.
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
    /// Returns the ways in which the pool differs from the request.
    ///
    /// A pool with warnings works. Each warning names a requested property that the pool does not have, such as huge
    /// pages or memory that is bound to its node.
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

    /// Returns the nodes and CPUs of the machine that the pool was built for.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }

    /// Returns how the pool's memory is placed on nodes.
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

    /// Returns each zone's frame range, in the order of the zone ids.
    pub fn ranges(&self) -> impl Iterator<Item = ZoneRange> + '_ {
        let zones = self.core.memory().zones().iter();
        zones.map(|zone| ZoneRange { node: zone.node, kind: zone.kind, frames: zone.range })
    }

    /// Returns the nodes that have memory in the pool, online or offline. Use it for policies over all nodes.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeMask {
        self.ranges().map(|zone| zone.node).collect()
    }

    /// Returns the pool's frame count, including offline ones.
    #[must_use]
    pub fn frames(&self) -> PageCount {
        self.ranges().map(|zone| zone.frames.count).sum()
    }

    /// Returns the accounting of the whole pool: `managed = free + in_pagesets + allocated`.
    ///
    /// The numbers are exact if no other thread uses the pool during the call.
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

    /// Returns the state of each zone, ordered by node and kind.
    pub fn zones(&self) -> impl Iterator<Item = ZoneSnapshot> + '_ {
        self.core.allocator().zones()
    }

    /// Returns the state of each node.
    pub fn nodes(&self) -> impl Iterator<Item = NodeSnapshot> + '_ {
        self.core.allocator().nodes()
    }

    /// Returns the state of each pageset (per-CPU cache of a zone) that is or was in use.
    pub fn pagesets(&self) -> impl Iterator<Item = PagesetSnapshot> + '_ {
        self.core.allocator().pagesets()
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> Config {
        self.core.allocator().settings()
    }

    /// Returns the number of allocated frames for each kind (user, cache, kernel).
    ///
    /// The numbers are approximate, because they do not include per-CPU differences that have not been folded into the
    /// totals.
    #[must_use]
    pub fn allocated_approximate(&self) -> [PageCount; 3] {
        self.core.allocator().allocated_approximate()
    }

    /// Returns the state of the pool, which can be printed in the formats of Linux's `/proc` and `/sys`.
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

    /// Returns how often each kind of event has occurred since the pool was built.
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

    /// Returns how many blocks were allocated on the preferred node and on other nodes, summed over all zones.
    #[must_use]
    pub fn locality(&self) -> Locality {
        self.core.allocator().locality()
    }

    /// Returns the nodes in the order in which a request that prefers `node` tries them.
    #[must_use]
    pub fn fallback_order(&self, node: NodeId) -> Vec<NodeId> {
        let mut order = Vec::new();
        self.core.allocator().fallback_order(node, |next| order.push(next));
        order
    }

    /// Returns the number of the pool in its process, which events, probes and snapshots have too. No other pool of the
    /// process has or had it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.core.platform().key.get()
    }

    /// Returns the size of the metadata in bytes. Most of it is first accessed when the frames it describes are used,
    /// and occupies no physical memory before that.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.core.allocator().metadata_bytes()
    }

    /// Checks the invariants of all metadata and returns the accounting.
    ///
    /// The call waits until no thread of the pool is in a reclaimer, and pauses these threads until it returns. The
    /// caller must therefore not hold a lock that a reclaimer acquires. No other thread may use the pool during the
    /// call; otherwise the call may report errors that do not exist.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// drop(pool.alloc(&PoolRequest::page())?);
    /// // At the end of a program or test, check that all frames are free and that each is counted once.
    /// let accounting = pool.verify()?;
    /// assert!(accounting.balance() && accounting.allocated.get() == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first invariant that does not hold.
    ///
    /// # Panics
    /// When called by a reclaimer, because the call would wait for that reclaimer to return.
    pub fn verify(&self) -> Result<Accounting, VerifyError> {
        let platform = self.core.platform();
        assert!(!platform.is_reclaiming(), "a pool cannot be verified while it reclaims");
        let _pause = platform.presence.pause_outside_reclaimers();
        self.core.allocator().verify()
    }

    /// Returns how often a reclaimer panicked. The pool treats such a call as one that freed no frames.
    #[must_use]
    pub fn reclaimer_panics(&self) -> u64 {
        self.core.platform().reclaimers.panics()
    }

    /// Returns how many threads of this process could not restore their CPU affinity after a drain.
    ///
    /// Where the system call `membarrier` is denied, a thread that drains the pagesets of another CPU moves to that CPU
    /// for a short time. The kernel allowed the counted threads to move to the other CPU, but did not allow them to
    /// move back. The number includes the drains of all pools.
    #[must_use]
    pub fn stranded_threads(&self) -> u64 {
        stranded_threads()
    }

    /// Whether pagesets are accessed with restartable sequences, which need no atomic instructions, instead of locks.
    ///
    /// A program may deny itself the system call `membarrier` (for example with seccomp) after it has built a pool that
    /// uses sequences. Such a program must be allowed to run on every CPU that uses the pool. Otherwise
    /// [`verify`](Self::verify), changes of settings, and hotplug of memory and CPUs must wait: they cannot access the
    /// pagesets of a CPU until their thread is allowed to run on that CPU. The memory of a pool that is dropped without this
    /// permission stays mapped.
    #[must_use]
    pub fn uses_sequences(&self) -> bool {
        self.core.platform().sequences.are_used()
    }
}
