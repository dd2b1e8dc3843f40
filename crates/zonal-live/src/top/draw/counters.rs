//! Counters: their rates, totals, last 60 seconds and meanings.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::paint::{Align, Extreme, chart, columns, line, lines, parts, text};
use super::table::{Column, Table};
use crate::top::app::{App, Drawn};
use crate::top::rows::{CounterRow, counter, counter_rows};
use crate::top::theme::Colours;
use crate::top::units;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let rows = counter_rows(&app.shown, app.counters.sort);
    let detail = u16::from(area.height > 4);
    let top = Rect { height: area.height - detail, ..area };
    let table = Table {
        columns: table_columns(),
        hidden: 0,
        rows: rows.len(),
        state: &app.counters,
        colours: app.colours,
    };
    table.draw(buffer, top, drawn, |buffer, row, column, place| {
        cell(buffer, place, app, &rows[row], column);
    });
    drawn.needs.1 = drawn.needs.1.max(lines(rows.len()) + 2);
    let selected = rows.get(app.counters.selected.min(rows.len().saturating_sub(1)));
    if let (1, Some(row)) = (detail, selected) {
        let shown = [(row.name, app.colours.key()), ("  ", Style::new()), (row.help, Style::new())];
        parts(buffer, line(area, area.height - 1), &shown);
    }
}

fn table_columns() -> Vec<Column> {
    use Align::{Left, Right};
    vec![
        Column::new(counter::NAME, &["COUNTER"], Left, 22, 0),
        Column::new(counter::RATE, &["PER SECOND", "/s"], Right, 8, 0).widths([8, 10, 10]),
        Column::new(counter::TOTAL, &["TOTAL"], Right, 8, 1),
        Column::new(counter::UNIT, &["UNIT"], Left, 11, 3),
        Column::new(counter::HISTORY, &["PER SECOND, LAST 60 s", "LAST 60 s"], Left, 12, 2)
            .widths([12, 20, 40]),
        Column::new(counter::HELP, &["MEANING"], Left, 40, 4).widths([40, 40, 80]),
    ]
}

fn cell(buffer: &mut Buffer, place: Rect, app: &App, row: &CounterRow, column: usize) {
    let colours = app.colours;
    let (shown, align, style) = match column {
        counter::NAME => (row.name.to_owned(), Align::Left, Style::new()),
        counter::RATE => match row.rate {
            Some(rate) if rate > 0.0 => (units::count(rate), Align::Right, row.series.style(colours)),
            rate => (units::known(rate), Align::Right, colours.dim()),
        },
        counter::TOTAL => (units::count(row.total as f64), Align::Right, Colours::strong()),
        counter::UNIT => (row.unit.to_owned(), Align::Left, colours.dim()),
        counter::HELP => (row.help.to_owned(), Align::Left, colours.dim()),
        _ => {
            let history = &app.shown.history;
            let largest = history.iter().filter_map(|moment| row.series.at(moment)).fold(0.0, f64::max);
            let values =
                columns(history.iter(), place.width, Extreme::Largest, |moment| row.series.at(moment));
            return chart(buffer, place, &values, largest, |_| row.series.style(colours));
        }
    };
    text(buffer, place, align, &shown, style);
}
