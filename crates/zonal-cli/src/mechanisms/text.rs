//! The gains and costs of the mechanisms as tables. A table has a line for each figure and a column for each variant;
//! gains come before costs.

use std::num::NonZeroUsize;

use zonal_bench::mechanisms::{Findings, Kind, Measure};

use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};
use crate::run::text::counted;

/// Minimum width of figure labels, so that the tables are aligned.
const LABEL_COLUMNS: usize = 46;
/// Indent of the text below a mechanism's name.
const INDENT: &str = "    ";
/// Maximum width of a variant's name. Longer names are broken at their first hyphen.
const NAME_COLUMNS: usize = 9;

/// Returns the text of all mechanisms.
pub(super) fn render(findings: &[Findings], width: Width) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let setup = format!(
        "The shipped allocator, run natively on this machine ({}) over emulated nodes. Counts are exact; times \
         vary from run to run. \"ns per page\" is the CPU time of allocating and freeing one page.",
        counted(cpus as u64, "CPU")
    );
    let mut text = width.paragraph("", "", &setup);
    findings.iter().for_each(|found| text.push_str(&section(found, width)));
    text
}

fn section(found: &Findings, width: Width) -> String {
    let mechanism = found.mechanism;
    let heading = format!("{} ({})", mechanism.summary(), mechanism.source());
    let parts = [
        width.labelled(&format!("{}  ", mechanism.name()), &heading) + &paragraph("", &found.setup, width),
        table(found, width),
        paragraph("It matters when ", mechanism.matters(), width)
            + &paragraph("It does not matter when ", mechanism.does_not_matter(), width),
    ];
    parts.into_iter().fold(String::new(), |text, part| text + "\n" + &part)
}

/// Formats one or two sentences below the heading.
fn paragraph(beginning: &str, text: &str, width: Width) -> String {
    width.paragraph(INDENT, INDENT, &format!("{beginning}{text}"))
}

fn table(found: &Findings, width: Width) -> String {
    let names = found.variants.iter().map(|name| (broken(name), Numbers));
    let keys = ["", ""].map(|title| (title.to_owned(), Text));
    let mut grid = Grid::new(keys.len(), keys.into_iter().chain(names)).at_least(1, LABEL_COLUMNS);
    let mut last = None;
    for measure in &found.measures {
        let kind = match measure.kind {
            _ if last == Some(measure.kind) => "",
            Kind::Gain => "gain",
            Kind::Cost => "cost",
        };
        last = Some(measure.kind);
        let values = measure.values.iter().map(|&value| number(value));
        grid.row([kind.to_owned(), label(measure)].into_iter().chain(values));
    }
    grid.render(INDENT, width)
}

fn label(measure: &Measure) -> String {
    let simulated = if measure.simulated { ", simulated" } else { "" };
    format!("{}{simulated}", measure.label)
}

/// Breaks a long name into two lines at its first hyphen.
fn broken(name: &str) -> String {
    if name.len() > NAME_COLUMNS { name.replacen('-', "\n", 1) } else { name.to_owned() }
}

/// Formats a number with three significant digits. Integers are shown in full.
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
    fn numbers_have_three_significant_digits() {
        let values = [0.0, 0.123, 9.994, 12.34, 99.94, 123.4, 4985.7, 65408.0];
        assert_eq!(values.map(number), ["0", "0.12", "9.99", "12.3", "99.9", "123", "4986", "65408"]);
    }

    #[test]
    fn costs_follow_gains_and_lines_have_at_most_100_columns() {
        let found = Findings {
            mechanism: Mechanism::M4,
            setup: "word ".repeat(60),
            variants: vec!["1", "32", "32-overstep", "scaled", "scaled-overstep"],
            measures: vec![
                measure("a figure with as long a name", Kind::Gain, true, &[1.0, 2.0, 12345.0, 4.5, 5.0]),
                measure("another", Kind::Cost, false, &[1.0; 5]),
            ],
        };
        let text = render(&[found], Width::of(100));
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        assert!(at("gain") < at("a figure with as long a name, simulated") && at("simulated") < at("cost"));
        assert!(at("cost") < at("It matters when") && at("It matters when") < at("It does not matter when"));
        assert!(text.lines().all(|line| line.len() <= 100 && line.trim_end() == line), "{text}");
    }
}
