//! The report on a machine, as tables and as the document that the command line prints.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use zonal_machine::{Measured, Severity, ZoneReport};

use crate::table::{Column, Table};

/// Zone limits, in the order of the lowmem reserves.
const LIMITS: [&str; 5] = ["dma", "dma32", "normal", "movable", "device"];

/// What the rules of a kernel predict for a machine. Amounts of memory are in frames.
#[pyclass(frozen, module = "zonal.machine")]
pub(crate) struct Report {
    pub(super) version: String,
    pub(super) report: zonal_machine::Report,
}

fn text(measured: &Measured) -> String {
    match measured {
        Measured::One(number) => number.to_string(),
        Measured::Row(row) => row.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
    }
}

#[pymethods]
impl Report {
    /// Returns the kernel version whose rules were applied.
    #[getter]
    fn rules(&self) -> &str {
        &self.version
    }

    /// Whether an observed value differs from the predicted one, except values computed at boot from fewer frames.
    #[getter]
    fn differs(&self) -> bool {
        self.report.checks.iter().any(zonal_machine::Check::differs)
    }

    /// Returns a row for each zone: node, kind, managed, the watermarks min, low and high, batch, pageset_high (before
    /// 6.7), pageset_high_min and pageset_high_max (from 6.7), stat_threshold, and protection_KIND, the lowmem
    /// reserve for requests limited to each kind of zone.
    fn zones(&self) -> Table {
        let zones = &self.report.zones;
        let frames = |name: &str, value: fn(&ZoneReport) -> u64| Column::new(name, zones.iter().map(value));
        let limit =
            |name: &str, value: fn(&ZoneReport) -> Option<u64>| Column::new(name, zones.iter().map(value));
        let mut columns = vec![
            Column::new("node", zones.iter().map(|zone| i64::from(zone.node))),
            Column::new("kind", zones.iter().map(|zone| zone.kind)),
            frames("managed", |zone| zone.managed),
            frames("min", |zone| zone.min),
            frames("low", |zone| zone.low),
            frames("high", |zone| zone.high),
            frames("batch", |zone| zone.batch),
            limit("pageset_high", |zone| zone.pageset_high),
            limit("pageset_high_min", |zone| zone.pageset_high_min),
            limit("pageset_high_max", |zone| zone.pageset_high_max),
            frames("stat_threshold", |zone| zone.stat_threshold),
        ];
        columns.extend(LIMITS.iter().enumerate().map(|(place, limit)| {
            let reserve = zones.iter().map(|zone| zone.protection.get(place).copied());
            Column::new(format!("protection_{limit}"), reserve)
        }));
        Table::new(columns)
    }

    /// Returns, for each online node, the nodes that serve its requests, from the first choice to the last.
    pub(super) fn fallback_orders(&self) -> BTreeMap<u16, Vec<u16>> {
        self.report.nodes.iter().map(|node| (node.id, node.fallback_order.clone())).collect()
    }

    /// Returns the fallback orders as a table: node, place (from 0), serves (the node in that place).
    fn fallbacks(&self) -> Table {
        let nodes = self.report.nodes.iter();
        let places: Vec<(i64, i64, i64)> = nodes
            .flat_map(|node| {
                let order = node.fallback_order.iter().enumerate();
                order.map(|(place, &serves)| (node.id.into(), place as i64, serves.into()))
            })
            .collect();
        Table::new(vec![
            Column::new("node", places.iter().map(|place| place.0)),
            Column::new("place", places.iter().map(|place| place.1)),
            Column::new("serves", places.iter().map(|place| place.2)),
        ])
    }

    /// Returns how often other nodes fall back on each node: node, nth (1 is their first fallback), times.
    fn balance(&self) -> Table {
        let nodes = self.report.balance.iter();
        let times: Vec<(i64, i64, i64)> = nodes
            .flat_map(|node| {
                let times = node.times_nth.iter().zip(1_i64..);
                times.map(|(&times, nth)| (node.node.into(), nth, times.into()))
            })
            .collect();
        Table::new(vec![
            Column::new("node", times.iter().map(|time| time.0)),
            Column::new("nth", times.iter().map(|time| time.1)),
            Column::new("times", times.iter().map(|time| time.2)),
        ])
    }

    /// Returns a row for each observed value: what, predicted, observed (texts; rows of numbers are separated by
    /// spaces), same, as_at_boot (the values differ only because the kernel computed this one at boot).
    pub(super) fn checks(&self) -> Table {
        let checks = &self.report.checks;
        Table::new(vec![
            Column::new("what", checks.iter().map(|check| &*check.what)),
            Column::new("predicted", checks.iter().map(|check| text(&check.predicted))),
            Column::new("observed", checks.iter().map(|check| text(&check.observed))),
            Column::new("same", checks.iter().map(|check| check.same)),
            Column::new("as_at_boot", checks.iter().map(|check| check.as_at_boot)),
        ])
    }

    /// Returns a row for each piece of advice: severity ("info" or "warn"), text.
    pub(super) fn advice(&self) -> Table {
        let advice = &self.report.advice;
        let severity = |severity| match severity {
            Severity::Info => "info",
            Severity::Warn => "warn",
        };
        Table::new(vec![
            Column::new("severity", advice.iter().map(|advice| severity(advice.severity))),
            Column::new("text", advice.iter().map(|advice| &*advice.text)),
        ])
    }

    /// Returns the report in the structure of `zonal machine --json`, without its schema.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.report).expect("numbers and names are always JSON");
        py.import("json")?.call_method1("loads", (text,))
    }

    fn __repr__(&self) -> String {
        format!("<zonal.machine.Report on {:?} by the rules of Linux {}>", self.report.name, self.version)
    }
}
