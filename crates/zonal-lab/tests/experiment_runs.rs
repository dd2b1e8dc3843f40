//! Runs experiments. Checks that the same seed produces the same bytes regardless of the load on the host, and checks
//! runs that fail or are stopped.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use zonal_lab::experiment::results::{Results, case_text};
use zonal_lab::experiment::{
    BUILT_IN, CaseFilter, Failure, FileError, Options, Plan, Progress, ResultDocument, Source, load, run,
    silence_faults, write,
};
use zonal_lab::sim::Hardware;
use zonal_machine::output::Replace;

const MEMORY: u64 = 1 << 30;

fn small() -> Plan {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small.toml");
    load(&Source::File(file)).unwrap()
}

/// Loads the small experiment with one replacement in its file and one in its figures.
fn small_with(experiment: (&str, &str), figures: (&str, &str)) -> Plan {
    try_small_with(experiment, figures).unwrap()
}

fn try_small_with(experiment: (&str, &str), figures: (&str, &str)) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    let texts = [
        ("small.toml", include_str!("data/small.toml"), experiment),
        ("small.csv", include_str!("data/small.csv"), figures),
        ("small.json", include_str!("data/small.json"), ("", "")),
    ];
    for (name, text, (old, new)) in texts {
        assert!(text.contains(old), "{old}");
        std::fs::write(directory.path().join(name), text.replacen(old, new, 1)).unwrap();
    }
    load(&Source::File(directory.path().join("small.toml")))
}

fn options(seed: u64, jobs: usize) -> Options {
    Options { seed, jobs: NonZeroUsize::new(jobs).unwrap(), memory_bytes: MEMORY }
}

fn run_all(plan: &Plan, options: &Options) -> Results {
    run(plan, options, |_| (), &AtomicBool::new(false)).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_host_threads() {
    let plan = small();
    let first = run_all(&plan, &options(1, 1));
    assert_eq!((first.runs.len(), first.missing), (12, 0));
    let text = ResultDocument(&first).text();
    let largest = plan.runs.iter().map(|run| run.host_bytes).max().unwrap();
    let tight = Options { memory_bytes: largest, ..options(1, 3) };
    for options in [options(1, 1), options(1, 2), options(1, 64), tight] {
        let again = run_all(&plan, &options);
        assert_eq!(ResultDocument(&again).text(), text);
        assert_eq!(again.runs, first.runs);
    }
    let other = ResultDocument(&run_all(&plan, &options(2, 2))).text();
    assert!(other.contains("\"seed\": 2,"));
}

#[test]
fn rows_are_in_the_order_of_the_file_and_hold_published_figures() {
    let results = run_all(&small(), &options(1, 2));
    let text = ResultDocument(&results).text();
    assert!(text.starts_with("{\n  \"schema\": \"zonal.lab.v1\",\n  \"experiment\": \"small\","), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
    let expected = [
        "against_published",
        "answer",
        "calibrated_on",
        "effective",
        "experiment",
        "fitted",
        "machine",
        "open",
        "parameters",
        "question",
        "rows",
        "schema",
        "seed",
    ];
    assert_eq!(keys, expected);
    assert_eq!(document["machine"], "small");
    assert_eq!(document["calibrated_on"], "wall of one process");
    let fault = &document["parameters"]["touch.workload.fault_ns"];
    assert_eq!((&fault["value"], &fault["calibrated"]), (&Value::from(1000.0), &Value::from(true)));
    assert_eq!(fault["why"], "about three cache misses");

    let rows = document["rows"].as_array().unwrap();
    let first: Vec<&Value> = rows.iter().filter(|row| row["metric"] == "wall").collect();
    let expected: Vec<(i64, &str, &str)> = [1, 8]
        .into_iter()
        .flat_map(|cpus| ["on", "off"].map(|reclaim| (cpus, reclaim)))
        .flat_map(|(cpus, reclaim)| ["before", "after"].map(|variant| (cpus, reclaim, variant)))
        .collect();
    let found: Vec<_> = first
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap();
            (row["cpus"].as_i64().unwrap(), text("config.node_reclaim"), text("variant"))
        })
        .collect();
    assert_eq!(found, expected);

    let published: Vec<_> = rows.iter().filter(|row| !row["published"].is_null()).collect();
    assert_eq!(published.len(), 4);
    for row in published {
        let (predicted, published) = (row["predicted"].as_f64().unwrap(), row["published"].as_f64().unwrap());
        let error = (predicted - published) / published * 100.0;
        assert!(predicted > 0.0 && (row["error_pct"].as_f64().unwrap() - error).abs() < 1e-5, "{row}");
    }
    assert!(rows.iter().all(|row| row["published"].is_null() == row["error_pct"].is_null()));
    let calibrated: Vec<_> = results.rows.iter().filter(|row| row.calibrated_on).collect();
    assert_eq!(calibrated.len(), 1, "the baseline of one case");
    assert_eq!((&*calibrated[0].variant, &*calibrated[0].metric), ("before", "wall"));
}

