//! Measures: one quantity with a value for each variant, and what the values say about the mechanism.
//!
//! Whether a value is a gain or a cost is not declared. It follows from the comparison with the first variant, which is
//! without the mechanism. Related files: `mechanisms/m1.rs` to `mechanisms/m6.rs` fill a [`Table`].

use super::Findings;
use super::Mechanism;

/// The smallest difference of values that are not exact, as a share of the larger value.
const SMALLEST_DIFFERENCE: f64 = 0.02;

/// The comparison between a value and that without the mechanism.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// It is better.
    Gain,
    /// It is worse.
    Cost,
    /// There is no difference, or none that the measurement can distinguish from chance.
    Same,
}

/// How values come about, and therefore whether a second run has the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// They are counted on this machine. Each run with the same seed counts the same.
    Exact,
    /// They are counted on this machine while several CPUs work at once, and depend on how their operations interleave.
    Varying,
    /// They are measured CPU time.
    Timed,
    /// They come from a simulated machine. Each run with the same seed has the same.
    Simulated,
}

/// Which values of a measure are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Better {
    Less,
    More,
}

/// One measured quantity, with a value for every variant of the mechanism.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure {
    /// Name in JSON documents.
    pub metric: String,
    /// Name in text output.
    pub label: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// How the values come about.
    pub origin: Origin,
    /// One value for each of [`Findings::variants`], in their order.
    pub values: Vec<f64>,
    /// The comparison of each value with the first one.
    pub kinds: Vec<Kind>,
    /// What the measure says about the mechanism: the kind of the shipped variant. If its value is the same as the first one
    /// and repeats in each run, the others decide.
    pub kind: Kind,
}

impl Measure {
    /// Whether the values come from a simulated machine.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.origin == Origin::Simulated
    }
}

/// The samples of one variant: their median, and the range of the middle half.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Samples {
    median: f64,
    middle: (f64, f64),
}

impl Samples {
    /// Returns `None` if there are no samples.
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let median = f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]);
        let outer = sorted.len() / 4;
        Some(Self { median, middle: (sorted[outer], sorted[last - outer]) })
    }

    /// Whether chance may explain the difference: the middle halves overlap, or the medians are nearly equal.
    fn may_equal(self, other: Self) -> bool {
        let overlap = self.middle.0 <= other.middle.1 && other.middle.0 <= self.middle.1;
        let largest = self.median.abs().max(other.median.abs());
        overlap || (self.median - other.median).abs() <= SMALLEST_DIFFERENCE * largest
    }
}

/// A table of measures under construction.
pub(super) struct Table {
    variants: Vec<&'static str>,
    shipped: usize,
    measures: Vec<Measure>,
}

impl Table {
    /// Creates a table with these variants. The first one is without the mechanism, and `shipped` is the default.
    pub(super) fn new(variants: impl IntoIterator<Item = &'static str>, shipped: &str) -> Self {
        let variants: Vec<&str> = variants.into_iter().collect();
        let shipped = variants.iter().position(|&name| name == shipped).expect("a variant is shipped");
        Self { variants, shipped, measures: Vec::new() }
    }

