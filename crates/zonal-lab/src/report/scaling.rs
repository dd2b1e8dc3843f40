//! Line charts of figures along a number in their cases, such as the number of CPUs. There is one line per variant;
//! hollow markers show published values.
//!
//! Cases that differ in other values have separate panels with the same axes. Related files: `report/bars.rs` shows
//! figures without such a number.

use zonal_page::{Chart, Key, Line, Lines, Scale, Symbol, color, is_shown};

use super::parts::{self, Figure, Part, Variant};
use crate::experiment::results::Row;

/// Returns a chart for each figure of the part that has an axis.
pub(super) fn charts(part: &Part<'_>, variants: &[Variant<'_>]) -> Vec<Chart> {
    let figures = part.figures();
    let with_axis = figures.iter().filter_map(|figure| Some((figure, figure.axis()?)));
    with_axis.filter_map(|(figure, axis)| chart(part, figure, axis, variants)).collect()
}

fn chart(part: &Part<'_>, figure: &Figure<'_>, axis: &str, variants: &[Variant<'_>]) -> Option<Chart> {
    let rows = figure.rows.iter().filter_map(|row| Some((parts::number(&row.case, axis)?, *row)));
    let rows: Vec<(f64, &Row)> = rows.collect();
    let values = rows.iter().flat_map(|(_, row)| [Some(row.predicted), row.published]).flatten();
    let x = Scale::cases(rows.iter().map(|(x, _)| *x))?;
    let y = Scale::figures(values, figure.unit)?;
    let mut panels = Vec::new();
    for row in &rows {
        let case = parts::label(parts::within_part(&row.1.case), Some(axis));
        parts::group::<_, Vec<_>>(&mut panels, case).push(*row);
    }
    let there = |variant: &&Variant<'_>| rows.iter().any(|(_, row)| row.variant == variant.name);
    let variants: Vec<&Variant<'_>> = variants.iter().filter(there).collect();
    let panels = panels.into_iter().map(|(case, rows)| {
        let title = if case.is_empty() { figure.heading() } else { format!("{}, {case}", figure.heading()) };
        let lines: Vec<Line> = variants.iter().map(|variant| line(variant, &rows)).collect();
        Lines { title: &title, x_name: axis, x: &x, y: &y, lines: &lines }.panel()
    });
    let panels = panels.collect();
    let names: Vec<&str> = variants.iter().map(|variant| variant.name).collect();
    let mut keys = vec![Key::new(Symbol::Dot, color::SOFT, "predicted")];
    keys.extend(parts::published_keys(&figure.rows, Symbol::Ring, color::SOFT));
    keys.extend(variants.iter().map(|variant| Key::new(Symbol::Line, variant.color, variant.name)));
    Some(Chart {
        name: format!("scaling {} {}", part.name.unwrap_or_default(), figure.metric),
        title: part.title(&format!("{} by {axis}", figure.metric)),
        about: format!(
            "Lines of {} against {axis} for variants {}, with published values where known. \
             All numbers are in the table of figures.",
            figure.heading(),
            names.join(", ")
        ),
        keys,
        panels,
    })
}

/// Returns a variant's line of predicted values, with markers at its published values.
fn line(variant: &Variant<'_>, rows: &[(f64, &Row)]) -> Line {
    let mut own: Vec<&(f64, &Row)> = rows.iter().filter(|(_, row)| row.variant == variant.name).collect();
    own.sort_by(|a, b| a.0.total_cmp(&b.0));
    let points = own.iter().map(|(x, row)| (*x, row.predicted)).filter(|(_, y)| is_shown(*y)).collect();
    let mark = |(x, row): &&(f64, &Row)| {
        let published = row.published.filter(|value| is_shown(*value))?;
        Some((if row.calibrated_on { Symbol::Square } else { Symbol::Ring }, (*x, published)))
    };
    Line { color: variant.color, points, has_dots: true, marks: own.iter().filter_map(mark).collect() }
}
