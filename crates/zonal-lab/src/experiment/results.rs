//! What an experiment gave: rows that hold what was simulated beside what was published.
//!
//! Plain values, from which the table, `result.json` and the report are made. Neighbours: `run.rs` fills
//! it in, `report/` shows it.

use serde::{Deserialize, Serialize};

pub use super::case_values::{CaseValue, CaseValues, case_text};
use super::keys::figure_key;
use crate::outcome::Outcome;

/// What a variant stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// As it was before the mechanism: what was calibrated on, if anything was.
    Baseline,
    /// The mechanism as its authors described it.
    Published,
    /// Our own variant of it.
    Ours,
}

/// A variant of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct VariantInfo {
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub role: Role,
    /// What is different in it, for people.
    pub about: String,
}

/// One figure of one case in one variant.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// Name of the figure.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// What was simulated.
    pub predicted: f64,
    /// What was published, where that is known.
    pub published: Option<f64>,
    /// Whether the published figure was used to calibrate.
    pub calibrated_on: bool,
}

impl Row {
    /// A text that two rows share exactly when they are the same figure, in whatever variants.
    #[must_use]
    pub fn figure_key(&self) -> String {
        figure_key(&self.case, &self.unit, &self.metric)
    }

    /// How far the prediction lies from the published figure, in percent of that.
    #[must_use]
    pub fn error_pct(&self) -> Option<f64> {
        self.published
            .filter(|published| *published != 0.0)
            .map(|published| (self.predicted / published - 1.0) * 100.0)
    }
}

/// A run: one case in one variant.
#[derive(Clone, PartialEq, Debug)]
pub struct RunResult {
    /// The case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// A parameter of the simulation.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Its name, as in the file: `hardware.transfer_ns`.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Whether it was found by calibration; others were assumed.
    pub calibrated: bool,
    /// Why the value is plausible.
    pub why: String,
}

/// What an experiment gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// Name of the experiment.
    pub experiment: String,
    /// What it is about, in a line.
    pub title: String,
    /// Where the published figures are from; empty for a user's own.
    pub source: String,
    /// What was assumed of the machine and the workload, a sentence each.
    pub assumptions: Vec<String>,
    /// Seed of all its runs.
    pub seed: u64,
    /// Names of the machines.
    pub machines: Vec<String>,
    /// Parameters in physical units.
    pub parameters: Vec<Parameter>,
    /// Which published rows were calibrated on, for people; empty when none were.
    pub calibrated_on: String,
    /// Variants in the order of the file.
    pub variants: Vec<VariantInfo>,
    /// All figures, in the order of the file: parts, cases, variants, metrics.
    pub rows: Vec<Row>,
    /// All runs that were done, in the same order.
    pub runs: Vec<RunResult>,
    /// Runs that were not done because somebody stopped it.
    pub missing: usize,
}
