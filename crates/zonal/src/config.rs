//! The configuration of an allocator, as plain values; every setting has a default.
//!
//! Neighbours: `alloc/layout.rs` sizes metadata by it, `alloc/allocator.rs` starts with it, `admin/settings.rs`
//! changes the settings that can change at run time.

use core::num::{NonZeroU32, NonZeroU64};

use crate::error::ConfigError;
use crate::rules::fallback_order::{CpuPenalty, NodeLoad};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::stat_threshold::CounterRules;
use crate::rules::watermarks::WatermarkSettings;
use crate::units::{Order, PageCount};

/// How the zonelist cache, the hint about recently full zones, is used (M1, M3; Jackson 2006, Gorman 2011).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZonelistCache {
    /// A full bit affects only scans that would fail for the same reason, and a scan finds its next candidate
    /// among 64 entries at a time.
    #[default]
    On,
    /// As published in full: a full bit affects every scan of the list for up to a second. Linux 3.1 to 4.3. This
    /// mode and those below, except `Off`, reclaim zone by zone and ignore
    /// [`reclaim_distance`](Config::reclaim_distance), as kernels did then.
    Published,
    /// As published, but full bits remain set when direct reclaim has freed frames: the first half of M3.
    CacheFirst,
    /// As first published (M1). Full bits remain set when direct reclaim has freed frames. A scan checks them only
    /// after its first zone failed, including node reclaim of that zone, or was excluded by the cpuset. Zones with
    /// too little to reclaim are marked full. Requests under a binding policy have no cache. Linux 2.6.20 to 3.0,
    /// with the outcomes of node reclaim of 2.6.31 and later.
    Original,
    /// No cache: every scan checks every zone.
    Off,
}

impl ZonelistCache {
    /// Whether one bitmap holds the full bits of all scans.
    pub(crate) const fn is_published_form(self) -> bool {
        matches!(self, Self::Published | Self::CacheFirst | Self::Original)
    }

    /// Whether the zonelists of a binding policy have a cache; in 2006 these were separate lists without one.
    pub(crate) const fn serves_bound(self) -> bool {
        !matches!(self, Self::Original)
    }

    /// Whether a scan starts to use the cache, and so to respect full bits, once its first zone is on a node that
    /// the cpuset excludes, as until 2011; otherwise only once a zone has failed.
    pub(crate) const fn sets_up_past_disallowed(self) -> bool {
        matches!(self, Self::Original)
    }

    /// Whether zones are reclaimed one by one, as until Linux 4.8, instead of whole nodes.
    pub(crate) const fn reclaims_by_zone(self) -> bool {
        self.is_published_form()
    }

    /// Whether node reclaim respects [`Config::reclaim_distance`], which was introduced after 2011.
    pub(crate) const fn heeds_distance(self) -> bool {
        !self.is_published_form()
    }

    /// Whether a zone with too little to reclaim is marked full, as until the first change of M3.
    pub(crate) const fn marks_unreclaimable(self) -> bool {
        matches!(self, Self::Original)
    }

    /// Whether a scan checks the full bits before it reclaims its first zone (M3).
    pub(crate) const fn consults_before_reclaim(self) -> bool {
        !matches!(self, Self::Original)
    }

    /// Whether full bits are cleared when direct reclaim has freed frames (M3).
    pub(crate) const fn reconsiders(self) -> bool {
        matches!(self, Self::On | Self::Published)
    }
}

/// Whether a nearby node below its watermark is reclaimed before a scan continues to the next node, and what that
/// reclaim may do.
///
/// The values are those of Linux's `vm.zone_reclaim_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReclaim(u8);

impl NodeReclaim {
    /// Off: fall back to other nodes first (0).
    pub const OFF: Self = Self(0);
    /// On: reclaim nearby nodes first, but only pages that are neither dirty nor mapped (1).
    pub const ON: Self = Self(1);

    const WRITE: u8 = 2;
    const UNMAP: u8 = 4;
    const MOST: u32 = 7;

    /// Returns the mode with this value: 0 is off, all others are on; the bit of value 2 allows node reclaim to
    /// write, the bit of value 4 allows it to unmap.
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

    /// Whether node reclaim precedes fallback to other nodes.
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

/// How often per-CPU counter differences are folded into the totals (M4), in whole seconds. Linux:
/// `vm.stat_interval`.
///
/// At least one second: zero is refused, because it could mean always or never. A program without periodic folds
/// chooses the longest interval, 136 years, and calls [`Allocator::stat_refresh`](crate::Allocator::stat_refresh).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StatInterval(NonZeroU32);

impl StatInterval {
    /// One second: every tick folds.
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

/// How invalid frees are detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InvalidFree {
    /// One atomic exchange per free. Of several racing frees of one block exactly one succeeds, and no invalid
    /// free ever writes to the state of a frame.
    #[default]
    Exact,
    /// Plain loads and stores. An invalid free that races with the valid one is detected at the latest when the
    /// block would be allocated again, except when two CPUs allocate both copies at the same instant, or when the
    /// invalid free is preempted between its check and its store for so long that the frame has become part of
    /// another block. Saves the exchange; for programs that are known to free correctly.
    Checked,
}

/// Protection against use after free and leaks of contents; all options are off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hardening {
    /// The pattern that frames are filled with when they are freed or come online, and that they must still
    /// contain on allocation.
    pub poison: Option<u64>,
    /// Whether every allocation is zeroed.
    pub zero: ZeroOn,
    /// Number of freed frames of each zone that are quarantined, first in, first out, before they can be reused.
    /// Larger blocks are not quarantined.
    pub quarantine: PageCount,
}

