//! The table of settings: their names, ranges, defaults and meanings, for programs that set them by name.
//!
//! Settings that Linux has too have the names of its sysctls. Related files: `config.rs` has the same settings as typed
//! fields, and `admin/settings_by_name.rs` reads and changes them at run time.

pub(crate) mod at_creation;
mod excerpt;
mod named_rule;

use core::fmt;

use crate::error::ConfigError;
use crate::units::ZoneKind;
pub use excerpt::Excerpt;
pub use named_rule::NamedRule;

/// A setting of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Setting {
    /// `min_free_kbytes`: see [`WatermarkSettings::min_free`](crate::rules::watermarks::WatermarkSettings::min_free).
    MinFreeKbytes,
    /// `watermark_scale_factor`.
    WatermarkScaleFactor,
    /// `lowmem_reserve_ratio`.
    LowmemReserveRatio,
    /// `movable_min`: see [`MovableMin`](crate::rules::watermarks::MovableMin).
    MovableMin,
    /// `zone_reclaim_mode`: see [`NodeReclaim`](crate::config::NodeReclaim).
    ZoneReclaimMode,
    /// `reclaim_distance`: see [`Config::reclaim_distance`](crate::Config::reclaim_distance).
    ReclaimDistance,
    /// `min_unmapped_ratio`: see [`Config::min_unmapped_percent`](crate::Config::min_unmapped_percent).
    MinUnmappedRatio,
    /// `percpu_pagelist_high_fraction`: see [`Config::high_fraction`](crate::Config::high_fraction).
    PercpuPagelistHighFraction,
    /// `pageset_tuning`: see [`PagesetTuning`](crate::rules::pageset_tuning::PagesetTuning).
    PagesetTuning,
    /// `zonelist_cache`: see [`ZonelistCache`](crate::config::ZonelistCache).
    ZonelistCache,
    /// `stat_interval`: see [`StatInterval`](crate::config::StatInterval).
    StatInterval,
    /// `stat_refresh`: see [`Allocator::stat_refresh`](crate::Allocator::stat_refresh).
    StatRefresh,
    /// `node_load`: see [`NodeLoad`](crate::rules::fallback_order::NodeLoad).
    NodeLoad,
    /// `invalid_free`: see [`InvalidFree`](crate::config::InvalidFree).
    InvalidFree,
}

/// The description of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettingInfo {
    /// Name, as in `/proc/sys/vm` where Linux has the setting.
    pub name: &'static str,
    /// What the setting does, in one sentence.
    pub summary: &'static str,
    /// Values that can be set.
    pub values: SettingValues,
    /// Value of an allocator with the default configuration, in the form in which it is set.
    pub default: &'static str,
    /// Whether the setting can be read and changed at run time.
    pub access: Access,
}

/// The values of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingValues {
    /// A whole number within `min..=max`.
    Number {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// Unit, or an empty text for a plain number.
        unit: &'static str,
    },
    /// A number as in `Number`, or `auto` for the value that is computed from the size of the machine.
    NumberOrAuto {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// Unit.
        unit: &'static str,
    },
    /// A whole number for each kind of zone (DMA, DMA32, Normal, Movable), separated by spaces or commas. A fifth number
    /// is accepted and ignored, because Linux prints one for device memory.
    PerKind,
    /// One of these names.
    Names(&'static [&'static str]),
    /// Any text, which is ignored.
    Any,
}

/// Whether a setting can be read and changed at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The setting can be read and changed.
    ReadWrite,
    /// The setting can only be read; it is chosen when the allocator is created.
    ReadOnly,
    /// The setting can only be set.
    WriteOnly,
}

/// The value of a setting. Its text ([`Display`](fmt::Display)) can be set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingValue {
    /// A number.
    Number(u64),
    /// The value is computed from the size of the machine.
    Auto,
    /// A number for each kind of zone, in the order of [`ZoneKind::ALL`].
    PerKind([u32; ZoneKind::COUNT]),
    /// A name of [`SettingValues::Names`].
    Name(&'static str),
    /// No value, for a setting that is only set.
    None,
}

