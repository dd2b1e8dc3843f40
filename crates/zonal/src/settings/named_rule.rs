//! Rules that a setting selects by name, such as the rule that tunes pagesets.
//!
//! Related files: `settings/table.rs` has the rules and their names.

use super::{Setting, SettingError, SettingValue, SettingValues};

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

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::config::{InvalidFree, ZonelistCache};
    use crate::rules::fallback_order::NodeLoad;
    use crate::rules::pageset_tuning::PagesetTuning;
    use crate::rules::watermarks::MovableMin;

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
