//! Methods of `Pool` that create policies or change a running pool: its memory, its CPUs and its settings.
//!
//! Most of these methods only call the crate `zonal`. In addition, this file returns the memory of offline frames to
//! the kernel, and makes threads act as CPUs of an emulated machine (`pool/cpu_map.rs`).

use std::io;

use parking_lot::MutexGuard;
use zonal::config::{NodeReclaim, StatInterval, ZonelistCache};
use zonal::error::{ConfigError, OnlineError, PolicyError, UsedFrames};
use zonal::machine::FrameRange;
use zonal::mempolicy::Policy;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, PageCount};
use zonal::{Allocator, NodeMask};

use super::cpu_map::ActingCpu;
use super::emit::emit;
use super::handle::Pool;
use super::platform::LinuxPlatform;
use super::request::{PoolPolicy, PoolWeights};

/// Why a thread cannot act as a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ActError {
    /// The CPUs of the pool are real, so the CPU of a thread is the one that it runs on.
    #[error(
        "the pool's CPUs are real ones; to act as a CPU, build the pool for a described machine or for \
         Topology::with_emulated_cpus"
    )]
    RealCpus,
    /// The emulated machine does not have this CPU.
    #[error("the emulated machine has no CPU {0}")]
    UnknownCpu(CpuId),
}

/// Why memory was not taken offline, or not returned to the kernel completely.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The allocator refused the change, and the range stays online.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// The range is offline, but a part of its memory was not returned to the kernel.
    #[error("the range is offline, but the memory of {kept} of its frames was not returned: {why}")]
    NotReturned {
        /// Number of frames whose memory was not returned.
        kept: PageCount,
        /// The reason.
        why: io::Error,
    },
}

/// Why memory did not come online.
#[derive(Debug, thiserror::Error)]
pub enum OnlineMemoryError {
    /// The allocator refused the change, because the range is not offline or not within one zone.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// The kernel has too little memory, and the range stays offline.
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
    /// // Requests are served from node 1 while it has free memory, then from the nodes nearest to it.
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

