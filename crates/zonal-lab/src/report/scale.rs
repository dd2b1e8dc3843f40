//! Axis scales: the position of values on an axis, and its round tick values.
//!
//! Invariant: `low < high`, both finite; `0 < low` on logarithmic scales. Neighbours: `report/frame.rs` draws
//! axes.

use super::figures;

/// Number of decades above which data are shown on a logarithmic scale.
const DECADES_MAX: f64 = 1.5;
/// Space at an end of the axis that is not zero, as a share of the axis.
const MARGIN: f64 = 0.05;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Steps {
    /// Linear: equal lengths are equal differences.
    Differences,
    /// Logarithmic: equal lengths are equal ratios.
    Factors,
}

/// An axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    steps: Steps,
}

/// Exclusive limit of the values shown; larger values cannot be measurements, and their differences overflow.
const VALUE_MAX: f64 = 1e100;

/// Whether a chart can show `value`.
pub(super) fn is_shown(value: f64) -> bool {
    value.abs() < VALUE_MAX
}

/// Returns the smallest and the largest of the values that can be shown.
fn bounds(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| is_shown(*value)).fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

impl Scale {
    /// Creates a scale for a number of cases, such as CPUs, that ends at the values; `None` without values.
    pub(super) fn of_cases(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        Some(Self::factors(low, high).unwrap_or_else(|| Self::differences(low, high)))
    }

    /// Creates a scale for figures: logarithmic if they span a large range, otherwise from zero.
    pub(super) fn of_figures(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        Some(Self::factors(low, high).unwrap_or_else(|| Self::differences(low.min(0.0), high.max(0.0))))
    }

    /// Creates a scale for lengths of bars, from zero.
    pub(super) fn of_lengths(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (_, high) = bounds(values)?;
        Some(Self { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, steps: Steps::Differences })
    }

    /// Creates a scale for levels over time, from zero unless that leaves most of the plot empty.
    pub(super) fn of_levels(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        let low = if low > 0.0 && low < 0.6 * high { 0.0 } else { low };
        Some(Self::differences(low, high))
    }

    /// Creates a scale for time that ends at the values.
    pub(super) fn of_time(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Some(Self { low, high, steps: Steps::Differences })
    }

    fn factors(low: f64, high: f64) -> Option<Self> {
        if low <= 0.0 || (high / low).log10() <= DECADES_MAX {
            return None;
        }
        let room = (high / low).powf(MARGIN);
        Some(Self { low: low / room, high: high * room, steps: Steps::Factors })
    }

    fn differences(low: f64, high: f64) -> Self {
        let span = if high > low { high - low } else { low.abs().max(1.0) };
        let low_room = if low == 0.0 { 0.0 } else { MARGIN * span };
        let high_room = if high == 0.0 && low < 0.0 { 0.0 } else { MARGIN * span };
        Self { low: low - low_room, high: high.max(low) + high_room, steps: Steps::Differences }
    }

    /// Whether the scale is logarithmic.
    pub(super) fn is_logarithmic(self) -> bool {
        self.steps == Steps::Factors
    }

    /// Returns the position of `value` between `from` and `to`.
    pub(super) fn place(self, value: f64, from: f64, to: f64) -> f64 {
        let share = match self.steps {
            Steps::Differences => (value - self.low) / (self.high - self.low),
            Steps::Factors => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        from + (to - from) * share
    }

    /// Returns at most `most` round values on the axis, with their labels.
    pub(super) fn marks(self, most: usize, unit: &str) -> Vec<(f64, String)> {
        let ticks = self.ticks(most);
        let largest = ticks.iter().copied().fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
        let like = |tick: f64| if self.is_logarithmic() { tick } else { largest };
        ticks.iter().map(|tick| (*tick, figures::tick(*tick, unit, like(*tick)))).collect()
    }

    fn ticks(self, most: usize) -> Vec<f64> {
        match self.steps {
            Steps::Differences => self.round_differences(most),
            Steps::Factors => self.round_factors(most),
        }
    }

    fn round_differences(self, most: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / most.max(1) as f64;
        let power = 10_f64.powi(rough.log10().floor() as i32);
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0].map(|factor| factor * power);
        let ticks = steps.into_iter().map(|step| {
            let first = (self.low / step).ceil() as i64;
            let last = (self.high / step + 1e-9).floor() as i64;
            (first..=last).map(|at| at as f64 * step).collect::<Vec<f64>>()
        });
        ticks.into_iter().find(|ticks| ticks.len() <= most).unwrap_or_default()
    }

    fn round_factors(self, most: usize) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let within = |tick: &f64| (self.low..=self.high).contains(tick);
        let by = |digits: &[f64], every: usize| -> Vec<f64> {
            let powers = (first..=last).filter(|power| power.rem_euclid(every as i32) == 0);
            let ticks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
            ticks.filter(within).collect()
        };
        let sparser = (1..).map(|every| by(&[1.0], every));
        let mut choices = [by(&[1.0, 2.0, 5.0], 1), by(&[1.0, 3.0], 1)].into_iter().chain(sparser);
        choices.find(|ticks| ticks.len() <= most).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_spans_are_logarithmic_and_narrow_ones_begin_at_zero() {
        let wide = Scale::of_figures([1.0, 40.0]).unwrap();
        assert!(wide.is_logarithmic() && wide.low > 0.0);
        assert!(!Scale::of_figures([1.0, 30.0]).unwrap().is_logarithmic());
        assert!(!Scale::of_figures([0.0, 1e6]).unwrap().is_logarithmic());
        assert_eq!(Scale::of_figures([5.0, 9.0]).unwrap().low, 0.0);
        assert!(Scale::of_levels([90.0, 100.0]).unwrap().low > 80.0);
        assert_eq!(Scale::of_levels([10.0, 100.0]).unwrap().low, 0.0);
    }

    #[test]
    fn ends_of_an_axis_are_its_places() {
        for scale in [Scale::of_figures([1.0, 1e4]).unwrap(), Scale::of_cases([2.0, 9.0]).unwrap()] {
            assert!((scale.place(scale.low, 10.0, 110.0) - 10.0).abs() < 1e-9);
            assert!((scale.place(scale.high, 10.0, 110.0) - 110.0).abs() < 1e-9);
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Scale::of_figures([5.0, 9.5]).unwrap().ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale::of_figures([0.5, 20.0]).unwrap().ticks(6), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(Scale::of_figures([1.0, 1e9]).unwrap().ticks(4), [1.0, 1e3, 1e6, 1e9]);
        assert_eq!(Scale::of_figures([-3.0, -3.0]).unwrap().ticks(4), [-3.0, -2.0, -1.0, 0.0]);
    }

    #[test]
    fn marks_share_a_prefix_unless_they_are_factors_apart() {
        let texts = |scale: Option<Scale>| -> Vec<String> {
            scale.unwrap().marks(4, "s").into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(texts(Scale::of_figures([1.4])), ["0 s", "0.5 s", "1 s"]);
        assert_eq!(texts(Scale::of_figures([0.0009, 1.1])), ["1 ms", "10 ms", "100 ms", "1 s"]);
    }

    #[test]
    fn one_value_or_none_or_no_number_at_all() {
        assert_eq!(Scale::of_figures([]), None);
        assert_eq!(Scale::of_levels([f64::NAN, f64::INFINITY]), None);
        for scale in [Scale::of_figures([0.0]), Scale::of_cases([7.0]), Scale::of_time([0.0])] {
            let scale = scale.unwrap();
            assert!(scale.low < scale.high && !scale.ticks(5).is_empty(), "{scale:?}");
        }
    }
}
