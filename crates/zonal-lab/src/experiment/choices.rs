//! The allocator's settings, under the names that experiment files use.
//!
//! If a file omits a setting, its value is taken from the machine's settings or, if they do not contain it, from the
//! allocator's default. Related files: `experiment/resolve.rs` reads the settings, `zonal::Config` documents them.

use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use zonal::rules::fallback_order::CpuPenalty;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::settings::{Access, Setting, SettingValues};
use zonal::units::PageCount;
use zonal::{Config, error::ConfigError};
use zonal_history::FirstPosting;
use zonal_machine::MachineModel;

/// Settings that experiment files name differently.
const NAMES: [(&str, Setting); 3] = [
    ("tuning", Setting::PagesetTuning),
    ("node_reclaim", Setting::ZoneReclaimMode),
    ("high_fraction", Setting::PercpuPagelistHighFraction),
];
const CPU_PENALTY: &str = "cpu_penalty";
const FREE_AREAS: &str = "free_areas";
const COUNTERS: &str = "counters";

/// The contents of a `config` table; all keys are optional.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Choices {
    /// Settings in the table, with values that [`Setting::parse`] accepts.
    settings: Vec<(Setting, String)>,
    cpu_penalty: Option<Switch>,
    free_areas: Option<FreeAreaCount>,
    counters: Counters,
}

/// A key of a `config` table, and its setting if the settings table has it.
#[derive(Clone, Copy)]
struct Key(&'static str, Option<Setting>);

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
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be \"on\", \"off\" or a mode from 0 to 7")]
enum ReclaimMode {
    Named(Switch),
    Number(#[serde(deserialize_with = "mode")] String),
}

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
        let widest = model.zones.iter().map(|zone| zone.spanned).max().unwrap_or(PageCount::ZERO);
        let mut config = model.config();
        config.cpu_penalty = self.cpu_penalty.map_or(config.cpu_penalty, Into::into);
        config.counters = self.counters.rules();
        if self.free_areas == Some(FreeAreaCount::One) {
            config.free_area_min = widest;
        }
        for (setting, value) in &self.settings {
            config.set(setting.info().name, value).expect("reading the file has checked the value");
        }
        config
    }
}

impl Counters {
    fn rules(self) -> CounterRules {
        let default = CounterRules::default();
        CounterRules {
            threshold: match self.threshold {
                Some(Threshold::Fixed(threshold)) => ThresholdRule::Fixed(threshold),
                Some(Threshold::Named(ScaledThreshold::FirstPosting)) => FirstPosting::RULE,
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

/// Returns the values of a configuration by key, in the order of the keys.
pub(super) fn values(config: &Config, model: &MachineModel) -> Vec<(&'static str, String)> {
    let widest = model.zones.iter().map(|zone| zone.spanned).max().unwrap_or(PageCount::ZERO);
    let value = |Key(name, setting)| match (name, setting) {
        (_, Some(setting)) => config.get(setting).to_string(),
        (CPU_PENALTY, _) => if config.cpu_penalty == CpuPenalty::On { "on" } else { "off" }.to_owned(),
        (FREE_AREAS, _) => if config.free_area_min >= widest { "one" } else { "many" }.to_owned(),
        _ => counters_text(&config.counters),
    };
    keys().map(|key| (key.0, value(key))).collect()
}

/// Formats rules of counters as in files: `threshold 32, to-zero, and-machine, lowered`.
fn counters_text(rules: &CounterRules) -> String {
    let threshold = match rules.threshold {
        ThresholdRule::Scaled => "scaled".to_owned(),
        ThresholdRule::Fixed(threshold) => threshold.to_string(),
        ThresholdRule::Form(form) => form.name().to_owned(),
    };
    let fold = if rules.fold == FoldRule::ToZero { "to-zero" } else { "overstep" };
    let totals = if rules.totals == TotalsRule::AndMachine { "and-machine" } else { "per-node" };
    let pressure = if rules.pressure == PressureRule::Unchanged { "unchanged" } else { "lowered" };
    format!("threshold {threshold}, {fold}, {totals}, {pressure}")
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
        _ => None,
    }
}

impl From<Switch> for CpuPenalty {
    fn from(switch: Switch) -> Self {
        if switch == Switch::On { Self::On } else { Self::Off }
    }
}

/// Returns all keys: those of settings that a configuration can have, and others.
fn keys() -> impl Iterator<Item = Key> {
    let others = Setting::ALL.into_iter().filter(|setting| {
        setting.info().access != Access::WriteOnly && NAMES.iter().all(|(_, named)| named != setting)
    });
    let settings = NAMES.into_iter().chain(others.map(|setting| (setting.info().name, setting)));
    let settings = settings.map(|(name, setting)| Key(name, Some(setting)));
    settings.chain([CPU_PENALTY, FREE_AREAS, COUNTERS].map(|name| Key(name, None)))
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        keys().find(|Self(name, _)| *name == key).ok_or_else(|| {
            let names: Vec<String> = keys().map(|Self(name, _)| format!("`{name}`")).collect();
            de::Error::custom(format_args!("unknown field `{key}`, expected one of {}", names.join(", ")))
        })
    }
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(key) = map.next_key()? {
                    match key {
                        Key(_, Some(setting)) => {
                            choices.settings.push((setting, map.next_value_seed(ValueOf(setting))?));
                        }
                        Key(CPU_PENALTY, _) => choices.cpu_penalty = Some(map.next_value()?),
                        Key(FREE_AREAS, _) => choices.free_areas = Some(map.next_value()?),
                        _ => choices.counters = map.next_value()?,
                    }
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Reads the value of a setting as text that [`Setting::parse`] accepts.
struct ValueOf(Setting);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let Self(setting) = self;
        match setting.info().values {
            _ if setting == Setting::ZoneReclaimMode => {
                ReclaimMode::deserialize(deserializer).map(|mode| match mode {
                    ReclaimMode::Named(switch) => u8::from(switch == Switch::On).to_string(),
                    ReclaimMode::Number(mode) => mode,
                })
            }
            SettingValues::Number { .. } | SettingValues::NumberOrAuto { .. } => {
                number(setting, deserializer)
            }
            _ => {
                let text = String::deserialize(deserializer)?;
                check(setting, &text, format_args!("`{text}`"))?;
                Ok(text)
            }
        }
    }
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    number(Setting::ZoneReclaimMode, deserializer)
}

fn number<'de, D: Deserializer<'de>>(setting: Setting, deserializer: D) -> Result<String, D::Error> {
    let text = i64::deserialize(deserializer)?.to_string();
    check(setting, &text, format_args!("{text}"))?;
    Ok(text)
}

/// Refuses a value that a setting cannot have. The reader adds the key, whose name may differ from the setting's.
fn check<E: de::Error>(setting: Setting, text: &str, shown: fmt::Arguments<'_>) -> Result<(), E> {
    let wrong = |_| E::custom(format_args!("cannot be {shown}; allowed: {}", setting.info().values));
    setting.parse(text).map(|_| ()).map_err(wrong)
}