    /// Returns a policy that tries `nodes` first, in their order, and then all others; see [`Policy::preferred_many`].
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
    /// let nodes = [3, 1].map(|id| NodeId::new(id).unwrap());
    /// let policy = pool.preferred_many(&nodes)?;
    /// assert_eq!(pool.alloc(&PoolRequest::page().policy(&policy))?.node().get(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::bind`].
    pub fn preferred_many<'n>(&self, nodes: &'n [NodeId]) -> Result<PoolPolicy<'n>, PolicyError> {
        Policy::preferred_many(self.core.allocator(), nodes)
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
    /// When one of the nodes does not exist on this machine, or when no node in `nodes` has memory.
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
    /// The errors of [`Pool::bind`].
    pub fn interleave(&self, nodes: NodeMask) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::interleave(self.core.allocator(), nodes)
    }

    /// Returns a policy that interleaves over `nodes` by weight; see [`Policy::weighted_interleave`].
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest, PoolWeights};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    /// let weights = PoolWeights::new();
    /// weights.set(NodeId::new(0).unwrap(), 3); // weights may change while the policy is in use
    /// weights.set(NodeId::new(1).unwrap(), 1);
    /// let policy = pool.weighted_interleave(pool.memory_nodes(), &weights)?;
    /// let request = PoolRequest::page().policy(&policy);
    /// let pages = (0..8).map(|_| pool.alloc(&request)).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(pages.iter().filter(|page| page.node().get() == 0).count(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::bind`], and an error when all weights are 0.
    pub fn weighted_interleave<'w>(
        &self,
        nodes: NodeMask,
        weights: &'w PoolWeights,
    ) -> Result<PoolPolicy<'w>, PolicyError> {
        Policy::weighted_interleave(self.core.allocator(), nodes, weights)
    }

    /// Calls the reclaimers to free `target` frames of `node`, and returns how many frames they freed.
    ///
    /// The result is zero if the pool has no such node. The pool otherwise calls reclaimers only if memory is short.
    ///
    /// ```
    /// # use zonal_linux::{PageCount, Pool};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// // Free 1000 frames on each node before a phase that needs much memory at once.
    /// for node in pool.memory_nodes().iter() {
    ///     let freed = pool.shrink_caches(node, PageCount::new(1000));
    ///     assert_eq!(freed, PageCount::ZERO); // no reclaimer is registered here
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink_caches(&self, node: NodeId, target: PageCount) -> PageCount {
        self.core.allocator().shrink_caches(node, target)
    }

    /// Returns the frames in the pagesets (per-CPU caches) of all CPUs to their zones.
    pub fn drain_pagesets(&self) {
        self.core.allocator().drain_pagesets();
    }

    /// Takes frames offline and returns their memory to the kernel.
    ///
    /// While frames of the range are in use, the method calls reclaimers to free them, until several calls in succession
    /// have freed none. Frames of the range that are freed meanwhile are not allocated again.
    ///
    /// The kernel may collapse pages into a transparent huge page. If only a part of that huge page is offline, the
    /// kernel may allocate memory for the offline part again.
    ///
    /// # Errors
    /// [`OfflineError::Refused`] when the range is not within one zone, when a part of it is offline already, or when
    /// frames of it are still in use. The range then stays online.
    ///
    /// [`OfflineError::NotReturned`] when the range is offline, but a part of its memory was not returned to the
    /// kernel. For example, an explicit huge page is returned only as a whole, once all of its frames are offline.
    ///
    /// ```
    /// # use zonal_linux::{FrameRange, PageCount, Pool};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(1).build()?;
    /// let zone = pool.ranges().next().expect("one zone").frames;
    /// let first_half = FrameRange { start: zone.start, count: PageCount::new(zone.count.get() / 2) };
    /// pool.offline_memory(first_half)?; // returns 32 MiB to the kernel
    /// pool.online_memory(first_half)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline_memory(&self, range: FrameRange) -> Result<(), OfflineError> {
        self.offline_memory_with(range, |_| {})
    }

    /// Takes frames offline like [`Pool::offline_memory`], after `mover` has moved what reclaimers leave in use.
    ///
    /// `mover` is called for each block or run that is still in use. It moves the contents to other frames and frees
    /// the old ones, or leaves them. Freed frames of the range are not allocated again. `mover` may use the pool.
    ///
    /// ```
    /// # use zonal_linux::{FrameRange, PageCount, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(1).build()?;
    /// let mut page = pool.alloc(&PoolRequest::page())?;
    /// page[0] = 7;
    /// let leaves = FrameRange { start: page.first(), count: PageCount::new(512) };
    /// pool.offline_memory_with(leaves, |used| {
    ///     assert_eq!(used.block.start, page.first());
    ///     let mut new = pool.alloc(&PoolRequest::page()).expect("there is free memory elsewhere");
    ///     new.copy_from_slice(&page);
    ///     page = new; // frees the old page
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::offline_memory`].
    pub fn offline_memory_with(
        &self,
        range: FrameRange,
        mover: impl FnMut(UsedFrames),
    ) -> Result<(), OfflineError> {
        let allocator = self.core.allocator();
        let fence = allocator.fence(range).map_err(OnlineError::from)?;
        // This thread holds no lock of the pool here, because a reclaimer may call this method too.
        fence.vacate(mover);
        let alone = self.core.hotplug.lock();
        fence.leave()?;
        self.core.memory().count_offline(range);
        let online = |part| allocator.online_frames(part);
        let discarded = self.core.memory().discard(range, online);
        drop(alone);
        let (first, frames) = (range.start.get(), range.count.get());
        emit!(self.core.platform(), DEBUG, first, frames, "memory offline");
        discarded.map_err(|(kept, why)| OfflineError::NotReturned { kept, why })
    }

    /// Brings frames online.
    ///
    /// # Errors
    /// [`OnlineMemoryError::Refused`] when the range is not within one zone, or when a part of it is online already.
    ///
    /// [`OnlineMemoryError::NoMemory`] when the kernel has no memory for the range. This error is possible only if the
    /// range consists of explicit huge pages, the pool was prefaulted, or it has a [largest
    /// size](crate::PoolBuilder::max_size) and the process has too many mappings or a limit of memory that is not in use
    /// (`vm.overcommit_memory` = 2, `RLIMIT_DATA`). Other memory is populated on first use.
    pub fn online_memory(&self, range: FrameRange) -> Result<(), OnlineMemoryError> {
        self.online_alone(&self.core.hotplug.lock(), range)?;
        self.report_online(range);
        Ok(())
    }

    /// Brings frames online while the caller holds the pool's hotplug lock.
    pub(super) fn online_alone(
        &self,
        _alone: &MutexGuard<'_, ()>,
        range: FrameRange,
    ) -> Result<(), OnlineMemoryError> {
        let (allocator, memory) = (self.core.allocator(), self.core.memory());
        memory
            .prepare_for_online(range, |part| allocator.online_frames(part))
            .map_err(OnlineMemoryError::NoMemory)?;
        allocator.online_memory(range)?;
        memory.count_online(range);
        Ok(())
    }

    pub(super) fn report_online(&self, range: FrameRange) {
        let (first, frames) = (range.start.get(), range.count.get());
        emit!(self.core.platform(), DEBUG, first, frames, "memory online");
    }

    /// Takes a CPU offline and returns the frames in its pagesets to their zones.
    ///
    /// # Errors
    /// When the machine has no such CPU, when the CPU is already offline, or when it is the last CPU online.
    pub fn offline_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().offline_cpu(cpu)?;
        emit!(self.core.platform(), DEBUG, cpu = cpu.get(), "CPU offline");
        Ok(())
    }

    /// Brings a CPU online.
    ///
    /// # Errors
    /// When the machine has no such CPU, or when the CPU is already online.
    pub fn online_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().online_cpu(cpu)?;
        emit!(self.core.platform(), DEBUG, cpu = cpu.get(), "CPU online");
        Ok(())
    }

    /// Changes the watermarks and the lowmem reserves of all zones.
    ///
    /// # Errors
    /// When `min_free` exceeds the number of managed frames.
    pub fn set_watermarks(&self, settings: WatermarkSettings) -> Result<(), ConfigError> {
        self.core.allocator().set_watermarks(settings)?;
        self.report_setting("watermarks", settings);
        Ok(())
    }

    /// Sets `pageset.high`, the limit of a pageset, to 1/`fraction` of each zone, divided among the CPUs, or selects
    /// automatic tuning if `fraction` is 0.
    pub fn set_high_fraction(&self, fraction: u32) {
        self.core.allocator().set_high_fraction(fraction);
        self.report_setting("percpu_pagelist_high_fraction", fraction);
    }

    /// Changes how `pageset.high` is tuned.
    ///
    /// # Errors
    /// When `tuning` is [`PagesetTuning::DepthPublished`] and the pool was not built with it or does not link it; see
    /// [`Allocator::set_tuning`](zonal::Allocator::set_tuning).
    pub fn set_tuning(&self, tuning: PagesetTuning) -> Result<(), ConfigError> {
        self.core.allocator().set_tuning(tuning)?;
        self.report_setting("pageset_tuning", tuning);
        Ok(())
    }

    /// Changes how the zonelist cache is used.
    ///
    /// # Errors
    /// When `cache` is a past form that the pool's [`Config::past`](crate::Config::past) lacks;
    /// [`Pool::default_config`] has all.
    pub fn set_zonelist_cache(&self, cache: ZonelistCache) -> Result<(), ConfigError> {
        self.core.allocator().set_zonelist_cache(cache)?;
        self.report_setting("zonelist_cache", cache);
        Ok(())
    }

    /// Changes whether the pool reclaims frames on a node before a request falls back to other nodes, and whether that
    /// reclaim may write or unmap pages.
    pub fn set_node_reclaim(&self, node_reclaim: NodeReclaim) {
        self.core.allocator().set_node_reclaim(node_reclaim);
        self.report_setting("zone_reclaim_mode", node_reclaim);
    }

    /// Changes the largest distance from the preferred node at which the pool runs node reclaim.
    pub fn set_reclaim_distance(&self, distance: u8) {
        self.core.allocator().set_reclaim_distance(distance);
        self.report_setting("reclaim_distance", distance);
    }

    /// Changes the percentage of a node's memory that must be reclaimable before node reclaim runs.
    ///
    /// # Errors
    /// When `percent` is above 100.
    pub fn set_min_unmapped_percent(&self, percent: u8) -> Result<(), ConfigError> {
        self.core.allocator().set_min_unmapped_percent(percent)?;
        self.report_setting("min_unmapped_ratio", percent);
        Ok(())
    }

    /// Changes how often the pool's tick folds per-CPU counter differences into the totals.
    pub fn set_stat_interval(&self, interval: StatInterval) {
        self.core.allocator().set_stat_interval(interval);
        self.report_setting("stat_interval", interval);
    }

    /// Folds per-CPU counter differences into the totals now; see
    /// [`Allocator::stat_refresh`](zonal::Allocator::stat_refresh). A reclaimer must not call this method.
    pub fn stat_refresh(&self) {
        self.core.allocator().stat_refresh();
    }

    /// Returns the pool's allocator, for callers that do not use [`Frames`](crate::Frames).
    ///
    /// # Safety
    /// The caller must not use the allocator to free a block that a [`Frames`](crate::Frames) owns, or to take memory
    /// offline or bring it online. Use [`Pool::offline_memory`] and [`Pool::online_memory`] instead, which also return the
    /// memory to the kernel and make it accessible.
    #[inline]
    #[must_use]
    pub unsafe fn allocator(&self) -> &Allocator<'static, LinuxPlatform> {
        self.core.allocator()
    }

    /// Makes the calling thread act as `cpu` of the emulated machine until the returned guard is dropped.
    ///
    /// This is for tests that need threads on several nodes.
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest, Topology};
    /// let topology = Topology::fake(1)?.with_emulated_cpus();
    /// let pool = Pool::builder().size(64 << 20).topology(topology).build()?;
    /// let cpu = pool.topology().nodes()[0].cpus[0];
    /// let acting = pool.act_as(cpu)?;
    /// assert_eq!(pool.alloc(&PoolRequest::page())?.node(), NodeId::default());
    /// drop(acting);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the pool's CPUs are real ([`Topology::has_emulated_cpus`](crate::Topology::has_emulated_cpus)), or when the
    /// emulated machine has no such CPU.
    pub fn act_as(&self, cpu: CpuId) -> Result<ActingCpu, ActError> {
        let topology = self.topology();
        if !topology.has_emulated_cpus() {
            return Err(ActError::RealCpus);
        }
        if !topology.nodes().iter().any(|node| node.cpus.contains(&cpu)) {
            return Err(ActError::UnknownCpu(cpu));
        }
        Ok(ActingCpu::begin(self.core.platform().key, cpu))
    }
}
