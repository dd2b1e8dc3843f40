//! The mechanisms, and how each is switched off.

use zonal::Config;
use zonal::config::ZonelistCache;
use zonal::rules::fallback_order::NodeLoad;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, ThresholdRule};

/// A mechanism of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// M1: the zonelist cache.
    ZonelistCache,
    /// M2: pagesets sized from depth.
    PagesetTuning,
    /// M3: the zonelist cache before node reclaim.
    CacheBeforeReclaim,
    /// M4: counters with scaled thresholds.
    Counters,
    /// M5: fallback orders with accumulated load.
    FallbackOrder,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Self; 5] = [
        Self::ZonelistCache,
        Self::PagesetTuning,
        Self::CacheBeforeReclaim,
        Self::Counters,
        Self::FallbackOrder,
    ];

    /// Returns the name, with its number.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZonelistCache => "M1 zonelist cache",
            Self::PagesetTuning => "M2 pageset tuning",
            Self::CacheBeforeReclaim => "M3 cache before node reclaim",
            Self::Counters => "M4 scaled thresholds",
            Self::FallbackOrder => "M5 fallback order",
        }
    }

    /// Returns what "off" means, for people.
    #[must_use]
    pub const fn without(self) -> &'static str {
        match self {
            Self::ZonelistCache => "zonelist_cache off",
            Self::PagesetTuning => "pageset_tuning fixed",
            Self::CacheBeforeReclaim => "zonelist_cache original",
            Self::Counters => "threshold 32, folds to zero",
            Self::FallbackOrder => "node_load assign",
        }
    }

    /// Returns a configuration with the mechanism that has everything else in common with [`Self::off`].
    pub(super) fn on(self, config: &Config) -> Config {
        match self {
            Self::CacheBeforeReclaim => Config { zonelist_cache: ZonelistCache::Published, ..*config },
            _ => *config,
        }
    }

    /// Returns a configuration without the mechanism.
    pub(super) fn off(self, config: &Config) -> Config {
        let config = *config;
        match self {
            Self::ZonelistCache => Config { zonelist_cache: ZonelistCache::Off, ..config },
            Self::PagesetTuning => Config { tuning: PagesetTuning::Fixed, ..config },
            Self::CacheBeforeReclaim => Config { zonelist_cache: ZonelistCache::Original, ..config },
            Self::Counters => {
                let (threshold, fold) = (ThresholdRule::Fixed(32), FoldRule::ToZero);
                Config { counters: CounterRules { threshold, fold, ..config.counters }, ..config }
            }
            Self::FallbackOrder => Config { node_load: NodeLoad::Assign, ..config },
        }
    }
}
