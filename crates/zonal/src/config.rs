//! The configuration of an allocator as plain values, each with a default.
//!
//! Related files: `layout.rs` computes the size of metadata from the configuration, `allocator.rs` creates
//! an allocator with it, and `admin/settings.rs` changes settings at run time.

use core::num::{NonZeroU32, NonZeroU64};

use crate::error::ConfigError;
use crate::rules::fallback_order::{Accumulate, CpuPenalty, LoadRule, NodeLoad};
use crate::rules::pageset_tuning::{PagesetTuning, TuningForm};
use crate::rules::stat_threshold::CounterRules;
use crate::rules::watermarks::WatermarkSettings;
use crate::rules::zonelist_cache::ScanForm;
pub use crate::rules::zonelist_cache::ZonelistCache;
use crate::units::{Order, PageCount};

/// The mode of node reclaim.
///
/// When a zone of a nearby node is below its watermark, node reclaim frees frames of that node before the scan
/// continues with the next node. The values are those of Linux's `vm.zone_reclaim_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReclaim(u8);

impl NodeReclaim {
    /// Node reclaim is off (0): requests fall back to other nodes before they reclaim frames.
    pub const OFF: Self = Self(0);
    /// Node reclaim is on (1): before a request falls back to another node, nearby nodes are reclaimed. Node reclaim
    /// frees only pages that are neither dirty nor mapped.
    pub const ON: Self = Self(1);

    const WRITE: u8 = 2;
    const UNMAP: u8 = 4;
    const MOST: u32 = 7;

    /// Returns the mode with this value.
    ///
    /// The value 0 turns node reclaim off, and all other values turn it on. The bit of value 2 allows node reclaim to
    /// write contents to backing storage. The bit of value 4 allows node reclaim to unmap frames.
    ///
    /// # Errors
    /// Returns an error if the value is above 7.
    pub const fn from_mode(mode: u32) -> Result<Self, ConfigError> {
        if mode <= Self::MOST { Ok(Self(mode as u8)) } else { Err(ConfigError::NodeReclaimMode(mode)) }
    }

    /// Returns the value of the mode: 0 to 7.
    #[must_use]
    pub const fn mode(self) -> u32 {
        self.0 as u32
    }

    /// Whether node reclaim is on, so that it runs before a request falls back to other nodes.
    #[must_use]
    pub const fn is_on(self) -> bool {
        self.0 != 0
    }

    /// Whether node reclaim may write contents to backing storage.
    #[must_use]
    pub const fn may_write(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether node reclaim may unmap frames.
    #[must_use]
    pub const fn may_unmap(self) -> bool {
        self.0 & Self::UNMAP != 0
    }
}

/// The interval at which per-CPU counter differences are folded into the totals (M4), in whole seconds. Linux:
/// `vm.stat_interval`.
///
/// The interval is at least one second. Zero is not a valid interval, because it could mean "always" or "never". To
/// avoid periodic folds, choose the longest interval, which is 136 years, and fold with
/// [`Allocator::stat_refresh`](crate::Allocator::stat_refresh).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StatInterval(NonZeroU32);

impl StatInterval {
    /// One second. Every call of [`Allocator::tick`](crate::Allocator::tick), which the embedder makes once a second,
    /// then folds the differences.
    pub const SECOND: Self = Self(NonZeroU32::MIN);

    /// Returns the interval of `seconds` seconds, or `None` for 0.
    #[must_use]
    pub const fn from_seconds(seconds: u32) -> Option<Self> {
        match NonZeroU32::new(seconds) {
            Some(seconds) => Some(Self(seconds)),
            None => None,
        }
    }

    /// Returns the interval in seconds, at least 1.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.0.get()
    }
}

impl Default for StatInterval {
    fn default() -> Self {
        Self::SECOND
    }
}

/// The method by which the allocator detects invalid frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InvalidFree {
    /// Each free performs one atomic exchange. If several frees of one block race, exactly one of them succeeds. An
    /// invalid free never writes to the state of a frame.
    #[default]
    Exact,
    /// Each free uses plain loads and stores, which saves the exchange. This method is for programs that are known to
    /// free correctly. If an invalid free races with the valid free of the same block, the block can be listed as free
    /// twice. The allocator detects the second entry when it is about to allocate the block from that entry, with two
    /// exceptions. First, two CPUs may allocate the block from both entries at the same instant. Second, the invalid
    /// free may be preempted between its check and its store. If the frame becomes part of another block meanwhile, the
    /// store overwrites the state of that block.
    Checked,
}

