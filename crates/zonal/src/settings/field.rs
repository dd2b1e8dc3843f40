//! Converts configuration fields to setting values and back.
//!
//! Related files: `settings/table.rs` names each setting's field.

use super::{NamedRule, SettingValue};
use crate::config::{NodeReclaim, StatInterval};
use crate::units::{PageCount, ZoneKind};

/// A field type that a setting can set.
pub(super) trait Field {
    /// Returns the field as a setting value.
    fn to_value(&self, page_bytes: u32) -> SettingValue;

    /// Returns the field for a value that [`Setting::parse`](super::Setting::parse) or [`Self::to_value`] returned.
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
