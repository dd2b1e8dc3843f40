//! The metrics in both formats.

use std::io::Write;
use std::process::{Command, Stdio};

use zonal_live::Counter;
use zonal_live::serve::{MetricDetail, ServeOptions};

use crate::client::{Running, Step, machine, options};
use crate::open_metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn server(detail: MetricDetail) -> Running {
    let server = Running::of(machine(), ServeOptions { detail, ..options() });
    server.step(Step::Succeed);
    server
}

#[test]
fn metrics_follow_the_rules_of_open_metrics() {
    let server = server(MetricDetail::Zones);
    let answer = server.get("/metrics");
    assert_eq!(answer.header("content-type"), OPEN_METRICS);
    let series = open_metrics::parse(&answer.body).unwrap();
    for name in ["zonal_up", "zonal_build_info", "zonal_watermark_bytes", "zonal_allocations_total"] {
        assert!(series.iter().any(|(other, _)| other == name), "{name}");
    }
    assert!(!series.iter().any(|(_, labels)| labels.iter().any(|(key, _)| key == "cpu")));
    let value = |name: &str| {
        let line =
            answer.body.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
        line.trim().parse::<f64>().unwrap()
    };
    let document = server.get("/snapshot.json").json();
    let free = document["sample"]["zones"][1]["free"].as_f64().unwrap();
    assert_eq!(value("zonal_free_bytes{node=\"1\",zone=\"Normal\"}"), free * 4096.0);
    assert_eq!(value("zonal_watermark_bytes{node=\"1\",zone=\"Normal\",mark=\"low\"}"), 10_240.0 * 4096.0);
    assert_eq!(value("zonal_background_reclaimed_bytes_total"), 2.0 * 700.0 * 4096.0);
    assert_eq!(value("zonal_refills_total"), 8000.0);
}

#[test]
fn every_counter_has_a_metric() {
    let text = server(MetricDetail::Zones).get("/metrics").body;
    let known = [Counter::Refills, Counter::Drains, Counter::DirectStalls, Counter::Failures];
    for counter in known {
        assert!(text.contains(&format!("# HELP zonal_{} {}", counter.name(), counter.help())), "{counter:?}");
    }
}

#[test]
fn pagesets_have_series_of_their_own_only_if_wanted() {
    let text = server(MetricDetail::Cpus).get("/metrics").body;
    let series = open_metrics::parse(&text).unwrap();
    let of_cpus = |name: &str| series.iter().filter(|(other, _)| other == name).count();
    assert_eq!(of_cpus("zonal_pageset_bytes"), 8);
    assert_eq!(of_cpus("zonal_pageset_refills_total"), 8);
}

/// Runs `promtool check metrics`; `None` if there is none.
fn promtool(text: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaints = [output.stdout, output.stderr].concat();
    assert!(output.status.success() || !complaints.is_empty());
    Some(String::from_utf8(complaints).unwrap())
}

#[test]
fn promtool_has_no_complaints() {
    let server = server(MetricDetail::Cpus);
    let accept = "Accept: text/plain";
    let answer = server.get_with("/metrics", &["Host: localhost", accept]);
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let Some(complaints) = promtool(&answer.body) else {
        zonal_testing::skipped!("no promtool (apt-get install prometheus)");
        return;
    };
    assert_eq!(complaints, "", "{}", answer.body);
    let wrong = promtool("# TYPE a counter\na 1\n").unwrap();
    assert!(wrong.contains("no help text"), "promtool finds what is wrong: {wrong}");
    let both = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    assert_eq!(server.get_with("/metrics", &["Host: localhost", both]).header("content-type"), OPEN_METRICS);
}
