//! Runs in addition to those of the plan, which show where a difference between variants comes from and how sure it is.
//!
//! A variant with other hardware costs than the baseline also runs with the baseline's: what remains of its difference
//! is the allocator's. A *spread* repeats the baseline and the compared variant, at the same costs, with other seeds,
//! and with each cost lower and higher. Related files: `experiment/run.rs` executes these runs,
//! `experiment/collect.rs` puts them into the results.

use std::collections::BTreeSet;

use serde_json::Value;
use zonal::rules::pageset_tuning::PagesetTuning;

use super::effective::costs;
use super::plan::{Plan, Run};
use super::results::{baseline, compared};
use crate::sim::{Arbitration, Drains, Hardware};
use crate::workload::Workload;

/// Number of seeds in a spread.
const SEEDS: u64 = 5;
/// Factors by which a spread changes each cost, and their names.
const FACTORS: [(f64, &str); 2] = [(0.8, "−20 %"), (1.2, "+20 %")];
/// Endings of workload fields that are costs, not sizes.
const COST_ENDINGS: [&str; 4] = ["_ns", "_ms", "_mb_s", "_pct"];
/// Page operations that a core simulates in a second, at least, on most machines.
const OPERATIONS_A_SECOND: f64 = 2e6;

/// What is different in a run besides those of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Change {
    /// Index of the plan's run.
    pub(super) of: usize,
    /// Whether the run has the baseline's hardware costs.
    pub(super) at_baseline_costs: bool,
    /// Index in [`Plan::spreads`].
    pub(super) spread: usize,
}

/// A change of a spread.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Spread {
    /// None, for runs outside of a spread.
    None,
    /// The nth seed after the experiment's.
    Seed(u64),
    /// A cost, `hardware.FIELD` or `workload.FIELD`, times a factor. The text describes the change.
    Cost(String, f64, String),
}

/// A run besides those of the plan.
pub(super) struct Extra {
    pub(super) change: Change,
    pub(super) run: Run,
    /// Number that is added to the experiment's seed.
    pub(super) more_seed: u64,
}

impl Extra {
    /// Whether the run must be simulated because its result is not that of the plan's run that it changes.
    pub(super) fn differs_from(&self, run: &Run) -> bool {
        self.more_seed != 0
            || self.run.workload != run.workload
            || effective_hardware(&self.run) != effective_hardware(run)
    }
}

/// Returns a run's costs, with the default of a rule that its allocator does not use.
fn effective_hardware(run: &Run) -> Hardware {
    let mut hardware = run.hardware.clone();
    if run.config.tuning != PagesetTuning::DepthPublished {
        hardware.drains = Drains::Batches;
    }
    hardware
}

impl Plan {
    /// Estimates the time of a spread on `jobs` cores, in seconds.
    #[must_use]
    pub fn spread_seconds(&self, jobs: usize) -> f64 {
        let plan = Self { spread: true, ..self.clone() };
        let operations: f64 = plan.extras().iter().map(|extra| extra.run.operations).sum();
        operations / OPERATIONS_A_SECOND / jobs.max(1) as f64
    }

    /// Returns no change, and then the changes of the spread, in the order of the results.
    pub(super) fn spreads(&self) -> Vec<Spread> {
        if !self.spread {
            return vec![Spread::None];
        }
        let costs = self.cost_names().into_iter().flat_map(|name| {
            FACTORS.map(|(factor, text)| Spread::Cost(name.clone(), factor, format!("{name} {text}")))
        });
        [Spread::None].into_iter().chain((1..SEEDS).map(Spread::Seed)).chain(costs).collect()
    }

