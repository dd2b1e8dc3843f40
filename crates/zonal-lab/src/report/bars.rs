//! Bar charts for figures of cases without a numeric axis: one group of bars per case, one bar per variant,
//! published values as ticks.
//!
//! There is one chart per part and one panel per figure. Neighbours: `report/frame.rs`; `report/scaling.rs` shows
//! figures along a numeric axis.

use super::canvas::{Anchor, Canvas, Chart, Font};
use super::figures;
use super::frame::{self, Head, Key, MARGIN, PANEL_WIDTH, Symbol};
use super::parts::{self, Figure, Part, Variant};
use super::scale::{self, Scale};
use super::style;
use crate::experiment::results::Row;

const PANEL_HEAD: f64 = 26.0;
const CASE_HEIGHT: f64 = 22.0;
const BAR_LINE: f64 = 20.0;
const BAR_HEIGHT: f64 = 13.0;
const NAME_WIDTH: f64 = 150.0;
const NUMBER_WIDTH: f64 = 170.0;
const NUMBER_GAP: f64 = 7.0;
/// Numbers from this one on are printed with a prefix.
const LONG: f64 = 1e6;

/// Bars of one figure, grouped by case.
struct Panel<'a> {
    figure: Figure<'a>,
    cases: Vec<(String, Vec<&'a Row>)>,
    scale: Scale,
}

/// Returns a chart of the part's figures without an axis, or `None` if there are none.
pub(super) fn chart(part: &Part<'_>, variants: &[Variant<'_>]) -> Option<Chart> {
    let figures = part.figures().into_iter().filter(|figure| figure.axis().is_none());
    let panels: Vec<Panel<'_>> = figures.filter_map(Panel::of).collect();
    if panels.is_empty() {
        return None;
    }
    let title = part.title("predicted and published");
    let keys = keys(&panels);
    let head = Head { title: &title, keys: &keys, width: frame::width(panels.len()) };
    let heights: Vec<f64> = panels.iter().map(Panel::height).collect();
    let (corners, size) = frame::grid(&heights, head.height());
    let headings: Vec<String> = panels.iter().map(|panel| panel.figure.heading()).collect();
    let about = format!(
        "Bars of {}, one for each variant, with ticks at published values where known. \
         All numbers are in the table of figures.",
        headings.join(", ")
    );
    let name = format!("bars {}", part.name.unwrap_or_default());
    Some(Chart::draw(name, title.clone(), about, size, |canvas| {
        head.draw(canvas);
        for (panel, corner) in panels.iter().zip(corners) {
            panel.draw(canvas, corner, variants);
        }
    }))
}

fn keys(panels: &[Panel<'_>]) -> Vec<Key> {
    let rows = || panels.iter().flat_map(|panel| &panel.figure.rows);
    let mut keys = Vec::new();
    if rows().any(|row| row.published.is_some() && !row.calibrated_on) {
        keys.push(Key::new(Symbol::Tick, style::INK, "published"));
    }
    if rows().any(|row| row.published.is_some() && row.calibrated_on) {
        keys.push(Key::new(Symbol::Square, style::INK, "published and calibrated on"));
    }
    keys
}

impl<'a> Panel<'a> {
    fn of(figure: Figure<'a>) -> Option<Self> {
        let mut cases = Vec::new();
        for row in &figure.rows {
            parts::group(&mut cases, parts::label(parts::within_part(&row.case), None), *row);
        }
        let values = figure.rows.iter().flat_map(|row| [Some(row.predicted), row.published]).flatten();
        let scale = Scale::of_lengths(values)?;
        Some(Self { figure, cases, scale })
    }

    fn height(&self) -> f64 {
        let cases = self.cases.iter();
        let lines = cases.map(|(title, rows)| case_head(title) + rows.len() as f64 * BAR_LINE);
        PANEL_HEAD + lines.sum::<f64>() + 14.0
    }

    fn draw(&self, canvas: &Canvas<'_>, (left, top): (f64, f64), variants: &[Variant<'_>]) {
        let room = PANEL_WIDTH - 2.0 * MARGIN;
        let heading = Font::HEAD.fit(&self.figure.heading(), room);
        canvas.text(&heading, (left + MARGIN, top + PANEL_HEAD / 2.0), Anchor::Left, Font::HEAD);
        let mut y = top + PANEL_HEAD;
        for (title, rows) in &self.cases {
            let text = Font::LABEL.fit(title, room);
            canvas.text(&text, (left + MARGIN, y + CASE_HEIGHT / 2.0), Anchor::Left, Font::LABEL);
            y += case_head(title);
            for row in rows {
                self.bar(canvas, (left, y), row, variants);
                y += BAR_LINE;
            }
        }
    }

    fn bar(&self, canvas: &Canvas<'_>, (left, top): (f64, f64), row: &Row, variants: &[Variant<'_>]) {
        let (from, to) = (left + MARGIN + NAME_WIDTH, left + PANEL_WIDTH - MARGIN - NUMBER_WIDTH);
        let place = |value: f64| self.scale.place(value.max(0.0), from, to);
        let (upper, middle) = (top + (BAR_LINE - BAR_HEIGHT) / 2.0, top + BAR_LINE / 2.0);
        let name = Font::LABEL.fit(&row.variant, NAME_WIDTH - 14.0);
        canvas.text(&name, (from - 7.0, middle), Anchor::Right, Font::LABEL);
        let mut end = from;
        if scale::is_shown(row.predicted) {
            end = place(row.predicted);
            let color = variants.iter().find(|variant| variant.name == row.variant);
            let color = color.map_or(style::SOFT, |variant| variant.color);
            canvas.fill((from, upper), (end, upper + BAR_HEIGHT), color);
        }
        let mut text = number(row.predicted);
        if let Some(published) = row.published.filter(|value| scale::is_shown(*value)) {
            let x = place(published);
            // A light outline separates the tick from the bar behind it.
            canvas.line(&[(x, middle - 8.5), (x, middle + 8.5)], style::PAPER, 5.0);
            match row.calibrated_on {
                true => canvas.square((x, middle), 4.5, style::INK),
                false => canvas.line(&[(x, middle - 8.5), (x, middle + 8.5)], style::INK, 2.2),
            }
            end = end.max(x + 4.0);
            text = format!("{text} (published {})", number(published));
        }
        let text = Font::LABEL.fit(&text, left + PANEL_WIDTH - end - NUMBER_GAP);
        canvas.text(&text, (end + NUMBER_GAP, middle), Anchor::Left, Font::LABEL);
    }
}

/// Formats with four digits, and large numbers with three digits and a prefix, because the heading shows the
/// unit.
fn number(value: f64) -> String {
    if value.abs() < LONG { figures::number(value) } else { figures::quantity(value, "") }
}

/// Returns the height of the heading of a case, which is zero for the only case.
fn case_head(title: &str) -> f64 {
    if title.is_empty() { 0.0 } else { CASE_HEIGHT }
}
