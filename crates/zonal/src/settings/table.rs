//! The table of settings: one entry for each, with everything that is known about it.
//!
//! An entry has the name, the allowed values, the default, the [`Config`] field and what depends on the setting.
//! [`Setting`], the parsers, the texts and the access to configurations and running allocators are made from the
//! entries, so a new setting needs an entry here and the code that obeys it.
//!
//! Related file: `zone/shared.rs` stores a running allocator's values.

use super::{Access, NamedRule, SettingInfo, SettingValue, SettingValues};
use crate::Config;
use crate::config::{InvalidFree, NodeReclaim, OwnedBlocks, StatInterval, ZonelistCache};
use crate::rules::fallback_order::NodeLoad;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::watermarks::MovableMin;
use crate::units::{PageCount, ZoneKind};

/// An entry of the table.
pub(super) struct Row {
    pub(super) info: SettingInfo,
    /// Whether Linux has the setting in `/proc/sys/vm`.
    pub(super) is_sysctl: bool,
    pub(super) affects: Affects,
    /// Reads and writes the configuration field. The setting is an action if it has no field.
    pub(super) field: Option<FieldAccess>,
}

/// Functions that read and write a configuration field.
pub(super) type FieldAccess = (fn(&Config) -> SettingValue, fn(&mut Config, SettingValue));

/// What a running allocator recomputes if a setting changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Affects {
    /// Nothing, because the setting is read when it is used.
    Nothing,
    /// Watermarks, reserves and pageset limits.
    Watermarks,
    /// Pageset limits, and tuning restarts.
    Pagesets,
    /// Which zones count as full.
    FullZones,
}

/// A field type that a setting can set.
trait Field {
    /// Returns the field as a setting value.
    fn to_value(&self, page_bytes: u32) -> SettingValue;

    /// Returns the field for a value that [`Setting::parse`] or [`Self::to_value`] returned.
    fn from_value(value: SettingValue, page_bytes: u32) -> Self;
}

impl<R: NamedRule> Field for R {
    fn to_value(&self, _: u32) -> SettingValue {
        SettingValue::Name(self.name())
    }

    fn from_value(value: SettingValue, _: u32) -> Self {
        NamedRule::from_value(value)
    }
}

/// Implements [`Field`] for number types.
macro_rules! number {
    ($($field:ty: $to:expr, $from:expr;)*) => {$(
        impl Field for $field {
            fn to_value(&self, _: u32) -> SettingValue {
                let to: fn(Self) -> u32 = $to;
                SettingValue::Number(to(*self).into())
            }

            fn from_value(value: SettingValue, _: u32) -> Self {
                let from: fn(u32) -> Self = $from;
                from(value.number().unwrap_or_default() as u32)
            }
        }
    )*};
}

number! {
    u8: u32::from, |number| number as Self;
    u32: |number| number, |number| number;
    NodeReclaim: Self::mode, |mode| Self::from_mode(mode).unwrap_or_default();
    StatInterval: Self::seconds, |seconds| Self::from_seconds(seconds).unwrap_or_default();
}

impl Field for [u32; ZoneKind::COUNT] {
    fn to_value(&self, _: u32) -> SettingValue {
        SettingValue::PerKind(*self)
    }

    fn from_value(value: SettingValue, _: u32) -> Self {
        if let SettingValue::PerKind(numbers) = value { numbers } else { Self::default() }
    }
}

/// A number of frames, which the setting has in KiB, or `auto`.
impl Field for Option<PageCount> {
    fn to_value(&self, page_bytes: u32) -> SettingValue {
        self.map_or(SettingValue::Auto, |frames| {
            let kib = u128::from(frames.get()) * u128::from(page_bytes) / 1024;
            SettingValue::Number(u64::try_from(kib).unwrap_or(u64::MAX))
        })
    }

