//! Settings by their names in the configuration of an allocator that does not exist yet.
//!
//! Related files: `settings/table.rs` has the table, and `admin/settings.rs` changes settings of a running allocator.

use super::{NamedRule, Setting, SettingError, SettingValue};
use crate::Config;
use crate::config::{InvalidFree, OwnedBlocks};
use crate::error::ConfigError;
use crate::rules::stat_threshold::TotalsRule;
use crate::units::{PROCESSES_MAX, PageCount};

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
        if setting.field().is_none() {
            return Err(SettingError::NotYet(setting));
        }
        let mut changed = *self;
        changed.put(setting, value);
        // The other settings are checked at creation.
        if let Err(why @ ConfigError::NotLinked { setting: of, .. }) = changed.check()
            && of == setting.info().name
        {
            return Err(SettingError::Refused { setting, why });
        }
        *self = changed;
        Ok(())
    }

    /// Returns the value of a setting; [`SettingValue::None`] if it is an action.
    ///
    /// ```
    /// use zonal::Config;
    /// use zonal::settings::Setting;
    /// assert_eq!(Config::default().get(Setting::ReclaimDistance).to_string(), "30");
    /// ```
    #[must_use]
    pub fn get(&self, setting: Setting) -> SettingValue {
        setting.field().map_or(SettingValue::None, |(get, _)| get(self))
    }

    /// Changes a setting to a value that [`Setting::parse`] or [`Self::get`] returned. An action has no effect.
    pub(crate) fn put(&mut self, setting: Setting, value: SettingValue) {
        if let Some((_, put)) = setting.field() {
            put(self, value);
        }
    }

    /// Returns an error if [`Self::min_unmapped_percent`] or the scale factor is outside its setting's range, or if a setting
    /// selects a past form that is not linked. All other values are allowed.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (past, load, cache, tuning) = (&self.past, self.node_load, self.zonelist_cache, self.tuning);
        for (is_linked, setting, name) in [
            (past.load_rule(load).is_some(), "node_load", load.name()),
            (!cache.is_past() || past.scan_form(cache).is_some(), "zonelist_cache", cache.name()),
            (!tuning.is_past() || past.tuning.is_some(), "pageset_tuning", tuning.name()),
        ] {
            if !is_linked {
                return Err(ConfigError::NotLinked { setting, name });
            }
        }
        let (percent, factor) = (self.min_unmapped_percent, self.watermarks.scale_factor);
        let check = |setting: Setting, value, error| match setting.info().values.range() {
            Some(range) if !range.contains(&value) => Err(error),
            _ => Ok(()),
        };
        check(Setting::MinUnmappedRatio, percent.into(), ConfigError::Percent(percent))?;
        check(Setting::WatermarkScaleFactor, factor.into(), ConfigError::ScaleFactor(factor))
    }

    /// Checks the settings that an allocator cannot have if processes share it: their state could not be given back when a
    /// process dies.
    pub(crate) fn check_processes(&self) -> Result<(), ConfigError> {
        if self.processes > PROCESSES_MAX {
            return Err(ConfigError::Processes { process: 0, processes: self.processes });
        }
        let (hardening, counters) = (&self.hardening, &self.counters);
        let refused = [
            (self.invalid_free == InvalidFree::Checked, "invalid_free"),
            (self.owned_blocks == OwnedBlocks::On, "owned_blocks"),
            (hardening.poison.is_some() || hardening.quarantine != PageCount::ZERO, "hardening"),
            (counters.totals == TotalsRule::AndMachine, "counters"),
            (self.tuning.is_past() || self.zonelist_cache.is_past(), "past forms"),
        ];
        let first = refused.into_iter().find(|(is_refused, _)| *is_refused);
        first.map_or(Ok(()), |(_, name)| Err(ConfigError::NotForProcesses(name)))
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;

    use super::*;
    use crate::rules::fallback_order::NodeLoad;

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
            ("invalid_free", "checked"),
            ("owned_blocks", "on"),
        ] {
            config.set(name, value).unwrap_or_else(|error| panic!("{error}"));
            assert!(!seen.contains(&config), "{name} changed nothing");
            seen.push(config);
        }
        assert_eq!(seen.len(), Setting::ALL.len() - 1, "all but stat_refresh and node_load, and the default");
        assert_eq!(config.watermarks.lowmem_reserve_ratio, [1, 2, 3, 4]);
        assert_eq!((config.reclaim_distance, config.min_unmapped_percent, config.high_fraction), (40, 7, 8));
    }

    #[test]
    fn what_is_not_possible_changes_nothing() {
        let mut config = Config::default();
        for (name, value) in [
            ("stat_refresh", "1"),
            ("node_load", "none"),
            ("node_load", "assign"),
            ("zonelist_cache", "original"),
            ("pageset_tuning", "depth-published"),
            ("swappiness", "60"),
        ] {
            config.set(name, value).unwrap_err();
            assert_eq!(config, Config::default(), "{name}");
        }
        let error = config.set("node_load", "assign").unwrap_err().to_string();
        assert_eq!(
            error,
            "node_load was not changed: node_load cannot be `assign`: that is a past form, which this program does not link (crate zonal-history)"
        );
    }
    /// A form that is not linked is refused when it is set, and at creation; it does not hinder other settings.
    #[test]
    fn only_what_changes_is_refused() {
        let mut config = Config { node_load: NodeLoad::Assign, ..Config::default() };
        config.set("reclaim_distance", "20").unwrap();
        assert_eq!(config.reclaim_distance, 20);
        config.set("node_load", "assign").unwrap_err();
        assert_eq!(config.check(), Err(ConfigError::NotLinked { setting: "node_load", name: "assign" }));
        config.set("node_load", "accumulate").unwrap();
        assert_eq!(config.check(), Ok(()));
    }
}
