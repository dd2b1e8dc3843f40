//! What an embedder can choose, as plain values; every choice here can be left at its default.
//!
//! Neighbours: `layout.rs` sizes metadata by it, `allocator.rs` starts with it, `settings.rs`
//! changes at run time what can be changed.

use core::num::{NonZeroU32, NonZeroU64};

use crate::error::ConfigError;
use crate::rules::fallback_order::{CpuPenalty, NodeLoad};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::stat_threshold::CounterRules;
use crate::rules::watermarks::WatermarkSettings;
use crate::units::{Order, PageCount};

/// How the hint about recently full zones is used (M1, M3; Jackson 2006, Gorman 2011).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZonelistCache {
    /// A mark binds only scans that would fail for the same reason, and a scan finds its next
    /// candidate 64 entries at a time.
    #[default]
    On,
    /// As published in all: a mark binds every scan of the list for up to a second. Linux 3.1 to 4.3.
    /// This and the modes below, except `Off`, reclaim zone by zone and know no
    /// [`reclaim_distance`](Config::reclaim_distance), as kernels did then.
    Published,
    /// As published, but marks stay when direct reclaim has freed frames: the first half of M3.
    CacheFirst,
    /// As first published (M1): marks stay; no scan looks at them before its first zone has failed, node
    /// reclaim of that zone included, or was left out by the cpuset; zones with too little to reclaim are
    /// marked; requests under a binding policy have no cache. Linux 2.6.20 to 3.0; of node reclaim's
    /// outcomes, those of 2.6.31 and later.
    Original,
    /// Every scan looks at every zone.
    Off,
}

impl ZonelistCache {
    /// Whether one bitmap holds the marks of all scans.
    pub(crate) const fn is_published_form(self) -> bool {
        matches!(self, Self::Published | Self::CacheFirst | Self::Original)
    }

    /// Whether lists of a binding policy have a cache; in 2006 they were lists of their own, without one.
    pub(crate) const fn serves_bound(self) -> bool {
        !matches!(self, Self::Original)
    }

    /// Whether a scan sets the cache up, and so heeds marks, once its first zone is of a node that the
    /// cpuset leaves out; else only once a zone has failed. Until 2011.
    pub(crate) const fn sets_up_past_disallowed(self) -> bool {
        matches!(self, Self::Original)
    }

    /// Whether zones are reclaimed one by one, as they were until Linux 4.8; else nodes as a whole.
    pub(crate) const fn reclaims_by_zone(self) -> bool {
        self.is_published_form()
    }

    /// Whether node reclaim heeds [`Config::reclaim_distance`], which came after 2011.
    pub(crate) const fn heeds_distance(self) -> bool {
        !self.is_published_form()
    }

    /// Whether a zone with too little to reclaim is marked full: until the first change of M3.
    pub(crate) const fn marks_unreclaimable(self) -> bool {
        matches!(self, Self::Original)
    }

    /// Whether a scan looks at the marks before it has the first zone reclaimed (M3).
    pub(crate) const fn consults_before_reclaim(self) -> bool {
        !matches!(self, Self::Original)
    }

    /// Whether marks go when direct reclaim has freed frames (M3).
    pub(crate) const fn reconsiders(self) -> bool {
        matches!(self, Self::On | Self::Published)
    }
}

/// Whether a nearby node below its watermark is reclaimed before a scan goes on to the next, and what
/// that may do. Linux: `vm.zone_reclaim_mode`, whose values these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReclaim(u8);

impl NodeReclaim {
    /// Fall back to other nodes first (0).
    pub const OFF: Self = Self(0);
    /// Reclaim nearby nodes first, of what is neither to be written nor mapped (1).
    pub const ON: Self = Self(1);

    const WRITE: u8 = 2;
    const UNMAP: u8 = 4;
    const MOST: u32 = 7;

    /// The mode of this value: 0 is off, all others are on; bit 2 lets node reclaim write, bit 4 lets it
    /// unmap.
    ///
    /// # Errors
    /// When the value is above 7.
    pub const fn from_mode(mode: u32) -> Result<Self, ConfigError> {
        if mode <= Self::MOST { Ok(Self(mode as u8)) } else { Err(ConfigError::NodeReclaimMode(mode)) }
    }

    /// The value: 0 to 7.
    #[must_use]
    pub const fn mode(self) -> u32 {
        self.0 as u32
    }

    /// Whether node reclaim comes before fallback.
    #[must_use]
    pub const fn is_on(self) -> bool {
        self.0 != 0
    }

    /// Whether node reclaim may write contents to where they can be read back from.
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

/// How often what CPUs have counted for themselves is added to the totals (M4), in whole seconds.
/// Linux: `vm.stat_interval`.
///
/// At least a second: zero is refused, because it could mean always or never. A program that wants no
/// periodic folds chooses the longest interval, 136 years, and calls
/// [`Allocator::stat_refresh`](crate::Allocator::stat_refresh).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StatInterval(NonZeroU32);

impl StatInterval {
    /// One second: every tick folds.
    pub const SECOND: Self = Self(NonZeroU32::MIN);

