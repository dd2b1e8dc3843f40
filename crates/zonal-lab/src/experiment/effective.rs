//! The hardware costs and settings that an experiment's runs really have, whether or not the file sets them.
//!
//! Related files: `experiment/collect.rs` puts them into the results; `experiment/trials.rs` repeats runs with other
//! costs.

use serde_json::Value;

use super::choices;
use super::plan::{Plan, Run};
use super::results::{CaseValue, Effective};
use crate::sim::Hardware;

/// A value's name, and its text in each run: by case, then by variant.
type Texts = (String, Vec<Vec<String>>);

impl Plan {
    /// Returns all hardware costs, and the settings that differ between variants of a case.
    #[must_use]
    pub fn effective(&self) -> Vec<Effective> {
        let mut found: Vec<Effective> = Vec::new();
        let mut parts = 0;
        for runs in self.runs.chunk_by(|a, b| part(a) == part(b)) {
            parts += 1;
            for (name, texts) in texts(runs, self.variants.len()) {
                let differs = texts.iter().any(|case| case.iter().any(|text| *text != case[0]));
                if differs || name.starts_with("hardware.") {
                    let value = |at: usize| joined(texts.iter().map(|case| &*case[at]));
                    let values = (0..self.variants.len()).map(value).collect();
                    let part = part(&runs[0]).map(str::to_owned);
                    found.push(Effective { name, part, values, differs });
                }
            }
        }
        together(&found, parts)
    }
}

/// Joins the entries of names that have the same values in all `parts` parts. Those that differ come first.
fn together(found: &[Effective], parts: usize) -> Vec<Effective> {
    let same = |one: &Effective| {
        let alike = |other: &&Effective| other.name == one.name && other.values == one.values;
        found.iter().filter(alike).count() == parts
    };
    let mut kept: Vec<Effective> = Vec::new();
    for one in found {
        let part = if same(one) { None } else { one.part.clone() };
        let one = Effective { part, ..one.clone() };
        if !kept.contains(&one) {
            kept.push(one);
        }
    }
    kept.sort_by_key(|one| !one.differs);
    kept
}

/// Returns the name of a run's part.
fn part(run: &Run) -> Option<&str> {
    match run.case.first() {
        Some((name, CaseValue::Text(part))) if name == super::published::PART => Some(part),
        _ => None,
    }
}

fn texts(runs: &[Run], variants: usize) -> Vec<Texts> {
    let all: Vec<Vec<(String, String)>> = runs.iter().map(values).collect();
    let names = all.first().into_iter().flatten().enumerate();
    let of = |at: usize, case: &[Vec<(String, String)>]| case.iter().map(|run| run[at].1.clone()).collect();
    names
        .map(|(at, (name, _))| (name.clone(), all.chunks(variants).map(|case| of(at, case)).collect()))
        .collect()
}

/// Returns all costs and settings of a run.
fn values(run: &Run) -> Vec<(String, String)> {
    let costs = costs(&run.hardware).into_iter().map(|(name, value)| {
        (format!("hardware.{name}"), value.as_str().map_or_else(|| plain(&value), str::to_owned))
    });
    let settings = choices::values(&run.config, &run.model).into_iter();
    costs.chain(settings.map(|(name, value)| (format!("config.{name}"), value))).collect()
}

/// Formats a number as people write it in a file: without a fraction that is zero.
fn plain(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |number| number.to_string())
}

/// Returns the fields of hardware costs, by name.
pub(super) fn costs(hardware: &Hardware) -> Vec<(String, Value)> {
    match serde_json::to_value(hardware) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Joins different texts by ` or `.
fn joined<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for text in texts {
        if !kept.contains(&text) {
            kept.push(text);
        }
    }
    kept.join(" or ")
}
