//! Answers an experiment's question in a sentence: what the compared variant changes against the baseline, which part of
//! that was an input, and whether other seeds or costs would change the answer.
//!
//! Related files: `experiment/results.rs` defines the question, `experiment/trials.rs` the runs of a spread.
//! `experiment/idle.rs` finds mechanisms that never acted.

use std::collections::HashMap;

use super::case_values::case_text;
use super::idle;
use super::keys::run_key;
use super::results::{CaseValue, Question, Results, Row, Trial};
use crate::figures;

/// Metrics that answer a question if it names none, the best one first.
const PREFERRED: [&str; 9] = [
    "wall",
    "real",
    "build_time",
    "elapsed_s",
    "throughput",
    "copy",
    "written_mib_s",
    "files_per_s_mean",
    "alloc",
];

/// Units whose smaller values are better.
const LESS_IS_BETTER: [&str; 7] = ["s", "ms", "us", "ns/page", "% of cycles", "pages", "KiB"];

/// The answer to an experiment's question.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The answer, in one sentence, and what limits it.
    pub text: String,
    /// Whether the answer is the same with each other seed and each changed cost. `None` without a spread.
    pub survives: Option<bool>,
    /// The seeds and changed costs with which the answer is another one.
    pub flips: Vec<String>,
}

/// How the compared variant differs from the baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Same,
    Better,
    Worse,
    Mixed,
}

/// A figure of the answer: a row, and its change by the allocator alone, in percent; infinite if the baseline is zero.
type Change<'r> = (&'r Row, f64);

