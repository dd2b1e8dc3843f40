//! State shared by all zones and nodes: settings, the lock that serialises changes, versions of zonelists, totals of
//! the machine.
//!
//! Settings are read on every path, and setters write them under the lock of changes. Related file: `admin/settings.rs`
//! sets the settings and recomputes the values that depend on them.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::{Config, NodeReclaim, StatInterval, ZonelistCache};
use crate::platform::cells::all_zero;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::watermarks::{MovableMin, WatermarkSettings};
use crate::units::{PageCount, ZoneKind};
use crate::zone::counters::TOTAL_CELLS;

/// Words of a node mask.
const MASK_WORDS: usize = crate::units::MAX_NODES / 64;
const FROM_SIZE: u64 = u64::MAX;

all_zero! {
    /// State shared by the whole allocator.
    #[repr(C)]
    pub(crate) struct SharedCells<P> {
        /// Settings, which every path reads and only setters write.
        pub(crate) settings: (line {SettingsCells<P>}),
        /// Serialises changes at run time.
        pub(crate) changes: (line lock),
        /// Versions of the zonelists.
        pub(crate) lists_current: u64,
        pub(crate) lists_begun: u64,
        /// Totals of all nodes' counters, if the configuration enables machine totals.
        pub(crate) machine_totals: (line [u64; TOTAL_CELLS]),
        /// Nodes with memory online.
        pub(crate) memory_nodes: (line [u64; MASK_WORDS]),
    }
}

all_zero! {
    #[repr(C)]
    pub(crate) struct SettingsCells<P> {
        pub(crate) tuning: u64,
        pub(crate) zonelist_cache: u64,
        pub(crate) node_reclaim: u64,
        pub(crate) high_fraction: u64,
        min_free: u64,
        scale_factor: u64,
        movable_min: u64,
        reserve_ratio: [u64; ZoneKind::COUNT],
        pub(crate) reclaim_distance: u64,
        pub(crate) min_unmapped_percent: u64,
        pub(crate) stat_interval: u64,
        /// Number of requests so far, counted only while fault injection is on.
        requests: u64,
    }
}

// Loads and stores of settings are relaxed, because each setting is independent. A request that still uses an old value
// behaves like a request made a moment earlier.
impl<P: Platform> SharedCells<P> {
    /// Waits for the lock of changes.
    pub(crate) fn change(&self) -> Held<'_, P::Lock> {
        Held::wait(&self.changes.0)
    }

    /// Returns how `pageset.high` is tuned.
    #[inline]
    pub(crate) fn tuning(&self) -> PagesetTuning {
        match self.settings.0.tuning.load(Relaxed) {
            0 => PagesetTuning::Depth,
            1 => PagesetTuning::DepthPublished,
            2 => PagesetTuning::Stepwise,
            _ => PagesetTuning::Fixed,
        }
    }

    /// Returns how the zonelist cache is used.
    pub(crate) fn zonelist_cache(&self) -> ZonelistCache {
        match self.settings.0.zonelist_cache.load(Relaxed) {
            0 => ZonelistCache::On,
            1 => ZonelistCache::Published,
            2 => ZonelistCache::CacheFirst,
            3 => ZonelistCache::Original,
            _ => ZonelistCache::Off,
        }
    }

    /// Returns the mode of node reclaim.
    pub(crate) fn node_reclaim(&self) -> NodeReclaim {
        let mode = self.settings.0.node_reclaim.load(Relaxed) as u32;
        NodeReclaim::from_mode(mode).unwrap_or_default() // only valid modes are stored
    }

    /// Returns the divisor of a zone's size at which `pageset.high` is fixed; 0 means that it is not fixed.
    pub(crate) fn high_fraction(&self) -> u32 {
        self.settings.0.high_fraction.load(Relaxed) as u32
    }

    // These loads are relaxed, because each value is independent and an old value was correct a moment ago.

    /// Returns the largest distance at which node reclaim reclaims a node.
    pub(crate) fn reclaim_distance(&self) -> u8 {
        self.settings.0.reclaim_distance.load(Relaxed) as u8
    }

    /// Returns a percentage of a node's frames; node reclaim runs only if more frames than this are reclaimable.
    pub(crate) fn min_unmapped_percent(&self) -> u8 {
        self.settings.0.min_unmapped_percent.load(Relaxed) as u8
    }

    /// Returns the interval at which ticks fold zoned counters.
    pub(crate) fn stat_interval(&self) -> StatInterval {
        let seconds = self.settings.0.stat_interval.load(Relaxed) as u32;
        StatInterval::from_seconds(seconds).unwrap_or_default() // only valid intervals are stored
    }

    /// Returns the number of this request; the first request has number 1.
    pub(crate) fn next_request(&self) -> u64 {
        self.settings.0.requests.fetch_add(1, Relaxed).wrapping_add(1) // relaxed: numbers only have to be distinct
    }

    /// Sets all settings from `config`.
    pub(crate) fn configure(&self, config: &Config) {
        let settings = &self.settings.0;
        settings.tuning.store(config.tuning as u64, Relaxed);
        settings.zonelist_cache.store(config.zonelist_cache as u64, Relaxed);
        settings.node_reclaim.store(u64::from(config.node_reclaim.mode()), Relaxed);
        settings.high_fraction.store(u64::from(config.high_fraction), Relaxed);
        settings.reclaim_distance.store(u64::from(config.reclaim_distance), Relaxed);
        settings.min_unmapped_percent.store(u64::from(config.min_unmapped_percent), Relaxed);
        settings.stat_interval.store(u64::from(config.stat_interval.seconds()), Relaxed);
        self.set_watermarks(&config.watermarks);
    }

    /// Sets watermarks and lowmem reserves.
    pub(crate) fn set_watermarks(&self, watermarks: &WatermarkSettings) {
        let settings = &self.settings.0;
        settings.min_free.store(watermarks.min_free.map_or(FROM_SIZE, PageCount::get), Relaxed);
        settings.scale_factor.store(u64::from(watermarks.scale_factor), Relaxed);
        settings.movable_min.store(watermarks.movable_min as u64, Relaxed);
        for (cell, &ratio) in settings.reserve_ratio.iter().zip(&watermarks.lowmem_reserve_ratio) {
            cell.store(u64::from(ratio), Relaxed);
        }
    }

    /// Returns the settings of watermarks and lowmem reserves.
    pub(crate) fn watermarks(&self) -> WatermarkSettings {
        let settings = &self.settings.0;
        let min_free = settings.min_free.load(Relaxed);
        WatermarkSettings {
            min_free: (min_free != FROM_SIZE).then_some(PageCount::new(min_free)),
            scale_factor: settings.scale_factor.load(Relaxed) as u32,
            lowmem_reserve_ratio: core::array::from_fn(|at| settings.reserve_ratio[at].load(Relaxed) as u32),
            movable_min: if settings.movable_min.load(Relaxed) == MovableMin::Ordinary as u64 {
                MovableMin::Ordinary
            } else {
                MovableMin::OwnMinimum
            },
        }
    }
}