    fn from_value(value: SettingValue, page_bytes: u32) -> Self {
        let frames = |kib: u64| PageCount::new((u128::from(kib) * 1024 / u128::from(page_bytes)) as u64);
        value.number().map(frames)
    }
}

/// Expands to a setting's allowed values.
macro_rules! values {
    (Rule { $rule:ident: $($name:literal $variant:ident),* }) => { SettingValues::Names(&[$($name),*]) };
    ($kind:ident $values:tt) => { SettingValues::$kind $values };
}

/// Implements [`NamedRule`] for a setting that selects a rule.
macro_rules! named_rule {
    ($setting:ident Rule { $rule:ident: $($name:literal $variant:ident),* }) => {
        impl NamedRule for $rule {
            const SETTING: Setting = Setting::$setting;
            const RULES: &'static [Self] = &[$(Self::$variant),*];
        }
    };
    ($setting:ident $kind:ident $values:tt) => {};
}

/// Expands to the access to a field.
macro_rules! field {
    () => { None };
    ($($field:ident).+) => {
        Some((
            |config| config.$($field).+.to_value(config.page_bytes),
            |config, value| config.$($field).+ = Field::from_value(value, config.page_bytes),
        ))
    };
}

/// Declares the settings.
macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $setting:ident, $name:literal, $kind:ident $values:tt, default $default:literal,
        sysctl $is_sysctl:literal, $access:ident $($field:ident).*, affects $affects:ident,
        $summary:literal;
    )*) => {
        /// A setting of an allocator.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Setting { $($(#[$doc])* $setting),* }

        impl Setting {
            /// All settings.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$setting),*];
        }

        /// All entries, in the order of [`Setting::ALL`].
        pub(super) static TABLE: [Row; Setting::ALL.len()] = [$(Row {
            info: SettingInfo {
                name: $name,
                summary: $summary,
                values: values!($kind $values),
                default: $default,
                access: Access::$access,
            },
            is_sysctl: $is_sysctl,
            affects: Affects::$affects,
            field: field!($($field).*),
        }),*];

        $(named_rule!($setting $kind $values);)*
    };
}

