//! Line charts of figures along a number of their cases, such as CPUs: one line per variant, published values as
//! hollow markers.
//!
//! Cases that differ in other values have separate panels with the same axes. Neighbours: `report/frame.rs`;
//! `report/bars.rs` shows figures without such a number.

use super::canvas::{Canvas, Chart};
use super::figures;
use super::frame::{self, EndLabel, GiveWay, Head, Key, PLOT_PANEL_HEIGHT, Plot, Symbol};
use super::parts::{self, Figure, Part, Variant};
use super::scale::{self, Scale};
use super::style;
use crate::experiment::results::Row;

/// A panel: a description of its cases, and its rows.
type Panel<'a> = (String, Vec<&'a Row>);

/// Returns a chart for each figure of the part that has an axis.
pub(super) fn charts(part: &Part<'_>, variants: &[Variant<'_>]) -> Vec<Chart> {
    let figures = part.figures();
    let with_axis = figures.iter().filter_map(|figure| Some((figure, figure.axis()?)));
    with_axis.filter_map(|(figure, axis)| chart(part, figure, axis, variants)).collect()
}

/// Properties shared by all panels of a chart.
struct Picture<'a> {
    figure: &'a Figure<'a>,
    axis: &'a str,
    variants: Vec<Variant<'a>>,
    scales: (Scale, Scale),
    labels: bool,
}

fn chart(part: &Part<'_>, figure: &Figure<'_>, axis: &str, variants: &[Variant<'_>]) -> Option<Chart> {
    let drawn = |row: &&Row| parts::number(&row.case, axis).is_some();
    let rows: Vec<&Row> = figure.rows.iter().copied().filter(drawn).collect();
    let values = rows.iter().flat_map(|row| [Some(row.predicted), row.published]).flatten();
    let scales = (
        Scale::of_cases(rows.iter().filter_map(|row| parts::number(&row.case, axis)))?,
        Scale::of_figures(values)?,
    );
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for row in &rows {
        parts::group(&mut panels, parts::label(parts::within_part(&row.case), Some(axis)), *row);
    }
    let there = |variant: &&Variant<'_>| rows.iter().any(|row| row.variant == variant.name);
    let variants: Vec<Variant<'_>> = variants.iter().filter(there).copied().collect();
    let names: Vec<&str> = variants.iter().map(|variant| variant.name).collect();
    let labels = frame::labels_fit(&names);
    let picture = Picture { figure, axis, variants, scales, labels };

    let title = part.title(&format!("{} by {axis}", figure.metric));
    let keys = picture.keys(&rows);
    let head = Head { title: &title, keys: &keys, width: frame::width(panels.len()) };
    let heights = vec![PLOT_PANEL_HEIGHT; panels.len()];
    let (corners, size) = frame::grid(&heights, head.height());
    let about = format!(
        "Lines of {} against {axis} for variants {}, with published values where known. \
         All numbers are in the table of figures.",
        figure.heading(),
        names.join(", ")
    );
    let name = format!("scaling {} {}", part.name.unwrap_or_default(), figure.metric);
    Some(Chart::draw(name, title.clone(), about, size, |canvas| {
        head.draw(canvas);
        for ((title, rows), corner) in panels.iter().zip(corners) {
            picture.panel(canvas, title, rows, corner);
        }
    }))
}

impl Picture<'_> {
    fn keys(&self, rows: &[&Row]) -> Vec<Key> {
        let mut keys = vec![Key::new(Symbol::Dot, style::SOFT, "predicted")];
        let published = |calibrated: bool| {
            rows.iter().any(|row| row.published.is_some() && row.calibrated_on == calibrated)
        };
        if published(false) {
            keys.push(Key::new(Symbol::Ring, style::SOFT, "published"));
        }
        if published(true) {
            keys.push(Key::new(Symbol::Square, style::SOFT, "published and calibrated on"));
        }
        if !self.labels {
            let named = self.variants.iter();
            keys.extend(named.map(|variant| Key::new(Symbol::Line, variant.color, variant.name)));
        }
        keys
    }

    fn panel(&self, canvas: &Canvas<'_>, title: &str, rows: &[&Row], corner: (f64, f64)) {
        let names: Vec<&str> = self.variants.iter().map(|variant| variant.name).collect();
        let room = if self.labels { frame::label_width(&names) } else { 0.0 };
        let plot = Plot::new(corner, room, self.scales, (self.axis, self.figure.unit));
        let heading = self.figure.heading();
        let title = if title.is_empty() { heading } else { format!("{heading}, {title}") };
        let mut values = parts::unique(rows.iter().filter_map(|row| parts::number(&row.case, self.axis)));
        values.sort_by(f64::total_cmp);
        let ticks: Vec<(f64, String)> =
            values.into_iter().map(|value| (value, figures::exact(value))).collect();
        plot.axes(canvas, &title, &ticks);

        let mut labels = Vec::new();
        for variant in &self.variants {
            let own: Vec<&Row> = rows.iter().copied().filter(|row| row.variant == variant.name).collect();
            let Some(end) = self.line(canvas, &plot, variant, &own) else { continue };
            labels.push(EndLabel { end, text: variant.name, color: variant.color });
        }
        if self.labels {
            frame::end_labels(canvas, &plot, labels, GiveWay::Move);
        }
    }

    /// Draws the line of a variant with its markers and returns the position of its end.
    fn line(
        &self,
        canvas: &Canvas<'_>,
        plot: &Plot<'_>,
        variant: &Variant<'_>,
        rows: &[&Row],
    ) -> Option<(f64, f64)> {
        let numbered = rows.iter().filter_map(|row| Some((parts::number(&row.case, self.axis)?, *row)));
        let mut points: Vec<(f64, &Row)> = numbered.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let predicted = points.iter().filter(|(_, row)| scale::is_shown(row.predicted));
        let places: Vec<(f64, f64)> = predicted.map(|(x, row)| plot.at(*x, row.predicted)).collect();
        if places.len() > 1 {
            canvas.line(&places, variant.color, 1.8);
        }
        for place in &places {
            canvas.dot(*place, 2.6, variant.color);
        }
        for (x, row) in points {
            let Some(published) = row.published.filter(|value| scale::is_shown(*value)) else { continue };
            let place = plot.at(x, published);
            match row.calibrated_on {
                true => canvas.square(place, 4.5, variant.color),
                false => canvas.ring(place, 5.0, variant.color),
            }
        }
        places.last().copied()
    }
}