    /// Adds a measure with one value for each variant, all of which repeat.
    pub(super) fn exact(
        &mut self,
        better: Better,
        (metric, label, unit): (impl Into<String>, impl Into<String>, &'static str),
        values: impl IntoIterator<Item = f64>,
    ) {
        self.of_values(better, Origin::Exact, (metric.into(), label.into(), unit), values);
    }

    /// Adds a measure with one value for each variant, from simulations.
    pub(super) fn simulated(
        &mut self,
        better: Better,
        (metric, label, unit): (impl Into<String>, impl Into<String>, &'static str),
        values: impl IntoIterator<Item = f64>,
    ) {
        self.of_values(better, Origin::Simulated, (metric.into(), label.into(), unit), values);
    }

    /// Adds a measure with samples for each variant, which vary from run to run. Its values are the medians. Returns
    /// `None` if a variant has no samples.
    pub(super) fn sampled(
        &mut self,
        better: Better,
        origin: Origin,
        (metric, label, unit): (impl Into<String>, impl Into<String>, &'static str),
        samples: impl IntoIterator<Item = Vec<f64>>,
    ) -> Option<()> {
        let samples = samples.into_iter().map(|samples| Samples::of(&samples));
        let samples = samples.collect::<Option<Vec<Samples>>>()?;
        let same = |a: usize, b: usize| samples[a].may_equal(samples[b]);
        let values = samples.iter().map(|samples| samples.median).collect();
        self.add(better, origin, (metric.into(), label.into(), unit), values, same);
        Some(())
    }

    fn of_values(
        &mut self,
        better: Better,
        origin: Origin,
        names: (String, String, &'static str),
        values: impl IntoIterator<Item = f64>,
    ) {
        let values: Vec<f64> = values.into_iter().collect();
        let all = values.clone();
        // Costs of a simulated machine are not known to a percent.
        let is_near = |a: f64, b: f64| (a - b).abs() <= SMALLEST_DIFFERENCE * a.abs().max(b.abs());
        let is_simulated = origin == Origin::Simulated;
        let same = |a: usize, b: usize| all[a] == all[b] || is_simulated && is_near(all[a], all[b]);
        self.add(better, origin, names, values, same);
    }

    fn add(
        &mut self,
        better: Better,
        origin: Origin,
        (metric, label, unit): (String, String, &'static str),
        values: Vec<f64>,
        same: impl Fn(usize, usize) -> bool,
    ) {
        assert_eq!(values.len(), self.variants.len(), "{metric} has a value for each variant");
        let kind = |at: usize| match (values[at] < values[0], better) {
            _ if same(0, at) => Kind::Same,
            (true, Better::Less) | (false, Better::More) => Kind::Gain,
            (false, Better::Less) | (true, Better::More) => Kind::Cost,
        };
        let kinds: Vec<Kind> = (0..values.len()).map(kind).collect();
        let differ = |kind: Kind| kinds.contains(&kind).then_some(kind);
        let repeats = matches!(origin, Origin::Exact | Origin::Simulated);
        let kind = match kinds[self.shipped] {
            Kind::Same if repeats => differ(Kind::Cost).or(differ(Kind::Gain)).unwrap_or(Kind::Same),
            kind => kind,
        };
        self.measures.push(Measure { metric, label, unit, origin, values, kinds, kind });
    }

    /// Returns the findings: gains first, then costs, then what makes no difference.
    pub(super) fn finish(mut self, mechanism: Mechanism, setup: String) -> Findings {
        self.measures.sort_by_key(|measure| measure.kind);
        let shipped = self.variants[self.shipped];
        Findings { mechanism, setup, variants: self.variants, shipped, measures: self.measures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(["off", "old", "new"], "new")
    }

    fn measures(table: Table) -> Vec<(String, Kind, Vec<Kind>)> {
        let found = table.finish(Mechanism::M1, String::new());
        found.measures.into_iter().map(|measure| (measure.metric, measure.kind, measure.kinds)).collect()
    }

    #[test]
    fn kinds_follow_from_values() {
        let mut table = table();
        table.exact(Better::Less, ("equal", "", ""), [2.0, 2.0, 2.0]);
        table.exact(Better::Less, ("dear", "", ""), [2.0, 1.0, 3.0]);
        table.exact(Better::Less, ("cheap", "", ""), [2.0, 3.0, 1.0]);
        table.simulated(Better::More, ("fast", "", ""), [2.0, 1.0, 3.0]);
        table.exact(Better::Less, ("once dear", "", ""), [2.0, 3.0, 2.0]);
        table.exact(Better::More, ("once good", "", ""), [2.0, 3.0, 2.0]);
        use Kind::{Cost, Gain, Same};
        let expected = [
            ("cheap", Gain, vec![Same, Cost, Gain]),
            ("fast", Gain, vec![Same, Cost, Gain]),
            ("once good", Gain, vec![Same, Gain, Same]),
            ("dear", Cost, vec![Same, Gain, Cost]),
            ("once dear", Cost, vec![Same, Cost, Same]),
            ("equal", Same, vec![Same; 3]),
        ];
        assert_eq!(measures(table), expected.map(|(metric, kind, kinds)| (metric.to_owned(), kind, kinds)));
    }

    #[test]
    fn differences_within_the_spread_of_samples_or_of_two_percent_are_none() {
        let kinds = |samples: [&[f64]; 3]| {
            let mut table = table();
            let samples = samples.map(<[f64]>::to_vec);
            table.sampled(Better::Less, Origin::Timed, ("time", "", ""), samples).unwrap();
            measures(table).remove(0).2
        };
        use Kind::{Cost, Gain, Same};
        // The middle half of four samples has all but the extremes.
        let off = [9.0, 10.0, 11.0, 90.0];
        assert_eq!(kinds([&off, &[8.0, 9.0, 9.9, 20.0], &[1.0, 12.0, 12.0, 12.0]]), [Same, Gain, Cost]);
        assert_eq!(kinds([&off, &[11.0, 11.0, 12.0, 12.0], &[10.5; 4]]), [Same; 3]);
        assert_eq!(kinds([&[100.0], &[98.0], &[102.1]]), [Same, Same, Cost]);
    }

    #[test]
    fn a_variant_without_samples_has_no_measure() {
        let mut table = table();
        assert!(
            table
                .sampled(Better::Less, Origin::Timed, ("", "", ""), vec![vec![1.0], vec![], vec![1.0]])
                .is_none()
        );
    }
}
