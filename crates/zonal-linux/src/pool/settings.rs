//! Settings of a pool by their names.

use std::fmt;

use zonal::settings::{SettingError, SettingValue};

use super::emit::emit;
use super::handle::Pool;

impl Pool {
    /// Returns the value of a setting by its name; [`Setting::ALL`](crate::Setting::ALL) has all settings.
    ///
    /// ```
    /// # let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// pool.set_setting("zone_reclaim_mode", "1")?;
    /// assert_eq!(pool.setting("zone_reclaim_mode")?.to_string(), "1");
    /// let error = pool.set_setting("zone_reclaim_mode", "9").unwrap_err();
    /// assert_eq!(error.to_string(), "zone_reclaim_mode cannot be `9`; allowed: a number from 0 to 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When no setting has this name, or the setting can only be set.
    pub fn setting(&self, name: &str) -> Result<SettingValue, SettingError> {
        self.core.allocator().setting(name)
    }

    /// Changes a setting by its name; see [`Allocator::set_setting`](zonal::Allocator::set_setting).
    ///
    /// A reclaimer must not set `stat_refresh`.
    ///
    /// # Errors
    /// When no setting has this name, when it cannot change at run time, or when `text` is not a value that it can have
    /// in this pool. The error says which values are allowed, and nothing has changed.
    pub fn set_setting(&self, name: &str, text: &str) -> Result<(), SettingError> {
        self.change_setting(name, text)?;
        self.report_setting(name, text);
        Ok(())
    }

    /// Changes a setting for a thread that must not emit events. A thread of the pool reports the change.
    pub(crate) fn set_setting_quietly(&self, name: &str, text: &str) -> Result<(), SettingError> {
        self.change_setting(name, text)?;
        self.core.platform().changes.add(name, text);
        Ok(())
    }

    fn change_setting(&self, name: &str, text: &str) -> Result<(), SettingError> {
        self.core.allocator().set_setting(name, text)
    }

    /// Reports that a setting has changed.
    pub(super) fn report_setting(&self, name: &str, value: impl fmt::Debug) {
        emit!(self.core.platform(), INFO, name, ?value, "setting changed");
    }
}
