//! Draws a report as bars. Each workload and number of threads has a panel, and all panels have the same logarithmic
//! scale.
//!
//! The times in one chart span four orders of magnitude. On the logarithmic scale, equal differences in length mean
//! equal ratios of times, in every panel. The figures are printed next to the bars.

use zonal_machine::output::DRAWING_MARK;
use zonal_page::{Bar, Bars, Chart, Color, Key, Panel, Scale, Symbol, color};

use crate::report::{Report, Row};
use crate::{floor, harness, ours};

/// Space for the figures next to the bars, in pixels.
const NUMBER_WIDTH: f64 = 50.0;

/// Shortest time that has a bar, in nanoseconds. The bars start at this time.
const NS_MIN: f64 = 0.5;

const OURS: Color = color::VERMILION;
const PEER: Color = color::BLUE;
const LIMIT: Color = color::GREY;

/// Returns the rows of `report` as an SVG document.
#[must_use]
pub fn chart(report: &Report) -> String {
    let ns_max = report.rows.iter().map(|row| row.cpu_ns.max).fold(10.0 * NS_MIN, f64::max);
    let scale = Scale::logarithmic(NS_MIN, ns_max, "ns");
    let panels = report.rows.chunk_by(|a, b| (a.workload, a.threads) == (b.workload, b.threads));
    let chart = Chart {
        name: "performance".to_owned(),
        title: "CPU time of a pair (one allocation, one free) in ns, median over the rounds, logarithmic"
            .into(),
        about: "Bars of the CPU time of each allocator, a panel for each workload and number of threads."
            .into(),
        keys: vec![
            Key::new(Symbol::Fill, OURS, "zonal"),
            Key::new(Symbol::Fill, PEER, "other allocators"),
            Key::new(Symbol::Fill, LIMIT, "limits of the machine"),
            Key::new(Symbol::Line, color::SOFT, "least to greatest"),
        ],
        panels: panels.map(|rows| panel(rows, &scale)).collect(),
    };
    DRAWING_MARK.to_owned() + &chart.document()
}

fn panel(rows: &[Row], scale: &Scale) -> Panel {
    let (workload, threads) = (rows[0].workload.name(), rows[0].threads.get());
    let title = format!("{workload}, {threads} thread{}", if threads == 1 { "" } else { "s" });
    let bars = rows.iter().map(|row| Bar {
        name: row.contender.clone(),
        parts: vec![(row.cpu_ns.median, color(&row.contender), String::new())],
        spread: Some((row.cpu_ns.min, row.cpu_ns.max)),
        mark: None,
        text: number(row.cpu_ns.median),
    });
    let groups = vec![(String::new(), bars.collect())];
    Bars { title: &title, scale, axis: Some("ns (logarithmic)"), groups, text_width: NUMBER_WIDTH }.panel()
}

fn color(contender: &str) -> Color {
    match contender {
        ours::NAME | ours::LOCKED => OURS,
        harness::NAME | harness::EXCHANGE | floor::MODEL | floor::EXACT => LIMIT,
        _ if floor::NAMES.contains(&contender) => LIMIT,
        _ => PEER,
    }
}

fn number(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use zonal_workload::Workload;

    use super::*;
    use crate::spread::Spread;

    fn row(workload: Workload, contender: &str, median: f64) -> Row {
        let spread = Spread { median, min: median, max: median };
        Row {
            workload,
            threads: NonZeroUsize::MIN,
            contender: contender.into(),
            version: "1".into(),
            cpu_ns: spread,
            wall_ns: spread,
            instructions: None,
            ratio_to_zonal: None,
            ratio_to_floor: None,
            ratio_to_exact: None,
            failed: 0.0,
            rounds: 1,
        }
    }

    fn of(rows: Vec<Row>) -> String {
        chart(&Report { rows, skipped: Vec::new(), instructions_missing: None })
    }

    #[test]
    fn every_row_has_its_name_its_number_and_a_bar_as_long_as_its_time() {
        let (pair, fill) = (Workload::Pair, Workload::Fill);
        let rows =
            [row(pair, "zonal", 10.0), row(pair, "<other> & \"sons\"", 1000.0), row(fill, "zonal", 0.1)];
        let svg = of(rows.to_vec());
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for text in ["pair, 1 thread", "fill, 1 thread", "zonal", "<other> & \"sons\"", "10.0", "1000", "0.1"]
        {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        let bars = document.descendants().filter(|node| node.has_tag_name("rect"));
        let bars = bars.filter(|bar| {
            [OURS, PEER].map(color::hex).iter().any(|fill| bar.attribute("fill") == Some(fill))
        });
        let widths = bars.map(|bar| bar.attribute("width").unwrap().parse::<f64>().unwrap());
        let widths: Vec<f64> = widths.skip(2).collect(); // skips the bars of the legend
        assert!(widths.len() == 3 && widths[1] > 1000.0 && widths[2] < 1.0, "{widths:?}");
        let share = (10.0 / NS_MIN).ln() / (1000.0 / NS_MIN).ln();
        assert!((widths[0] / widths[1] - share).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn a_report_without_rows_is_a_chart_without_bars() {
        roxmltree::Document::parse(&of(Vec::new())).unwrap();
    }
}
