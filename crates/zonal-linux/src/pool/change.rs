//! What can be changed while a pool is in use: CPUs, memory, settings; and acting as a CPU.
//!
//! Neighbours: the rules are the core's; this room adds that memory taken offline goes back to the
//! kernel, and that threads can stand for CPUs of an emulated machine.

use std::io;

use zonal::NodeMask;
use zonal::config::{NodeReclaim, StatInterval, ZonelistCache};
use zonal::error::{ConfigError, OnlineError, PolicyError};
use zonal::machine::FrameRange;
use zonal::mempolicy::{Policy, WeightTable};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, PageCount};

use super::cpu_map::ActingCpu;
use super::handle::Pool;
use super::platform::LinuxPlatform;
use super::request::PoolPolicy;

/// Why a thread cannot act as a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ActError {
    /// Threads of a real machine are where they run.
    #[error("the pool is over the real machine; only on an emulated one can a thread act as a CPU")]
    NotEmulated,
    /// The machine has no such CPU.
    #[error("the emulated machine has no CPU {0}")]
    UnknownCpu(CpuId),
}

/// Why memory did not leave, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The range stays online.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// The range is offline, but not all of its memory went back to the kernel.
    #[error("the range is offline, but {kept} of its frames keep their memory: {why}")]
    NotReturned {
        /// How many.
        kept: PageCount,
        /// The reason.
        why: io::Error,
    },
}

/// Why memory did not come back.
#[derive(Debug, thiserror::Error)]
pub enum OnlineMemoryError {
    /// The range is not offline, or not memory of one zone.
    #[error(transparent)]
    Refused(#[from] OnlineError),
    /// The kernel has no memory for it any more; the range stays offline.
    #[error("the range stays offline: the kernel has no memory for it: {0}")]
    NoMemory(io::Error),
}

impl Pool {
    /// Lets the calling thread be `cpu` of the emulated machine while the result lives.
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

    /// Brings a CPU back.
    ///
    /// # Errors
    /// When there is no such CPU, or it is online.
    pub fn online_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().online_cpu(cpu)
    }

