//! Rules that a setting selects by name, such as the rule that tunes pagesets.
//!
//! Related files: `settings.rs` has the names, in the table of settings.

use super::{Setting, SettingError, SettingValue, SettingValues};
use crate::config::{InvalidFree, ZonelistCache};
use crate::rules::fallback_order::NodeLoad;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::watermarks::MovableMin;

/// A rule that a setting selects by name.
pub trait NamedRule: Copy + PartialEq + Default + Send + Sync + 'static {
    /// The setting, whose values in the table are names.
    const SETTING: Setting;
    /// The rules in the order of their names in the table.
    const RULES: &'static [Self];

    /// Returns the names of the rules, in the order of [`Self::RULES`].
    #[must_use]
    fn names() -> &'static [&'static str] {
        let SettingValues::Names(names) = Self::SETTING.info().values else { return &[] };
        names
    }

    /// Returns the rule with this name.
    ///
    /// ```
    /// use zonal::rules::pageset_tuning::PagesetTuning;
    /// use zonal::settings::NamedRule;
    /// assert_eq!(PagesetTuning::from_name("stepwise")?, PagesetTuning::Stepwise);
    /// assert_eq!(PagesetTuning::Stepwise.name(), "stepwise");
    /// # Ok::<(), zonal::settings::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// [`SettingError::Value`], whose text has the names.
    fn from_name(name: &str) -> Result<Self, SettingError> {
        Ok(Self::from_value(Self::SETTING.parse(name)?))
    }

    /// Returns the name of the rule.
    #[must_use]
    fn name(self) -> &'static str {
        let named = Self::names().iter().zip(Self::RULES).find(|(_, rule)| **rule == self);
        named.map_or("", |(name, _)| name)
    }

    /// Returns the rule with the name in `value`, or the default if `value` is not a name of the table.
    #[must_use]
    fn from_value(value: SettingValue) -> Self {
        let SettingValue::Name(name) = value else { return Self::default() };
        let named = Self::names().iter().zip(Self::RULES).find(|(other, _)| **other == name);
        named.map_or_else(Self::default, |(_, rule)| *rule)
    }
}

impl NamedRule for PagesetTuning {
    const SETTING: Setting = Setting::PagesetTuning;
    const RULES: &'static [Self] = &[Self::Depth, Self::DepthPublished, Self::Stepwise, Self::Fixed];
}

impl NamedRule for ZonelistCache {
    const SETTING: Setting = Setting::ZonelistCache;
    const RULES: &'static [Self] = &[Self::On, Self::Published, Self::CacheFirst, Self::Original, Self::Off];
}

impl NamedRule for NodeLoad {
    const SETTING: Setting = Setting::NodeLoad;
    const RULES: &'static [Self] = &[Self::Accumulate, Self::AccumulateRemaining, Self::Assign];
}

impl NamedRule for MovableMin {
    const SETTING: Setting = Setting::MovableMin;
    const RULES: &'static [Self] = &[Self::OwnMinimum, Self::Ordinary];
}

impl NamedRule for InvalidFree {
    const SETTING: Setting = Setting::InvalidFree;
    const RULES: &'static [Self] = &[Self::Checked, Self::Exact];
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    fn check<R: NamedRule + core::fmt::Debug>(default: &str) {
        assert_eq!(R::names().len(), R::RULES.len());
        for (&name, &rule) in R::names().iter().zip(R::RULES) {
            assert_eq!((R::from_name(name), rule.name()), (Ok(rule), name));
        }
        assert_eq!((R::default().name(), R::SETTING.info().default), (default, default));
        let error = R::from_name("no such name").unwrap_err().to_string();
        assert!(error.contains(R::SETTING.info().name) && error.contains(default), "{error}");
    }

    #[test]
    fn rules_have_the_names_of_the_table() {
        check::<PagesetTuning>("depth");
        check::<ZonelistCache>("on");
        check::<NodeLoad>("accumulate");
        check::<MovableMin>("own");
        check::<InvalidFree>("exact");
        assert_eq!(NodeLoad::AccumulateRemaining.name(), "remaining");
        assert_eq!(ZonelistCache::CacheFirst.name(), "cache-first");
        assert_eq!(InvalidFree::Checked.name(), "checked");
    }
}
