//! The report on a machine as a page with pictures.
//!
//! Each section maps a part of the report to page blocks. Related files: `machine/page/nodes.rs` has the nodes, their
//! distances and fallbacks, `machine/page/zones.rs` the watermarks, `machine/page/checks.rs` the checks, and
//! `zonal-page` draws the pictures.

mod checks;
mod nodes;
mod zones;

use zonal::settings::Setting;
use zonal_machine::{Advice, Check, Excerpt, MachineModel, Report, Rules, Settings, Severity};
use zonal_page::{Block, Cell, Chart, Column, Finding, Kind, Page, Section, Table, Tone};

use super::words;

/// Returns the page as text.
pub(super) fn render(model: &MachineModel, rules: &Rules, report: &Report) -> String {
    let topology: Vec<Chart> = vec![nodes::topology(model, report)];
    let watermarks: Vec<Chart> = zones::charts(report);
    let (title, blocks) = nodes::blocks(model, report, &topology);
    let mut sections = vec![section("Advice", advice(&report.advice)), section(title, blocks)];
    if report.nodes.len() > 1 {
        sections.push(section("Fallback orders and balance", nodes::fallbacks(report)));
    }
    sections.push(section("Watermarks", zones::blocks(report, &watermarks)));
    if !report.checks.is_empty() {
        sections.push(section("Checks", checks::blocks(report)));
    }
    sections.push(section("Settings", vec![Block::Table(settings(&model.settings))]));
    let title = Excerpt::name(&report.name).to_string();
    Page { title, header: header(model, rules, report), sections }.html()
}

fn section<'a>(title: &str, blocks: Vec<Block<'a>>) -> Section<'a> {
    Section { title: title.to_owned(), blocks }
}

fn header(model: &MachineModel, rules: &Rules, report: &Report) -> Vec<Block<'static>> {
    let mut header = vec![
        Block::Lead(words::sizes(model, report)),
        Block::About(format!("{}.", words::rules(model, rules))),
    ];
    header.extend(words::assumed(rules, report).map(|text| Block::Warning(format!("{text}."))));
    header.extend(words::filling(report).map(|text| Block::Text(format!("{text}."))));
    match report.checks.iter().filter(|check| Check::differs(check)).count() {
        0 => {}
        1 => header.push(Block::Warning("1 value that its kernel reported differs; see Checks.".to_owned())),
        differing => {
            header.push(Block::Warning(format!(
                "{differing} values that its kernel reported differ; see Checks."
            )));
        }
    }
    header
}

fn advice(advice: &[Advice]) -> Vec<Block<'static>> {
    if advice.is_empty() {
        return vec![Block::Text("None.".to_owned())];
    }
    let finding = |advice: &Advice| {
        let (tone, label) = match advice.severity {
            Severity::Warn => (Tone::Off, "warning"),
            Severity::Info => (Tone::Near, "info"),
        };
        Finding { tone, label: label.to_owned(), text: advice.text.clone() }
    };
    // Warnings first; the sort keeps the order of advice with the same severity.
    let mut sorted: Vec<&Advice> = advice.iter().collect();
    sorted.sort_by_key(|advice| std::cmp::Reverse(advice.severity));
    vec![Block::Findings(sorted.into_iter().map(finding).collect())]
}

fn settings(settings: &Settings) -> Table {
    let row = |setting: Setting| {
        let numbers: Vec<String> = settings.numbers(setting).iter().map(ToString::to_string).collect();
        let value = match &numbers[..] {
            [] => "computed from the size of memory".to_owned(),
            numbers => numbers.join(" "),
        };
        vec![Cell::from(format!("vm.{setting}")), Cell::from(value)]
    };
    Table {
        caption: "Settings that the values on this page depend on".to_owned(),
        columns: vec![Column::new(Kind::Code, "setting"), Column::new(Kind::Text, "value")],
        rows: vec![Settings::ALL.into_iter().map(row).collect()],
    }
}