/// Why a setting was not read or changed. On an error, nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingError {
    /// No setting has this name.
    Unknown {
        /// Start of the name.
        name: Excerpt,
    },
    /// The value is not one that the setting can have.
    Value {
        /// The setting.
        setting: Setting,
        /// Start of the value.
        value: Excerpt,
    },
    /// The setting cannot be changed at run time.
    ReadOnly(Setting),
    /// The setting has no value that could be read.
    WriteOnly(Setting),
    /// The setting is an action of a running allocator, so a configuration cannot have it.
    NotYet(Setting),
    /// The value is not possible on this machine.
    Refused {
        /// The setting.
        setting: Setting,
        /// The reason.
        why: ConfigError,
    },
}

const fn info(
    name: &'static str,
    values: SettingValues,
    default: &'static str,
    summary: &'static str,
) -> SettingInfo {
    SettingInfo { name, summary, values, default, access: Access::ReadWrite }
}

const fn number(max: u64) -> SettingValues {
    SettingValues::Number { min: 0, max, unit: "" }
}

/// All settings, in the order of [`Setting::ALL`].
static TABLE: [SettingInfo; Setting::ALL.len()] = [
    info(
        "min_free_kbytes",
        SettingValues::NumberOrAuto { min: 0, max: u64::MAX >> 10, unit: "KiB" },
        "auto",
        "Sum of the watermarks `min` of all zones, rounded down to whole frames.",
    ),
    info(
        "watermark_scale_factor",
        SettingValues::Number { min: 1, max: 3000, unit: "1/10000 of a zone" },
        "10",
        "Least distance between the watermarks of a zone; pools of Linux memory begin with 100 to 500.",
    ),
    info(
        "lowmem_reserve_ratio",
        SettingValues::PerKind,
        "256 256 32 0",
        "Divisor of the reserve that a zone keeps from requests that higher zones can serve; 0 is no reserve.",
    ),
    info(
        "movable_min",
        SettingValues::Names(&["own", "ordinary"]),
        "own",
        "Whether movable zones have a small `min` of their own or a share of the machine's.",
    ),
    info(
        "zone_reclaim_mode",
        number(7),
        "0",
        "Whether nearby nodes are reclaimed before others serve a request (1), with writing (2) and unmapping (4).",
    ),
    info("reclaim_distance", number(255), "30", "Largest distance of a node that node reclaim covers."),
    info(
        "min_unmapped_ratio",
        SettingValues::Number { min: 0, max: 100, unit: "%" },
        "1",
        "Share of a node that must be reclaimable before node reclaim runs.",
    ),
    info(
        "percpu_pagelist_high_fraction",
        number(u32::MAX as u64),
        "0",
        "Fraction of a zone that fixes the size of its pagesets; 0 selects tuning.",
    ),
    info(
        "pageset_tuning",
        SettingValues::Names(&["depth", "depth-published", "stepwise", "fixed"]),
        "depth",
        "The rule that tunes the size of pagesets.",
    ),
    info(
        "zonelist_cache",
        SettingValues::Names(&["on", "published", "cache-first", "original", "off"]),
        "on",
        "How requests skip zones that were full recently.",
    ),
    info(
        "stat_interval",
        SettingValues::Number { min: 1, max: u32::MAX as u64, unit: "s" },
        "1",
        "Time after which per-CPU counter differences are folded into the totals.",
    ),
    SettingInfo {
        access: Access::WriteOnly,
        ..info("stat_refresh", SettingValues::Any, "", "Folds all per-CPU counter differences now.")
    },
    SettingInfo {
        access: Access::ReadOnly,
        ..info(
            "node_load",
            SettingValues::Names(&["accumulate", "remaining", "assign"]),
            "accumulate",
            "How the load of nodes grows while fallback orders are built.",
        )
    },
    SettingInfo {
        access: Access::ReadOnly,
        ..info(
            "invalid_free",
            SettingValues::Names(&["checked", "exact"]),
            "exact",
            "How frees of frames that are not allocated are detected.",
        )
    },
];

impl Setting {
    /// All settings.
    pub const ALL: [Self; 14] = [
        Self::MinFreeKbytes,
        Self::WatermarkScaleFactor,
        Self::LowmemReserveRatio,
        Self::MovableMin,
        Self::ZoneReclaimMode,
        Self::ReclaimDistance,
        Self::MinUnmappedRatio,
        Self::PercpuPagelistHighFraction,
        Self::PagesetTuning,
        Self::ZonelistCache,
        Self::StatInterval,
        Self::StatRefresh,
        Self::NodeLoad,
        Self::InvalidFree,
    ];

