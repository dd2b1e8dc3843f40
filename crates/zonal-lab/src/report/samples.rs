//! Handmade results with every kind of part that a report shows. Related files: `report/tests.rs` uses these results.

use crate::experiment::results::{
    CaseValue, CaseValues, Parameter, Results, Role, Row, RunResult, VariantInfo,
};
use crate::outcome::{Cause, Outcome, Series};

/// A name that breaks pages if it is not escaped.
pub(super) const HOSTILE: &str = "<b>&\"'\u{1}\u{9b}\u{202e}]]>";
pub(super) const VARIANTS: [&str; 3] = ["fixed32", "overstep32", "bounded-batches"];

fn info(name: &str, role: Role) -> VariantInfo {
    VariantInfo { name: name.into(), role, about: format!("how {name} differs") }
}

/// Returns empty results.
pub(super) fn empty() -> Results {
    Results {
        experiment: "sample".into(),
        title: "Zone counters of one word under many processors".into(),
        source: "An author, 2006".into(),
        assumptions: vec!["Pages have 16 KiB.".into()],
        seed: 7,
        machines: vec!["altix".into()],
        parameters: vec![Parameter {
            name: "hardware.transfer_ns".into(),
            value: 812.5,
            calibrated: true,
            why: "between two of its nodes".into(),
        }],
        calibrated_on: "fixed32 alone".into(),
        variants: vec![
            info(VARIANTS[0], Role::Baseline),
            info(VARIANTS[1], Role::Published),
            info(VARIANTS[2], Role::Ours),
        ],
        ..Results::default()
    }
}

pub(super) fn text(name: &str, value: &str) -> (String, CaseValue) {
    (name.into(), CaseValue::Text(value.into()))
}

pub(super) fn num(name: &str, value: f64) -> (String, CaseValue) {
    (name.into(), CaseValue::Number(value))
}

pub(super) fn row(case: &CaseValues, variant: &str, metric: (&str, &str), values: (f64, Option<f64>)) -> Row {
    Row {
        case: case.clone(),
        variant: variant.into(),
        metric: metric.0.into(),
        unit: metric.1.into(),
        predicted: values.0,
        published: values.1,
        calibrated_on: variant == VARIANTS[0] && values.1.is_some(),
        ..Row::default()
    }
}

pub(super) fn run(case: &CaseValues, variant: &str, scale: f64, series: Vec<Series>) -> RunResult {
    let parts = ["zone lock", "zone counters", "pageset of another CPU", "frame table", "zonelist hints"];
    let more = ["the program's own", "watermarks", HOSTILE];
    let cause = |(at, what): (usize, &&str)| Cause {
        what: (*what).into(),
        kind: if at % 3 == 0 { "lock" } else { "line" },
        waits: 10,
        seconds: scale / (1.0 + at as f64 * at as f64),
    };
    let causes = parts.iter().chain(&more).enumerate().map(cause).collect();
    RunResult {
        case: case.clone(),
        variant: variant.into(),
        outcome: Outcome { causes, series, seconds: scale, ..Outcome::default() },
    }
}

/// Returns a series of `points` points.
pub(super) fn series(
    plot: &'static str,
    name: &str,
    unit: &'static str,
    points: usize,
    shape: f64,
) -> Series {
    let point = |at: usize| {
        let t = at as f64 / points as f64;
        (t * 3.2, shape * (1.5 + (t * (9.0 + shape % 5.0)).sin() * (1.0 - t) + 0.1 * (t * 180.0).cos()))
    };
    Series { plot, name: name.into(), unit, points: (0..points).map(point).collect() }
}

/// Returns results with three parts. The first part varies the number of CPUs over three decades, the second varies the
/// thread count for each of four sizes, and the third has bars.
pub(super) fn full() -> Results {
    let mut results = empty();
    for cpus in [1.0, 4.0, 16.0, 128.0, 256.0, 512.0, 1020.0] {
        let case = vec![text("part", "counters"), num("cpus", cpus)];
        for (at, variant) in VARIANTS.into_iter().enumerate() {
            let wall = 0.55 + (cpus / (90.0 + 60.0 * at as f64)).powf(1.5) / (1.0 + at as f64);
            let known = (at < 2).then_some(wall * (1.0 + 0.2 * (cpus * 0.37).sin()));
            results.rows.push(row(&case, variant, ("wall", "s"), (wall, known)));
            results.rows.push(row(&case, variant, ("sys", "s"), (wall * cpus, known.map(|v| v * cpus))));
            results.runs.push(run(&case, variant, wall * cpus / (1.0 + at as f64), Vec::new()));
        }
    }
    for gigabytes in [12.0, 38.0, 64.0, 90.0] {
        for threads in [1.0, 19.0, 37.0, 55.0] {
            let case = vec![text("part", "hog"), num("mem_gb", gigabytes), num("threads", threads)];
            for (at, variant) in VARIANTS.into_iter().enumerate() {
                let real = gigabytes * 14.0 / threads + gigabytes / (3.0 + at as f64);
                let known = (at == 0).then_some(real * 1.04);
                results.rows.push(row(&case, variant, ("real", "s"), (real, known)));
            }
        }
    }
    bars(&mut results);
    results
}

fn bars(results: &mut Results) {
    let case = vec![text("part", "kbuild")];
    for (at, variant) in VARIANTS.into_iter().enumerate() {
        let less = 1.0 / (1.0 + at as f64);
        let figures = [
            (("build_time", "s"), 162.67 * (0.8 + 0.2 * less), Some(162.67)),
            (("zone_lock_contention", "% of cycles"), 17.0 * less, Some(17.0)),
            (("pages_scanned", "pages"), 13_091_697.0 * less, None),
            (("alloc_p99", "us"), 4.28 * less, Some(5.1)),
        ];
        results
            .rows
            .extend(figures.map(|(metric, value, known)| {
                row(&case, variant, metric, (value, known.filter(|_| at < 2)))
            }));
        let mut lines = vec![
            series("pageset.high", "CPU 0", "frames", 5000, 900.0 * less),
            series("pageset.high", "CPU 1", "frames", 5000, 700.0 * less),
            series("free memory and watermarks", "free", "GB", 400, 20.0),
        ];
        for (level, name) in [(2.0, "watermarks.min"), (2.5, "watermarks.low"), (3.0, "watermarks.high")] {
            let points = vec![(0.0, level), (3.2, level)];
            lines.push(Series { plot: "free memory and watermarks", name: name.into(), unit: "GB", points });
        }
        let node =
            |at: usize| series("pages by node", &format!("node {at}"), "pages", 300, 1e6 + 1e5 * at as f64);
        lines.extend((0..28).map(node));
        results.runs.push(run(&case, variant, 40.0 * less, lines));
    }
}
