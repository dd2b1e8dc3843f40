//! The results of an experiment: rows that contain simulated and published values.
//!
//! Results are plain values, from which the lab produces the table, `result.json` and the report. Related files:
//! `experiment/collect.rs` builds the results, `report/` renders them.

use serde::{Deserialize, Serialize};

pub use super::case_values::{CaseValue, CaseValues, case_text};
use super::keys::figure_key;
use crate::outcome::Outcome;

/// The role of a variant in its experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The state before the mechanism was introduced. A calibration uses figures of this variant only.
    Baseline,
    /// The mechanism as published by its authors.
    Published,
    /// This project's own variant of the mechanism.
    Ours,
}

/// A variant of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct VariantInfo {
    /// Name of the variant.
    pub name: String,
    /// Role in the experiment.
    pub role: Role,
    /// Description, for people, of how the variant differs from the others.
    pub about: String,
}

/// The value of one metric in one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Values that distinguish the case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// Name of the metric.
    pub metric: String,
    /// Unit of the values.
    pub unit: String,
    /// Simulated value.
    pub predicted: f64,
    /// Published value, if known.
    pub published: Option<f64>,
    /// Whether the published value was used for calibration.
    pub calibrated_on: bool,
}

impl Row {
    /// Returns a key that is equal for two rows exactly when they have the same case, metric and unit, in any
    /// variant.
    #[must_use]
    pub fn figure_key(&self) -> String {
        figure_key(&self.case, &self.unit, &self.metric)
    }

    /// Returns the deviation of the prediction from the published value, in percent of the published value.
    #[must_use]
    pub fn error_pct(&self) -> Option<f64> {
        self.published
            .filter(|published| *published != 0.0)
            .map(|published| (self.predicted / published - 1.0) * 100.0)
    }
}

/// A completed run of one case with one variant.
#[derive(Clone, PartialEq, Debug)]
pub struct RunResult {
    /// Values that distinguish the case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// Outcome of the run.
    pub outcome: Outcome,
}

/// A parameter of the simulation.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Name, as in the file: `hardware.transfer_ns`.
    pub name: String,
    /// Value of the parameter.
    pub value: f64,
    /// Whether the value was found by calibration. All other values are assumptions.
    pub calibrated: bool,
    /// Reason why the value is plausible.
    pub why: String,
}

/// The results of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// Name of the experiment.
    pub experiment: String,
    /// Title, in one line.
    pub title: String,
    /// Source of the published figures; empty if a user's experiment names none.
    pub source: String,
    /// Assumptions about the machine and the workload, one sentence each.
    pub assumptions: Vec<String>,
    /// Seed of the experiment, from which the seeds of its runs are derived.
    pub seed: u64,
    /// Names of the machines.
    pub machines: Vec<String>,
    /// Parameters, in physical units.
    pub parameters: Vec<Parameter>,
    /// Description of the published rows that were used for calibration; empty if there were none.
    pub calibrated_on: String,
    /// Variants, in the order of the file.
    pub variants: Vec<VariantInfo>,
    /// All rows, in the order of the file: parts, cases, variants, metrics.
    pub rows: Vec<Row>,
    /// All completed runs, in the order of the file: parts, cases, variants.
    pub runs: Vec<RunResult>,
    /// Number of runs that were not completed because the experiment was stopped.
    pub missing: usize,
}
