//! Settings by their names in the configuration of an allocator that does not exist yet.
//!
//! Related files: `settings.rs` has the table, and `admin/settings_by_name.rs` changes settings of a running allocator.

use super::{NamedRule, Setting, SettingError, SettingValue};
use crate::Config;
use crate::config::{NodeReclaim, StatInterval};
use crate::rules::watermarks::WatermarkSettings;
use crate::units::PageCount;

impl Config {
    /// Changes the setting `name` of [the table](crate::settings) to the value that `text` says.
    ///
    /// Settings that a running allocator refuses to change are accepted here. Set [`Config::page_bytes`] first, because
    /// `min_free_kbytes` becomes a number of frames.
    ///
    /// ```
    /// use zonal::Config;
    ///
    /// let mut config = Config::default();
    /// config.set("min_free_kbytes", "8192")?;
    /// config.set("invalid_free", "checked")?;
    /// assert_eq!(config.watermarks.min_free.map(|frames| frames.get()), Some(2048));
    /// let error = config.set("zone_reclaim_mode", "9").unwrap_err();
    /// assert_eq!(error.to_string(), "zone_reclaim_mode cannot be `9`; allowed: a number from 0 to 7");
    /// # Ok::<(), zonal::settings::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// [`SettingError::Unknown`], [`SettingError::Value`], [`SettingError::Refused`], and [`SettingError::NotYet`] for
    /// `stat_refresh`. Nothing has changed then.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), SettingError> {
        let setting = Setting::named(name)?;
        let value = setting.parse(text)?;
        let number = if let SettingValue::Number(number) = value { number } else { 0 };
        match setting {
            Setting::MinFreeKbytes
            | Setting::WatermarkScaleFactor
            | Setting::LowmemReserveRatio
            | Setting::MovableMin => set_watermarks(&mut self.watermarks, setting, value, self.page_bytes),
            Setting::ZoneReclaimMode => {
                let mode = NodeReclaim::from_mode(number as u32);
                self.node_reclaim = mode.map_err(|why| SettingError::Refused { setting, why })?;
            }
            Setting::ReclaimDistance => self.reclaim_distance = number as u8,
            Setting::MinUnmappedRatio => self.min_unmapped_percent = number as u8,
            Setting::PercpuPagelistHighFraction => self.high_fraction = number as u32,
            Setting::PagesetTuning => self.tuning = NamedRule::from_value(value),
            Setting::ZonelistCache => self.zonelist_cache = NamedRule::from_value(value),
            Setting::StatInterval => {
                self.stat_interval = StatInterval::from_seconds(number as u32).unwrap_or_default();
            }
            Setting::StatRefresh => return Err(SettingError::NotYet(setting)),
            Setting::NodeLoad => self.node_load = NamedRule::from_value(value),
            Setting::InvalidFree => self.invalid_free = NamedRule::from_value(value),
        }
        Ok(())
    }
}

/// Changes the setting of the watermarks that `setting` names. Other settings have no effect.
pub(crate) fn set_watermarks(
    watermarks: &mut WatermarkSettings,
    setting: Setting,
    value: SettingValue,
    page_bytes: u32,
) {
    match (setting, value) {
        (Setting::MinFreeKbytes, SettingValue::Number(kib)) => {
            let frames = u128::from(kib) * 1024 / u128::from(page_bytes);
            watermarks.min_free = Some(PageCount::new(frames as u64));
        }
        (Setting::MinFreeKbytes, _) => watermarks.min_free = None,
        (Setting::WatermarkScaleFactor, SettingValue::Number(factor)) => {
            watermarks.scale_factor = factor as u32;
        }
        (Setting::LowmemReserveRatio, SettingValue::PerKind(ratios)) => {
            watermarks.lowmem_reserve_ratio = ratios;
        }
        (Setting::MovableMin, value) => watermarks.movable_min = NamedRule::from_value(value),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn every_setting_has_its_default_in_the_default_configuration() {
        for setting in Setting::ALL.into_iter().filter(|&setting| setting != Setting::StatRefresh) {
            let info = setting.info();
            let mut config = Config::default();
            config.set(info.name, info.default).unwrap();
            assert_eq!(config, Config::default(), "{setting}");
        }
    }

    #[test]
    fn every_setting_changes_its_field_alone() {
        let mut config = Config::default();
        let mut seen = vec![config];
        for (name, value) in [
            ("min_free_kbytes", "1024"),
            ("watermark_scale_factor", "20"),
            ("lowmem_reserve_ratio", "1 2 3 4"),
            ("movable_min", "ordinary"),
            ("zone_reclaim_mode", "3"),
            ("reclaim_distance", "40"),
            ("min_unmapped_ratio", "7"),
            ("percpu_pagelist_high_fraction", "8"),
            ("pageset_tuning", "fixed"),
            ("zonelist_cache", "off"),
            ("stat_interval", "5"),
            ("node_load", "assign"),
            ("invalid_free", "checked"),
        ] {
            config.set(name, value).unwrap_or_else(|error| panic!("{error}"));
            assert!(!seen.contains(&config), "{name} changed nothing");
            seen.push(config);
        }
        assert_eq!(seen.len(), Setting::ALL.len(), "all settings but stat_refresh, and the default");
        assert_eq!(config.watermarks.lowmem_reserve_ratio, [1, 2, 3, 4]);
        assert_eq!((config.reclaim_distance, config.min_unmapped_percent, config.high_fraction), (40, 7, 8));
    }

    #[test]
    fn what_is_not_possible_changes_nothing() {
        let mut config = Config::default();
        for (name, value) in [("stat_refresh", "1"), ("node_load", "none"), ("swappiness", "60")] {
            config.set(name, value).unwrap_err();
            assert_eq!(config, Config::default(), "{name}");
        }
    }
}
