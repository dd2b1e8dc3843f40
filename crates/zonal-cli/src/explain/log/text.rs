//! Prints the explanations of a log as text: the answer first, then nodes, remedies and checks.

use std::fmt::Write as _;

use zonal_machine::Escaped;
use zonal_machine::log::{
    Change, Check, Explanation, Input, LogReport, Origin, Place, ReportKind, Summary, Value,
};

use super::{Answer, Explained};
use crate::layout::{
    Content::{Numbers, Text},
    Grid, Width,
};

pub(super) fn answer(answer: &Answer, width: Width) -> String {
    let mut text = String::new();
    for Explained { report, explanation } in &answer.explained {
        text += &width.labelled("", &heading(report));
        text += &width.paragraph("  ", "  ", &explanation.answer.join(" "));
        text += &tables(explanation, width);
        text += "\n";
    }
    text + &summary(&answer.summary, answer.explained.len(), width)
}

/// Returns the first line of a report, as in "line 1: OOM kill, kernel 6.1.0-13-amd64, CONSTRAINT_CPUSET".
fn heading(report: &LogReport) -> String {
    let kind = match report.kind {
        Some(ReportKind::Oom) => "OOM kill",
        Some(ReportKind::Failure) => "page allocation failure",
        None => "state of memory",
    };
    let mut text = format!("line {}: {kind}", report.line);
    if let Some(release) = &report.release {
        let _ = write!(text, ", kernel {}", Escaped(release));
    }
    if let Some(constraint) = report.constraint() {
        let _ = write!(text, ", {}", constraint.name());
    }
    text
}

fn tables(explanation: &Explanation, width: Width) -> String {
    let mut text = String::new();
    if !explanation.nodes.is_empty() {
        let mut grid =
            Grid::new(1, [("node", Numbers), ("free pages", Numbers), ("why it did not help", Text)]);
        for node in &explanation.nodes {
            let id = node.id.map_or_else(|| "others".to_owned(), |id| id.to_string());
            let free = node.free.map_or_else(String::new, |free| free.to_string());
            grid.row([id, free, node.why.clone()]);
        }
        text = text + "\n" + &grid.render("  ", width);
    }
    if !explanation.remedies.is_empty() {
        let mut grid = Grid::new(1, [("it passes with", Text), ("cost", Text)]);
        for remedy in &explanation.remedies {
            grid.row([change(&remedy.change), remedy.cost.clone()]);
        }
        text = text + "\n" + &grid.render("  ", width);
    }
    if !explanation.checks.is_empty() {
        let titles = [("zone", Text), ("check", Text), ("inputs", Text), ("outcome", Text)];
        let titles = titles.into_iter().chain([("margin", Numbers), ("verdict", Text)]);
        let mut grid = Grid::new(2, titles);
        for check in &explanation.checks {
            grid.row(row(check));
        }
        let legend = "Inputs in pages (`later` in microseconds): p printed, c computed, a assumed. Margin: pages above what the rule \
                      requires.";
        text = text + "\n" + &grid.render("  ", width) + &width.paragraph("  ", "  ", legend);
    }
    for note in &explanation.notes {
        text += &width.paragraph("  note: ", "        ", note);
    }
    text
}

fn row(check: &Check) -> [String; 6] {
    let inputs: Vec<String> = check.inputs.iter().map(input).collect();
    [
        check.place.map_or_else(|| "all".to_owned(), place),
        check.rule.name().to_owned(),
        inputs.join(", "),
        check.outcome.name().to_owned(),
        check.margin.map_or_else(String::new, |margin| margin.to_string()),
        check.verdict.name().to_owned(),
    ]
}

fn place(place: Place) -> String {
    match (place.node, place.kind) {
        (Some(node), Some(kind)) => format!("node {node} {kind}"),
        (Some(node), None) => format!("node {node}"),
        (None, _) => "other nodes".to_owned(),
    }
}

/// Returns an input with its origin, as in `free 3102p`.
fn input(input: &Input) -> String {
    let origin = match input.from {
        Origin::Printed => "p",
        Origin::Computed => "c",
        Origin::Assumed => "a",
    };
    match &input.value {
        Value::Number(number, _) => format!("{} {number}{origin}", input.name),
        Value::Text(text) => format!("{} {} ({origin})", input.name, Escaped(text)),
    }
}

fn change(change: &Change) -> String {
    match change {
        Change::Setting(name, value) => format!("{name} = {value}"),
        Change::Order(order) => format!("order {order}"),
        Change::Nodes(name, nodes) => format!("{name} of nodes {nodes}"),
    }
}

/// Returns the counts, as in "2 reports: 1 OOM kill, 1 page allocation failure".
fn summary(summary: &Summary, explained: usize, width: Width) -> String {
    let counted =
        |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let mut text = format!(
        "{}: {}, {}",
        counted(summary.reports, "report", "reports"),
        counted(summary.kills, "OOM kill", "OOM kills"),
        counted(summary.failures, "page allocation failure", "page allocation failures"),
    );
    let list = |counts: Vec<(String, u64)>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let constraints = summary.constraints.iter().map(|(&name, &count)| (name.to_owned(), count));
    let refusals = summary.refusals.iter().map(|(name, &count)| (name.clone(), count));
    let verdicts = summary.verdicts.iter().map(|(verdict, &count)| (verdict.name().to_owned(), count));
    for (label, counts) in [
        ("constraints", constraints.collect::<Vec<_>>()),
        ("refused by", refusals.collect()),
        ("checks", verdicts.collect()),
    ] {
        if !counts.is_empty() {
            let _ = write!(text, "; {label}: {}", list(counts));
        }
    }
    if summary.reports > explained as u64 {
        let _ = write!(text, ". Only the first {explained} are explained above.");
    }
    width.labelled("", &text)
}