    /// Returns all runs besides those of the plan. Costs that would be out of bounds are left out.
    pub(super) fn extras(&self) -> Vec<Extra> {
        let (Some(baseline), Some(compared)) =
            (baseline(&self.variants), compared(&self.variants, &self.question))
        else {
            return Vec::new();
        };
        let spreads = self.spreads();
        let mut extras = Vec::new();
        for (case, runs) in self.runs.chunks(self.variants.len()).enumerate() {
            let Some(base) = runs.iter().find(|run| run.variant == baseline.name) else { continue };
            for (at, run) in runs.iter().enumerate() {
                let mut add = |at_baseline_costs, spread: usize| {
                    let mut repeated = run.clone();
                    if at_baseline_costs {
                        repeated.hardware = base.hardware.clone();
                    }
                    if !spreads[spread].apply(&mut repeated) {
                        return;
                    }
                    let of = case * self.variants.len() + at;
                    let more_seed = if let Spread::Seed(nth) = spreads[spread] { nth } else { 0 };
                    let change = Change { of, at_baseline_costs, spread };
                    extras.push(Extra { change, run: repeated, more_seed });
                };
                let has_other_costs = run.hardware != base.hardware;
                let is_compared = run.variant == compared.name;
                if has_other_costs {
                    add(true, 0);
                }
                for (at, spread) in spreads.iter().enumerate().skip(1) {
                    let is_seed = matches!(spread, Spread::Seed(_));
                    if is_seed || (is_compared && !has_other_costs) || run.variant == baseline.name {
                        add(false, at);
                    }
                    if is_compared && has_other_costs {
                        add(true, at);
                    }
                }
            }
        }
        extras
    }

    /// Returns the names of all costs that can matter in a run.
    fn cost_names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let documented: BTreeSet<&str> =
            self.parameters.iter().filter_map(|parameter| parameter.name.rsplit('.').next()).collect();
        for run in &self.runs {
            for (name, value) in costs(&run.hardware) {
                if value.is_f64() && value.as_f64() != Some(0.0) && matters(&name, run) {
                    names.insert(format!("hardware.{name}"));
                }
            }
            each_number(&mut fields(&run.workload), &mut |name, value| {
                let is_cost = COST_ENDINGS.iter().any(|ending| name.ends_with(ending));
                if value != 0.0 && (is_cost || documented.contains(name)) {
                    names.insert(format!("workload.{name}"));
                }
                value
            });
        }
        names
    }
}

/// Whether a hardware cost can change a run.
fn matters(name: &str, run: &Run) -> bool {
    match name {
        "disk_mb_s" | "disk_request_ms" => run.workload.uses_disk(),
        "retry_power" => run.hardware.arbitration == Arbitration::Retry,
        _ => true,
    }
}

impl Spread {
    /// Changes a run. Returns false if the run does not have the cost, or cannot have the changed cost.
    fn apply(&self, run: &mut Run) -> bool {
        let Self::Cost(name, factor, _) = self else { return true };
        let before = (run.hardware.clone(), run.workload.clone());
        match name.split_once('.') {
            Some(("hardware", field)) => {
                run.hardware = scaled(&run.hardware, field, *factor).unwrap_or(before.0.clone());
            }
            Some((_, field)) => {
                let mut all = fields(&run.workload);
                each_number(&mut all, &mut |name, value| if name == field { value * factor } else { value });
                run.workload = serde_json::from_value(all).unwrap_or(before.1.clone());
            }
            None => {}
        }
        let is_valid =
            || run.hardware.check().is_ok() && run.workload.program().check(&run.machine()).is_ok();
        (&run.hardware, &run.workload) != (&before.0, &before.1) && is_valid()
    }
}

/// Returns hardware with one cost multiplied.
fn scaled(hardware: &Hardware, field: &str, factor: f64) -> Option<Hardware> {
    let mut all = serde_json::to_value(hardware).ok()?;
    let cost = all.get_mut(field)?;
    *cost = Value::from(cost.as_f64()? * factor);
    serde_json::from_value(all).ok()
}

fn fields(workload: &Workload) -> Value {
    serde_json::to_value(workload).unwrap_or_default()
}

/// Replaces each number with a fraction, also in nested tables, by what `change` makes of its name and value.
fn each_number(value: &mut Value, change: &mut impl FnMut(&str, f64) -> f64) {
    match value {
        Value::Object(all) => {
            for (name, value) in all {
                match value {
                    Value::Number(number) if number.is_f64() => {
                        *value = Value::from(change(name, number.as_f64().unwrap_or_default()));
                    }
                    _ => each_number(value, change),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| each_number(value, change)),
        _ => {}
    }
}
