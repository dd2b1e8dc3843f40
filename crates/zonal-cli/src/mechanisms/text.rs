//! Gains and costs of the mechanisms as tables: a line for each figure, a column for each variant, costs
//! below gains. Lines are at most 100 columns wide.

use std::num::NonZeroUsize;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use zonal_bench::mechanisms::{Findings, Kind, Measure};

use crate::run::text::counted;

/// Width of a line.
const COLUMNS: usize = 100;
/// Least width of the labels of figures, so that tables are aligned.
const LABEL_COLUMNS: u16 = 46;
/// Indent of everything below the name of a mechanism.
const INDENT: &str = "    ";
/// Longest name of a variant; longer ones are broken at their hyphen.
const NAME_COLUMNS: usize = 9;

/// Returns the text of all mechanisms.
pub(super) fn render(findings: &[Findings]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut text = textwrap::fill(
        &format!(
            "The allocator that ships, native on this machine ({}), over emulated nodes. Counts are exact, \
             times vary from run to run; \"ns for a page\" is the CPU time of allocating and freeing it.",
            counted(cpus as u64, "CPU")
        ),
        COLUMNS,
    );
    text.push('\n');
    findings.iter().for_each(|found| text.push_str(&section(found)));
    text
}

fn section(found: &Findings) -> String {
    let mechanism = found.mechanism;
    let heading = format!("\n{}  {} ({})\n", mechanism.name(), mechanism.summary(), mechanism.source());
    let lines = [
        paragraph("", &found.setup),
        String::new(),
        table(found),
        paragraph("It matters when ", mechanism.matters()),
        paragraph("It does not matter when ", mechanism.does_not_matter()),
    ];
    heading + &lines.join("\n") + "\n"
}

/// Formats a sentence or two below the heading.
fn paragraph(beginning: &str, text: &str) -> String {
    let options = textwrap::Options::new(COLUMNS).initial_indent(INDENT).subsequent_indent(INDENT);
    textwrap::fill(&format!("{beginning}{text}"), options)
}

fn table(found: &Findings) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let names = found.variants.iter().map(|name| broken(name));
    table.set_header(["", ""].map(str::to_owned).into_iter().chain(names));
    let mut last = None;
    for measure in &found.measures {
        let kind = match measure.kind {
            _ if last == Some(measure.kind) => "",
            Kind::Gain => "gain",
            Kind::Cost => "cost",
        };
        last = Some(measure.kind);
        let values = measure.values.iter().map(|&value| number(value));
        table.add_row([kind.to_owned(), label(measure)].into_iter().chain(values));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if at < 2 { CellAlignment::Left } else { CellAlignment::Right });
        if at == 1 {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(LABEL_COLUMNS)));
        }
    }
    // The table's own margin is one column.
    let indent = &INDENT[1..];
    table
        .lines()
        .fold(String::new(), |text, line| format!("{text}{}\n", format!("{indent}{line}").trim_end()))
}

fn label(measure: &Measure) -> String {
    let simulated = if measure.simulated { ", simulated" } else { "" };
    format!("{}{simulated}", measure.label)
}

/// Breaks a long name into two lines.
fn broken(name: &str) -> String {
    if name.len() > NAME_COLUMNS { name.replacen('-', "\n", 1) } else { name.to_owned() }
}

/// Formats a number with three significant digits; integers in full.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_bench::mechanisms::Mechanism;

    fn measure(label: &str, kind: Kind, simulated: bool, values: &[f64]) -> Measure {
        let (metric, label) = ("name".to_owned(), label.to_owned());
        Measure { metric, label, unit: "ns", kind, simulated, values: values.to_vec() }
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let values = [0.0, 0.123, 9.994, 12.34, 99.94, 123.4, 4985.7, 65408.0];
        assert_eq!(values.map(number), ["0", "0.12", "9.99", "12.3", "99.9", "123", "4986", "65408"]);
    }

    #[test]
    fn costs_stand_below_gains_and_lines_fit_a_page() {
        let found = Findings {
            mechanism: Mechanism::M4,
            setup: "word ".repeat(60),
            variants: vec!["1", "32", "32-overstep", "scaled", "scaled-overstep"],
            measures: vec![
                measure("a figure with as long a name", Kind::Gain, true, &[1.0, 2.0, 12345.0, 4.5, 5.0]),
                measure("another", Kind::Cost, false, &[1.0; 5]),
            ],
        };
        let text = render(&[found]);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        assert!(at("gain") < at("a figure with as long a name, simulated") && at("simulated") < at("cost"));
        assert!(at("cost") < at("It matters when") && at("It matters when") < at("It does not matter when"));
        assert!(text.lines().all(|line| line.len() <= COLUMNS && line.trim_end() == line), "{text}");
    }
}
