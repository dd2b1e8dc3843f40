//! The report on a machine as aligned text.
//!
//! Small machines are shown in full; larger ones as their first nodes and a summary. The JSON report always
//! contains everything.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use zonal::units::PageCount;
use zonal_machine::{Check, Escaped, MachineModel, Measured, Report, Rules, Severity, readable_size};

/// Largest machine whose distances are shown as a matrix.
const MATRIX_NODES_MAX: usize = 16;
/// Rows of a table that are shown before it is cut.
const ROWS_MAX: usize = 64;
/// Entries of a list or a row of counts that are shown before it is cut.
const ENTRIES_MAX: usize = 32;
/// Width to which sentences are wrapped.
const LINE_WIDTH: usize = 110;

pub(super) fn render(model: &MachineModel, rules: &Rules, report: &Report) -> String {
    let sections = [
        heading(model, rules, report),
        nodes(report),
        distances(model),
        zones(report),
        balance(report),
        checks(report),
        advice(report),
    ];
    let sections: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
    sections.join("\n")
}

fn heading(model: &MachineModel, rules: &Rules, report: &Report) -> String {
    let managed = report.nodes.iter().map(|node| node.managed).sum();
    let own = model.observed.as_ref().and_then(|observed| observed.kernel);
    let whose = if own == Some(rules.version) { "its own kernel" } else { "not its own kernel" };
    let whose = if own.is_none() { "its kernel is unknown" } else { whose };
    format!(
        "{}: {}, {}, {} in {}, pages of {}\nRules of Linux {} ({whose}), node load: {:?}\n",
        Escaped(&report.name),
        counted(report.nodes.len(), "node"),
        counted(model.online_cpus() as usize, "CPU"),
        size(managed, report.page_bytes),
        counted(report.zones.len(), "zone"),
        size(1, report.page_bytes),
        rules.version,
        rules.node_load
    )
}

fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

fn size(pages: u64, page_bytes: u32) -> String {
    readable_size(PageCount::new(pages), page_bytes)
}

/// Formats a table whose columns are numbers, except those listed as text.
fn table(header: &[&str], text_columns: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    let mut left = 0;
    for (at, row) in rows.enumerate() {
        if at < ROWS_MAX {
            table.add_row(row);
        } else {
            left += 1;
        }
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        let text = text_columns.contains(&at);
        column.set_cell_alignment(if text { CellAlignment::Left } else { CellAlignment::Right });
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(4)));
    }
    let mut out = String::new();
    for line in table.lines() {
        let _ = writeln!(out, " {}", line.trim_end());
    }
    if left > 0 {
        let _ = writeln!(out, "  ... and {left} more (--json has all)");
    }
    out
}

/// Formats ids as Linux prints sets of them: `0-3,8`.
fn ranges(ids: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let runs: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    if runs.is_empty() { "none".to_owned() } else { runs.join(",") }
}

fn in_order(ids: impl ExactSizeIterator<Item = u64>) -> String {
    let count = ids.len();
    let shown: Vec<String> = ids.take(ENTRIES_MAX).map(|id| id.to_string()).collect();
    match count.saturating_sub(ENTRIES_MAX) {
        0 => shown.join(" "),
        more => format!("{} ... {more} more", shown.join(" ")),
    }
}

fn nodes(report: &Report) -> String {
    let row = |node: &zonal_machine::NodeReport| {
        let order = in_order(node.fallback_order.iter().map(|&id| u64::from(id)));
        vec![node.id.to_string(), ranges(&node.cpus), size(node.managed, report.page_bytes), order]
    };
    let header = ["node", "cpus", "memory", "fallback order"];
    format!("Nodes\n{}", table(&header, &[1, 3], report.nodes.iter().map(row)))
}

fn distances(model: &MachineModel) -> String {
    let online: Vec<usize> = model.online_nodes().filter_map(|node| model.place(node.id)).collect();
    if online.len() < 2 {
        return String::new();
    }
    let ids: Vec<String> = online.iter().map(|&place| model.nodes[place].id.to_string()).collect();
    if online.len() <= MATRIX_NODES_MAX {
        let header: Vec<&str> = std::iter::once("from\\to").chain(ids.iter().map(String::as_str)).collect();
        let rows = online.iter().zip(&ids).map(|(&from, id)| {
            let row = online.iter().map(|&to| model.distance_between(from, to).to_string());
            std::iter::once(id.clone()).chain(row).collect()
        });
        return format!("Distances\n{}", table(&header, &[], rows));
    }
    let mut pairs: BTreeMap<u8, u64> = BTreeMap::new();
    for &from in &online {
        for &to in online.iter().filter(|&&to| to != from) {
            *pairs.entry(model.distance_between(from, to)).or_default() += 1;
        }
    }
    let rows = pairs.iter().map(|(distance, pairs)| vec![distance.to_string(), pairs.to_string()]);
    format!("Distances between different nodes\n{}", table(&["distance", "ordered pairs"], &[], rows))
}

