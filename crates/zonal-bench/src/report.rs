//! The results of a bench: one row for each contender on each workload, and the contenders that were left out.
//!
//! A ratio is computed within each round, where both contenders ran at nearly the same time; the median over the
//! rounds is reported. Any influence that slows a whole round down therefore cancels out. Related files: `bench.rs`
//! measures, and front ends print the report.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use zonal_workload::Workload;

use crate::contender::{Entry, Sample};
use crate::counting::Counting;
use crate::spread::Spread;
use crate::{floor, ours};

/// One contender on one workload. All figures are per pair of one allocation and one free.
#[derive(Clone, Debug)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// Number of concurrent threads.
    pub threads: NonZeroUsize,
    /// The contender.
    pub contender: String,
    /// The contender's version.
    pub version: String,
    /// CPU time in nanoseconds. If two threads share a pair, this is the mean of both threads.
    pub cpu_ns: Spread,
    /// Wall time in nanoseconds. If two threads share a pair, this is the mean of both threads.
    pub wall_ns: Spread,
    /// Number of instructions in user space, as the median over the rounds, if they can be counted.
    pub instructions: Option<f64>,
    /// CPU time as a multiple of zonal's time in the same round, as the median over the rounds.
    pub ratio_to_zonal: Option<f64>,
    /// CPU time as a multiple of the floor's time in the same round, as the median over the rounds. The floor is
    /// `floor-rseq`, or `floor-spin` on systems without restartable sequences and for contenders that do not use such
    /// sequences.
    pub ratio_to_floor: Option<f64>,
    /// CPU time as a multiple of `floor-exact`'s time in the same round, as the median over the rounds. That is the floor
    /// which refuses invalid frees, as zonal does. `None` without restartable sequences, and for contenders that do
    /// not use them.
    pub ratio_to_exact: Option<f64>,
    /// Failed requests per pair.
    pub failed: f64,
    /// Number of measured rounds.
    pub rounds: usize,
}

/// A contender that was left out for one workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// The workload.
    pub workload: Workload,
    /// The contender.
    pub contender: String,
    /// The reason, as text.
    pub reason: String,
}

/// The results of a bench.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rows by workload, then number of threads, then contender, each in the requested order.
    pub rows: Vec<Row>,
    /// The contenders that were left out.
    pub skipped: Vec<Skipped>,
    /// The reason why instructions were not counted, or `None` if they were.
    pub instructions_missing: Option<String>,
}

/// The samples of one contender's rounds. A round that completed no pair is `None`, so that the rounds of different
/// contenders stay aligned.
type Rounds = Vec<Option<Sample>>;

/// The samples of one workload, by thread count and entry index.
#[derive(Default)]
pub(crate) struct Samples(BTreeMap<(NonZeroUsize, usize), Rounds>);

impl Samples {
    /// Adds the next round's sample.
    pub(crate) fn add(&mut self, threads: NonZeroUsize, place: usize, sample: Option<Sample>) {
        self.0.entry((threads, place)).or_default().push(sample);
    }
}

impl Report {
    pub(crate) fn new(counting: &Counting) -> Self {
        let instructions_missing = counting.why_not().map(str::to_owned);
        Self { rows: Vec::new(), skipped: Vec::new(), instructions_missing }
    }

    /// Adds the rows and the skipped contenders of a workload.
    pub(crate) fn add(&mut self, workload: Workload, entries: &[Entry], samples: &Samples) {
        let place_of = |name: &str| entries.iter().position(|entry| entry.name() == name);
        for (&(threads, place), rounds) in &samples.0 {
            let of = |name: &str| samples.0.get(&(threads, place_of(name)?));
            let entry = &entries[place];
            let is_locked = entry.name() == ours::LOCKED;
            let floor = floor::NAMES[usize::from(is_locked)..].iter().find_map(|name| of(name));
            let exact = of(floor::EXACT).filter(|_| !is_locked);
            let figures = |figure: fn(&Sample) -> f64| Spread::of(rounds.iter().flatten().map(figure));
            let (Some(cpu_ns), Some(wall_ns)) = (figures(|s| s.cpu_ns), figures(|s| s.wall_ns)) else {
                let (contender, reason) = (entry.name().into(), "it did not complete a single pair".into());
                self.skipped.push(Skipped { workload, contender, reason });
                continue;
            };
            let counts: Option<Vec<f64>> =
                rounds.iter().flatten().map(|sample| sample.instructions).collect();
            self.rows.push(Row {
                workload,
                threads,
                contender: entry.name().into(),
                version: entry.version().into(),
                cpu_ns,
                wall_ns,
                instructions: counts.and_then(Spread::of).map(|spread| spread.median),
                ratio_to_zonal: of(ours::NAME).and_then(|zonal| ratio(rounds, zonal)),
                ratio_to_floor: floor.and_then(|floor| ratio(rounds, floor)),
                ratio_to_exact: exact.and_then(|exact| ratio(rounds, exact)),
                failed: figures(|sample| sample.failed).map_or(0.0, |spread| spread.median),
                rounds: rounds.iter().flatten().count(),
            });
        }
    }
}