settings! {
    /// `min_free_kbytes`: see [`WatermarkSettings::min_free`](crate::rules::watermarks::WatermarkSettings::min_free).
    MinFreeKbytes, "min_free_kbytes", NumberOrAuto { min: 0, max: u64::MAX >> 10, unit: "KiB" }, default "auto",
        sysctl true, ReadWrite watermarks.min_free, affects Watermarks,
        "Sum of the watermarks `min` of all zones, rounded down to whole frames.";

    /// `watermark_scale_factor`.
    WatermarkScaleFactor, "watermark_scale_factor", Number { min: 1, max: 3000, unit: "1/10000 of a zone" }, default "10",
        sysctl true, ReadWrite watermarks.scale_factor, affects Watermarks,
        "Least distance between the watermarks of a zone; pools of Linux memory begin with 100 to 500.";

    /// `lowmem_reserve_ratio`.
    LowmemReserveRatio, "lowmem_reserve_ratio", PerKind {}, default "256 256 32 0",
        sysctl true, ReadWrite watermarks.lowmem_reserve_ratio, affects Watermarks,
        "Divisor of the reserve that a zone keeps from requests that higher zones can serve; 0 is no reserve.";

    /// `movable_min`: see [`MovableMin`](crate::rules::watermarks::MovableMin).
    MovableMin, "movable_min", Rule { MovableMin: "own" OwnMinimum, "ordinary" Ordinary }, default "own",
        sysctl false, ReadWrite watermarks.movable_min, affects Watermarks,
        "Whether movable zones have a small `min` of their own or a share of the machine's.";

    /// `zone_reclaim_mode`: see [`NodeReclaim`](crate::config::NodeReclaim).
    ZoneReclaimMode, "zone_reclaim_mode", Number { min: 0, max: 7, unit: "" }, default "0",
        sysctl true, ReadWrite node_reclaim, affects FullZones,
        "Whether nearby nodes are reclaimed before others serve a request (1), with writing (2) and unmapping (4).";

    /// `reclaim_distance`: see [`Config::reclaim_distance`](crate::Config::reclaim_distance).
    ReclaimDistance, "reclaim_distance", Number { min: 0, max: 255, unit: "" }, default "30",
        sysctl false, ReadWrite reclaim_distance, affects FullZones,
        "Largest distance of a node that node reclaim covers.";

    /// `min_unmapped_ratio`: see [`Config::min_unmapped_percent`](crate::Config::min_unmapped_percent).
    MinUnmappedRatio, "min_unmapped_ratio", Number { min: 0, max: 100, unit: "%" }, default "1",
        sysctl true, ReadWrite min_unmapped_percent, affects FullZones,
        "Share of a node that must be reclaimable before node reclaim runs.";

    /// `percpu_pagelist_high_fraction`: see [`Config::high_fraction`](crate::Config::high_fraction).
    PercpuPagelistHighFraction, "percpu_pagelist_high_fraction", Number { min: 0, max: u32::MAX as u64, unit: "" }, default "0",
        sysctl true, ReadWrite high_fraction, affects Pagesets,
        "Fraction of a zone that fixes the size of its pagesets; 0 selects tuning.";

    /// `pageset_tuning`: see [`PagesetTuning`](crate::rules::pageset_tuning::PagesetTuning).
    PagesetTuning, "pageset_tuning",
        Rule { PagesetTuning: "depth" Depth, "depth-published" DepthPublished, "stepwise" Stepwise, "fixed" Fixed }, default "depth",
        sysctl false, ReadWrite tuning, affects Pagesets,
        "The rule that tunes the size of pagesets.";

    /// `zonelist_cache`: see [`ZonelistCache`](crate::config::ZonelistCache).
    ZonelistCache, "zonelist_cache",
        Rule { ZonelistCache: "on" On, "published" Published, "cache-first" CacheFirst, "original" Original, "2006" Jackson2006, "off" Off }, default "on",
        sysctl false, ReadWrite zonelist_cache, affects FullZones,
        "How requests skip zones that were full recently.";

    /// `stat_interval`: see [`StatInterval`](crate::config::StatInterval).
    StatInterval, "stat_interval", Number { min: 1, max: u32::MAX as u64, unit: "s" }, default "1",
        sysctl true, ReadWrite stat_interval, affects Nothing,
        "Time after which per-CPU counter differences are folded into the totals.";

    /// `stat_refresh`: see [`Allocator::stat_refresh`](crate::Allocator::stat_refresh).
    StatRefresh, "stat_refresh", Any {}, default "",
        sysctl true, WriteOnly , affects Nothing,
        "Folds all per-CPU counter differences now.";

    /// `node_load`: see [`NodeLoad`](crate::rules::fallback_order::NodeLoad).
    NodeLoad, "node_load",
        Rule { NodeLoad: "accumulate" Accumulate, "remaining" AccumulateRemaining, "assign" Assign }, default "accumulate",
        sysctl false, ReadOnly node_load, affects Nothing,
        "How the load of nodes grows while fallback orders are built.";

    /// `invalid_free`: see [`InvalidFree`](crate::config::InvalidFree).
    InvalidFree, "invalid_free", Rule { InvalidFree: "checked" Checked, "exact" Exact }, default "exact",
        sysctl false, ReadOnly invalid_free, affects Nothing,
        "How frees of frames that are not allocated are detected.";

    /// `owned_blocks`: see [`OwnedBlocks`](crate::config::OwnedBlocks).
    OwnedBlocks, "owned_blocks", Rule { OwnedBlocks: "off" Off, "on" On }, default "off",
        sysctl false, ReadWrite owned_blocks, affects Nothing,
        "Whether CPUs own blocks of 2 MiB, which they split without the zone's locks.";
}
