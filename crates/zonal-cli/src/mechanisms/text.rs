//! The gains and costs of the mechanisms as tables. A table has a line for each figure and a column for each variant;
//! gains come before costs, and costs before what makes no difference.

use std::num::NonZeroUsize;

use zonal_bench::mechanisms::{Findings, Kind, Measure, Origin, Sizes};

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
pub(super) fn render(findings: &[Findings], sizes: &Sizes, width: Width) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut text = width.paragraph("", "", &introduction(findings, sizes));
    findings.iter().for_each(|found| text.push_str(&section(found, width)));
    text
}

/// Returns what is measured, and which figures a second run repeats.
fn introduction(findings: &[Findings], sizes: &Sizes) -> String {
    let here = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let measures = || findings.iter().flat_map(|found| &found.measures);
    let has = |origin: Origin| measures().any(|measure| measure.origin == origin);
    let mut text = format!(
        "The shipped allocator, run natively on this machine ({}) over emulated nodes. A row is a gain or a cost of the \
         default, compared with the first column, and \"same\" if these do not differ beyond chance; where a repeatable \
         figure differs only in other columns, these decide. * marks a cost in a row of gains, and + a gain in a row of costs.",
        counted(here as u64, "CPU")
    );
    if has(Origin::Timed) {
        text.push_str(" Times vary from run to run; \"ns per page\" is the CPU time of allocating and freeing one page.");
    }
    if has(Origin::Varying) {
        let cpus = counted(sizes.cpus.get().into(), "CPU");
        text.push_str(&format!(" Counts of {cpus} at once vary too, and are marked."));
    }
    text.push_str(&format!(
        " All other counts and all simulated figures repeat with the same seed ({}).",
        sizes.seed
    ));
    text
}

fn section(found: &Findings, width: Width) -> String {
    let mechanism = found.mechanism;
    let heading = format!("{} ({})", mechanism.summary(), mechanism.source());
    let parts = [
        width.labelled(&format!("{}  ", mechanism.name()), &heading) + &paragraph("", &setup(found), width),
        table(found, width),
        paragraph("It matters when ", mechanism.matters(), width)
            + &paragraph("It does not matter when ", mechanism.does_not_matter(), width),
    ];
    parts.into_iter().fold(String::new(), |text, part| text + "\n" + &part)
}

fn setup(found: &Findings) -> String {
    format!("{} `{}` is the default.", found.setup, found.shipped)
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
            Kind::Same => "same",
        };
        last = Some(measure.kind);
        let values = measure.values.iter().zip(&measure.kinds);
        let values = values.map(|(&value, &kind)| number(value) + mark(measure.kind, kind));
        grid.row([kind.to_owned(), label(measure)].into_iter().chain(values));
    }
    grid.render(INDENT, width)
}

/// Returns the mark of a value that differs from the first one in the other direction than its row.
const fn mark(row: Kind, value: Kind) -> &'static str {
    match (row, value) {
        (Kind::Gain, Kind::Cost) => "*",
        (Kind::Cost, Kind::Gain) => "+",
        _ => "",
    }
}

fn label(measure: &Measure) -> String {
    let origin = match measure.origin {
        Origin::Simulated => ", simulated",
        Origin::Varying => " (varies)",
        Origin::Exact | Origin::Timed => "",
    };
    format!("{}{origin}", measure.label)
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

    fn measure(label: &str, kind: Kind, origin: Origin, values: &[f64], kinds: &[Kind]) -> Measure {
        let (metric, label) = ("name".to_owned(), label.to_owned());
        Measure { metric, label, unit: "ns", origin, values: values.to_vec(), kinds: kinds.to_vec(), kind }
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let values = [0.0, 0.123, 9.994, 12.34, 99.94, 123.4, 4985.7, 65408.0];
        assert_eq!(values.map(number), ["0", "0.12", "9.99", "12.3", "99.9", "123", "4986", "65408"]);
    }

    fn found() -> Findings {
        use Kind::{Cost, Gain, Same};
        Findings {
            mechanism: Mechanism::M4,
            setup: "word ".repeat(60),
            shipped: "scaled-overstep",
            variants: vec!["32", "32-overstep", "first-posting", "scaled", "scaled-overstep"],
            measures: vec![
                measure(
                    "a figure with as long a name",
                    Gain,
                    Origin::Simulated,
                    &[4.0, 32.0, 12345.0, 4.5, 1.0],
                    &[Same, Cost, Cost, Same, Gain],
                ),
                measure(
                    "another",
                    Cost,
                    Origin::Varying,
                    &[1.0, 0.5, 1.0, 2.0, 2.0],
                    &[Same, Gain, Same, Cost, Cost],
                ),
                measure("a third", Same, Origin::Exact, &[1.0; 5], &[Same; 5]),
            ],
        }
    }

    #[test]
    fn costs_follow_gains_and_lines_have_at_most_100_columns() {
        let text = render(&[found()], &Sizes::for_this_machine(), Width::of(100));
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        assert!(
            at("    gain ") < at("a figure with as long a name, simulated")
                && at("simulated") < at("    cost ")
        );
        assert!(at("    cost ") < at("    same ") && at("    same ") < at("It matters when"));
        assert!(at("It matters when") < at("It does not matter when"));
        assert!(text.lines().all(|line| line.len() <= 100 && line.trim_end() == line), "{text}");
    }

    #[test]
    fn values_that_differ_from_their_row_are_marked() {
        let text = render(&[found()], &Sizes::for_this_machine(), Width::of(200));
        let row = |label: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.contains(label)).unwrap();
            line.split_whitespace().rev().take(5).map(str::to_owned).collect()
        };
        assert_eq!(row("a figure"), ["1", "4.50", "12345*", "32*", "4"]);
        assert_eq!(row("another (varies)"), ["2", "2", "1", "0.50+", "1"]);
    }

    #[test]
    fn the_introduction_promises_only_what_repeats() {
        let sizes = Sizes { seed: 77, ..Sizes::for_this_machine() };
        let text = |found: Findings| introduction(&[found], &sizes);
        let all = text(found());
        assert!(all.contains("vary too, and are marked") && all.contains("the same seed (77)"), "{all}");
        assert!(!all.contains("Times vary"), "{all}");
        let mut exact = found();
        exact.measures.truncate(1);
        assert!(!text(exact).contains("vary too"));
    }
}
