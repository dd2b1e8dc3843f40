//! Policies over a pool, and changes to a running one: memory, CPUs and settings; access to the allocator itself; and
//! acting as a CPU.
//!
//! Neighbours: the `zonal` crate implements the rules. This file returns the memory of offline frames to the
//! kernel, and lets threads act as CPUs of an emulated machine (`pool/cpu_map.rs`).

use std::io;

use zonal::config::{NodeReclaim, StatInterval, ZonelistCache};
use zonal::error::{ConfigError, OnlineError, PolicyError};
use zonal::machine::FrameRange;
use zonal::mempolicy::Policy;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, PageCount};
use zonal::{Allocator, NodeMask};

use super::cpu_map::ActingCpu;
use super::handle::Pool;
use super::platform::LinuxPlatform;
use super::request::{PoolPolicy, PoolWeights};

/// Why a thread cannot act as a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ActError {
    /// The machine is real, and its threads are on the CPUs they run on.
    #[error("the pool uses the real machine; a thread can act as a CPU only on an emulated one")]
    NotEmulated,
    /// A CPU that the machine does not have.
    #[error("the emulated machine has no CPU {0}")]
    UnknownCpu(CpuId),
}

/// Why memory was not taken offline, or not returned to the kernel completely.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A refusal by the allocator: the range stays online.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// A range that is offline, but whose memory was not completely returned to the kernel.
    #[error("the range is offline, but the memory of {kept} of its frames was not returned: {why}")]
    NotReturned {
        /// Number of frames that keep their memory.
        kept: PageCount,
        /// The kernel's reason.
        why: io::Error,
    },
}

/// Why memory did not come online.
#[derive(Debug, thiserror::Error)]
pub enum OnlineMemoryError {
    /// A refusal by the allocator: the range is not offline, or not within one zone.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// A lack of memory in the kernel; the range stays offline.
    #[error("the range stays offline: the kernel cannot provide memory for it: {0}")]
    NoMemory(io::Error),
}