#[test]
fn floats_have_at_most_nine_digits() {
    let mut results = run_all(&kept(&["after"], "cpus", 1.0), &options(1, 1));
    results.rows.truncate(1);
    results.rows[0].predicted = 1.0 / 3.0;
    results.rows[0].published = Some(123_456_789_012.0);
    let text = ResultDocument(&results).text();
    assert!(text.contains("\"predicted\": 0.333333333,"), "{text}");
    assert!(text.contains("\"published\": 123456789000.0,"), "{text}");
    results.rows[0].published = Some(0.0);
    assert!(ResultDocument(&results).text().contains("\"error_pct\": null"));
}

/// Returns the small experiment restricted to some variants and to the cases with `column` = `value`.
fn kept(variants: &[&str], column: &str, value: f64) -> Plan {
    let mut plan = small();
    let variants: Vec<String> = variants.iter().map(|&name| name.to_owned()).collect();
    let values = vec![zonal_lab::experiment::results::CaseValue::Number(value)];
    plan.keep(&variants, &CaseFilter(vec![(column.to_owned(), values)])).unwrap();
    plan
}

#[test]
fn a_subset_of_runs_gives_the_same_results() {
    let all = run_all(&small(), &options(5, 2));
    let some = run_all(&kept(&["after"], "cpus", 8.0), &options(5, 2));
    assert_eq!(some.variants.len(), 1);
    assert_eq!(some.runs.len(), 2);
    for run in &some.runs {
        assert!(all.runs.contains(run), "{}", case_text(&run.case));
    }
    let none = CaseFilter::default();
    let error = small().keep(&["later".to_owned()], &none).unwrap_err();
    assert_eq!(error, "small has no variant `later`; it has before, after");
}

#[test]
fn progress_names_current_runs_and_reaches_the_total() {
    let mut seen: Vec<Progress> = Vec::new();
    run(&small(), &options(1, 2), |now| seen.push(now.clone()), &AtomicBool::new(false)).unwrap();
    assert!(seen.iter().all(|now| now.total == 12 && now.running.len() <= 2));
    assert!(seen.iter().any(|now| now.running.contains(&"workload = hog, case = all, after".to_owned())));
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done && pair[0].share <= pair[1].share));
    let last = seen.last().unwrap();
    assert_eq!((last.done, last.running.len()), (12, 0));
    assert!((last.share - 1.0).abs() < 1e-9);
}

#[test]
fn stopping_keeps_completed_runs_and_drops_the_rest() {
    let stop = AtomicBool::new(true);
    let results = run(&small(), &options(1, 2), |_| (), &stop).unwrap();
    assert!(results.missing > 0 && results.missing + results.runs.len() == 12);

    let stop = AtomicBool::new(false);
    let after_three = |now: &Progress| stop.fetch_or(now.done == 3, Relaxed);
    let results = run(&small(), &options(1, 1), |now| _ = after_three(now), &stop).unwrap();
    assert!(results.missing > 0 && results.runs.len() >= 3, "{}", results.missing);
    let all = run_all(&small(), &options(1, 1));
    assert!(results.runs.iter().all(|run| all.runs.contains(run)));
    let document: Value = serde_json::from_str(&ResultDocument(&results).text()).unwrap();
    assert_eq!(document["missing_runs"], results.missing);
}

