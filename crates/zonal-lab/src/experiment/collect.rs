//! Builds results from the outcomes of runs and the published figures.
//!
//! Related files: `experiment/run.rs` produces the outcomes, `experiment/results.rs` defines the results.

use std::collections::{HashMap, HashSet};

use super::keys::{figure_key, run_key};
use super::plan::{Plan, Run};
use super::published::PublishedRow;
use super::results::{Results, Role, Row, RunResult};
use crate::outcome::{Metric, Outcome};

/// Builds the results of a plan. A run without an outcome was not completed.
pub(super) fn collect(plan: &Plan, seed: u64, outcomes: Vec<Option<Outcome>>) -> Results {
    let missing = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    let (mut rows, mut runs) = (Vec::new(), Vec::new());
    let calibration = plan.calibration.as_ref().map_or(&[][..], |found| found.rows.rows());
    let calibrated: HashSet<String> =
        calibration.iter().map(|row| figure_key(&row.case, "", &row.metric)).collect();
    for (run, outcome) in plan.runs.iter().zip(outcomes) {
        let Some(outcome) = outcome else { continue };
        rows.extend(outcome.metrics.iter().map(|metric| row(plan, &calibrated, run, metric)));
        runs.push(RunResult { case: run.case.clone(), variant: run.variant.clone(), outcome });
    }
    Results {
        experiment: plan.name.clone(),
        title: plan.title.clone(),
        source: plan.source.clone(),
        assumptions: plan.assumptions.clone(),
        seed,
        machines: plan.machines.clone(),
        parameters: plan.parameters.clone(),
        calibrated_on: plan.calibration.as_ref().map(|found| found.about.clone()).unwrap_or_default(),
        variants: plan.variants.clone(),
        rows,
        runs,
        missing,
    }
}

/// Builds a row. `calibrated` contains the keys of the figures used for calibration, without the variant, which is
/// always the baseline.
fn row(plan: &Plan, calibrated: &HashSet<String>, run: &Run, metric: &Metric) -> Row {
    let unit = run.workload.unit_of(metric.name);
    assert_eq!(unit, Some(metric.unit), "tables are held against this unit of {}", metric.name);
    let is_baseline =
        plan.variants.iter().any(|info| info.name == run.variant && info.role == Role::Baseline);
    Row {
        case: run.case.clone(),
        variant: run.variant.clone(),
        metric: metric.name.to_owned(),
        unit: metric.unit.to_owned(),
        predicted: metric.value,
        published: plan.published.find(&run.case, &run.variant, metric.name).map(|row| row.value),
        calibrated_on: is_baseline && calibrated.contains(&figure_key(&run.case, "", metric.name)),
    }
}

impl Plan {
    /// Returns the line numbers of published figures that have no simulated value although their run was completed.
    #[must_use]
    pub fn not_simulated(&self, results: &Results) -> Vec<usize> {
        let runs: HashMap<String, &RunResult> =
            results.runs.iter().map(|run| (run_key(&run.case, &run.variant), run)).collect();
        let is_missing = |row: &&PublishedRow| {
            let run = runs.get(&run_key(&row.case, &row.variant));
            run.is_some_and(|run| run.outcome.get(&row.metric).is_none())
        };
        self.published.rows.iter().filter(is_missing).map(|row| row.line).collect()
    }
}