impl Results {
    /// Returns the answer to the experiment's question, or `None` if there are not two variants to compare.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        let (variant, baseline) = (&*self.compared()?.name, &*self.baseline()?.name);
        let changes = self.changes(self.rows.iter().filter(|row| row.variant == variant));
        if changes.is_empty() || self.missing > 0 {
            return None;
        }
        let margin = self.margin();
        let verdict = verdict(&changes, margin);
        let mut text = match verdict {
            Verdict::Same => format!("There is no difference between {variant} and {baseline}: "),
            Verdict::Better => format!("{variant} is better than {baseline}: "),
            Verdict::Worse => format!("{variant} is worse than {baseline}: "),
            Verdict::Mixed => format!("{variant} is in some cases better than {baseline}, in others worse: "),
        };
        let metrics = by_metric(changes);
        let clauses: Vec<String> = metrics.iter().map(|(_, changes)| clause(changes, margin)).collect();
        text += &(clauses.join("; ") + ".");
        text += &self.assumed(&metrics);
        let flips = self.flips(variant, verdict);
        text += &self.survival(&flips);
        idle::mechanisms(self).into_iter().for_each(|sentence| text += &format!(" {sentence}"));
        let survives = (!self.trials.is_empty()).then_some(flips.is_empty());
        Some(Answer { text, survives, flips })
    }

    /// Returns the largest change that counts as no difference, in percent.
    #[must_use]
    pub fn margin(&self) -> f64 {
        self.question.margin_pct.unwrap_or(Question::MARGIN_PCT)
    }

    /// Returns the changes of the figures that answer the question.
    fn changes<'r>(&self, rows: impl Iterator<Item = &'r Row>) -> Vec<Change<'r>> {
        let rows: Vec<&Row> = rows.collect();
        let preferred = preferred(&rows);
        let answers = |row: &Row| match &self.question.metrics[..] {
            [] => preferred[&program_key(row)] == row.metric,
            named => named.iter().any(|name| is_called(row, name)),
        };
        let rows = rows.iter().filter(|row| answers(row));
        rows.filter_map(|row| Some((*row, row.allocator_change_pct().or_else(|| from_zero(row))?))).collect()
    }

    /// Returns the seeds and costs with which the verdict is another one.
    fn flips(&self, variant: &str, verdict: Verdict) -> Vec<String> {
        let is_other = |trial: &&Trial| {
            let changed: HashMap<String, &Row> =
                trial.rows.iter().map(|row| (row.figure_key(), row)).collect();
            let own = self.rows.iter().filter(|row| row.variant == variant);
            let rows = own.map(|row| changed.get(&row.figure_key()).copied().unwrap_or(row));
            self::verdict(&self.changes(rows), self.margin()) != verdict
        };
        self.trials.iter().filter(is_other).map(|trial| trial.what.clone()).collect()
    }

    /// Returns the rows whose published change against the baseline is known, of the figures that answer the question.
    #[must_use]
    pub fn effects(&self) -> Vec<&Row> {
        let treated = self.variants.iter().flat_map(|variant| {
            self.changes(self.rows.iter().filter(move |row| row.variant == variant.name))
        });
        treated.map(|(row, _)| row).filter(|row| row.published_change_pct().is_some()).collect()
    }

    /// Describes the compared variant's changes in a trial.
    #[must_use]
    pub fn trial_text(&self, trial: &Trial) -> String {
        let changes = by_metric(self.changes(trial.rows.iter()));
        let text = |(metric, changes): &(&str, Vec<Change<'_>>)| {
            let changes: Vec<f64> = changes.iter().map(|(_, change)| *change).collect();
            format!("{metric} {}", range(&changes))
        };
        changes.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// Describes how much the variant's own hardware costs add to the changes.
    fn assumed(&self, metrics: &[(&str, Vec<Change<'_>>)]) -> String {
        let own = metrics.iter().filter_map(|(metric, changes)| {
            let with_own = changes.iter().filter(|(row, _)| row.at_baseline_costs.is_some());
            let totals: Vec<f64> = with_own.filter_map(|(row, _)| row.change_pct()).collect();
            (!totals.is_empty()).then(|| format!("{metric} changes by {}", range(&totals)))
        });
        let own: Vec<String> = own.collect();
        if own.is_empty() {
            return String::new();
        }
        let place = |name: &str| self.variants.iter().position(|variant| variant.name == name);
        let places = (
            self.compared().and_then(|info| place(&info.name)),
            self.baseline().and_then(|info| place(&info.name)),
        );
        let costs = self.effective.iter().filter(|one| one.differs && one.name.starts_with("hardware."));
        let costs = costs.filter_map(|one| {
            let (own, before) = (one.values.get(places.0?)?, one.values.get(places.1?)?);
            (own != before).then(|| format!("{} {own} instead of {before}", one.name))
        });
        let costs = costs.collect::<Vec<_>>().join(", ");
        format!(
            " This is at the same costs. With costs of its own ({costs}), {}: the rest is an assumed cost, which the \
             allocator did not save.",
            own.join(", ")
        )
    }

    fn survival(&self, flips: &[String]) -> String {
        let seeds = self.trials.iter().filter(|trial| trial.is_seed).count();
        let costs = self.trials.len() - seeds;
        match (self.trials.is_empty(), flips) {
            (true, _) => String::new(),
            (false, []) => {
                format!(
                    " The answer is the same with {} seeds and {costs} changes of one cost by 20 %.",
                    seeds + 1
                )
            }
            (false, _) => format!(
                " The answer is not certain: with {} of {} other seeds and costs it is another one ({}).",
                flips.len(),
                self.trials.len(),
                flips.join(", ")
            ),
        }
    }
}

/// Groups changes by metric, in the order of the rows.
fn by_metric(changes: Vec<Change<'_>>) -> Vec<(&str, Vec<Change<'_>>)> {
    let mut metrics: Vec<(&str, Vec<Change<'_>>)> = Vec::new();
    for change in changes {
        match metrics.iter_mut().find(|(metric, _)| *metric == change.0.metric) {
            Some((_, changes)) => changes.push(change),
            None => metrics.push((&change.0.metric, vec![change])),
        }
    }
    metrics
}

/// Returns the best of the metrics that each program reports in each case.
fn preferred<'r>(rows: &[&'r Row]) -> HashMap<String, &'r str> {
    let place =
        |metric: &str| PREFERRED.iter().position(|name| *name == own_name(metric)).unwrap_or(PREFERRED.len());
    let mut best = HashMap::new();
    for row in rows {
        let found = best.entry(program_key(row)).or_insert(&*row.metric);
        if place(&row.metric) < place(found) {
            *found = &row.metric;
        }
    }
    best
}

/// Returns a key that is equal for two rows exactly when they are of the same case and program.
fn program_key(row: &Row) -> String {
    run_key(&row.case, program(&row.metric))
}

/// Whether a row's metric is called `name`: METRIC, PART.METRIC or PROGRAM.METRIC.
fn is_called(row: &Row, name: &str) -> bool {
    let part = match row.case.first() {
        Some((_, CaseValue::Text(part))) => part,
        _ => "",
    };
    row.metric == name
        || own_name(&row.metric) == name
        || name.strip_prefix(part).and_then(|rest| rest.strip_prefix('.')) == Some(&row.metric)
}

/// Returns the program in the name of a metric, or an empty text.
fn program(metric: &str) -> &str {
    metric.rsplit_once('.').map_or("", |(program, _)| program)
}

/// Returns the name of a metric without its program.
fn own_name(metric: &str) -> &str {
    metric.rsplit_once('.').map_or(metric, |(_, name)| name)
}