    /// Returns the setting with this name.
    ///
    /// ```
    /// use zonal::settings::Setting;
    /// assert_eq!(Setting::named("min_free_kbytes")?, Setting::MinFreeKbytes);
    /// let error = Setting::named("min_free_kbyte").unwrap_err();
    /// assert_eq!(error.to_string(), "no setting is named `min_free_kbyte`; the nearest name is min_free_kbytes");
    /// # Ok::<(), zonal::settings::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// [`SettingError::Unknown`], whose text has the nearest name.
    pub fn named(name: &str) -> Result<Self, SettingError> {
        let found = Self::ALL.into_iter().find(|setting| setting.info().name == name);
        found.ok_or(SettingError::Unknown { name: Excerpt::new(name) })
    }

    /// Returns the description of the setting.
    #[must_use]
    pub const fn info(self) -> &'static SettingInfo {
        &TABLE[self as usize]
    }

    /// Reads a value of this setting from text.
    ///
    /// # Errors
    /// [`SettingError::Value`] when the text is not one of [`SettingInfo::values`].
    pub fn parse(self, text: &str) -> Result<SettingValue, SettingError> {
        let wrong = SettingError::Value { setting: self, value: Excerpt::new(text) };
        let text = text.trim();
        let within = |min: u64, max: u64| {
            let number = text.parse().ok().filter(|number| (min..=max).contains(number));
            number.map(SettingValue::Number)
        };
        let value = match self.info().values {
            SettingValues::NumberOrAuto { .. } if text == "auto" => Some(SettingValue::Auto),
            SettingValues::Number { min, max, .. } | SettingValues::NumberOrAuto { min, max, .. } => {
                within(min, max)
            }
            SettingValues::PerKind => per_kind(text).map(SettingValue::PerKind),
            SettingValues::Names(names) => {
                names.iter().find(|&&name| name == text).map(|&name| SettingValue::Name(name))
            }
            SettingValues::Any => Some(SettingValue::None),
        };
        value.ok_or(wrong)
    }
}

/// Reads a number for each kind of zone, and ignores one more.
fn per_kind(text: &str) -> Option<[u32; ZoneKind::COUNT]> {
    let mut numbers = [0; ZoneKind::COUNT + 1];
    let mut count = 0;
    for part in text.split([' ', '\t', ',']).filter(|part| !part.is_empty()) {
        *numbers.get_mut(count)? = part.parse().ok()?;
        count += 1;
    }
    (count >= ZoneKind::COUNT).then(|| core::array::from_fn(|at| numbers[at]))
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Auto => f.write_str("auto"),
            Self::PerKind([first, rest @ ..]) => {
                first.fmt(f)?;
                rest.iter().try_for_each(|number| write!(f, " {number}"))
            }
            Self::Name(name) => f.write_str(name),
            Self::None => Ok(()),
        }
    }
}

/// Prints which values are allowed, as in "a number from 0 to 7".
impl fmt::Display for SettingValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { min, max, unit } | Self::NumberOrAuto { min, max, unit } => {
                write!(f, "a number from {min} to {max}")?;
                if !unit.is_empty() {
                    write!(f, " ({unit})")?;
                }
                f.write_str(if matches!(self, Self::Number { .. }) { "" } else { ", or auto" })
            }
            Self::PerKind => f.write_str("a number for each of DMA, DMA32, Normal and Movable"),
            Self::Names(names) => Names(names.iter()).fmt(f),
            Self::Any => f.write_str("any text"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "no setting is named `{name}`; the ")?;
                match nearest(name.text()) {
                    Some(setting) => write!(f, "nearest name is {setting}"),
                    None => write!(f, "settings are {}", Names(Setting::ALL.iter())),
                }
            }
            Self::Value { setting, value } => {
                write!(f, "{setting} cannot be `{value}`; allowed: {}", setting.info().values)
            }
            Self::ReadOnly(setting) => {
                write!(
                    f,
                    "{setting} cannot be changed at run time; it is chosen when the allocator is created"
                )
            }
            Self::WriteOnly(setting) => write!(f, "{setting} has no value; it can only be set"),
            Self::NotYet(setting) => write!(f, "{setting} can only be set once the allocator exists"),
            Self::Refused { setting, why } => write!(f, "{setting} was not changed: {why}"),
        }
    }
}

impl core::error::Error for SettingError {}

/// Prints names with commas between them.
struct Names<I>(I);

