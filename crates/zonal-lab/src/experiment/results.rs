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
#[derive(Clone, PartialEq, Debug, Default)]
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
    /// Simulated value of the baseline in the same case. `None` in the baseline's rows, and if its run is missing.
    pub baseline: Option<f64>,
    /// Simulated value with the baseline's hardware costs, if the variant has others.
    pub at_baseline_costs: Option<f64>,
    /// Simulated values with each seed of a spread, the first of which is `predicted`; empty without a spread.
    pub seeds: Vec<f64>,
    /// Published value, if known.
    pub published: Option<f64>,
    /// Published value of the baseline in the same case, if known.
    pub published_baseline: Option<f64>,
    /// Whether the published value was used for calibration.
    pub calibrated_on: bool,
    /// Whether the experiment's file says that a cost or a rule was chosen by the published value.
    pub fitted: bool,
    /// Whether the experiment's file says that the model does not explain the published value.
    pub open: bool,
}

/// How a simulated value relates to its published value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The published value was used for calibration, or a cost or a rule was chosen by it.
    Fitted,
    /// No cost and no rule was chosen by the published value.
    Predicted,
    /// The experiment's file says that the model does not explain the published value.
    Open,
}

impl Status {
    /// Returns the name, as in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Open => "open",
        }
    }
}

/// Largest deviation of a figure that counts as met, as a share of the published value.
pub const MET: f64 = 0.15;

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

    /// Returns how the value relates to its published value, or `None` if there is none.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.published.map(|_| match (self.calibrated_on || self.fitted, self.open) {
            (true, _) => Status::Fitted,
            (false, true) => Status::Open,
            (false, false) => Status::Predicted,
        })
    }

    /// Whether the value is within [`MET`] of its published value. Returns `None` if there is none.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        self.published.map(|published| (self.predicted - published).abs() <= MET * published.abs())
    }

    /// Returns the change against the baseline, in percent of the baseline's value. Ids have none.
    #[must_use]
    pub fn change_pct(&self) -> Option<f64> {
        change_pct(self.predicted, self.baseline?).filter(|_| self.unit != "id")
    }

    /// Returns the part of [`Row::change_pct`] that remains with the baseline's hardware costs: what the allocator
    /// itself changes.
    #[must_use]
    pub fn allocator_change_pct(&self) -> Option<f64> {
        let value = self.at_baseline_costs.unwrap_or(self.predicted);
        change_pct(value, self.baseline?).filter(|_| self.unit != "id")
    }

    /// Returns the published change against the baseline, in percent of the baseline's value.
    #[must_use]
    pub fn published_change_pct(&self) -> Option<f64> {
        change_pct(self.published?, self.published_baseline?)
    }
}

/// Returns the change from `before` to `after` in percent. There is none from zero to another value.
fn change_pct(after: f64, before: f64) -> Option<f64> {
    if before == after {
        return Some(0.0);
    }
    Some((after / before - 1.0) * 100.0).filter(|change| change.is_finite())
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

/// A hardware cost or an allocator setting, with the values that the runs had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// Name, as in files: `hardware.transfer_ns`, `config.tuning`.
    pub name: String,
    /// Part whose runs had these values; `None` if all parts had the same ones.
    pub part: Option<String>,
    /// Values, by index of the variant. Cases with different values are joined by ` or `.
    pub values: Vec<String>,
    /// Whether variants differed in a case.
    pub differs: bool,
}

/// What the experiment is meant to find out.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Question {
    /// The question, for people; may be empty.
    pub text: String,
    /// Metrics that answer it: METRIC, PART.METRIC or PROGRAM.METRIC. If empty, the time or the throughput of each part
    /// and program.
    pub metrics: Vec<String>,
    /// Variant that is compared with the baseline. By default the first one of this project, else the first other one.
    pub variant: Option<String>,
    /// Largest change that counts as no difference, in percent. By default [`Question::MARGIN_PCT`].
    pub margin_pct: Option<f64>,
}

impl Question {
    /// Default of [`Question::margin_pct`].
    pub const MARGIN_PCT: f64 = 2.0;
}

/// Published figures, and what the experiment's file says about them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFigures {
    /// Description of the figures.
    pub what: String,
    /// Which cost or rule was chosen by them, or what is missing in the model and which measurement would decide it.
    pub why: String,
}

/// The compared variant's figures under another seed, or with a changed cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// What was changed: `seed 3`, `hardware.transfer_ns −20 %`.
    pub what: String,
    /// Whether the seed was changed.
    pub is_seed: bool,
    /// Rows of the compared variant at the baseline's hardware costs.
    pub rows: Vec<Row>,
}

/// The results of an experiment.
#[derive(Clone, PartialEq, Debug, Default)]
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
    /// What the experiment is meant to find out.
    pub question: Question,
    /// All hardware costs, and the settings that differ between variants.
    pub effective: Vec<Effective>,
    /// Parameters, in physical units.
    pub parameters: Vec<Parameter>,
    /// Description of the published rows that were used for calibration; empty if there were none.
    pub calibrated_on: String,
    /// Published figures, besides those of the calibration, by which a cost or a rule was chosen.
    pub fitted: Vec<NamedFigures>,
    /// Published figures that the model does not explain.
    pub open: Vec<NamedFigures>,
    /// Variants, in the order of the file.
    pub variants: Vec<VariantInfo>,
    /// All rows, in the order of the file: parts, cases, variants, metrics.
    pub rows: Vec<Row>,
    /// All completed runs, in the order of the file: parts, cases, variants.
    pub runs: Vec<RunResult>,
    /// Runs of a spread; empty without a spread.
    pub trials: Vec<Trial>,
    /// Number of runs that were not completed because the experiment was stopped.
    pub missing: usize,
}

impl Results {
    /// Returns the variant that the others are compared with: the first baseline, or else the first variant.
    #[must_use]
    pub fn baseline(&self) -> Option<&VariantInfo> {
        baseline(&self.variants)
    }

    /// Returns the variant that answers the question.
    #[must_use]
    pub fn compared(&self) -> Option<&VariantInfo> {
        compared(&self.variants, &self.question)
    }
}

/// Returns the variant that others are compared with.
pub(super) fn baseline(variants: &[VariantInfo]) -> Option<&VariantInfo> {
    variants.iter().find(|variant| variant.role == Role::Baseline).or(variants.first())
}

/// Returns the variant that answers a question.
pub(super) fn compared<'v>(variants: &'v [VariantInfo], question: &Question) -> Option<&'v VariantInfo> {
    if let Some(name) = &question.variant {
        return variants.iter().find(|variant| variant.name == *name);
    }
    let baseline = baseline(variants)?;
    let mut others = variants.iter().filter(|info| info.name != baseline.name);
    let first = others.clone().next();
    others.find(|variant| variant.role == Role::Ours).or(first)
}