/// Whether CPUs own whole blocks of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OwnedBlocks {
    /// The free areas serve every request that no pageset serves.
    #[default]
    Off,
    /// A CPU takes whole blocks from its zone, splits them for its requests and refills, and returns them when all their
    /// frames are free again. The zone's lines are then shared less, but more of its 2 MiB blocks are split. A running allocator
    /// can be switched to this rule only if it was created with it.
    On,
}

/// Protection against use after free and leaks of contents; all options are off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hardening {
    /// Pattern that the allocator writes to frames when they are freed or come online. When it allocates a frame, it
    /// checks that the frame still contains the pattern. A block without it is retired.
    pub poison: Option<u64>,
    /// Condition under which allocated frames are zeroed.
    pub zero: ZeroOn,
    /// Capacity of each zone's quarantine in frames, or 0 for no quarantine. The quarantine is a first-in, first-out
    /// queue that delays the reuse of freed blocks. Blocks with more frames than this capacity, or with frames that a fence
    /// keeps, are not quarantined.
    pub quarantine: PageCount,
}

impl Hardening {
    const NONE: Self = Self { poison: None, zero: ZeroOn::Request, quarantine: PageCount::ZERO };
}

/// The condition under which allocated frames are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroOn {
    /// Frames are zeroed only if the request specifies [`zeroed`](crate::Request::zeroed).
    #[default]
    Request,
    /// Frames are zeroed on every allocation.
    EveryAllocation,
}

/// Fault injection: which requests the allocator refuses although frames are free, to test how callers handle failure.
/// Linux: `CONFIG_FAIL_PAGE_ALLOC`.
///
/// Fault injection is off by default. While it is on, no request uses the lock-free fast path. As in a real shortage, a
/// refused request returns [`AllocError::OutOfMemory`](crate::error::AllocError::OutOfMemory) and is counted as a
/// failure. Unlike in a real shortage, the request does not reclaim frames. Requests are numbered from 1 in order of
/// arrival, including the requests of reclaimers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// No request is refused.
    #[default]
    None,
    /// Every request whose number is a multiple of this one is refused.
    EveryNth(NonZeroU64),
    /// Requests are refused pseudo-randomly. The choice depends only on the seed and the request's number, so every run
    /// refuses the same requests.
    Random {
        /// Seed of the pseudo-random choice.
        seed: u64,
        /// On average, one request in this many is refused.
        one_in: NonZeroU64,
    },
}

/// Past forms of mechanisms that the program links: none by default, and `zonal_history::PAST` has all.
///
/// Without its form, a setting that selects it is refused with [`ConfigError::NotLinked`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Past {
    /// Past rules of node load (M5).
    pub node_loads: &'static [&'static dyn LoadRule],
    /// Past scans with the zonelist cache (M1 and M3).
    pub scans: &'static [&'static dyn ScanForm],
    /// Past form of the depth rule (M2).
    pub tuning: Option<&'static dyn TuningForm>,
}

impl Past {
    const NONE: Self = Self { node_loads: &[], scans: &[], tuning: None };

    /// Returns the rule with this name, if it is linked.
    #[must_use]
    pub fn load_rule(&self, load: NodeLoad) -> Option<&'static dyn LoadRule> {
        let past = || self.node_loads.iter().find(|rule| rule.node_load() == load).copied();
        if load == NodeLoad::Accumulate { Some(&Accumulate) } else { past() }
    }

    /// Returns the past form that this mode selects, if it is linked.
    #[must_use]
    #[cold]
    pub fn scan_form(&self, cache: ZonelistCache) -> Option<&'static dyn ScanForm> {
        self.scans.iter().find(|form| form.zonelist_cache() == cache).copied()
    }
}