/// When frames are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroOn {
    /// Only for requests for zeroed frames.
    #[default]
    Request,
    /// On every allocation.
    EveryAllocation,
}

/// Requests that are refused although frames are free, to test how callers handle failure. Linux:
/// `CONFIG_FAIL_PAGE_ALLOC`.
///
/// Off by default; while on, every request takes the slow path. A refused request returns
/// [`AllocError::OutOfMemory`](crate::error::AllocError::OutOfMemory) as in a real shortage, is counted as a
/// failure, and reclaims nothing. Requests are numbered from 1 in order of arrival, including the requests of
/// reclaimers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// No request.
    #[default]
    None,
    /// Every request whose number is a multiple of this.
    EveryNth(NonZeroU64),
    /// Requests chosen pseudo-randomly by seed and number, and so the same ones in each run.
    Random {
        /// Seed of the choice.
        seed: u64,
        /// Average number of requests for each one refused.
        one_in: NonZeroU64,
    },
}

impl Faults {
    /// Whether the request with this number is refused.
    pub(crate) const fn refuse(self, number: u64) -> bool {
        match self {
            Self::None => false,
            Self::EveryNth(nth) => number.is_multiple_of(nth.get()),
            Self::Random { seed, one_in } => mixed(seed ^ mixed(number)).is_multiple_of(one_in.get()),
        }
    }
}

/// Returns a number of which every bit depends on every bit of `x` (the finaliser of splitmix64).
const fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The configuration of an allocator.
///
/// The defaults follow Linux 6.12 where Linux has the setting; elsewhere they are the values that
/// `docs/performance.md` measures.
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
    /// Smallest size of a free area. A zone is divided into free areas with one lock each, a few for each CPU of
    /// its node; none is smaller than this, rounded up to a power of two of at least 4096 frames and the largest
    /// block. Default: 16384 frames.
    pub free_area_min: PageCount,
    /// Watermarks and lowmem reserve. Default: computed from the machine's size as in Linux
    /// ([`WatermarkSettings`]).
    pub watermarks: WatermarkSettings,
    /// How a node's load affects fallback orders (M5). Default: as Linux from 5.18.
    pub node_load: NodeLoad,
    /// Whether nodes with CPUs are a little less preferred as fallback. Default: they are.
    pub cpu_penalty: CpuPenalty,
    /// How `pageset.high` is tuned (M2). Default: by the depth of allocations and frees (Huang 2023).
    pub tuning: PagesetTuning,
    /// If not 0, `pageset.high` is fixed at the zone's size divided by this, shared among CPUs. Linux:
    /// `vm.percpu_pagelist_high_fraction`. Default: 0.
    pub high_fraction: u32,
    /// Rules of the zone and node counters (M4). Default: thresholds that scale with CPUs and memory, as in Linux.
    pub counters: CounterRules,
    /// How often a tick folds zone and node counters. Pagesets age every second regardless; in Linux the same work
    /// item does both. Default: 1 second.
    pub stat_interval: StatInterval,
    /// How the zonelist cache is used (M1). Default: [`ZonelistCache::On`].
    pub zonelist_cache: ZonelistCache,
    /// Whether node reclaim precedes fallback, and what it may do. Default: off.
    pub node_reclaim: NodeReclaim,
    /// Largest distance from the preferred node at which node reclaim reclaims a node. The modes of the zonelist
    /// cache that are older than this limit, `Original`, `CacheFirst` and `Published`, ignore it. Linux:
    /// `node_reclaim_distance` (since 3.8). Default: 30.
    pub reclaim_distance: u8,
    /// Node reclaim skips a node when no more than this share of its frames, in percent, could be freed. Linux:
    /// `vm.min_unmapped_ratio`. Default: 1.
    pub min_unmapped_percent: u8,
    /// How invalid frees are detected. Default: exactly, with one atomic exchange per free.
    pub invalid_free: InvalidFree,
    /// Protection against use after free. Default: none.
    pub hardening: Hardening,
    /// Requests that are refused on purpose. Default: none.
    pub faults: Faults,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            free_area_min: PageCount::new(1 << 14),
            watermarks: WatermarkSettings::default(),
            node_load: NodeLoad::default(),
            cpu_penalty: CpuPenalty::default(),
            tuning: PagesetTuning::default(),
            high_fraction: 0,
            counters: CounterRules::default(),
            stat_interval: StatInterval::default(),
            zonelist_cache: ZonelistCache::default(),
            node_reclaim: NodeReclaim::default(),
            reclaim_distance: 30,
            min_unmapped_percent: 1,
            invalid_free: InvalidFree::default(),
            hardening: Hardening::default(),
            faults: Faults::default(),
        }
    }
}

impl Config {
    /// Returns the order of a 2 MiB block, or the largest order if that is smaller.
    #[must_use]
    pub fn huge_order(&self) -> Order {
        let frames = PageCount::new(((2 << 20) / u64::from(self.page_bytes)).max(1));
        Order::holding(frames).unwrap_or(self.max_order).min(self.max_order)
    }
}