/// Returns an infinite change if the baseline is zero.
fn from_zero(row: &Row) -> Option<f64> {
    let value = row.at_baseline_costs.unwrap_or(row.predicted);
    let is_change = row.baseline == Some(0.0) && row.unit != "id" && value.is_finite();
    is_change.then(|| value.signum() * f64::INFINITY)
}

/// Returns the gain of a change: positive if the variant is better.
fn gain((row, change): &Change<'_>) -> f64 {
    if LESS_IS_BETTER.contains(&&*row.unit) { -change } else { *change }
}

fn verdict(changes: &[Change<'_>], margin: f64) -> Verdict {
    let better = changes.iter().any(|change| gain(change) > margin);
    let worse = changes.iter().any(|change| gain(change) < -margin);
    match (better, worse) {
        (false, false) => Verdict::Same,
        (true, false) => Verdict::Better,
        (false, true) => Verdict::Worse,
        (true, true) => Verdict::Mixed,
    }
}

/// Describes the changes of one metric: `wall 1.2 to 32 % lower, most with cpus = 64 (0.61 instead of 0.90 s)`.
fn clause(changes: &[Change<'_>], margin: f64) -> String {
    let metric = &changes[0].0.metric;
    let directions = [("higher", 1.0), ("lower", -1.0)].into_iter().filter_map(|(word, sign)| {
        let there: Vec<&Change<'_>> = changes.iter().filter(|(_, change)| sign * change > margin).collect();
        let most = there.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
        let sizes: Vec<f64> = there.iter().map(|(_, change)| change.abs()).collect();
        let which = if gain(most) > 0.0 { "better" } else { "worse" };
        let place = place(most.0, there.len(), changes.len());
        let size =
            if sizes.iter().any(|size| size.is_finite()) { unsigned(&sizes) + " % " } else { String::new() };
        Some(format!("{size}{word} ({which}){place}"))
    });
    let mut texts: Vec<String> = directions.collect();
    let same = changes.iter().filter(|(_, change)| change.abs() <= margin).count();
    if texts.is_empty() {
        let cases = if same == 1 { String::new() } else { format!(" in any of {same} cases") };
        return format!("{metric} differs by no more than {} %{cases}", figures::exact(margin));
    }
    if same > 0 {
        let cases = if same == 1 { "case" } else { "cases" };
        texts.push(format!("and within {} % in {same} {cases}", figures::exact(margin)));
    }
    format!("{metric} {}", texts.join(", "))
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

/// Formats sizes as a range: `1.2 to 32`.
fn unsigned(sizes: &[f64]) -> String {
    let text = range(sizes);
    text.replace(['+', '−'], "").trim_end_matches(" %").to_owned()
}

/// Formats changes as a range: `−32 to +1.2 %`. Those from zero have no percentage.
fn range(changes: &[f64]) -> String {
    let finite = || changes.iter().copied().filter(|change| change.is_finite());
    let least = finite().fold(f64::INFINITY, f64::min);
    let most = finite().fold(f64::NEG_INFINITY, f64::max);
    if least > most {
        return "changes from zero".to_owned();
    }
    let [least, most] = [least, most].map(figures::deviation);
    if least == most { format!("{least} %") } else { format!("{least} to {most} %") }
}

impl Row {
    /// Returns the smallest and the largest value of all seeds, if there is a spread.
    #[must_use]
    pub fn spread(&self) -> Option<(f64, f64)> {
        let first = *self.seeds.first()?;
        Some(
            self.seeds
                .iter()
                .fold((first, first), |(least, most), value| (least.min(*value), most.max(*value))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{CaseValues, Effective, Role, VariantInfo};
    use super::*;

    fn results(rows: &[(f64, f64, Option<f64>)]) -> Results {
        let info = |name: &str, role| VariantInfo { name: name.to_owned(), role, about: String::new() };
        let row = |(at, &(baseline, predicted, at_baseline_costs)): (usize, &(f64, f64, Option<f64>))| {
            let case: CaseValues = vec![("cpus".to_owned(), CaseValue::Number(at as f64))];
            let row = Row { case, metric: "wall".to_owned(), unit: "s".to_owned(), ..Row::default() };
            let old = Row { variant: "old".to_owned(), predicted: baseline, ..row.clone() };
            let new = Row {
                variant: "new".to_owned(),
                predicted,
                baseline: Some(baseline),
                at_baseline_costs,
                ..row
            };
            [old, new]
        };
        Results {
            variants: vec![info("old", Role::Baseline), info("new", Role::Ours)],
            rows: rows.iter().enumerate().flat_map(row).collect(),
            ..Results::default()
        }
    }

    fn answer(results: &Results) -> String {
        results.answer().unwrap().text
    }

    #[test]
    fn a_difference_has_a_range_and_its_largest_case() {
        let results = results(&[(1.0, 0.9, None), (2.0, 1.0, None), (3.0, 2.99, None)]);
        let expected = "new is better than old: wall 10 to 50 % lower (better) in 2 of 3 cases, most with cpus = 1 \
                        (1 instead of 2 s), and within 2 % in 1 case.";
        assert_eq!(answer(&results), expected);
    }

    #[test]
    fn changes_within_the_margin_are_no_difference() {
        let mut results = results(&[(1.0, 1.019, None), (1.0, 0.985, None)]);
        let expected =
            "There is no difference between new and old: wall differs by no more than 2 % in any of 2 cases.";
        assert_eq!(answer(&results), expected);
        results.question.margin_pct = Some(1.0);
        assert!(answer(&results).starts_with("new is in some cases better than old, in others worse: wall "));
    }

    #[test]
    fn a_change_from_zero_has_no_percentage() {
        let mut results = results(&[(0.0, 0.5, None)]);
        assert_eq!(answer(&results), "new is worse than old: wall higher (worse), 0.5 instead of 0 s.");
        let row = Row { predicted: 0.6, ..results.rows[1].clone() };
        results.trials = vec![Trial { what: "seed 2".to_owned(), is_seed: true, rows: vec![row] }];
        assert_eq!(results.trial_text(&results.trials[0]), "wall changes from zero");
        assert_eq!(results.answer().unwrap().survives, Some(true));
    }

    #[test]
    fn a_gain_that_was_an_input_is_no_answer() {
        let mut results = results(&[(1.0, 0.7, Some(1.0))]);
        let values = vec!["50".to_owned(), "0".to_owned()];
        let name = "hardware.list_work_ns".to_owned();
        results.effective = vec![Effective { name, part: None, values, differs: true }];
        let text = answer(&results);
        assert!(text.starts_with("There is no difference between new and old"), "{text}");
        let assumed = "With costs of its own (hardware.list_work_ns 0 instead of 50), wall changes by −30 %";
        assert!(text.contains(assumed), "{text}");
    }

    #[test]
    fn trials_that_change_the_answer_are_named() {
        let mut results = results(&[(1.0, 0.9, None), (1.0, 0.95, None)]);
        let trial = |what: &str, predicted: f64| {
            let row = Row { predicted, ..results.rows[3].clone() };
            Trial { what: what.to_owned(), is_seed: what.starts_with("seed"), rows: vec![row] }
        };
        let trials = vec![trial("seed 2", 0.96), trial("hardware.hit_ns −20 %", 1.05)];
        results.trials = trials[..1].to_vec();
        let sure = results.answer().unwrap();
        assert_eq!((sure.survives, sure.flips.len()), (Some(true), 0));
        assert!(
            sure.text.ends_with("The answer is the same with 2 seeds and 0 changes of one cost by 20 %.")
        );
        results.trials = trials;
        let unsure = results.answer().unwrap();
        assert_eq!(
            (unsure.survives, &*unsure.flips),
            (Some(false), &["hardware.hit_ns −20 %".to_owned()][..])
        );
    }

    #[test]
    fn one_variant_has_nothing_to_be_compared_with() {
        let mut results = results(&[(1.0, 0.9, None)]);
        results.variants.truncate(1);
        assert_eq!(results.answer(), None);
    }

    #[test]
    fn each_program_has_a_preferred_metric_in_each_case() {
        let row = |cpus: f64, metric: &str| Row {
            case: vec![("cpus".to_owned(), CaseValue::Number(cpus))],
            metric: metric.to_owned(),
            ..Row::default()
        };
        let metrics =
            ["alloc", "wall", "web.strange", "web.alloc", "web.throughput", "disk.second", "disk.first"];
        let mut rows: Vec<Row> = metrics.iter().map(|metric| row(1.0, metric)).collect();
        rows.push(row(2.0, "alloc"));
        let rows: Vec<&Row> = rows.iter().collect();
        let best = preferred(&rows);
        let of = |cpus: f64, metric: &str| best[&program_key(&row(cpus, metric))];
        assert_eq!((of(1.0, "alloc"), of(2.0, "alloc")), ("wall", "alloc"));
        assert_eq!((of(1.0, "web.alloc"), of(1.0, "disk.first")), ("web.throughput", "disk.second"));
        assert_eq!(best.len(), 4);
    }
}
