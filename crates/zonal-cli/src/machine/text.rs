//! The report on a machine as aligned text.
//!
//! Small machines are shown in full. For larger machines, the report shows the first nodes and a summary. The JSON
//! report always contains all nodes. Related files: `machine/words.rs` has the sentences.

use std::collections::BTreeMap;
use std::fmt::Write;

use zonal_machine::{Check, MachineModel, Report, Rules, Severity, ordinal};

use super::words::{self, in_order, measured, pageset_high, ranges, size};
use crate::layout::Content::{Numbers, Text};
use crate::layout::{Content, Grid, Width};

/// Maximum number of nodes for which the distances are shown as a matrix.
const MATRIX_NODES_MAX: usize = 16;
/// Maximum number of table rows that are shown; the rest is omitted.
const ROWS_MAX: usize = 64;

pub(super) fn render(model: &MachineModel, rules: &Rules, report: &Report, width: Width) -> String {
    let sections = [
        heading(model, rules, report, width),
        nodes(report, width),
        distances(model, width),
        zones(report, width),
        balance(report, width),
        words::filling(report).map_or_else(String::new, |text| width.labelled("Filling: ", &text)),
        checks(report, width),
        advice(report, width),
    ];
    let sections: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
    sections.join("\n")
}

fn heading(model: &MachineModel, rules: &Rules, report: &Report, width: Width) -> String {
    let assumed = words::assumed(rules, report).map(|text| width.labelled("", &text));
    let machine = width.labelled("", &words::machine(model, report));
    machine + &width.labelled("", &words::rules(model, rules)) + &assumed.unwrap_or_default()
}

/// Formats a table. The first `keys` columns identify a row; only the first rows are shown.
fn table<T: Into<String>>(
    keys: usize,
    columns: impl IntoIterator<Item = (T, Content)>,
    rows: impl Iterator<Item = Vec<String>>,
    width: Width,
) -> String {
    let mut grid = Grid::new(keys, columns);
    let mut left = 0;
    for (at, row) in rows.enumerate() {
        if at < ROWS_MAX {
            grid.row(row);
        } else {
            left += 1;
        }
    }
    let mut out = grid.render("  ", width);
    if left > 0 {
        let _ = writeln!(out, "  ... and {left} more (--json has all)");
    }
    out
}

fn nodes(report: &Report, width: Width) -> String {
    let row = |node: &zonal_machine::NodeReport| {
        let order = in_order(node.fallback_order.iter().map(|&id| u64::from(id)));
        vec![node.id.to_string(), ranges(&node.cpus), size(node.managed, report.page_bytes), order]
    };
    let columns = [("node", Numbers), ("CPUs", Text), ("memory", Numbers), ("fallback order", Text)];
    format!("Nodes\n{}", table(1, columns, report.nodes.iter().map(row), width))
}

fn distances(model: &MachineModel, width: Width) -> String {
    let online: Vec<usize> = model.online_nodes().filter_map(|node| model.place(node.id)).collect();
    if online.len() < 2 {
        return String::new();
    }
    let ids: Vec<String> = online.iter().map(|&place| model.nodes[place].id.to_string()).collect();
    if online.len() <= MATRIX_NODES_MAX {
        let columns = std::iter::once("from\\to").chain(ids.iter().map(String::as_str));
        let rows = online.iter().zip(&ids).map(|(&from, id)| {
            let row = online.iter().map(|&to| model.distance_between(from, to).to_string());
            std::iter::once(id.clone()).chain(row).collect()
        });
        return format!("Distances\n{}", table(1, columns.map(|title| (title, Numbers)), rows, width));
    }
    let mut pairs: BTreeMap<u8, u64> = BTreeMap::new();
    for &from in &online {
        for &to in online.iter().filter(|&&to| to != from) {
            *pairs.entry(model.distance_between(from, to)).or_default() += 1;
        }
    }
    let rows = pairs.iter().map(|(distance, pairs)| vec![distance.to_string(), pairs.to_string()]);
    let columns = [("distance", Numbers), ("ordered pairs", Numbers)];
    format!("Distances between different nodes\n{}", table(1, columns, rows, width))
}

fn zones(report: &Report, width: Width) -> String {
    let tuned = report.zones.iter().any(|zone| zone.pageset_high_min.is_some());
    let high = if tuned { "pageset.high" } else { "pageset.high (fixed)" };
    let numbers = ["managed", "min", "low", "high", "reserve", "batch", high, "stat threshold"];
    let keys = [("node", Numbers), ("zone", Text)];
    let columns = keys.into_iter().chain(numbers.map(|title| (title, Numbers)));
    let row = |zone: &zonal_machine::ZoneReport| {
        vec![
            zone.node.to_string(),
            zone.kind.to_owned(),
            size(zone.managed, report.page_bytes),
            zone.min.to_string(),
            zone.low.to_string(),
            zone.high.to_string(),
            zone.protection.last().copied().unwrap_or(0).to_string(),
            zone.batch.to_string(),
            pageset_high(zone),
            zone.stat_threshold.to_string(),
        ]
    };
    let title = "Zones (in frames; reserve: kept from requests that can use any higher zone)";
    width.labelled("", title) + &table(2, columns, report.zones.iter().map(row), width)
}

fn balance(report: &Report, width: Width) -> String {
    let places = report.balance.first().map_or(0, |node| node.times_nth.len());
    if places < 2 {
        return String::new();
    }
    let shown = places.min(MATRIX_NODES_MAX);
    let names = (1..=shown).map(ordinal);
    let columns = std::iter::once("node".to_owned()).chain(names).map(|title| (title, Numbers));
    let rows = report.balance.iter().map(|node| {
        let times = node.times_nth.iter().take(shown).map(u32::to_string);
        std::iter::once(node.node.to_string()).chain(times).collect()
    });
    let title = "Balance (how many other nodes have it as their 1st, 2nd ... fallback)";
    width.labelled("", title) + &table(1, columns, rows, width)
}

fn checks(report: &Report, width: Width) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let mut out = width.labelled("Checks: ", &words::checks(report));
    for summary in words::checks_at_boot(report).into_iter().chain(words::unchecked(report)) {
        out += &width.labelled("        ", &summary);
    }
    let of = |wanted: fn(&Check) -> bool| report.checks.iter().filter(move |check| wanted(check));
    out += &check_table("differs", "predicted", of(Check::differs), width);
    out += &check_table("as at boot", "computed now", of(|check| check.as_at_boot), width);
    out + &words::at_boot(report).map_or_else(String::new, |text| width.paragraph("  ", "  ", &text))
}

/// Formats checks with their predicted and reported values. Returns an empty text if there are no checks.
fn check_table<'a>(
    title: &str,
    predicted: &str,
    checks: impl Iterator<Item = &'a Check>,
    width: Width,
) -> String {
    let row = |check: &Check| vec![check.what.clone(), measured(&check.predicted), measured(&check.observed)];
    let mut rows = checks.map(row).peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    table(1, [title, predicted, "observed"].map(|title| (title, Text)), rows, width)
}

fn advice(report: &Report, width: Width) -> String {
    if report.advice.is_empty() {
        return "Advice: none\n".to_owned();
    }
    let mut out = "Advice\n".to_owned();
    for advice in &report.advice {
        let severity = match advice.severity {
            Severity::Info => "  info  ",
            Severity::Warn => "  warn  ",
        };
        out += &width.paragraph(severity, "        ", &advice.text);
    }
    out
}
