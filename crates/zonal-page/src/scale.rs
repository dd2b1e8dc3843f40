//! Scales of axes: a linear or logarithmic range of values with labelled ticks.
//!
//! Invariant: `low < high`, and both are finite; `0 < low` on logarithmic scales. Related files: plotters maps values
//! to places, `lines.rs` and `bars.rs` draw axes, and `figures.rs` formats ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{IntoLogRange, LogCoord};

use crate::figures;
use crate::text::{FINE, Font};

/// Decades from which a scale of figures is logarithmic.
const DECADES_MAX: f64 = 1.5;
/// Space at an end of a scale that is not at zero, as a share of the scale.
const MARGIN: f64 = 0.05;
/// Maximum number of round ticks.
const TICKS_MAX: usize = 6;
/// Maximum width of a tick's label, in pixels.
const LABEL_WIDTH: f64 = 62.0;
/// Exclusive limit of the values shown. Larger values cannot be measurements, and their differences overflow.
const VALUE_MAX: f64 = 1e100;

/// Whether a chart can show `value`.
#[must_use]
pub fn is_shown(value: f64) -> bool {
    value.abs() < VALUE_MAX
}

/// A scale.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    /// Ticks: ascending values with their labels.
    ticks: Vec<(f64, String)>,
}

/// Returns the smallest and the largest of the values that can be shown.
fn bounds(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| is_shown(*value)).fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

impl Scale {
    /// Creates a scale with a tick for each of a number of cases, such as CPU counts. Returns `None` without values.
    pub fn cases(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| is_shown(*value)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (low, high) = (*values.first()?, *values.last()?);
        let mut scale = Self::factors(low, high, "").unwrap_or_else(|| Self::differences(low, high, ""));
        scale.ticks = values.into_iter().map(|value| (value, figures::exact(value))).collect();
        Some(scale)
    }

    /// Creates a scale for figures, which is logarithmic if the figures span a large range and otherwise begins at
    /// zero.
    pub fn figures(values: impl IntoIterator<Item = f64>, unit: &str) -> Option<Self> {
        let (low, high) = bounds(values)?;
        let linear = || Self::differences(low.min(0.0), high.max(0.0), unit);
        Some(Self::factors(low, high, unit).unwrap_or_else(linear))
    }

    /// Creates a scale for lengths, which begins at zero.
    pub fn lengths(values: impl IntoIterator<Item = f64>, unit: &str) -> Option<Self> {
        let (_, high) = bounds(values)?;
        Some(Self::linear(0.0, if high > 0.0 { high } else { 1.0 }, unit))
    }

    /// Creates a scale for levels over time, which begins at zero unless most of the plot would then be empty.
    pub fn levels(values: impl IntoIterator<Item = f64>, unit: &str) -> Option<Self> {
        let (low, high) = bounds(values)?;
        Some(Self::differences(if low > 0.0 && low < 0.6 * high { 0.0 } else { low }, high, unit))
    }

    /// Creates a scale for seconds that ends at the largest value.
    pub fn time(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        Some(Self::linear(low, if high > low { high } else { low + low.abs().max(1.0) }, "s"))
    }

    /// Creates a logarithmic scale.
    ///
    /// # Panics
    /// Unless `0 < low < high`.
    #[must_use]
    pub fn logarithmic(low: f64, high: f64, unit: &str) -> Self {
        assert!(0.0 < low && low < high, "a logarithmic scale from {low} to {high}; 0 < low < high is right");
        let tick = |value: f64| (value, figures::tick(value, unit, value));
        let ticks = round_factors(low, high).into_iter().map(tick).collect();
        Self { low, high, is_logarithmic: true, ticks }
    }

    fn linear(low: f64, high: f64, unit: &str) -> Self {
        let ticks = RangedCoordf64::from(low..high).key_points(TICKS_MAX);
        let largest = ticks.iter().copied().fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
        let tick = |value: f64| (value, figures::tick(value, unit, largest));
        Self { low, high, is_logarithmic: false, ticks: ticks.into_iter().map(tick).collect() }
    }

    fn factors(low: f64, high: f64, unit: &str) -> Option<Self> {
        if low <= 0.0 || (high / low).log10() <= DECADES_MAX {
            return None;
        }
        let room = (high / low).powf(MARGIN);
        Some(Self::logarithmic(low / room, high * room, unit))
    }

