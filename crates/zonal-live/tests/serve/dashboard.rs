//! The dashboard for Grafana uses only metrics that exist.

use std::collections::BTreeSet;

use serde_json::Value;
use zonal_live::serve::{MetricDetail, ServeOptions};
use zonal_live::{Counter, Locality, Node, Sample, SimulatedSource, Source, SourceError};

use crate::client::{Running, Step, options};

/// A source that has all counters.
struct Complete(SimulatedSource);

impl Source for Complete {
    fn title(&self) -> String {
        self.0.title()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let mut sample = self.0.read()?;
        for counter in Counter::ALL {
            sample.totals.set(counter, 7);
        }
        let complete = |node: &mut Node| {
            node.allocated = Some([1, 2, 3]);
            node.stalled_percent = Some(0.0);
            node.locality = Some(Locality::default());
        };
        sample.nodes.iter_mut().for_each(complete);
        Ok(sample)
    }
}

/// Returns all values of a member, at any depth.
fn all<'v>(value: &'v Value, member: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get(member).and_then(Value::as_str));
            members.values().for_each(|value| all(value, member, found));
        }
        Value::Array(values) => values.iter().for_each(|value| all(value, member, found)),
        _ => {}
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("zonal_"))
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut queries = Vec::new();
    all(&dashboard, "expr", &mut queries);
    assert!(queries.len() >= 8, "{queries:?}");
    let used: BTreeSet<&str> = queries.iter().flat_map(|query| words(query)).collect();
    let source = Box::new(Complete(SimulatedSource::new(2, 2)));
    let server = Running::of(source, ServeOptions { detail: MetricDetail::Zones, ..options() });
    server.step(Step::Succeed);
    let text = server.get("/metrics").body;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let unknown: Vec<_> = used.difference(&names).collect();
    assert!(unknown.is_empty(), "{unknown:?} of {names:?}");
    for counter in Counter::ALL {
        let name = format!("zonal_{}", counter.name().trim_end_matches("_ns"));
        assert!(names.iter().any(|metric| metric.starts_with(&name) && metric.ends_with("_total")), "{name}");
    }
    let mut sources = Vec::new();
    all(&dashboard, "uid", &mut sources);
    assert!(sources.contains(&"${datasource}"), "the data source is a variable: {sources:?}");
}
