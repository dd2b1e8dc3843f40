//! Draws a report as bars: a panel for each workload and number of threads, on one logarithmic scale.
//!
//! Times of one chart span four orders of magnitude, so the bars show ratios: equal differences in length are
//! equal factors, in every panel. Numbers are printed beside the bars.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use zonal_machine::output::DRAWING_MARK;

use crate::report::{Report, Row};
use crate::{floor, harness, ours};

/// In pixels.
const PANEL_WIDTH: i32 = 480;
const TITLE_HEIGHT: i32 = 34;
const BAR_HEIGHT: i32 = 17;
const NAME_WIDTH: i32 = 172;
const NUMBER_WIDTH: i32 = 56;
const HEAD_HEIGHT: i32 = 30;
const COLUMNS: usize = 2;

/// Shortest time with a bar, in nanoseconds: the origin of the bars.
const NS_MIN: f64 = 0.5;

const INK: RGBColor = RGBColor(40, 44, 52);
const GRID: RGBColor = RGBColor(222, 224, 228);
const OURS: RGBColor = RGBColor(196, 78, 32);
const PEER: RGBColor = RGBColor(84, 120, 164);
const LIMIT: RGBColor = RGBColor(150, 154, 160);

/// The result of drawing; drawing to memory cannot fail.
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Returns the rows of `report` as an SVG document.
#[must_use]
pub fn chart(report: &Report) -> String {
    let panels: Vec<&[Row]> =
        report.rows.chunk_by(|a, b| (a.workload, a.threads) == (b.workload, b.threads)).collect();
    let lines: Vec<i32> =
        panels.chunks(COLUMNS).map(|line| line.iter().map(|p| height(p)).max().unwrap_or(0)).collect();
    let size = (COLUMNS as u32 * PANEL_WIDTH as u32, (HEAD_HEIGHT + lines.iter().sum::<i32>()) as u32);
    let ns_max = report.rows.iter().map(|row| row.cpu_ns.median).fold(10.0 * NS_MIN, f64::max);
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, size).into_drawing_area(), &panels, &lines, ns_max)
        .expect("drawing to memory does not fail");
    DRAWING_MARK.to_owned() + &text
}

fn height(panel: &[Row]) -> i32 {
    TITLE_HEIGHT + BAR_HEIGHT * panel.len() as i32
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw<'a>(area: &Area<'a>, panels: &[&[Row]], lines: &[i32], ns_max: f64) -> Drawn<'a> {
    area.fill(&WHITE)?;
    let title = "CPU time of a pair (one allocation, one free) in ns, median over the rounds, logarithmic";
    area.draw_text(title, &ink(14, HPos::Left), (12, 18))?;
    let mut top = HEAD_HEIGHT;
    for (line, height) in panels.chunks(COLUMNS).zip(lines) {
        for (at, rows) in line.iter().enumerate() {
            let left = at as i32 * PANEL_WIDTH;
            panel(&area.clone().shrink((left, top), (PANEL_WIDTH as u32, *height as u32)), rows, ns_max)?;
        }
        top += height;
    }
    area.present()
}

fn panel<'a>(area: &Area<'a>, rows: &[Row], ns_max: f64) -> Drawn<'a> {
    let Some(first) = rows.first() else { return Ok(()) };
    let threads = first.threads.get();
    let title = format!("{}, {threads} thread{}", first.workload.name(), if threads == 1 { "" } else { "s" });
    area.draw_text(&title, &ink(13, HPos::Left).color(&INK), (12, TITLE_HEIGHT - 14))?;
    let bottom = height(rows) - 4;
    for power in 0..=ns_max.log10().floor() as i32 {
        let x = NAME_WIDTH + length(10_f64.powi(power), ns_max);
        area.draw(&PathElement::new([(x, TITLE_HEIGHT - 4), (x, bottom)], GRID))?;
    }
    for (at, row) in rows.iter().enumerate() {
        let y = TITLE_HEIGHT + at as i32 * BAR_HEIGHT;
        let (middle, end) = (y + BAR_HEIGHT / 2 - 1, NAME_WIDTH + length(row.cpu_ns.median, ns_max));
        let bar = [(NAME_WIDTH, y + 1), (end, y + BAR_HEIGHT - 4)];
        area.draw(&Rectangle::new(bar, color(&row.contender).filled()))?;
        area.draw_text(&row.contender, &ink(12, HPos::Right), (NAME_WIDTH - 6, middle))?;
        area.draw_text(&number(row.cpu_ns.median), &ink(12, HPos::Left), (end + 5, middle))?;
    }
    Ok(())
}

fn ink(size: i32, at: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(at, VPos::Center))
}

/// Returns the length of a bar in pixels.
fn length(ns: f64, ns_max: f64) -> i32 {
    let room = f64::from(PANEL_WIDTH - NAME_WIDTH - NUMBER_WIDTH);
    let share = (ns / NS_MIN).ln() / (ns_max / NS_MIN).ln();
    (room * share.clamp(0.0, 1.0)).round() as i32
}

fn color(contender: &str) -> RGBColor {
    let is_limit =
        contender == harness::NAME || contender == floor::MODEL || floor::NAMES.contains(&contender);
    match contender {
        ours::NAME | ours::LOCKED => OURS,
        _ if is_limit => LIMIT,
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
        let bars = document.descendants().filter(|node| node.has_tag_name("rect")).skip(1); // the background
        let widths: Vec<i32> = bars.map(|bar| bar.attribute("width").unwrap().parse().unwrap()).collect();
        let room = PANEL_WIDTH - NAME_WIDTH - NUMBER_WIDTH;
        assert_eq!((widths.len(), widths[1], widths[2]), (3, room, 0));
        assert!((room / 3..room / 2).contains(&widths[0]), "{widths:?}");
    }

    #[test]
    fn a_report_without_rows_is_a_chart_without_bars() {
        roxmltree::Document::parse(&of(Vec::new())).unwrap();
    }
}
