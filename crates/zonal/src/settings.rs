//! Settings by name: their names, ranges, defaults and meanings, the values that they can have, and errors.
//!
//! Settings that Linux has too have the names of its sysctls. Related files: `settings/table.rs` has an entry for each
//! setting, `config.rs` the same settings as typed fields, and `admin/settings.rs` changes them at run time.

mod at_creation;
mod named_rule;
mod table;

use core::fmt;
use core::ops::RangeInclusive;

use crate::error::ConfigError;
use crate::units::ZoneKind;
pub use named_rule::NamedRule;
pub(crate) use table::Affects;
pub use table::Setting;
use table::{FieldAccess, TABLE};

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

messages! {
    /// Why a setting was not read or changed. On an error, nothing has changed.
    pub enum SettingError: core::error::Error {
        /// No setting has this name.
        Unknown {
            /// Start of the name.
            name: Excerpt,
        } =>
            { |f| {
                write!(f, "no setting is named `{name}`; the ")?;
                match nearest(name.text()) {
                    Some(setting) => write!(f, "nearest name is {setting}"),
                    None => write!(f, "settings are {}", Names(Setting::ALL.iter())),
                }
            } },
        /// The value is not one that the setting can have.
        Value {
            /// The setting.
            setting: Setting,
            /// Start of the value.
            value: Excerpt,
        } => ("{setting} cannot be `{value}`; allowed: {}", setting.info().values),
        /// The setting cannot be changed at run time.
        ReadOnly(setting: Setting) =>
            "{setting} cannot be changed at run time; it is chosen when the allocator is created",
        /// The setting has no value that could be read.
        WriteOnly(setting: Setting) => "{setting} has no value; it can only be set",
        /// The setting is an action of a running allocator, so a configuration cannot have it.
        NotYet(setting: Setting) => "{setting} can only be set once the allocator exists",
        /// The value is not possible on this machine.
        Refused {
            /// The setting.
            setting: Setting,
            /// The reason.
            why: ConfigError,
        } => "{setting} was not changed: {why}",
    }
}

impl Setting {
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
        &TABLE[self as usize].info
    }

    /// Returns the functions that read and write the configuration field, unless the setting is an action.
    fn field(self) -> Option<FieldAccess> {
        TABLE[self as usize].field
    }

    /// Returns what a running allocator recomputes if the setting changes.
    pub(crate) fn affects(self) -> Affects {
        TABLE[self as usize].affects
    }

    /// Whether the setting has a file in `/proc/sys/vm` that can be read.
    pub(crate) fn is_sysctl(self) -> bool {
        TABLE[self as usize].is_sysctl && self.info().access != Access::WriteOnly
    }

    /// Reads a value of this setting from text.
    ///
    /// # Errors
    /// [`SettingError::Value`] when the text is not one of [`SettingInfo::values`].
    pub fn parse(self, text: &str) -> Result<SettingValue, SettingError> {
        let wrong = SettingError::Value { setting: self, value: Excerpt::new(text) };
        let text = text.trim();
        let values = &self.info().values;
        let within = |range: RangeInclusive<u64>| text.parse().ok().filter(|number| range.contains(number));
        let value = match values {
            SettingValues::NumberOrAuto { .. } if text == "auto" => Some(SettingValue::Auto),
            SettingValues::Number { .. } | SettingValues::NumberOrAuto { .. } => {
                values.range().and_then(within).map(SettingValue::Number)
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

impl SettingValues {
    /// Returns the smallest and the largest number, if the values are numbers.
    #[must_use]
    pub const fn range(&self) -> Option<RangeInclusive<u64>> {
        match *self {
            Self::Number { min, max, .. } | Self::NumberOrAuto { min, max, .. } => Some(min..=max),
            Self::PerKind | Self::Names(_) | Self::Any => None,
        }
    }
}

impl SettingValue {
    /// Returns the number, if the value is one.
    #[must_use]
    pub const fn number(self) -> Option<u64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }
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

/// The first bytes of a text that an error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Excerpt {
    bytes: [u8; Excerpt::BYTES],
    length: u8,
    is_cut: bool,
}

impl Excerpt {
    const BYTES: usize = 48;

    fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self { bytes, length: end as u8, is_cut: end < text.len() }
    }

    fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Prints the text within one line.
impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text().escape_debug())?;
        f.write_str(if self.is_cut { "..." } else { "" })
    }
}

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
            (Setting::ZonelistCache, "ON", "allowed: on, published, cache-first, original, 2006, off"),
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
        assert!(error.ends_with("the settings are min_free_kbytes, watermark_scale_factor, lowmem_reserve_ratio, movable_min, zone_reclaim_mode, reclaim_distance, min_unmapped_ratio, percpu_pagelist_high_fraction, pageset_tuning, zonelist_cache, stat_interval, stat_refresh, node_load, invalid_free, owned_blocks"), "{error}");
        assert_eq!(nearest(""), None);
        assert_eq!(changes(b"kitten", b"sitting"), 3);
        assert_eq!(changes(b"", b"abc"), 3);
        assert_eq!(changes(b"abc", b""), 3);
    }
}
