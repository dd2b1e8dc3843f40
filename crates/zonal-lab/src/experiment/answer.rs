//! Answers an experiment's question in a sentence: what the compared variant changes against the baseline, which part of
//! that was an input, and whether other seeds or costs would change the answer.
//!
//! Related files: `experiment/results.rs` defines the question, `experiment/trials.rs` the runs of a spread.
//! `experiment/change.rs` describes changes, `experiment/idle.rs` finds mechanisms that never acted.

use std::collections::{HashMap, HashSet};

use super::case_values::case_text;
use super::change::{Change, Verdict, by_metric, clause, own_name, range, ranges, verdict};
use super::idle;
use super::keys::{case_key, run_key};
use super::results::{CaseValue, CaseValues, Question, Results, Row, Trial};

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

impl Results {
    /// Returns the answer to the experiment's question, or `None` if there are not two variants to compare.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        let (variant, baseline) = (&*self.compared()?.name, &*self.baseline()?.name);
        let changes = self.changes(self.rows.iter().filter(|row| row.variant == variant));
        let unmeasured = self.unmeasured([variant, baseline]);
        if self.missing > 0 || (changes.is_empty() && unmeasured.is_empty()) {
            return None;
        }
        if changes.is_empty() {
            let text = "Nothing was measured: there was no work in the measured time.".to_owned();
            return Some(Answer { text, survives: None, flips: Vec::new() });
        }
        let margin = self.margin();
        let verdict = verdict(&changes, margin);
        let mut text = match verdict {
            Verdict::Same => format!("There is no difference between {variant} and {baseline}: "),
            Verdict::Better => format!("{variant} is better than {baseline}: "),
            Verdict::Worse => format!("{variant} is worse than {baseline}: "),
            Verdict::Mixed => format!("{variant} is in some cases better than {baseline}, in others worse: "),
            Verdict::Other => format!("{variant} is neither better nor worse than {baseline}, but differs: "),
        };
        let metrics = by_metric(changes);
        let clauses: Vec<String> = metrics.iter().map(|(_, changes)| clause(changes, margin)).collect();
        text += &(clauses.join("; ") + ".");
        text += &unmeasured;
        text += &self.assumed(&metrics);
        let flips = self.flips(variant, verdict);
        text += &self.survival(variant, &flips);
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
    fn changes<'r>(&'r self, rows: impl Iterator<Item = &'r Row>) -> Vec<Change<'r>> {
        let rows: Vec<&Row> = rows.collect();
        let preferred = self.preferred(&rows);
        let rows = rows.into_iter().filter(|row| self.answers(&preferred, &row.case, &row.metric));
        rows.filter_map(Change::of).collect()
    }

    /// Whether a metric of a case answers the question.
    fn answers(&self, preferred: &HashMap<String, &str>, case: &CaseValues, metric: &str) -> bool {
        match &self.question.metrics[..] {
            [] => preferred.get(&program_key(case, metric)).is_some_and(|name| *name == metric),
            named => named.iter().any(|name| is_called(case, metric, name)),
        }
    }

