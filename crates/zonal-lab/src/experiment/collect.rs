//! Builds results from the outcomes of runs and the published figures.
//!
//! Related files: `experiment/run.rs` produces the outcomes, `experiment/results.rs` defines the results.

use std::collections::{HashMap, HashSet};

use super::keys::{figure_key, run_key};
use super::plan::Plan;
use super::published::PublishedRow;
use super::results::{Results, Role, Row, RunResult, Trial, baseline, compared};
use super::trials::{Change, Spread};
use crate::outcome::{Metric, Outcome};

/// Builds a plan's results from the outcomes: first its runs, then those with `changes`. A run without an
/// outcome was not completed.
pub(super) fn collect(plan: &Plan, seed: u64, outcomes: Vec<Option<Outcome>>, changes: &[Change]) -> Results {
    let missing = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    let (outcomes, extras) = outcomes.split_at(plan.runs.len());
    let calibration = plan.calibration.as_ref().map_or(&[][..], |found| found.rows.rows());
    let calibrated = calibration.iter().map(|row| figure_key(&row.case, "", &row.metric)).collect();
    let extras = changes.iter().copied().zip(extras).collect();
    let known = Known { plan, seed, calibrated, outcomes, extras, spreads: plan.spreads() };
    let plain = |of| Change { of, at_baseline_costs: false, spread: 0 };
    let rows = (0..plan.runs.len()).flat_map(|of| known.rows(plain(of))).collect();
    let trials = if missing == 0 { known.trials() } else { Vec::new() };
    let runs = plan.runs.iter().zip(outcomes).filter_map(|(run, outcome)| {
        let (case, variant) = (run.case.clone(), run.variant.clone());
        Some(RunResult { case, variant, outcome: outcome.clone()? })
    });
    Results {
        experiment: plan.name.clone(),
        title: plan.title.clone(),
        source: plan.source.clone(),
        assumptions: plan.assumptions.clone(),
        seed,
        machines: plan.machines.clone(),
        question: plan.question.clone(),
        effective: plan.effective(),
        parameters: plan.parameters.clone(),
        calibrated_on: plan.calibration.as_ref().map(|found| found.about.clone()).unwrap_or_default(),
        fitted: plan.fitted.clone(),
        open: plan.open.clone(),
        variants: plan.variants.clone(),
        rows,
        runs: runs.collect(),
        trials,
        missing,
    }
}

/// All outcomes of a plan.
struct Known<'p> {
    plan: &'p Plan,
    seed: u64,
    /// Keys of the figures used for calibration, without the variant, which is always the baseline.
    calibrated: HashSet<String>,
    /// Outcomes of the plan's runs, by index.
    outcomes: &'p [Option<Outcome>],
    /// Outcomes of the other runs.
    extras: HashMap<Change, &'p Option<Outcome>>,
    spreads: Vec<Spread>,
}

impl Known<'_> {
    fn outcome(&self, change: Change) -> Option<&Outcome> {
        if !change.at_baseline_costs && change.spread == 0 {
            return self.outcomes[change.of].as_ref();
        }
        self.extras.get(&change)?.as_ref()
    }

    /// Returns the index of the baseline's run in the same case, unless it is `of` itself.
    fn baseline(&self, of: usize) -> Option<usize> {
        let variants = self.plan.variants.len();
        let name = &baseline(&self.plan.variants)?.name;
        let first = of / variants * variants;
        (first..first + variants).find(|&at| at != of && self.plan.runs[at].variant == *name)
    }

    /// Returns the rows of a run.
    fn rows(&self, change: Change) -> Vec<Row> {
        let Some(outcome) = self.outcome(change) else { return Vec::new() };
        let (plan, run) = (self.plan, &self.plan.runs[change.of]);
        let before = self.baseline(change.of).map(|of| Change { of, at_baseline_costs: false, ..change });
        let baseline = before.and_then(|before| Some((&plan.runs[before.of], self.outcome(before)?)));
        let at_costs = self.outcome(Change { at_baseline_costs: true, ..change });
        let seeds: Vec<&Outcome> = match change.spread {
            0 => self.seeds().filter_map(|spread| self.outcome(Change { spread, ..change })).collect(),
            _ => Vec::new(),
        };
        let role = plan.variants.iter().find(|info| info.name == run.variant).map(|info| info.role);
        let row = |metric: &Metric| {
            let name = &*metric.name;
            let unit = run.workload.unit_of(name);
            assert_eq!(unit, Some(metric.unit), "tables are held against this unit of {name}");
            let published = plan.published.find(&run.case, &run.variant, name);
            let figure = figure_key(&run.case, "", name);
            Row {
                case: run.case.clone(),
                variant: run.variant.clone(),
                metric: name.to_owned(),
                unit: metric.unit.to_owned(),
                predicted: metric.value,
                baseline: baseline.and_then(|(_, outcome)| outcome.get(name)),
                at_baseline_costs: at_costs.and_then(|outcome| outcome.get(name)),
                seeds: match seeds[..] {
                    [] => Vec::new(),
                    _ => std::iter::once(outcome)
                        .chain(seeds.iter().copied())
                        .filter_map(|seed| seed.get(name))
                        .collect(),
                },
                published: published.map(|row| row.value),
                published_baseline: baseline
                    .and_then(|(run, _)| plan.published.find(&run.case, &run.variant, name))
                    .map(|row| row.value),
                calibrated_on: role == Some(Role::Baseline) && self.calibrated.contains(&figure),
                fitted: published.is_some_and(|row| row.fitted),
                open: published.is_some_and(|row| row.open),
            }
        };
        outcome.metrics.iter().map(row).collect()
    }

    /// Returns the indices of the other seeds in the spread.
    fn seeds(&self) -> impl Iterator<Item = usize> {
        let all = self.spreads.iter().enumerate();
        all.filter(|(_, spread)| matches!(spread, Spread::Seed(_))).map(|(at, _)| at)
    }

    /// Returns the trials of the spread, with the rows that each of them changes.
    fn trials(&self) -> Vec<Trial> {
        let Some(compared) = compared(&self.plan.variants, &self.plan.question) else { return Vec::new() };
        let runs = &self.plan.runs;
        let others = |of: usize| self.baseline(of).is_some_and(|at| runs[at].hardware != runs[of].hardware);
        let trial = |(spread, change): (usize, &Spread)| {
            let own = (0..runs.len()).filter(|&of| runs[of].variant == compared.name);
            let rows =
                own.flat_map(|of| self.rows(Change { of, at_baseline_costs: others(of), spread })).collect();
            let (what, is_seed) = match change {
                Spread::None => (String::new(), false),
                Spread::Seed(nth) => (format!("seed {}", self.seed.wrapping_add(*nth)), true),
                Spread::Cost(_, _, text) => (text.clone(), false),
            };
            Trial { what, is_seed, rows }
        };
        let trials = self.spreads.iter().enumerate().skip(1).map(trial);
        trials.filter(|trial| !trial.rows.is_empty()).collect()
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
