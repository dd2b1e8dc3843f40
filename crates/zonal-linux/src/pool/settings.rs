//! The default configuration of a pool, and its settings by their names.

use std::fmt;
use std::ops::RangeInclusive;

use zonal::Config;
use zonal::config::Past;
use zonal::settings::{SettingError, SettingValue};

use super::emit::emit;
use super::handle::Pool;
use crate::topology::limits;

/// Default distance between the watermarks of a pool in bytes: what the readers of a cache allocate until background
/// reclaim runs. `docs/performance.md` has the measurements.
const WATERMARK_GAP: u64 = 10 << 20;
/// Bounds of the default `watermark_scale_factor`. The lower bound allows for more CPUs with more memory, and the upper
/// bound limits how much of a small pool stays free.
const SCALE_FACTORS: RangeInclusive<u64> = 100..=500;

impl Pool {
    /// Returns the default configuration for a pool of this many bytes, or of the default size.
    ///
    /// It differs from [`Config::default`] in `watermarks.scale_factor` alone: the watermarks of all zones together are
    /// 10 MiB apart, but at least 1 % and at most 5 % of the pool. With 0.1 %, as in Linux, background reclaim of a small
    /// pool begins so late that requests must reclaim themselves. A pool that grows keeps its factor, so pass the size to
    /// which it will grow.
    ///
    /// ```
    /// use zonal_linux::{Config, Order, Pool};
    ///
    /// let size = 64 << 20;
    /// let config = Config { max_order: Order::new(12).unwrap(), ..Pool::default_config(Some(size)) };
    /// let pool = Pool::builder().size(size).config(config).build()?;
    /// assert_eq!(pool.setting("watermark_scale_factor")?.to_string(), "500"); // 5 %
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn default_config(bytes: Option<u64>) -> Config {
        let (least, most) = SCALE_FACTORS.into_inner();
        let scale_factor = 10_000 * WATERMARK_GAP / bytes.unwrap_or_else(default_size).max(1);
        let mut config = Config { past: zonal_history::PAST, ..Config::default() };
        config.watermarks.scale_factor = scale_factor.clamp(least, most) as u32;
        config
    }

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

/// Largest default size of a pool in bytes.
const SIZE_DEFAULT_MAX: u64 = 1 << 30;

/// Returns the default size of a pool in bytes.
fn default_size() -> u64 {
    limits::available_bytes().map_or(SIZE_DEFAULT_MAX, default_size_of)
}

/// Returns the default size of a pool in bytes on a machine with this many available.
pub(super) fn default_size_of(available: u64) -> u64 {
    SIZE_DEFAULT_MAX.min(available / 2)
}

/// Returns the configuration with all past forms, if it has none.
pub(super) fn linked(config: Config) -> Config {
    if config.past == Past::default() { Config { past: zonal_history::PAST, ..config } } else { config }
}