impl<I: Iterator<Item: fmt::Display> + Clone> fmt::Display for Names<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.0.clone().try_for_each(|name| {
            write!(f, "{separator}{name}")?;
            separator = ", ";
            Ok(())
        })
    }
}

/// Returns the setting whose name needs the fewest changes of characters to become `name`, if at least half of the
/// characters remain.
fn nearest(name: &str) -> Option<Setting> {
    let changes = |setting: Setting| changes(name.as_bytes(), setting.info().name.as_bytes());
    let (fewest, nearest) =
        Setting::ALL.map(|setting| (changes(setting), setting)).into_iter().min_by_key(|found| found.0)?;
    (fewest <= name.len() / 2).then_some(nearest)
}

/// Returns the number of characters to insert, remove or replace to get from `from` to `to` (the edit distance of
/// Levenshtein 1966). Both are at most as long as an excerpt.
fn changes(from: &[u8], to: &[u8]) -> usize {
    let mut row: [usize; Excerpt::BYTES + 1] = core::array::from_fn(|at| at);
    for (at, have) in from.iter().enumerate() {
        let (mut diagonal, mut left) = (row[0], at + 1);
        row[0] = left;
        for (cell, want) in row[1..].iter_mut().zip(to) {
            let replaced = diagonal + usize::from(have != want);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::ToString;

    #[test]
    fn every_setting_has_its_row_and_accepts_its_default() {
        for (at, setting) in Setting::ALL.into_iter().enumerate() {
            assert_eq!(setting as usize, at);
            let info = setting.info();
            assert_eq!(Setting::named(info.name), Ok(setting));
            let default = setting.parse(info.default).unwrap();
            assert_eq!(default.to_string(), info.default, "{setting}");
            assert!(info.summary.ends_with('.') && info.name.len() <= Excerpt::BYTES);
        }
    }

    #[test]
    fn wrong_values_are_quoted_with_the_allowed_ones() {
        for (setting, text, expected) in [
            (Setting::ZoneReclaimMode, "9", "zone_reclaim_mode cannot be `9`; allowed: a number from 0 to 7"),
            (Setting::ZoneReclaimMode, "-1", "`-1`"),
            (Setting::MinFreeKbytes, "64MiB", "(KiB), or auto"),
            (Setting::StatInterval, "0", "a number from 1 to 4294967295 (s)"),
            (Setting::ZonelistCache, "ON", "allowed: on, published, cache-first, original, off"),
            (Setting::LowmemReserveRatio, "256 256 32", "each of DMA, DMA32, Normal and Movable"),
            (Setting::LowmemReserveRatio, "256 256 32 0 0 0", "`256 256 32 0 0 0`"),
            (Setting::LowmemReserveRatio, "256 256 32 x", "`256 256 32 x`"),
            (Setting::WatermarkScaleFactor, "", "``"),
            (Setting::MovableMin, "a\nb", "`a\\nb`"),
        ] {
            let error = setting.parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let long = "ä".repeat(100);
        let error = Setting::MovableMin.parse(&long).unwrap_err().to_string();
        assert!(error.contains(&format!("`{}...`", "ä".repeat(24))), "{error}");
        assert_eq!(Setting::LowmemReserveRatio.parse("1\t2, 3 4 5"), Ok(SettingValue::PerKind([1, 2, 3, 4])));
    }

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        for (wrong, right) in [
            ("vm.min_free_kbytes", "min_free_kbytes"),
            ("stat_reflesh", "stat_refresh"),
            ("pagesettuning", "pageset_tuning"),
            ("Zonelist_cache", "zonelist_cache"),
        ] {
            assert_eq!(nearest(wrong).unwrap().info().name, right, "{wrong}");
        }
        let error = Setting::named("swappiness").unwrap_err().to_string();
        assert!(error.ends_with("the settings are min_free_kbytes, watermark_scale_factor, lowmem_reserve_ratio, movable_min, zone_reclaim_mode, reclaim_distance, min_unmapped_ratio, percpu_pagelist_high_fraction, pageset_tuning, zonelist_cache, stat_interval, stat_refresh, node_load, invalid_free"), "{error}");
        assert_eq!(nearest(""), None);
        assert_eq!(changes(b"kitten", b"sitting"), 3);
        assert_eq!(changes(b"", b"abc"), 3);
        assert_eq!(changes(b"abc", b""), 3);
    }
}