#[test]
fn a_fault_ends_the_experiment_with_an_error_that_names_the_run() {
    silence_faults();
    let plan = small_with(("gib_each = 0.004", "gib_each = 0.25"), ("", ""));
    for jobs in [1, 3] {
        let mut done = 0;
        let follow = |now: &Progress| done = now.done;
        let failure = run(&plan, &options(9, jobs), follow, &AtomicBool::new(false)).unwrap_err();
        assert!(jobs > 1 || done == 0, "the longest comes first, and nothing after it: {done}");
        let Failure::Run { experiment, run, seed, reason } = &failure else { panic!("{failure}") };
        assert_eq!((experiment.as_str(), *seed), ("small", 9));
        assert!(run.starts_with("workload = touch, cpus = 8, config.node_reclaim = "), "{run}");
        assert!(run.ends_with(", before") || run.ends_with(", after"), "{run}");
        assert!(
            reason.starts_with("operation ") && reason.contains("too little memory for the processes"),
            "{reason}"
        );
        let text = failure.to_string();
        assert!(
            text.starts_with("experiment small, workload = touch") && text.contains(", seed 9: "),
            "{text}"
        );
    }
}

#[test]
fn figures_of_another_unit_are_refused_before_anything_runs() {
    let error = try_small_with(("", ""), ("after,wall,s,", "after,wall,hunter2,")).unwrap_err();
    assert_eq!((error.line, error.file.ends_with("small.csv")), (Some(5), true));
    assert_eq!(error.problem, "the unit of this figure must be s");
}

#[test]
fn figures_without_a_run_are_reported() {
    let plan = small_with(("", ""), ("after,wall,s,", "after,wally,s,"));
    assert_eq!(plan.not_simulated(&run_all(&plan, &options(1, 2))), [5]);
}

#[test]
fn results_are_written_completely() {
    let directory = tempfile::tempdir().unwrap();
    let results = run_all(&kept(&["after"], "cpus", 1.0), &options(1, 1));
    for _ in 0..2 {
        let path = write(directory.path(), &results, Replace::Own).unwrap();
        assert_eq!(path, directory.path().join("small/result.json"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), ResultDocument(&results).text());
    }
    let names: Vec<_> = std::fs::read_dir(directory.path().join("small")).unwrap().collect();
    assert_eq!(names.len(), 1);
}

/// Returns the value of a row with a metric, in the results of one variant.
fn value(results: &Results, variant: &str, metric: &str) -> f64 {
    let row = results.rows.iter().find(|row| row.variant == variant && row.metric == metric);
    row.unwrap_or_else(|| panic!("{variant}: {metric}")).predicted
}

#[test]
fn every_cost_and_setting_that_differs_is_in_the_results() {
    let results = run_all(&small(), &options(1, 2));
    let differing: Vec<&str> =
        results.effective.iter().filter(|one| one.differs).map(|one| &*one.name).collect();
    assert_eq!(differing, ["config.zonelist_cache", "config.counters"]);
    let cost = |name: &str, part: Option<&str>| {
        let found = results.effective.iter().find(|one| one.name == name && one.part.as_deref() == part);
        found.map(|one| one.values.join(" "))
    };
    assert_eq!(cost("hardware.memory_ns", None).as_deref(), Some("90 90"));
    assert_eq!(cost("hardware.cpu_gb_s", Some("touch")).as_deref(), Some("2 2"));
    assert_eq!(cost("hardware.cpu_gb_s", Some("hog")).as_deref(), Some("12 12"));
    let document: Value = serde_json::from_str(&ResultDocument(&results).text()).unwrap();
    let first = &document["effective"][0];
    assert_eq!(
        (&first["name"], &first["values"]["before"]),
        (&"config.zonelist_cache".into(), &"off".into())
    );
    let answer = document["answer"]["text"].as_str().unwrap();
    assert!(answer.contains("In no run did the zonelist cache act: it found no zone full."), "{answer}");
}