fn zones(report: &Report) -> String {
    let tuned = report.zones.iter().any(|zone| zone.pageset_high_min.is_some());
    let high = if tuned { "pageset.high" } else { "pageset.high (fixed)" };
    let header =
        ["node", "zone", "managed", "min", "low", "high", "reserve", "batch", high, "stat threshold"];
    let row = |zone: &zonal_machine::ZoneReport| {
        let high = match (zone.pageset_high, zone.pageset_high_min, zone.pageset_high_max) {
            (Some(high), _, _) => high.to_string(),
            (None, Some(least), Some(most)) => format!("{least}..{most}"),
            _ => String::new(),
        };
        vec![
            zone.node.to_string(),
            zone.kind.to_owned(),
            size(zone.managed, report.page_bytes),
            zone.min.to_string(),
            zone.low.to_string(),
            zone.high.to_string(),
            zone.protection.last().copied().unwrap_or(0).to_string(),
            zone.batch.to_string(),
            high,
            zone.stat_threshold.to_string(),
        ]
    };
    let title = "Zones (in frames; reserve = kept from requests that can use any higher zone)";
    format!("{title}\n{}", table(&header, &[1], report.zones.iter().map(row)))
}

fn balance(report: &Report) -> String {
    let places = report.balance.first().map_or(0, |node| node.times_nth.len());
    if places < 2 {
        return String::new();
    }
    let shown = places.min(MATRIX_NODES_MAX);
    let names: Vec<String> = (1..=shown).map(|nth| format!("{nth}.")).collect();
    let header: Vec<&str> = std::iter::once("node").chain(names.iter().map(String::as_str)).collect();
    let rows = report.balance.iter().map(|node| {
        let times = node.times_nth.iter().take(shown).map(u32::to_string);
        std::iter::once(node.node.to_string()).chain(times).collect()
    });
    format!("Balance (how many nodes have it as 1st, 2nd ... substitute)\n{}", table(&header, &[], rows))
}

fn checks(report: &Report) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let of = |wanted: fn(&Check) -> bool| report.checks.iter().filter(move |check| wanted(check));
    let (total, same) = (report.checks.len(), of(|check| check.same).count());
    let mut out = format!("Checks: {same} of {total} values that its kernel reported are as predicted\n");
    if let Some(at_boot) = &report.at_boot {
        let differing = of(Check::differs).count();
        out += &format!("        {} as computed at boot, {differing} differ\n", at_boot.explained);
    }
    out += &check_table("differs", "predicted", of(Check::differs));
    out += &check_table("as at boot", "computed now", of(|check| check.as_at_boot));
    out + &at_boot(report)
}

/// Formats checks with both values; returns an empty text if there are none.
fn check_table<'a>(title: &str, predicted: &str, checks: impl Iterator<Item = &'a Check>) -> String {
    let value = |value: &Measured| match value {
        Measured::One(one) => one.to_string(),
        Measured::Row(row) => in_order(row.iter().copied()),
    };
    let row = |check: &Check| vec![check.what.clone(), value(&check.predicted), value(&check.observed)];
    let mut rows = checks.map(row).peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    table(&[title, predicted, "observed"], &[0, 1, 2], rows)
}

/// Explains values that were computed at boot, and how to have them recomputed.
fn at_boot(report: &Report) -> String {
    let Some(at_boot) = &report.at_boot else { return String::new() };
    let frames = |fewer: u64| format!("{fewer} frames ({})", size(fewer, report.page_bytes));
    let zones: Vec<String> = at_boot
        .zones
        .iter()
        .map(|zone| format!("{} of node {} {}", frames(zone.fewer), zone.node, zone.kind))
        .collect();
    let most = match at_boot.fewer_at_most {
        most if most > at_boot.fewer => format!(" (at most {most}; watermarks are rounded)"),
        _ => String::new(),
    };
    let mut text = format!(
        "The kernel computed these values when it had at least {} fewer{most}: {}. With so many fewer, all of them follow \
         from the rules. Memory used during boot, such as the initial file system, was given to these zones later.",
        frames(at_boot.fewer),
        zones.join(", "),
    );
    if !at_boot.recomputed_by.is_empty() {
        text += &format!(" To have them computed from today's frames: {}.", at_boot.recomputed_by.join("; "));
    }
    textwrap::fill(&text, textwrap::Options::new(LINE_WIDTH).initial_indent("  ").subsequent_indent("  "))
        + "\n"
}

fn advice(report: &Report) -> String {
    if report.advice.is_empty() {
        return "Advice: none, nothing stands out\n".to_owned();
    }
    let mut out = "Advice\n".to_owned();
    for advice in &report.advice {
        let severity = match advice.severity {
            Severity::Info => "  info  ",
            Severity::Warn => "  warn  ",
        };
        let options =
            textwrap::Options::new(LINE_WIDTH).initial_indent(severity).subsequent_indent("        ");
        out += &textwrap::fill(&advice.text, options);
        out.push('\n');
    }
    out
}
