//! The allocator's settings, under the names that experiment files use.
//!
//! If a file omits a setting, its value is taken from the machine's settings or, if they do not contain it, from the
//! allocator's default. Related files: `experiment/resolve.rs` reads the settings, `zonal::Config` documents them.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use zonal::config::{NodeReclaim, StatInterval, ZonelistCache};
use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::rules::watermarks::MovableMin;
use zonal::settings::{NamedRule, Setting, SettingValue};
use zonal::units::PageCount;
use zonal::{Config, error::ConfigError};
use zonal_machine::MachineModel;

/// The contents of a `config` table; all keys are optional.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Choices {
    tuning: Option<Named<PagesetTuning>>,
    zonelist_cache: Option<Named<ZonelistCache>>,
    node_reclaim: Option<ReclaimMode>,
    node_load: Option<Named<NodeLoad>>,
    cpu_penalty: Option<Switch>,
    high_fraction: Option<HighFraction>,
    free_areas: Option<FreeAreaCount>,
    min_free_kbytes: Option<MinFree>,
    watermark_scale_factor: Option<ScaleFactor>,
    reclaim_distance: Option<Distance>,
    min_unmapped_ratio: Option<UnmappedRatio>,
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
    Number(Mode),
}

/// A rule, by its name in the table of settings.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Named<R>(R);

/// A number within the range that the settings table has for the setting at this place of [`Setting::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number<const SETTING: usize>(u64);

type Mode = Number<{ Setting::ZoneReclaimMode as usize }>;
type MinFree = Number<{ Setting::MinFreeKbytes as usize }>;
type ScaleFactor = Number<{ Setting::WatermarkScaleFactor as usize }>;
type HighFraction = Number<{ Setting::PercpuPagelistHighFraction as usize }>;
type Distance = Number<{ Setting::ReclaimDistance as usize }>;
type UnmappedRatio = Number<{ Setting::MinUnmappedRatio as usize }>;
type Seconds = Number<{ Setting::StatInterval as usize }>;

/// Free areas per zone; each free area has its own lock.
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
        settings.min_free_kib = self.min_free_kbytes.map(|Number(kib)| kib).or(settings.min_free_kib);
        settings.watermark_scale_factor = self
            .watermark_scale_factor
            .map_or(settings.watermark_scale_factor, |Number(factor)| factor as u32);
        let node_reclaim = NodeReclaim::from_mode(settings.zone_reclaim_mode & 7).unwrap_or_default();
        let widest = model.zones.iter().map(|zone| zone.spanned).max().unwrap_or(PageCount::ZERO);
        Config {
            page_bytes: model.page_bytes,
            watermarks: settings.watermarks(model.page_bytes, MovableMin::default()),
            node_load: self.node_load.map_or(default.node_load, |Named(rule)| rule),
            cpu_penalty: self.cpu_penalty.map_or(model.cpu_penalty(), Into::into),
            tuning: self.tuning.map_or(default.tuning, |Named(rule)| rule),
            high_fraction: self
                .high_fraction
                .map_or(settings.high_fraction, |Number(fraction)| fraction as u32),
            zonelist_cache: self.zonelist_cache.map_or(default.zonelist_cache, |Named(rule)| rule),
            node_reclaim: self.node_reclaim.map_or(node_reclaim, Into::into),
            reclaim_distance: self
                .reclaim_distance
                .map_or(default.reclaim_distance, |Number(distance)| distance as u8),
            min_unmapped_percent: self
                .min_unmapped_ratio
                .map_or(settings.min_unmapped_percent, |Number(percent)| percent as u8),
            free_area_min: match self.free_areas {
                Some(FreeAreaCount::One) => widest,
                _ => default.free_area_min,
            },
            counters: self.counters.rules(),
            stat_interval: self.stat_interval.map_or(default.stat_interval, |Number(seconds)| {
                StatInterval::from_seconds(seconds as u32).unwrap_or_default()
            }),
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
            ReclaimMode::Number(Number(mode)) => Self::from_mode(mode as u32).unwrap_or_default(),
        }
    }
}

impl From<Switch> for CpuPenalty {
    fn from(switch: Switch) -> Self {
        if switch == Switch::On { Self::On } else { Self::Off }
    }
}

impl<'de, R: NamedRule> Deserialize<'de> for Named<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        R::from_name(&name).map(Self).map_err(|_| refused(R::SETTING, format_args!("`{name}`")))
    }
}

impl<'de, const SETTING: usize> Deserialize<'de> for Number<SETTING> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (setting, number) = (Setting::ALL[SETTING], i64::deserialize(deserializer)?);
        match setting.parse(&number.to_string()) {
            Ok(SettingValue::Number(number)) => Ok(Self(number)),
            _ => Err(refused(setting, format_args!("{number}"))),
        }
    }
}

/// Creates the error for a value that a setting cannot have. The reader adds the key, whose name may differ from the
/// name of the setting.
fn refused<E: de::Error>(setting: Setting, value: fmt::Arguments<'_>) -> E {
    E::custom(format_args!("cannot be {value}; allowed: {}", setting.info().values))
}