/// A cost that only one variant has is an input, and no gain of the allocator.
#[test]
fn a_difference_in_costs_is_separated_from_the_allocator() {
    let cheaper = ("[variant.hardware]\nlist_work_ns = 0.0", "[variant.hardware]\ncpu_gb_s = 4.0");
    let results = run_all(&small_with(cheaper, ("", "")), &options(1, 2));
    let rows = results.rows.iter().filter(|row| row.variant == "after" && row.metric == "wall");
    for row in rows {
        let (all, own) = (row.change_pct().unwrap(), row.allocator_change_pct().unwrap());
        assert!(all < -20.0 && own.abs() < 5.0, "{all} {own}");
        assert_ne!(row.at_baseline_costs, Some(row.predicted));
    }
    let answer = results.answer().unwrap().text;
    assert!(answer.starts_with("There is no difference between after and before: wall "), "{answer}");
    assert!(answer.contains("hardware.cpu_gb_s 4 instead of"), "{answer}");
}

/// Only the tuning `depth-published` uses `drains`.
#[test]
fn a_cost_that_cannot_make_a_difference_causes_no_more_runs() {
    let unused = ("[variant.hardware]\nlist_work_ns = 0.0", "[variant.hardware]\ndrains = \"doubling\"");
    let plan = small_with(unused, ("", ""));
    let mut total = 0;
    let count = |progress: &Progress| total = progress.total;
    let results = run(&plan, &options(1, 2), count, &AtomicBool::new(false)).unwrap();
    assert_eq!((total, results.missing), (plan.runs.len(), 0));
    let mut rows = results.rows.iter().filter(|row| row.variant == "after");
    assert!(rows.all(|row| row.at_baseline_costs == Some(row.predicted)));
}

#[test]
fn a_spread_has_five_seeds_and_each_cost_twice() {
    let mut plan = kept(&["before", "after"], "cpus", 8.0);
    plan.spread = true;
    assert!(plan.spread_seconds(1) > plan.spread_seconds(2));
    let results = run_all(&plan, &options(1, 2));
    assert!(results.rows.iter().all(|row| row.seeds.len() == 5 && row.seeds[0] == row.predicted));
    let names: Vec<&str> = results.trials.iter().map(|trial| &*trial.what).collect();
    assert_eq!(names[..4], ["seed 2", "seed 3", "seed 4", "seed 5"]);
    for name in ["hardware.transfer_ns −20 %", "hardware.cpu_gb_s +20 %", "workload.fault_ns +20 %"] {
        assert!(names.contains(&name), "{names:?}");
    }
    // One transaction is the minimum, so there is no trial with fewer.
    assert!(!names.contains(&"hardware.atomic_transactions −20 %"), "{names:?}");
    assert!(names.contains(&"hardware.atomic_transactions +20 %"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("disk")), "no program uses files: {names:?}");
    let dearer = results.trials.iter().find(|trial| trial.what == "workload.fault_ns +20 %").unwrap();
    let wall = dearer.rows.iter().find(|row| row.metric == "wall").unwrap();
    assert!(
        wall.predicted > value(&results, "after", "wall")
            && wall.baseline > Some(value(&results, "before", "wall"))
    );
    let answer = results.answer().unwrap();
    assert_eq!(answer.survives, Some(answer.flips.is_empty()));
    let again = run_all(&plan, &options(1, 1));
    assert_eq!(ResultDocument(&again).text(), ResultDocument(&results).text());
}

#[test]
fn the_costs_of_2023_meet_the_measured_batches() {
    let table = include_str!("../data/published/pageset-batches-2023.csv");
    let known = BUILT_IN.iter().find(|known| known.name == "pageset-tuning-2023").unwrap();
    let plan = load(&Source::BuiltIn(known)).unwrap();
    // Where pages stay in the caches of one CPU, as they did when these batches were measured.
    let is_measured = |costs: &&Hardware| (costs.list_work_ns - 25.0).abs() < 1e-9;
    let costs = plan.runs.iter().map(|run| &run.hardware).find(is_measured).unwrap();
    let mut errors: Vec<f64> = table
        .lines()
        .filter(|line| line.ends_with(|end: char| end.is_ascii_digit()) && !line.starts_with('#'))
        .map(|line| {
            let (batch, measured) = (line.split(',').next().unwrap(), line.rsplit(',').next().unwrap());
            let simulated = costs.lock_work_ns + costs.list_work_ns * batch.parse::<f64>().unwrap();
            (simulated / 1e3 / measured.parse::<f64>().unwrap() - 1.0).abs()
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    assert_eq!(errors.len(), 12);
    assert!(errors[10] < 0.135 && errors[11] < 0.153, "{errors:?}");
}
