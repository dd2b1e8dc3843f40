//! The allocator's settings, under the names that experiment files use.
//!
//! If a file omits a setting, its value is taken from the machine's settings or, if they do not contain it, from the
//! allocator's default. Related files: `experiment/resolve.rs` reads the settings, `zonal::Config` documents them.

use serde::Deserialize;
use zonal::config::{NodeReclaim, StatInterval, ZonelistCache};
use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::rules::watermarks::MovableMin;
use zonal::units::PageCount;
use zonal::{Config, error::ConfigError};
use zonal_machine::MachineModel;

/// The contents of a `config` table; all keys are optional.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Choices {
    tuning: Option<Tuning>,
    zonelist_cache: Option<CacheMode>,
    node_reclaim: Option<ReclaimMode>,
    node_load: Option<Load>,
    cpu_penalty: Option<Switch>,
    high_fraction: Option<u32>,
    free_areas: Option<FreeAreaCount>,
    min_free_kbytes: Option<u64>,
    watermark_scale_factor: Option<u32>,
    reclaim_distance: Option<u8>,
    min_unmapped_ratio: Option<u8>,
    stat_interval: Option<Seconds>,
    counters: Counters,
}

/// Settings of zoned counters; all keys are optional.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Counters {
    threshold: Option<Threshold>,
    fold: Option<Fold>,
    totals: Option<Totals>,
    pressure: Option<Pressure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "must be \"scaled\", \"first-posting\" or a number from 1 to 125")]
