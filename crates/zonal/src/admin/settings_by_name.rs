//! Reads and changes settings by their names.
//!
//! Related files: `settings.rs` has the table of settings, and `admin/settings.rs` the typed methods.

use crate::Allocator;
use crate::config::{NodeReclaim, StatInterval};
use crate::error::ConfigError;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::watermarks::WatermarkSettings;
use crate::settings::at_creation::set_watermarks;
use crate::settings::{Access, NamedRule, Setting, SettingError, SettingValue};
use crate::zone::Zone;

impl<P: Platform> Allocator<'_, P> {
    /// Returns the value of a setting in [the table](crate::settings).
    ///
    /// `min_free_kbytes` is the value in force, even if it is computed from the size of the machine.
    ///
    /// # Errors
    /// [`SettingError::Unknown`], and [`SettingError::WriteOnly`] for `stat_refresh`.
    pub fn setting(&self, name: &str) -> Result<SettingValue, SettingError> {
        let setting = Setting::named(name)?;
        let (typed, watermarks) = (self.settings(), self.state.shared.watermarks());
        Ok(match setting {
            Setting::MinFreeKbytes => SettingValue::Number(self.state.min_free_kib(&watermarks)),
            Setting::WatermarkScaleFactor => SettingValue::Number(watermarks.scale_factor.into()),
            Setting::LowmemReserveRatio => SettingValue::PerKind(watermarks.lowmem_reserve_ratio),
            Setting::MovableMin => name_of(watermarks.movable_min),
            Setting::ZoneReclaimMode => SettingValue::Number(typed.node_reclaim.mode().into()),
            Setting::ReclaimDistance => SettingValue::Number(typed.reclaim_distance.into()),
            Setting::MinUnmappedRatio => SettingValue::Number(typed.min_unmapped_percent.into()),
            Setting::PercpuPagelistHighFraction => SettingValue::Number(typed.high_fraction.into()),
            Setting::PagesetTuning => name_of(typed.tuning),
            Setting::ZonelistCache => name_of(typed.zonelist_cache),
            Setting::StatInterval => SettingValue::Number(typed.stat_interval.seconds().into()),
            Setting::StatRefresh => return Err(SettingError::WriteOnly(setting)),
            Setting::NodeLoad => name_of(typed.node_load),
            Setting::InvalidFree => name_of(typed.invalid_free),
        })
    }

    /// Changes a setting in [the table](crate::settings) to the value that `text` says.
    ///
    /// The effect is that of the typed method, for example [`Allocator::set_watermarks`]. Other settings do not change,
    /// even if threads change them at the same time. As for [`Allocator::stat_refresh`], a reclaimer must not set
    /// `stat_refresh`.
    ///
    /// # Errors
    /// [`SettingError::Unknown`], [`SettingError::Value`], [`SettingError::ReadOnly`] and [`SettingError::Refused`].
    /// Nothing has changed then.
    pub fn set_setting(&self, name: &str, text: &str) -> Result<(), SettingError> {
        let setting = Setting::named(name)?;
        if setting.info().access == Access::ReadOnly {
            return Err(SettingError::ReadOnly(setting));
        }
        let value = setting.parse(text)?;
        self.store_setting(setting, value).map_err(|why| SettingError::Refused { setting, why })
    }

    /// Stores a value that [`Setting::parse`] returned.
    fn store_setting(&self, setting: Setting, value: SettingValue) -> Result<(), ConfigError> {
        let number = if let SettingValue::Number(number) = value { number } else { 0 };
        match setting {
            Setting::MinFreeKbytes
            | Setting::WatermarkScaleFactor
            | Setting::LowmemReserveRatio
            | Setting::MovableMin => {
                let page_bytes = self.state.page_bytes;
                self.state.change_watermarks(|all| set_watermarks(all, setting, value, page_bytes))
            }
            Setting::ZoneReclaimMode => {
                self.set_node_reclaim(NodeReclaim::from_mode(number as u32)?);
                Ok(())
            }
            Setting::ReclaimDistance => {
                self.set_reclaim_distance(number as u8);
                Ok(())
            }
            Setting::MinUnmappedRatio => self.set_min_unmapped_percent(number as u8),
            Setting::PercpuPagelistHighFraction => {
                self.set_high_fraction(number as u32);
                Ok(())
            }
            Setting::PagesetTuning => self.set_tuning(NamedRule::from_value(value)),
            Setting::ZonelistCache => {
                self.set_zonelist_cache(NamedRule::from_value(value));
                Ok(())
            }
            Setting::StatInterval => {
                self.set_stat_interval(StatInterval::from_seconds(number as u32).unwrap_or_default());
                Ok(())
            }
            Setting::StatRefresh => {
                self.stat_refresh();
                Ok(())
            }
            Setting::NodeLoad | Setting::InvalidFree => Ok(()), // refused before
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the machine-wide minimum of free frames in KiB.
    fn min_free_kib(&self, watermarks: &WatermarkSettings) -> u64 {
        let zones = self.zones.iter().map(|zone: &Zone<'_, P>| (zone.kind, zone.managed()));
        let frames = watermarks.basis(zones, self.page_bytes).min_free();
        (u128::from(frames.get()) * u128::from(self.page_bytes) / 1024) as u64
    }
}

fn name_of(rule: impl NamedRule) -> SettingValue {
    SettingValue::Name(rule.name())
}