    /// Returns the interval of so many seconds, or `None` for 0.
    #[must_use]
    pub const fn from_seconds(seconds: u32) -> Option<Self> {
        match NonZeroU32::new(seconds) {
            Some(seconds) => Some(Self(seconds)),
            None => None,
        }
    }

    /// Returns the seconds, 1 or more.
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

/// How wrong frees are detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InvalidFree {
    /// One atomic exchange per free: of several racing frees of one block exactly one succeeds, and no
    /// wrong free ever writes to the state of a frame.
    #[default]
    Exact,
    /// Plain loads and stores. A wrong free that races with the right one is caught at the latest when
    /// the block would be handed out again, except when two CPUs take both copies in the same instant, or
    /// when the wrong free is preempted between its check and its store for so long that the frame
    /// has become part of another block. Saves the exchange; for programs that are known to free correctly.
    Checked,
}

/// Options against use after free and leaking contents; all off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hardening {
    /// What frames are filled with on free, and when they come online, and must still hold on
    /// allocation.
    pub poison: Option<u64>,
    /// Whether every allocation is zeroed.
    pub zero: ZeroOn,
    /// Freed frames of each zone kept back, first in first out, before they can be reused. Larger
    /// blocks are not kept back.
    pub quarantine: PageCount,
}

/// When frames are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroOn {
    /// For requests that ask.
    #[default]
    Request,
    /// On every allocation.
    EveryAllocation,
}

/// Requests that are refused although there are frames, so that those who ask can be tested for how they
/// bear it. Off by default; while on, no request is served at home at once.
/// Linux: `CONFIG_FAIL_PAGE_ALLOC`.
///
/// A refused request gives [`AllocError::OutOfMemory`](crate::error::AllocError::OutOfMemory) as a real
/// shortage does, counts among the failures, and has reclaimed nothing. Requests are numbered from 1 in
/// the order in which they come, those of reclaimers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// None.
    #[default]
    None,
    /// Those whose number is a multiple of this.
    EveryNth(NonZeroU64),
    /// One in so many on average, by seed and number: the same ones each time.
    Random {
        /// Start of the choice.
        seed: u64,
        /// On average this many requests for each that is refused.
        one_in: NonZeroU64,
    },
}

impl Faults {
    /// Whether the request of this number is refused.
    pub(crate) const fn refuse(self, number: u64) -> bool {
        match self {
            Self::None => false,
            Self::EveryNth(nth) => number.is_multiple_of(nth.get()),
            Self::Random { seed, one_in } => mixed(seed ^ mixed(number)).is_multiple_of(one_in.get()),
        }
    }
}

/// A number whose every bit depends on every bit of `x` (the finaliser of splitmix64).
const fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The choices of an embedder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of a frame: a power of two, at least 4096.
    pub page_bytes: u32,
    /// Largest order: 10..=18.
    pub max_order: Order,
    /// A zone is cut into regions with a lock each, a few for each CPU of its node; none is smaller
    /// than this, rounded up to a power of two of at least 4096 frames and the largest block.
    pub region_min: PageCount,
    /// Watermarks and lowmem reserve.
    pub watermarks: WatermarkSettings,
    /// How a node's load weighs in fallback orders (M5).
    pub node_load: NodeLoad,
    /// Whether nodes with CPUs are a little less preferred as fallback.
    pub cpu_penalty: CpuPenalty,
    /// How `pageset.high` is tuned (M2).
    pub tuning: PagesetTuning,
    /// When not 0: `pageset.high` is fixed at this fraction of a zone, divided among CPUs.
    /// Linux: `vm.percpu_pagelist_high_fraction`.
    pub high_fraction: u32,
    /// How zoned counters count (M4).
    pub counters: CounterRules,
    /// How often a tick folds zoned counters. Pagesets age by the second whatever this is; in Linux the
    /// same work looks after both.
    pub stat_interval: StatInterval,
    /// How the zonelist cache is used (M1).
    pub zonelist_cache: ZonelistCache,
    /// Whether node reclaim comes before fallback, and what it may do.
    pub node_reclaim: NodeReclaim,
    /// Nodes farther than this from the preferred one are never reclaimed by node reclaim, except under
    /// the modes of the zonelist cache that are older than this limit: `Original`, `CacheFirst` and
    /// `Published` reclaim at any distance. Linux: `node_reclaim_distance` (since 3.8).
    pub reclaim_distance: u8,
    /// Node reclaim leaves a node alone when no more than this share of it, in percent, could be
    /// given up. Linux: `vm.min_unmapped_ratio`.
    pub min_unmapped_percent: u8,
    /// How wrong frees are detected.
    pub invalid_free: InvalidFree,
    /// Options against use after free.
    pub hardening: Hardening,
    /// Requests that are refused on purpose.
    pub faults: Faults,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            region_min: PageCount::new(1 << 14),
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
    /// Order of a 2 MiB block, or the largest order when that is smaller.
    #[must_use]
    pub fn huge_order(&self) -> Order {
        let frames = PageCount::new(((2 << 20) / u64::from(self.page_bytes)).max(1));
        Order::holding(frames).unwrap_or(self.max_order).min(self.max_order)
    }
}