    fn differences(low: f64, high: f64, unit: &str) -> Self {
        let span = if high > low { high - low } else { low.abs().max(1.0) };
        let low_room = if low == 0.0 { 0.0 } else { MARGIN * span };
        let high_room = if high == 0.0 && low < 0.0 { 0.0 } else { MARGIN * span };
        Self::linear(low - low_room, high + high_room, unit)
    }

    pub(crate) fn is_logarithmic(&self) -> bool {
        self.is_logarithmic
    }

    /// Returns the value at which bars begin.
    pub(crate) fn origin(&self) -> f64 {
        if self.is_logarithmic { self.low } else { 0.0 }
    }

    /// Returns the scale without ticks whose labels would overlap on a horizontal axis. The last tick always remains.
    pub(crate) fn spaced(mut self, width: f64) -> Self {
        let mut free = f64::INFINITY;
        let places = self.clone();
        self.ticks.reverse();
        self.ticks.retain(|(value, label)| {
            let place = f64::from(places.map(value, (0, (width * FINE) as i32))) / FINE;
            let half = Font::TICK.width(label) / 2.0 + 2.0;
            let fits = place + half <= free;
            free = if fits { place - half } else { free };
            fits
        });
        self.ticks.reverse();
        self
    }
}

/// Returns round values of a logarithmic scale: 1, 2 and 5 or 1 and 3 times each power of ten, or only some powers.
fn round_factors(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let round = |digits: &[f64], every: i32| -> Vec<f64> {
        let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
        let ticks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
        ticks.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let powers = (1..).map(|every| round(&[1.0], every));
    let mut choices = [round(&[1.0, 2.0, 5.0], 1), round(&[1.0, 3.0], 1)].into_iter().chain(powers);
    choices.find(|ticks| ticks.len() <= TICKS_MAX).unwrap_or_default()
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self.is_logarithmic {
            true => LogCoord::from((self.low..self.high).log_scale()).map(&value.max(self.low), limit),
            false => RangedCoordf64::from(self.low..self.high).map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map_or_else(String::new, |(_, label)| Font::TICK.fit(label, LABEL_WIDTH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Option<Scale>) -> Vec<String> {
        scale.unwrap().ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn wide_spans_are_logarithmic_and_narrow_ones_begin_at_zero() {
        let figures = |values: [f64; 2]| Scale::figures(values, "").unwrap();
        assert!(figures([1.0, 40.0]).is_logarithmic && figures([1.0, 40.0]).low > 0.0);
        assert!(!figures([1.0, 30.0]).is_logarithmic && !figures([0.0, 1e6]).is_logarithmic);
        assert_eq!(figures([5.0, 9.0]).low, 0.0);
        assert!(Scale::levels([90.0, 100.0], "").unwrap().low > 80.0);
        assert_eq!(Scale::levels([10.0, 100.0], "").unwrap().low, 0.0);
    }

    #[test]
    fn ticks_are_round_and_few_and_share_a_prefix_unless_they_are_factors_apart() {
        assert_eq!(labels(Scale::figures([5.0, 9.5], "")), ["0", "2", "4", "6", "8"]);
        assert_eq!(labels(Scale::figures([0.5, 20.0], "")), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(labels(Scale::figures([1.0, 1e9], "")), ["1", "100", "10 k", "1 M", "100 M"]);
        assert_eq!(labels(Scale::figures([1.4], "s")), ["0 s", "0.5 s", "1 s"]);
        assert_eq!(labels(Scale::figures([0.0009, 1.1], "s")), ["1 ms", "10 ms", "100 ms", "1 s"]);
    }

    #[test]
    fn labels_of_ticks_keep_apart() {
        let cases = Scale::cases([1.0, 2.0, 3.0, 1000.0, 1001.0, 123_456.0]);
        assert_eq!(labels(cases.map(|scale| scale.spaced(440.0))), ["1", "2", "3", "1001", "123456"]);
    }

    #[test]
    fn one_value_or_none_or_no_number_at_all() {
        assert_eq!(Scale::figures([], ""), None);
        assert_eq!(Scale::levels([f64::NAN, f64::INFINITY], ""), None);
        for scale in [Scale::figures([0.0], ""), Scale::cases([7.0]), Scale::time([0.0])] {
            let scale = scale.unwrap();
            assert!(scale.low < scale.high && !scale.ticks.is_empty(), "{scale:?}");
        }
    }
}