/// Returns the median, over the rounds, of the CPU time ratio, `rounds` to `others`.
fn ratio(rounds: &Rounds, others: &Rounds) -> Option<f64> {
    let both = rounds.iter().zip(others).filter_map(|(one, other)| (*one).zip(*other));
    Spread::of(both.map(|(one, other)| one.cpu_ns / other.cpu_ns)).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::harness;

    fn sample(cpu_ns: f64) -> Option<Sample> {
        let (wall_ns, instructions) = (2.0 * cpu_ns, Some(10.0 * cpu_ns));
        Some(Sample { cpu_ns, wall_ns, instructions, pairs: 1, failed: 0.0 })
    }

    /// Creates a report on contenders with these names and samples.
    fn report(contenders: &[(&str, &[Option<Sample>])]) -> Report {
        let entry = |name: &str| Entry::of_any(name, "1", |frames| harness().make(frames));
        let entries: Vec<Entry> = contenders.iter().map(|(name, _)| entry(name)).collect();
        let mut samples = Samples::default();
        for (place, (_, rounds)) in contenders.iter().enumerate() {
            rounds.iter().for_each(|sample| samples.add(NonZeroUsize::MIN, place, *sample));
        }
        let mut report = Report::new(&Counting::detect());
        report.add(Workload::Pair, &entries, &samples);
        report
    }

    #[test]
    fn ratios_compare_samples_of_the_same_round() {
        // The machine is ten times slower in the second round, and the floor is disturbed in the third.
        let slow = [sample(20.0), sample(200.0), sample(60.0)];
        let fast = [sample(10.0), sample(100.0), sample(9000.0)];
        let report = report(&[("zonal", &slow), ("floor-rseq", &fast), ("floor-spin", &[sample(1.0)])]);
        let ratios = |at: usize| (report.rows[at].ratio_to_zonal, report.rows[at].ratio_to_floor);
        assert_eq!((ratios(0), ratios(1)), ((Some(1.0), Some(2.0)), (Some(0.5), Some(1.0))));
        assert_eq!(report.rows[0].cpu_ns, Spread { median: 60.0, min: 20.0, max: 200.0 });
        assert_eq!(report.rows[0].wall_ns.median, 120.0);
        assert_eq!(report.rows[0].instructions, Some(600.0));
    }

    #[test]
    fn ratios_use_the_other_floor_if_one_is_missing() {
        let with = report(&[("zonal", &[sample(30.0)]), ("floor-spin", &[sample(10.0)])]);
        assert_eq!(with.rows[0].ratio_to_floor, Some(3.0));
        let without = report(&[("zonal", &[sample(30.0)]), ("other", &[sample(10.0)])]);
        assert_eq!(without.rows[1].ratio_to_floor, None);
    }

    #[test]
    fn contenders_without_sequences_are_not_compared_with_the_exact_floor() {
        let rows = [("zonal", 30.0), ("zonal-locked", 60.0), ("floor-exact", 15.0)];
        let samples = rows.map(|(name, ns)| (name, [sample(ns)]));
        let report = report(&samples.each_ref().map(|(name, samples)| (*name, &samples[..])));
        let ratios: Vec<_> = report.rows.iter().map(|row| row.ratio_to_exact).collect();
        assert_eq!(ratios, [Some(2.0), None, Some(1.0)]);
    }

    #[test]
    fn a_round_without_pairs_is_skipped_without_shifting_others() {
        let report = report(&[("zonal", &[sample(10.0), sample(50.0)]), ("other", &[None, sample(100.0)])]);
        assert_eq!((report.rows[1].ratio_to_zonal, report.rows[1].rounds), (Some(2.0), 1));
    }

    #[test]
    fn contenders_without_pairs_are_skipped_with_a_reason() {
        let report = report(&[("zonal", &[sample(10.0)]), ("other", &[None])]);
        assert_eq!((report.rows.len(), &*report.skipped[0].contender), (1, "other"));
    }
}
