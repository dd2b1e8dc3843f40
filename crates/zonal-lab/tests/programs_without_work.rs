//! Programs without work while they measure, and processes that work when the measurement ends.

use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use zonal::Config;
use zonal_lab::experiment::{Source, Texts, example, load};
use zonal_lab::outcome::Outcome;
use zonal_lab::sim::{Hardware, SimulatedMachine};
use zonal_lab::system::System;
use zonal_lab::workload::{Exchange, Workload};
use zonal_machine::preset;

fn run(workload: &Workload) -> Outcome {
    let machine = SimulatedMachine { model: preset("quad-10-12-32").unwrap(), hardware: Hardware::default() };
    workload.program().check(&machine).unwrap();
    let outcome = machine.simulate(&Config::default(), 1, |sim| {
        workload.program().run(&System::new(sim), &AtomicBool::new(false)).unwrap()
    });
    outcome.unwrap()
}

/// Returns an example's workload, with other values for some of its keys.
fn changed(kind: &str, values: &[(&str, Value)]) -> Workload {
    let texts = Texts { name: "own.toml".to_owned(), text: example(kind).unwrap(), ..Texts::default() };
    let plan = load(&Source::Texts(texts)).unwrap();
    let mut all = serde_json::to_value(&plan.runs[0].workload).unwrap();
    let fields: &mut Value = &mut all[kind];
    for (name, value) in values {
        if let Some(field) = fields.get_mut(name) {
            field.clone_from(value);
        }
    }
    serde_json::from_value(all).unwrap()
}

#[test]
fn no_program_reports_what_it_did_not_measure() {
    let nothing = [
        ("warm_up", json!(1e-3 - 1e-12)),
        ("seconds", json!(1e-3)),
        ("gib_each", json!(0.0)),
        ("mem_gb", json!(0.0)),
        ("mapping_gib", json!(0.0)),
        ("churn_pages", json!(8)),
    ];
    for &kind in Workload::KINDS {
        let workload = changed(kind, &nothing);
        let outcome = run(&workload);
        for metric in &outcome.metrics {
            assert!(metric.value.is_finite(), "{kind}: {metric:?}");
        }
        let always_works = ["stream", "fallback-list", "file-writers", "copies"].contains(&kind);
        assert_eq!(outcome.metrics.is_empty(), !always_works, "{kind}: {:?}", outcome.metrics);
        assert_eq!(outcome.unmeasured.is_empty(), always_works, "{kind}");
        for name in &outcome.unmeasured {
            assert!(workload.unit_of(name).is_some(), "{kind}: {name}");
        }
    }
}

/// The processes of a pair take turns, also when the measurement ends.
#[test]
fn turns_count_only_while_they_are_measured() {
    let pair = Exchange {
        pairs: 1,
        burst: 100,
        send_ns: 3000.0,
        receive_ns: 3000.0,
        wake_ns: 1000.0,
        moves_pct: 0.0,
        seconds: 0.001,
        warm_up: 0.0,
    };
    for seconds in [0.001, 0.0011, 0.0012, 0.0013] {
        let outcome = run(&Workload::Exchange(Exchange { seconds, ..pair.clone() }));
        let runnable = outcome.get("runnable").unwrap();
        assert!((0.9..=1.0).contains(&runnable), "{seconds}: {runnable}");
    }
}
