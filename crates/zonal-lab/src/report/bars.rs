//! Bar charts for figures whose cases have no numeric axis. There is one group of bars per case and one bar per
//! variant; ticks show published values.
//!
//! Each part has one chart, with one panel per figure. Related files: `report/scaling.rs` shows figures along a
//! numeric axis.

use zonal_page::{Bar, Bars, Chart, Panel, Scale, Symbol, color, is_shown};

use super::figures;
use super::parts::{self, Figure, Part, Variant};
use crate::experiment::results::Row;

/// Space for the numbers next to the bars, in pixels.
const NUMBER_WIDTH: f64 = 185.0;
/// Smallest number that is printed with a unit prefix.
const LONG: f64 = 1e6;

/// Returns a chart of the part's figures without an axis, or `None` if there are none.
pub(super) fn chart(part: &Part<'_>, variants: &[Variant<'_>]) -> Option<Chart> {
    let mut figures = part.figures();
    figures.retain(|figure| figure.axis().is_none());
    let drawn = figures.iter().filter_map(|figure| Some((figure, panel(figure, variants)?)));
    let (figures, panels): (Vec<&Figure<'_>>, Vec<Panel>) = drawn.unzip();
    let headings: Vec<String> = figures.iter().map(|figure| figure.heading()).collect();
    let is_published = part.rows.iter().any(|row| row.published.is_some());
    let [title, ticks] = match is_published {
        true => ["predicted and published", ", with ticks at published values where known"],
        false => ["predicted", ""],
    };
    (!panels.is_empty()).then(|| Chart {
        name: format!("bars {}", part.name.unwrap_or_default()),
        title: part.title(title),
        about: format!(
            "Bars of {}, one for each variant{ticks}. All numbers are in the table of figures.",
            headings.join(", ")
        ),
        keys: parts::published_keys(figures.iter().flat_map(|figure| &figure.rows), Symbol::Tick, color::INK),
        panels,
    })
}

fn panel(figure: &Figure<'_>, variants: &[Variant<'_>]) -> Option<Panel> {
    let values = figure.rows.iter().flat_map(|row| [Some(row.predicted), row.published]).flatten();
    let scale = Scale::lengths(values, figure.unit)?;
    let mut groups = Vec::new();
    for row in &figure.rows {
        let case = parts::label(parts::within_part(&row.case), None);
        parts::group::<_, Vec<_>>(&mut groups, case).push(bar(row, variants));
    }
    let title = figure.heading();
    Some(Bars { title: &title, scale: &scale, axis: None, groups, text_width: NUMBER_WIDTH }.panel())
}

fn bar(row: &Row, variants: &[Variant<'_>]) -> Bar {
    let published = row.published.filter(|value| is_shown(*value));
    let symbol = if row.calibrated_on { Symbol::Square } else { Symbol::Tick };
    let color = variants.iter().find(|variant| variant.name == row.variant);
    let part = (row.predicted, color.map_or(color::SOFT, |variant| variant.color), String::new());
    let number = number(row.predicted);
    Bar {
        name: row.variant.clone(),
        parts: if is_shown(row.predicted) { vec![part] } else { Vec::new() },
        spread: None,
        mark: published.map(|value| (symbol, value)),
        text: published
            .map_or(number.clone(), |value| format!("{number} (published {})", self::number(value))),
    }
}

/// Formats a number with four digits. Large numbers have three digits and a prefix without a unit, because the
/// heading shows the unit.
fn number(value: f64) -> String {
    if value.abs() < LONG { figures::number(value) } else { figures::quantity(value, "") }
}
