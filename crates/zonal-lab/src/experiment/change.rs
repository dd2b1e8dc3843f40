//! Changes of figures against the baseline: whether they are better, and how they are written.
//!
//! Related files: `experiment/answer.rs` answers questions with them.

use super::case_values::case_text;
use super::results::Row;
use crate::figures;
use crate::workload::{Better, better};

/// A figure of the answer: a row, and its change by the allocator alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'r> {
    pub(super) row: &'r Row,
    kind: Kind,
    value: f64,
}

/// What the value of a change is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Percent of the baseline's value.
    Percent,
    /// A percentage, if that of the baseline is zero.
    Points,
    /// A value in the figure's unit, if that of the baseline is zero.
    FromZero,
}

/// How the compared variant differs from the baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Same,
    Better,
    Worse,
    Mixed,
    /// Only figures differ whose changes are neither better nor worse.
    Other,
}

impl<'r> Change<'r> {
    /// Returns the change of a row, if it has one. Ids have none.
    pub(super) fn of(row: &'r Row) -> Option<Self> {
        let value = row.at_baseline_costs.unwrap_or(row.predicted);
        let (kind, value) = match row.allocator_change_pct() {
            Some(percent) => (Kind::Percent, percent),
            None if row.baseline != Some(0.0) || row.unit == "id" || !value.is_finite() => return None,
            None if row.unit.starts_with('%') => (Kind::Points, value),
            None => (Kind::FromZero, value),
        };
        Some(Self { row, kind, value })
    }

    /// Whether the change is more than `margin` percent or points, or from zero to another number.
    fn exceeds(&self, margin: f64) -> bool {
        self.kind == Kind::FromZero || self.value.abs() > margin
    }

    /// Whether the change makes the figure better; `None` if it is neither better nor worse.
    fn is_better(&self) -> Option<bool> {
        let metric = own_name(&self.row.metric);
        match better(metric) {
            Better::Higher => Some(self.value > 0.0),
            Better::Lower => Some(self.value < 0.0),
            Better::Neither => None,
        }
    }
}

/// Returns the name of a metric without its program.
pub(super) fn own_name(metric: &str) -> &str {
    metric.rsplit_once('.').map_or(metric, |(_, name)| name)
}

/// Groups changes by metric, in the order of the rows.
pub(super) fn by_metric(changes: Vec<Change<'_>>) -> Vec<(&str, Vec<Change<'_>>)> {
    let mut metrics: Vec<(&str, Vec<Change<'_>>)> = Vec::new();
    for change in changes {
        match metrics.iter_mut().find(|(metric, _)| *metric == change.row.metric) {
            Some((_, changes)) => changes.push(change),
            None => metrics.push((&change.row.metric, vec![change])),
        }
    }
    metrics
}

pub(super) fn verdict(changes: &[Change<'_>], margin: f64) -> Verdict {
    let mut found = changes.iter().filter(|change| change.exceeds(margin)).map(Change::is_better);
    let has = |wanted| found.clone().any(|found| found == wanted);
    match (has(Some(true)), has(Some(false))) {
        (true, true) => Verdict::Mixed,
        (true, false) => Verdict::Better,
        (false, true) => Verdict::Worse,
        (false, false) if found.next().is_some() => Verdict::Other,
        (false, false) => Verdict::Same,
    }
}

/// Describes the changes of one metric: `wall 1.2 to 32 % lower (better), most with cpus = 64 (0.61 instead of 0.90 s)`.
pub(super) fn clause(changes: &[Change<'_>], margin: f64) -> String {
    let metric = &changes[0].row.metric;
    let (moved, same): (Vec<&Change<'_>>, Vec<&Change<'_>>) =
        changes.iter().partition(|change| change.exceeds(margin));
    let limit = limit(&same, margin);
    if moved.is_empty() {
        let cases = if same.len() == 1 { String::new() } else { format!(" in any of {} cases", same.len()) };
        return format!("{metric} differs by no more than {limit}{cases}");
    }
    let mut texts = Vec::new();
    for kind in [Kind::Percent, Kind::Points, Kind::FromZero] {
        for (word, sign) in [("higher", 1.0), ("lower", -1.0)] {
            let there = moved.iter().filter(|change| change.kind == kind && sign * change.value > 0.0);
            let there: Vec<&Change<'_>> = there.copied().collect();
            texts.extend(direction(&there, word, changes.len()));
        }
    }
    if !same.is_empty() {
        let cases = if same.len() == 1 { "case" } else { "cases" };
        texts.push(format!("and within {limit} in {} {cases}", same.len()));
    }
    format!("{metric} {}", texts.join(", "))
}

/// Returns the largest size of changes that are no difference.
fn limit(same: &[&Change<'_>], margin: f64) -> String {
    let margin = figures::exact(margin);
    let points = same.iter().filter(|change| change.kind == Kind::Points).count();
    match same.len() - points {
        _ if points == 0 => format!("{margin} %"),
        0 => format!("{margin} points"),
        _ => format!("{margin} % or points"),
    }
}

/// Describes changes that have the same kind and direction, in some of `all` cases.
fn direction(there: &[&Change<'_>], word: &str, all: usize) -> Option<String> {
    let most = there.iter().max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()))?;
    let sizes: Vec<f64> = there.iter().map(|change| change.value.abs()).collect();
    let size = match most.kind {
        Kind::Percent => unsigned(&sizes) + " % ",
        Kind::Points => unsigned(&sizes) + " points ",
        Kind::FromZero => String::new(),
    };
    let which = match most.is_better() {
        Some(true) => " (better)",
        Some(false) => " (worse)",
        None => "",
    };
    Some(format!("{size}{word}{which}{}", place(most.row, there.len(), all)))
}

/// Describes where `there` of all cases have a change, of which `row` has the largest.
fn place(row: &Row, there: usize, all: usize) -> String {
    let after = row.at_baseline_costs.unwrap_or(row.predicted);
    let before = row.baseline.unwrap_or_default();
    let values = format!("{} instead of {} {}", figures::number(after), figures::number(before), row.unit);
    match (case_text(&row.case), there) {
        (case, _) if case.is_empty() || all == 1 => format!(", {values}"),
        (case, 1) => format!(" with {case} ({values})"),
        (case, _) => format!(" in {there} of {all} cases, most with {case} ({values})"),
    }
}

/// Describes the changes of one metric as ranges: `−32 to +1.2 %`.
pub(super) fn ranges(changes: &[Change<'_>]) -> String {
    let of = |kind| -> Vec<f64> {
        changes.iter().filter(|change| change.kind == kind).map(|change| change.value).collect()
    };
    let (percent, points) = (of(Kind::Percent), of(Kind::Points));
    let mut texts = Vec::new();
    if !percent.is_empty() {
        texts.push(range(&percent) + " %");
    }
    if !points.is_empty() {
        texts.push(range(&points) + " points");
    }
    if percent.len() + points.len() < changes.len() {
        texts.push("changes from zero".to_owned());
    }
    texts.join(", ")
}

/// Formats sizes as a range: `1.2 to 32`.
fn unsigned(sizes: &[f64]) -> String {
    range(sizes).replace(['+', '−'], "")
}

/// Formats changes as a range: `−32 to +1.2`.
pub(super) fn range(changes: &[f64]) -> String {
    let least = changes.iter().copied().fold(f64::INFINITY, f64::min);
    let most = changes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [least, most] = [least, most].map(figures::deviation);
    if least == most { least } else { format!("{least} to {most}") }
}