    /// Takes a CPU out: its pagesets are drained.
    ///
    /// # Errors
    /// When there is no such CPU, it is offline, or it is the last.
    pub fn offline_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.core.allocator().offline_cpu(cpu)
    }

    /// Brings frames back.
    ///
    /// # Errors
    /// When the range is not within one zone, or not all of it is offline; or when it lies in explicit huge pages, or
    /// the pool is prefaulted, and the kernel has no memory for it.
    pub fn online_memory(&self, range: FrameRange) -> Result<(), OnlineMemoryError> {
        let _alone = self.core.hotplug.lock();
        let (allocator, memory) = (self.core.allocator(), self.core.memory());
        memory
            .mark_allocated_again(range, |part| allocator.online_frames(part))
            .map_err(OnlineMemoryError::NoMemory)?;
        Ok(allocator.online_memory(range)?)
    }

    /// Takes frames out and gives their memory back to the kernel. Reclaimers are asked for frames of the
    /// range that are in use, as long as fewer are after each time.
    ///
    /// # Errors
    /// When the range is not within one zone, not all online, or still in use; or, with the range offline, when the
    /// kernel does not take all of the memory: of an explicit huge page it takes all or nothing, once no frame
    /// of it is online. Where the kernel puts transparent huge pages together by itself, it may back a part of one
    /// again that is offline.
    pub fn offline_memory(&self, range: FrameRange) -> Result<(), OfflineError> {
        let mut fewest = PageCount::new(u64::MAX);
        loop {
            let gone = self.try_offline(range);
            match gone {
                Err(OfflineError::Refused(OnlineError::InUse { in_use, .. })) if in_use < fewest => {
                    fewest = in_use;
                    // With no lock held: a reclaimer may itself change the pool.
                    if self.core.allocator().reclaim_range(range)? == PageCount::ZERO {
                        return gone;
                    }
                }
                _ => return gone,
            }
        }
    }

    /// Asks the reclaimers to give up `target` frames of `node` although no request lacks them. Returns
    /// the frames freed; zero when the pool has no such node.
    pub fn shrink_caches(&self, node: NodeId, target: PageCount) -> PageCount {
        self.core.allocator().shrink_caches(node, target)
    }

    fn try_offline(&self, range: FrameRange) -> Result<(), OfflineError> {
        let _alone = self.core.hotplug.lock();
        self.core.allocator().offline_memory(range)?;
        let online = |part| self.core.allocator().online_frames(part);
        let discarded = self.core.memory().discard(range, online);
        discarded.map_err(|(kept, why)| OfflineError::NotReturned { kept, why })
    }

    /// Empties all pagesets of all CPUs into their zones.
    pub fn drain_pagesets(&self) {
        self.core.allocator().drain_pagesets();
    }

    /// Changes watermarks and lowmem reserves.
    ///
    /// # Errors
    /// When the minimum exceeds what is managed.
    pub fn set_watermarks(&self, settings: WatermarkSettings) -> Result<(), ConfigError> {
        self.core.allocator().set_watermarks(settings)
    }

    /// Fixes `pageset.high` at a fraction of each zone, or tunes it (0).
    pub fn set_high_fraction(&self, fraction: u32) {
        self.core.allocator().set_high_fraction(fraction);
    }

    /// Changes how `pageset.high` is tuned.
    ///
    /// # Errors
    /// For [`PagesetTuning::DepthPublished`], unless the pool was built with it: see
    /// [`Allocator::set_tuning`](zonal::Allocator::set_tuning).
    pub fn set_tuning(&self, tuning: PagesetTuning) -> Result<(), ConfigError> {
        self.core.allocator().set_tuning(tuning)
    }

    /// Changes how the zonelist cache is used.
    pub fn set_zonelist_cache(&self, cache: ZonelistCache) {
        self.core.allocator().set_zonelist_cache(cache);
    }

    /// Changes whether node reclaim comes before fallback, and what it may do.
    pub fn set_node_reclaim(&self, node_reclaim: NodeReclaim) {
        self.core.allocator().set_node_reclaim(node_reclaim);
    }

    /// Changes how far node reclaim may go, as a distance of the topology.
    pub fn set_reclaim_distance(&self, distance: u8) {
        self.core.allocator().set_reclaim_distance(distance);
    }

    /// Changes how much of a node must be reclaimable before node reclaim tries, in percent.
    ///
    /// # Errors
    /// When `percent` is above 100.
    pub fn set_min_unmapped_percent(&self, percent: u8) -> Result<(), ConfigError> {
        self.core.allocator().set_min_unmapped_percent(percent)
    }

    /// Changes how often the pool's clock adds what CPUs have counted for themselves to the totals.
    pub fn set_stat_interval(&self, interval: StatInterval) {
        self.core.allocator().set_stat_interval(interval);
    }

    /// Adds what CPUs have counted for themselves to the totals now, as
    /// [`Allocator::stat_refresh`](zonal::Allocator::stat_refresh). Not to be called by a reclaimer.
    pub fn stat_refresh(&self) {
        self.core.allocator().stat_refresh();
    }

    /// See [`Policy::preferred`].
    ///
    /// # Errors
    /// When the machine has no such node, or the node has no memory.
    pub fn preferred(&self, node: NodeId) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::preferred(self.core.allocator(), node)
    }

    /// See [`Policy::bind`].
    ///
    /// # Errors
    /// When a node is not of this machine, or none of them has memory.
    pub fn bind(&self, nodes: NodeMask) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::bind(self.core.allocator(), nodes)
    }

    /// See [`Policy::interleave`].
    ///
    /// # Errors
    /// As [`Pool::bind`].
    pub fn interleave(&self, nodes: NodeMask) -> Result<PoolPolicy<'static>, PolicyError> {
        Policy::interleave(self.core.allocator(), nodes)
    }

    /// See [`Policy::weighted_interleave`].
    ///
    /// # Errors
    /// As [`Pool::bind`], and when all weights are 0.
    pub fn weighted_interleave<'w>(
        &self,
        nodes: NodeMask,
        weights: &'w WeightTable<LinuxPlatform>,
    ) -> Result<PoolPolicy<'w>, PolicyError> {
        Policy::weighted_interleave(self.core.allocator(), nodes, weights)
    }
}