enum Threshold {
    Named(ScaledThreshold),
    Fixed(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScaledThreshold {
    Scaled,
    FirstPosting,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fold {
    Overstep,
    ToZero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Totals {
    PerNode,
    AndMachine,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Pressure {
    Lowered,
    Unchanged,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Switch {
    On,
    Off,
}

/// A mode of node reclaim: a switch, or the number that Linux uses for the mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "must be \"on\", \"off\" or a mode from 0 to 7")]
enum ReclaimMode {
    Named(Switch),
    Number(ModeNumber),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "u32")]
struct ModeNumber(NodeReclaim);

/// Whole seconds, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "u32")]
struct Seconds(StatInterval);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Tuning {
    Depth,
    DepthPublished,
    Stepwise,
    Fixed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CacheMode {
    On,
    Published,
    CacheFirst,
    Original,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Load {
    Accumulate,
    Remaining,
    Assign,
}

/// Number of free areas of a zone; each free area has its own lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FreeAreaCount {
    /// One free area, as in Linux.
    One,
    /// A few free areas for each CPU of the node.
    Many,
}

impl Choices {
    /// Returns the configuration for a machine.
    pub(super) fn config(&self, model: &MachineModel) -> Config {
        let default = Config::default();
        let mut settings = model.settings;
        settings.min_free_kib = self.min_free_kbytes.or(settings.min_free_kib);
        settings.watermark_scale_factor =
            self.watermark_scale_factor.unwrap_or(settings.watermark_scale_factor);
        let node_reclaim = NodeReclaim::from_mode(settings.zone_reclaim_mode & 7).unwrap_or_default();
        let widest = model.zones.iter().map(|zone| zone.spanned).max().unwrap_or(PageCount::ZERO);
        Config {
            page_bytes: model.page_bytes,
            watermarks: settings.watermarks(model.page_bytes, MovableMin::default()),
            node_load: self.node_load.map_or(default.node_load, Into::into),
            cpu_penalty: self.cpu_penalty.map_or(model.cpu_penalty(), Into::into),
            tuning: self.tuning.map_or(default.tuning, Into::into),
            high_fraction: self.high_fraction.unwrap_or(settings.high_fraction),
            zonelist_cache: self.zonelist_cache.map_or(default.zonelist_cache, Into::into),
            node_reclaim: self.node_reclaim.map_or(node_reclaim, Into::into),
            reclaim_distance: self.reclaim_distance.unwrap_or(default.reclaim_distance),
            min_unmapped_percent: self.min_unmapped_ratio.unwrap_or(settings.min_unmapped_percent),
            free_area_min: match self.free_areas {
                Some(FreeAreaCount::One) => widest,
                _ => default.free_area_min,
            },
            counters: self.counters.rules(),
            stat_interval: self.stat_interval.map_or(default.stat_interval, |Seconds(interval)| interval),
            ..default
        }
    }
}

impl Counters {
    fn rules(self) -> CounterRules {
        let default = CounterRules::default();
        CounterRules {
            threshold: match self.threshold {
                Some(Threshold::Fixed(threshold)) => ThresholdRule::Fixed(threshold),
                Some(Threshold::Named(ScaledThreshold::FirstPosting)) => ThresholdRule::FirstPosting,
                Some(Threshold::Named(ScaledThreshold::Scaled)) | None => ThresholdRule::Scaled,
            },
            fold: match self.fold {
                Some(Fold::ToZero) => FoldRule::ToZero,
                Some(Fold::Overstep) => FoldRule::Overstep,
                None => default.fold,
            },
            totals: match self.totals {
                Some(Totals::AndMachine) => TotalsRule::AndMachine,
                Some(Totals::PerNode) => TotalsRule::PerNode,
                None => default.totals,
            },
            pressure: match self.pressure {
                Some(Pressure::Unchanged) => PressureRule::Unchanged,
                Some(Pressure::Lowered) => PressureRule::Lowered,
                None => default.pressure,
            },
        }
    }
}

/// Refuses a value of `min_free_kbytes` that exceeds the machine's managed memory.
pub(super) fn check_min_free(config: &Config, model: &MachineModel) -> Result<(), ConfigError> {
    let managed: PageCount = model.zones.iter().map(|zone| zone.managed).sum();
    match config.watermarks.min_free {
        Some(min_free) if min_free > managed => Err(ConfigError::MinFree { min_free, managed }),
        _ => Ok(()),
    }
}

/// Returns the key whose value the allocator refuses.
pub(super) fn key_of(error: &ConfigError) -> Option<&'static str> {
    match error {
        ConfigError::MinFree { .. } => Some("min_free_kbytes"),
        ConfigError::CounterThreshold(_) => Some("counters"),
        ConfigError::Percent(_) => Some("min_unmapped_ratio"),
        _ => None,
    }
}

impl From<ReclaimMode> for NodeReclaim {
    fn from(mode: ReclaimMode) -> Self {
        match mode {
            ReclaimMode::Named(Switch::On) => Self::ON,
            ReclaimMode::Named(Switch::Off) => Self::OFF,
            ReclaimMode::Number(ModeNumber(mode)) => mode,
        }
    }
}

impl TryFrom<u32> for ModeNumber {
    type Error = ConfigError;

    fn try_from(mode: u32) -> Result<Self, ConfigError> {
        NodeReclaim::from_mode(mode).map(Self)
    }
}

impl TryFrom<u32> for Seconds {
    type Error = String;

    fn try_from(seconds: u32) -> Result<Self, String> {
        let allowed = || format!("{seconds} seconds; allowed values are 1 to {}", u32::MAX);
        StatInterval::from_seconds(seconds).map(Self).ok_or_else(allowed)
    }
}

impl From<Switch> for CpuPenalty {
    fn from(switch: Switch) -> Self {
        if switch == Switch::On { Self::On } else { Self::Off }
    }
}

impl From<Tuning> for PagesetTuning {
    fn from(tuning: Tuning) -> Self {
        match tuning {
            Tuning::Depth => Self::Depth,
            Tuning::DepthPublished => Self::DepthPublished,
            Tuning::Stepwise => Self::Stepwise,
            Tuning::Fixed => Self::Fixed,
        }
    }
}

impl From<CacheMode> for ZonelistCache {
    fn from(cache: CacheMode) -> Self {
        match cache {
            CacheMode::On => Self::On,
            CacheMode::Published => Self::Published,
            CacheMode::CacheFirst => Self::CacheFirst,
            CacheMode::Original => Self::Original,
            CacheMode::Off => Self::Off,
        }
    }
}

impl From<Load> for NodeLoad {
    fn from(load: Load) -> Self {
        match load {
            Load::Accumulate => Self::Accumulate,
            Load::Remaining => Self::AccumulateRemaining,
            Load::Assign => Self::Assign,
        }
    }
}