impl Pool {
    /// Returns a policy that prefers one node; see [`Policy::preferred`].
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    /// let policy = pool.preferred(NodeId::new(1).unwrap())?;
    /// // Node 1 as long as it has memory, then its neighbours.
    /// let request = PoolRequest::page().policy(&policy);
    /// assert_eq!(pool.alloc(&request)?.node().get(), 1);
    /// assert!(pool.preferred(NodeId::new(7).unwrap()).is_err()); // the machine has no node 7
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the machine has no such node, or the node has no memory.
    pub fn preferred(&self, node: NodeId) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::preferred(self.core.allocator(), node)
    }

    /// Returns a policy that allocates only from `nodes`; see [`Policy::bind`].
    ///
    /// ```
    /// # use zonal_linux::{NodeId, NodeMask, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
    /// let nodes: NodeMask = [2, 3].into_iter().filter_map(NodeId::new).collect();
    /// let policy = pool.bind(nodes)?;
    /// assert!(pool.alloc(&PoolRequest::page().policy(&policy))?.node().get() >= 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When a node does not belong to this machine, or none of them has memory.
    pub fn bind(&self, nodes: NodeMask) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::bind(self.core.allocator(), nodes)
    }

    /// Returns a policy that interleaves over `nodes`; see [`Policy::interleave`].
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    /// let policy = pool.interleave(pool.memory_nodes())?;
    /// let request = PoolRequest::page().policy(&policy);
    /// let pages = [pool.alloc(&request)?, pool.alloc(&request)?, pool.alloc(&request)?];
    /// assert_eq!(pages.map(|page| page.node().get()), [0, 1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::bind`].
    pub fn interleave(&self, nodes: NodeMask) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::interleave(self.core.allocator(), nodes)
    }

    /// Returns a policy that interleaves over `nodes` by weight; see [`Policy::weighted_interleave`].
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest, PoolWeights};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    /// let weights = PoolWeights::new();
    /// weights.set(NodeId::new(0).unwrap(), 3); // they may change while the policy is in use
    /// weights.set(NodeId::new(1).unwrap(), 1);
    /// let policy = pool.weighted_interleave(pool.memory_nodes(), &weights)?;
    /// let request = PoolRequest::page().policy(&policy);
    /// let pages = (0..8).map(|_| pool.alloc(&request)).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(pages.iter().filter(|page| page.node().get() == 0).count(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::bind`], and when all weights are 0.
    pub fn weighted_interleave<'w>(
        &self,
        nodes: NodeMask,
        weights: &'w PoolWeights,
    ) -> Result<PoolPolicy<'w>, PolicyError> {
        Policy::weighted_interleave(self.core.allocator(), nodes, weights)
    }

    /// Calls the reclaimers for `target` frames of `node` although no request needs them, and returns the number of
    /// frames freed; zero when the pool has no such node.
    ///
    /// ```
    /// # use zonal_linux::{PageCount, Pool};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// // Before a phase that needs much memory at once: 1000 frames of each node.
    /// for node in pool.memory_nodes().iter() {
    ///     let freed = pool.shrink_caches(node, PageCount::new(1000));
    ///     assert_eq!(freed, PageCount::ZERO); // no reclaimer is registered here
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink_caches(&self, node: NodeId, target: PageCount) -> PageCount {
        self.core.allocator().shrink_caches(node, target)
    }

    /// Drains the pagesets of all CPUs into their zones.
    pub fn drain_pagesets(&self) {
        self.core.allocator().drain_pagesets();
    }

    /// Takes frames offline and returns their memory to the kernel. While frames of the range are in use,
    /// reclaimers are called for them, as long as each call frees some.
    ///
    /// # Errors
    /// When the range is not within one zone, not all online, or still in use. Also, with the range offline, when
    /// the kernel does not take back all of its memory: the memory of an explicit huge page is returned only as a
    /// whole, once no frame of it is online. Where the kernel collapses pages into transparent huge pages by
    /// itself, it may back an offline part of such a page again.
    ///
    /// ```
    /// # use zonal_linux::{FrameRange, PageCount, Pool};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(1).build()?;
    /// let zone = pool.ranges().next().expect("one zone").frames;
    /// let first_half = FrameRange { start: zone.start, count: PageCount::new(zone.count.get() / 2) };
    /// pool.offline_memory(first_half)?; // the kernel has 32 MiB back
    /// pool.online_memory(first_half)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline_memory(&self, range: FrameRange) -> Result<(), OfflineError> {
        let mut fewest = PageCount::new(u64::MAX);
        loop {
            let gone = self.try_offline(range);
            match gone {
                Err(OfflineError::Refused(OnlineError::InUse { in_use, .. })) if in_use < fewest => {
                    fewest = in_use;
                    // No lock is held here, because a reclaimer may itself change the pool.
                    if self.core.allocator().reclaim_range(range)? == PageCount::ZERO {
                        return gone;
                    }
                }
                _ => return gone,
            }
        }
    }

    /// Brings frames online.
    ///
    /// # Errors
    /// When the range is not within one zone, or not all of it is offline. Also when the kernel has no memory for
    /// it, if it is backed by explicit huge pages or the pool is prefaulted.
    pub fn online_memory(&self, range: FrameRange) -> Result<(), OnlineMemoryError> {
        let _alone = self.core.hotplug.lock();
        let (allocator, memory) = (self.core.allocator(), self.core.memory());
        memory
            .populate_for_online(range, |part| allocator.online_frames(part))
            .map_err(OnlineMemoryError::NoMemory)?;
        Ok(allocator.online_memory(range)?)
    }

    fn try_offline(&self, range: FrameRange) -> Result<(), OfflineError> {
        let _alone = self.core.hotplug.lock();
        self.core.allocator().offline_memory(range)?;
        let online = |part| self.core.allocator().online_frames(part);
        let discarded = self.core.memory().discard(range, online);
        discarded.map_err(|(kept, why)| OfflineError::NotReturned { kept, why })
    }

    /// Takes a CPU offline and drains its pagesets.
    ///
    /// # Errors
    /// When there is no such CPU, it is already offline, or it is the last one online.
    pub fn offline_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().offline_cpu(cpu)
    }

    /// Brings a CPU online.
    ///
    /// # Errors
    /// When there is no such CPU, or it is already online.
    pub fn online_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().online_cpu(cpu)
    }

    /// Changes watermarks and lowmem reserves.
    ///
    /// # Errors
    /// When the minimum exceeds the managed frames.
    pub fn set_watermarks(&self, settings: WatermarkSettings) -> Result<(), ConfigError> {
        self.core.allocator().set_watermarks(settings)
    }

    /// Sets `pageset.high` to a fraction of each zone, or tunes it automatically if `fraction` is 0.
    pub fn set_high_fraction(&self, fraction: u32) {
        self.core.allocator().set_high_fraction(fraction);
    }

    /// Changes how `pageset.high` is tuned.
    ///
    /// # Errors
    /// For [`PagesetTuning::DepthPublished`], unless the pool was built with it; see
    /// [`Allocator::set_tuning`](zonal::Allocator::set_tuning).
    pub fn set_tuning(&self, tuning: PagesetTuning) -> Result<(), ConfigError> {
        self.core.allocator().set_tuning(tuning)
    }

    /// Changes how the zonelist cache is used.
    pub fn set_zonelist_cache(&self, cache: ZonelistCache) {
        self.core.allocator().set_zonelist_cache(cache);
    }

    /// Changes whether node reclaim runs before fallback to other nodes, and what it may do.
    pub fn set_node_reclaim(&self, node_reclaim: NodeReclaim) {
        self.core.allocator().set_node_reclaim(node_reclaim);
    }

    /// Changes the largest distance in the topology at which node reclaim is used.
    pub fn set_reclaim_distance(&self, distance: u8) {
        self.core.allocator().set_reclaim_distance(distance);
    }

    /// Changes how much of a node must be reclaimable before node reclaim runs, in percent.
    ///
    /// # Errors
    /// When `percent` is above 100.
    pub fn set_min_unmapped_percent(&self, percent: u8) -> Result<(), ConfigError> {
        self.core.allocator().set_min_unmapped_percent(percent)
    }

    /// Changes how often the pool's tick folds per-CPU counter differences into the totals.
    pub fn set_stat_interval(&self, interval: StatInterval) {
        self.core.allocator().set_stat_interval(interval);
    }

    /// Folds per-CPU counter differences into the totals now, as
    /// [`Allocator::stat_refresh`](zonal::Allocator::stat_refresh). A reclaimer must not call this.
    pub fn stat_refresh(&self) {
        self.core.allocator().stat_refresh();
    }

    /// Returns the allocator itself, for callers that do not use [`Frames`](crate::Frames).
    ///
    /// # Safety
    /// A block owned by a [`Frames`](crate::Frames) must not be freed through it, and memory must be taken offline
    /// only through the pool.
    #[inline]
    #[must_use]
    pub unsafe fn allocator(&self) -> &Allocator<'static, LinuxPlatform> {
        self.core.allocator()
    }

    /// Makes the calling thread act as `cpu` of the emulated machine until the returned guard is dropped. For tests
    /// that need threads on several nodes.
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(1).build()?;
    /// let cpu = pool.topology().nodes()[0].cpus[0];
    /// let acting = pool.act_as(cpu)?;
    /// assert_eq!(pool.alloc(&PoolRequest::page())?.node(), NodeId::default());
    /// drop(acting);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the machine is real, or has no such CPU.
    pub fn act_as(&self, cpu: CpuId) -> Result<ActingCpu, ActError> {
        let topology = self.topology();
        if !topology.is_emulated() {
            return Err(ActError::NotEmulated);
        }
        if !topology.nodes().iter().any(|node| node.cpus.contains(&cpu)) {
            return Err(ActError::UnknownCpu(cpu));
        }
        Ok(ActingCpu::begin(self.core.platform().key, cpu))
    }
}