/// The configuration of an allocator.
///
/// The defaults follow Linux 6.12 if Linux has the setting. The measurements in `docs/performance.md` use the defaults
/// of all settings.
///
/// ```
/// use zonal::Config;
/// use zonal::config::NodeReclaim;
/// use zonal::rules::watermarks::WatermarkSettings;
/// use zonal::units::PageCount;
///
/// let min_free = Some(PageCount::new(2048)); // a larger reserve than computed
/// let watermarks = WatermarkSettings { min_free, ..WatermarkSettings::default() };
/// let config = Config { watermarks, node_reclaim: NodeReclaim::ON, ..Config::default() };
/// assert_eq!(config.max_order.get(), 10); // blocks of up to 4 MiB
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Size of a frame in bytes: a power of two, at least 4096. Default: 4096.
    pub page_bytes: u32,
    /// Largest order of a block: 10..=18. Default: 10, 4 MiB of 4 KiB frames (Linux: `MAX_PAGE_ORDER`).
    pub max_order: Order,
    /// Minimum size of a free area. Each zone is divided into a few free areas per CPU of its node, each with its own
    /// lock. The effective minimum is this value, 4096 frames or the size of the largest block, whichever is largest,
    /// rounded up to a power of two. Default: 16384 frames.
    pub free_area_min: PageCount,
    /// Watermarks and lowmem reserve. Default: computed from the machine's size as in Linux
    /// ([`WatermarkSettings`]).
    pub watermarks: WatermarkSettings,
    /// How the load of a node changes while fallback orders are built (M5). The load makes a node less preferred if
    /// it already is a fallback of other nodes. Default: the rule of Linux 5.18 and later.
    pub node_load: NodeLoad,
    /// Whether nodes with CPUs are slightly less preferred as fallback than nodes without CPUs. Default: yes.
    pub cpu_penalty: CpuPenalty,
    /// How `pageset.high` is tuned (M2). Default: by the depth of allocations and frees (Huang 2023).
    pub tuning: PagesetTuning,
    /// If not 0, `pageset.high` is fixed at the zone's managed frames divided by this number and by the number of CPUs
    /// that share the zone. Linux: `vm.percpu_pagelist_high_fraction`. Default: 0.
    pub high_fraction: u32,
    /// Rules of the zone and node counters (M4). Default: thresholds that scale with CPUs and memory, as in Linux.
    pub counters: CounterRules,
    /// How often [`Allocator::tick`](crate::Allocator::tick) folds zone and node counters. The embedder calls this
    /// method once a second. Regardless of this setting, each call also tunes pagesets and drains idle pagesets. In
    /// Linux, one work item does all of this at the same interval. Default: 1 second.
    pub stat_interval: StatInterval,
    /// Mode of the zonelist cache (M1 and M3). Default: [`ZonelistCache::On`].
    pub zonelist_cache: ZonelistCache,
    /// Mode of node reclaim, which can run before a request falls back to other nodes. Default: off.
    pub node_reclaim: NodeReclaim,
    /// Largest distance from the preferred node at which node reclaim reclaims a node. The modes `Original`,
    /// `CacheFirst` and `Published` of the zonelist cache ignore this limit, because they reproduce versions of Linux
    /// that did not have it. Linux: `node_reclaim_distance` (since 3.8). Default: 30.
    pub reclaim_distance: u8,
    /// Minimum for node reclaim, in percent. Node reclaim skips a node unless more than this percentage of its frames
    /// could be freed. Linux: `vm.min_unmapped_ratio`. Default: 1.
    pub min_unmapped_percent: u8,
    /// Whether CPUs own whole blocks of 2 MiB, which they split themselves (M6). Default: [`OwnedBlocks::Off`].
    pub owned_blocks: OwnedBlocks,
    /// Method by which the allocator detects invalid frees. Default: [`InvalidFree::Exact`], with one atomic exchange
    /// per free.
    pub invalid_free: InvalidFree,
    /// Number of processes that can share the allocator, at most [`PROCESSES_MAX`](crate::units::PROCESSES_MAX); 0 if it belongs to one process. Each
    /// process has CPUs of its own in the machine ([`Platform::process`](crate::Platform::process)).
    pub processes: u8,
    /// Protection against use after free. Default: none.
    pub hardening: Hardening,
    /// Requests that fault injection refuses. Default: none.
    pub faults: Faults,
    /// Past forms of mechanisms that settings may select. Default: none.
    pub past: Past,
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Config {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        page_bytes: 4096,
        max_order: Order::DEFAULT_MAX,
        free_area_min: PageCount::new(1 << 14),
        watermarks: WatermarkSettings::DEFAULT,
        node_load: NodeLoad::Accumulate,
        cpu_penalty: CpuPenalty::On,
        tuning: PagesetTuning::Depth,
        high_fraction: 0,
        counters: CounterRules::DEFAULT,
        stat_interval: StatInterval::SECOND,
        zonelist_cache: ZonelistCache::On,
        node_reclaim: NodeReclaim::OFF,
        reclaim_distance: 30,
        min_unmapped_percent: 1,
        owned_blocks: OwnedBlocks::Off,
        invalid_free: InvalidFree::Exact,
        processes: 0,
        hardening: Hardening::NONE,
        faults: Faults::None,
        past: Past::NONE,
    };

    /// Returns the order of a 2 MiB block, or the largest order if that is smaller.
    #[must_use]
    pub fn huge_order(&self) -> Order {
        let frames = PageCount::new(((2 << 20) / u64::from(self.page_bytes)).max(1));
        Order::holding(frames).unwrap_or(self.max_order).min(self.max_order)
    }
}