    /// Returns the best of the metrics that each program reports, or would report had it done work, in each case.
    fn preferred<'r>(&'r self, rows: &[&'r Row]) -> HashMap<String, &'r str> {
        let place = |metric: &str| {
            PREFERRED.iter().position(|name| *name == own_name(metric)).unwrap_or(PREFERRED.len())
        };
        let mut best: HashMap<String, &str> = HashMap::new();
        let unmeasured = self
            .runs
            .iter()
            .flat_map(|run| run.outcome.unmeasured.iter().map(|metric| (&run.case, &**metric)));
        for (case, metric) in rows.iter().map(|row| (&row.case, &*row.metric)).chain(unmeasured) {
            let found = best.entry(program_key(case, metric)).or_insert(metric);
            if place(metric) < place(found) {
                *found = metric;
            }
        }
        best
    }

    /// Names the figures that answer the question but were not measured in a run of the variants. Empty if there are none.
    fn unmeasured(&self, variants: [&str; 2]) -> String {
        let rows: Vec<&Row> = self.rows.iter().collect();
        let preferred = self.preferred(&rows);
        let cases = self.runs.iter().map(|run| case_key(&run.case)).collect::<HashSet<_>>().len();
        let mut metrics: Vec<(&str, Vec<&CaseValues>)> = Vec::new();
        for run in self.runs.iter().filter(|run| variants.contains(&&*run.variant)) {
            for metric in &run.outcome.unmeasured {
                if !self.answers(&preferred, &run.case, metric) {
                    continue;
                }
                match metrics.iter_mut().find(|(known, _)| known == metric) {
                    Some((_, cases)) if cases.contains(&&run.case) => {}
                    Some((_, cases)) => cases.push(&run.case),
                    None => metrics.push((metric, vec![&run.case])),
                }
            }
        }
        let text = |(metric, there): &(&str, Vec<&CaseValues>)| match there[..] {
            [case] => format!("{metric} with {}", case_text(case)),
            _ => format!("{metric} in {} of {cases} cases", there.len()),
        };
        let texts: Vec<String> = metrics.iter().map(text).collect();
        if texts.is_empty() {
            return String::new();
        }
        format!(" Not measured, because there was no work in the measured time: {}.", texts.join(", "))
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
        treated.map(|change| change.row).filter(|row| row.published_change_pct().is_some()).collect()
    }

    /// Describes the compared variant's changes in a trial.
    #[must_use]
    pub fn trial_text(&self, trial: &Trial) -> String {
        let changes = by_metric(self.changes(trial.rows.iter()));
        let text = |(metric, changes): &(&str, Vec<Change<'_>>)| format!("{metric} {}", ranges(changes));
        changes.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// Describes how much the variant's own hardware costs add to the changes.
    fn assumed(&self, metrics: &[(&str, Vec<Change<'_>>)]) -> String {
        let own = metrics.iter().filter_map(|(metric, changes)| {
            let with_own = changes.iter().filter(|change| change.row.at_baseline_costs.is_some());
            let totals: Vec<f64> = with_own.filter_map(|change| change.row.change_pct()).collect();
            (!totals.is_empty()).then(|| format!("{metric} changes by {} %", range(&totals)))
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

    fn survival(&self, variant: &str, flips: &[String]) -> String {
        let seeds = self.trials.iter().filter(|trial| trial.is_seed).count();
        let costs = self.trials.len() - seeds;
        let has_seed = seeds == 0 || self.depends_on_seed(variant);
        let changes = if costs == 1 { "1 change" } else { &format!("{costs} changes") };
        let mut text = match (self.trials.is_empty(), flips) {
            (true, _) => return String::new(),
            (false, []) if !has_seed => {
                format!(" The answer is the same with {changes} of one cost by 20 %.")
            }
            (false, []) => {
                format!(" The answer is the same with {} seeds and {changes} of one cost by 20 %.", seeds + 1)
            }
            (false, _) => format!(
                " The answer is not certain: with {} of {} other seeds and costs it is another one ({}).",
                flips.len(),
                self.trials.len(),
                flips.join(", ")
            ),
        };
        if !has_seed {
            text += " The seed changes nothing here.";
        }
        text
    }

    /// Whether the variant or the baseline has another figure with another seed.
    fn depends_on_seed(&self, variant: &str) -> bool {
        let own = self.rows.iter().filter(|row| row.variant == variant);
        let own: HashMap<String, &Row> = own.map(|row| (row.figure_key(), row)).collect();
        let values = |row: &Row| (row.at_baseline_costs.unwrap_or(row.predicted), row.baseline);
        let differs = |row: &Row| own.get(&row.figure_key()).is_none_or(|own| values(own) != values(row));
        self.trials.iter().filter(|trial| trial.is_seed).flat_map(|trial| &trial.rows).any(differs)
    }
}

/// Returns a key that is equal for two figures exactly when they are of the same case and program.
fn program_key(case: &CaseValues, metric: &str) -> String {
    run_key(case, program(metric))
}

/// Whether a metric is called `name`: METRIC, PART.METRIC or PROGRAM.METRIC.
fn is_called(case: &CaseValues, metric: &str, name: &str) -> bool {
    let part = match case.first() {
        Some((_, CaseValue::Text(part))) => part,
        _ => "",
    };
    metric == name
        || own_name(metric) == name
        || name.strip_prefix(part).and_then(|rest| rest.strip_prefix('.')) == Some(metric)
}

/// Returns the program in the name of a metric, or an empty text.
fn program(metric: &str) -> &str {
    metric.rsplit_once('.').map_or("", |(program, _)| program)
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
    use super::super::results::{Effective, Role, RunResult, VariantInfo};
    use super::*;
    use crate::outcome::Outcome;

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

    /// Returns results with another metric.
    fn of(metric: &str, unit: &str, rows: &[(f64, f64, Option<f64>)]) -> Results {
        let mut results = results(rows);
        for row in &mut results.rows {
            (row.metric, row.unit) = (metric.to_owned(), unit.to_owned());
        }
        results
    }

    #[test]
    fn better_depends_on_the_metric_and_not_on_its_unit() {
        let verdict = |metric: &str, unit: &str| answer(&of(metric, unit, &[(1.0, 0.9, None)]));
        for (metric, unit, expected) in [
            ("zone_pages", "% of pages", "new is better than old: zone_pages 10 % lower (better), "),
            ("nearer", "% of pages", "new is worse than old: nearer 10 % lower (worse), "),
            ("files_per_s_stddev", "files/s", "new is better than old: "),
            ("files_per_s_mean", "files/s", "new is worse than old: "),
            ("direct_pages_scanned", "pages", "new is better than old: "),
            ("cpu_idle", "%", "new is neither better nor worse than old, but differs: cpu_idle 10 % lower, "),
            ("runnable", "processes", "new is neither better nor worse than old, but differs: "),
            ("kswapd_pages_reclaimed", "pages", "new is neither better nor worse than old, but differs: "),
            ("web.throughput", "MB/s", "new is worse than old: web.throughput 10 % lower (worse), "),
        ] {
            let text = verdict(metric, unit);
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn percentages_that_were_zero_change_by_points() {
        let small = of("nearer", "% of pages", &[(0.0, 5.65e-4, None), (50.0, 60.0, None)]);
        let expected = "new is better than old: nearer 20 % higher (better) with cpus = 1 (60 instead of 50 % of pages), \
                        and within 2 points in 1 case.";
        assert_eq!(answer(&small), expected);
        let large = of("nearer", "% of pages", &[(0.0, 30.0, None), (50.0, 60.0, None)]);
        let expected = "nearer 20 % higher (better) with cpus = 1 (60 instead of 50 % of pages), 30 points higher (better) \
                        with cpus = 0 (30 instead of 0 % of pages).";
        assert!(answer(&large).ends_with(expected), "{}", answer(&large));
        let none = of("nearer", "% of pages", &[(0.0, 1.0, None), (50.0, 50.0, None)]);
        assert!(answer(&none).ends_with("nearer differs by no more than 2 % or points in any of 2 cases."));
    }

    #[test]
    fn an_infinite_change_is_not_the_largest_of_others() {
        let results = results(&[(0.0, 0.5, None), (1.0, 2.0, None), (2.0, 3.0, None)]);
        let expected = "wall 50 to 100 % higher (worse) in 2 of 3 cases, most with cpus = 1 (2 instead of 1 s), higher \
                        (worse) with cpus = 0 (0.5 instead of 0 s).";
        assert!(answer(&results).ends_with(expected), "{}", answer(&results));
    }

    #[test]
    fn figures_without_samples_are_named() {
        let mut results = results(&[(1.0, 0.9, None), (1.0, 0.9, None)]);
        let run = |cpus: f64, unmeasured: &[&'static str]| RunResult {
            case: vec![("cpus".to_owned(), CaseValue::Number(cpus))],
            variant: "old".to_owned(),
            outcome: Outcome {
                unmeasured: unmeasured.iter().map(|&name| name.into()).collect(),
                ..Outcome::default()
            },
        };
        results.runs = vec![run(0.0, &[]), run(1.0, &[]), run(2.0, &["wall", "sys"])];
        let expected = " Not measured, because there was no work in the measured time: wall with cpus = 2.";
        assert!(answer(&results).ends_with(expected), "{}", answer(&results));
        results.rows.clear();
        assert_eq!(answer(&results), "Nothing was measured: there was no work in the measured time.");
        results.runs.clear();
        assert_eq!(results.answer(), None);
    }

    #[test]
    fn a_seed_that_changes_nothing_is_no_evidence() {
        let mut results = results(&[(1.0, 0.9, None)]);
        let trial = |is_seed, predicted| Trial {
            what: String::new(),
            is_seed,
            rows: vec![Row { predicted, ..results.rows[1].clone() }],
        };
        let trials = [trial(true, 0.9), trial(false, 0.91), trial(true, 0.89)];
        results.trials = trials[..2].to_vec();
        let expected =
            " The answer is the same with 1 change of one cost by 20 %. The seed changes nothing here.";
        assert!(answer(&results).ends_with(expected), "{}", answer(&results));
        results.trials = trials.to_vec();
        assert!(
            answer(&results)
                .ends_with(" The answer is the same with 3 seeds and 1 change of one cost by 20 %.")
        );
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
        let results = Results::default();
        let best = results.preferred(&rows);
        let of = |cpus: f64, metric: &str| best[&program_key(&row(cpus, metric).case, metric)];
        assert_eq!((of(1.0, "alloc"), of(2.0, "alloc")), ("wall", "alloc"));
        assert_eq!((of(1.0, "web.alloc"), of(1.0, "disk.first")), ("web.throughput", "disk.second"));
        assert_eq!(best.len(), 4);
    }
}
