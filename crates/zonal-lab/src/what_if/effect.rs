//! The figures of runs, and what a mechanism does to them.

use super::mechanisms::Mechanism;

/// A difference below this share of the value does not matter.
const MATTERS: f64 = 0.02;

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Time in the allocator by operation, in nanoseconds.
    OperationNs,
    /// Blocks from the node that the request preferred, in percent.
    LocalPercent,
    /// Requests that failed, in percent.
    FailedPercent,
}

impl Figure {
    /// All figures.
    pub const ALL: [Self; 3] = [Self::OperationNs, Self::LocalPercent, Self::FailedPercent];

    /// Returns the name with its unit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OperationNs => "time in the allocator, ns an operation",
            Self::LocalPercent => "blocks from the preferred node, %",
            Self::FailedPercent => "failed requests, %",
        }
    }

    /// Returns the smallest difference from `value` that matters: a share of a time, or a percentage point.
    pub(super) fn margin(self, value: f64) -> f64 {
        if self == Self::OperationNs { MATTERS * value } else { 1.0 }
    }

    /// Whether a difference is a gain.
    const fn is_gain(self, difference: f64) -> bool {
        match self {
            Self::LocalPercent => difference > 0.0,
            Self::OperationNs | Self::FailedPercent => difference < 0.0,
        }
    }
}

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Figures {
    pub(super) operation_ns: f64,
    pub(super) local_percent: f64,
    pub(super) failed_percent: f64,
    /// Full bits that were set.
    pub(super) marks: u64,
    /// Refills and drains.
    pub(super) moves: u64,
    /// Seconds on the allocator's clock.
    pub(super) seconds: f64,
}

impl Figures {
    #[cfg(test)]
    pub(super) fn of_time(operation_ns: f64) -> Self {
        Self { operation_ns, ..Self::default() }
    }

    pub(super) fn get(&self, figure: Figure) -> f64 {
        match figure {
            Figure::OperationNs => self.operation_ns,
            Figure::LocalPercent => self.local_percent,
            Figure::FailedPercent => self.failed_percent,
        }
    }
}

/// What a mechanism does to a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// The figure.
    pub figure: Figure,
    /// Mean over all seeds without the mechanism.
    pub off: f64,
    /// Mean over all seeds with the mechanism.
    pub on: f64,
    /// How far the differences with other seeds are from their middle.
    pub spread: f64,
    /// Changed costs with which the verdict differs, as in `transfer_ns +20 %`.
    pub flips_with: Vec<String>,
    /// What the difference means.
    pub verdict: Verdict,
}

/// What a difference means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The mechanism improves the figure.
    Gain,
    /// The mechanism makes the figure worse.
    Loss,
    /// The difference is within the spread of the seeds, or too small to matter.
    Same,
}

impl Verdict {
    pub(super) fn of(figure: Figure, off: f64, on: f64, spread: f64) -> Self {
        let difference = on - off;
        if difference.abs() <= figure.margin(off).max(spread) {
            Self::Same
        } else if figure.is_gain(difference) {
            Self::Gain
        } else {
            Self::Loss
        }
    }
}

impl Effect {
    /// Compares runs without and with a mechanism, one for each seed.
    pub(super) fn of(mechanism: Mechanism, figure: Figure, [off, on]: [&[Figures]; 2]) -> Self {
        let mean = |runs: &[Figures]| runs.iter().map(|run| run.get(figure)).sum::<f64>() / runs.len() as f64;
        let differences = off.iter().zip(on).map(|(off, on)| on.get(figure) - off.get(figure));
        let least = differences.clone().fold(f64::INFINITY, f64::min);
        let most = differences.fold(f64::NEG_INFINITY, f64::max);
        let (off, on, spread) = (mean(off), mean(on), (most - least) / 2.0);
        let verdict = Verdict::of(figure, off, on, spread);
        Self { mechanism, figure, off, on, spread, flips_with: Vec::new(), verdict }
    }

    /// Returns the changed costs with which the verdict differs. The runs without and with the mechanism have one for each.
    pub(super) fn flips(&self, costs: &[String], [off, on]: [&[Figures]; 2]) -> Vec<String> {
        let runs = costs.iter().zip(off.iter().zip(on));
        let differs = |off: &Figures, on: &Figures| {
            Verdict::of(self.figure, off.get(self.figure), on.get(self.figure), self.spread) != self.verdict
        };
        runs.filter(|(_, (off, on))| differs(off, on)).map(|(name, _)| name.clone()).collect()
    }
}

/// Whether a mechanism changes a figure by half of what matters, or more.
pub(super) fn is_near(figure: Figure, off: &[Figures], on: &[Figures]) -> bool {
    let pairs = off.iter().zip(on);
    pairs.into_iter().any(|(off, on)| {
        let (off, on) = (off.get(figure), on.get(figure));
        (on - off).abs() > figure.margin(off) / 2.0
    })
}
