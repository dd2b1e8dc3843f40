//! Free blocks by order, and the share of free memory in blocks from 2 MiB on.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::paint::{Align, bar, line, lines, text};
use super::table::{Column, Table};
use crate::top::app::{App, Drawn};
use crate::top::rows::{BlockRow, block, block_rows, large_order};
use crate::top::theme::Colours;
use crate::top::units;

/// Maximum number of orders, whatever another program reports.
const ORDERS_MAX: usize = 64;
/// Width of an order's count.
const COUNT: u16 = 6;
/// Width of the columns before the orders, with the spaces after them.
const BEFORE: u16 = 16 + 1 + 6 + 1 + 8 + 1;
pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let sample = &*app.shown.sample;
    let rows = block_rows(sample, app.types, app.blocks.sort);
    let orders = rows.iter().map(|row| row.blocks.len()).max().unwrap_or(0).min(ORDERS_MAX);
    let visible = usize::from((area.width + 1).saturating_sub(BEFORE) / (COUNT + 1)).max(1).min(orders);
    let first = app.first_order.min(orders - visible);
    let detail = u16::from(area.height > 4);
    let top = Rect { height: area.height - detail, ..area };
    let table = Table {
        columns: table_columns(first..first + visible, sample.page_bytes),
        hidden: orders - visible,
        rows: rows.len(),
        state: &app.blocks,
        colours: app.colours,
    };
    table.draw(buffer, top, drawn, |buffer, row, column, place| {
        cell(buffer, place, app, &rows[row], column);
    });
    drawn.sortable = (0..block::ORDERS + orders).collect();
    (drawn.columns, drawn.first_column) = (orders - visible + 1, first);
    let width = BEFORE + orders as u16 * (COUNT + 1) - 1;
    drawn.needs = (drawn.needs.0.max(width), drawn.needs.1.max(lines(rows.len()) + 2));
    if detail == 1 {
        let note = note(app, first, visible, orders);
        text(buffer, line(area, area.height - 1), Align::Left, &note, app.colours.dim());
    }
}

/// Returns a note about what is not shown, or about large blocks.
fn note(app: &App, first: usize, visible: usize, orders: usize) -> String {
    if visible < orders {
        return format!("orders {first}-{} of {orders}; left and right scroll", first + visible - 1);
    }
    let sample = &app.shown.sample;
    let has_types = sample.zones.iter().any(|zone| !zone.free_by_type.is_empty());
    let missing = sample.missing.iter().find(|part| part.contains("pagetypeinfo"));
    match missing {
        Some(why) if !has_types => units::safe(why),
        _ if has_types => "t hides or shows migrate types, which are read every 10 seconds".to_owned(),
        _ => format!("blocks of order {} have 2 MiB", large_order(sample)),
    }
}

fn table_columns(orders: std::ops::Range<usize>, page_bytes: u64) -> Vec<Column> {
    let order = |order: usize| {
        let size = units::bytes(1 << order.min(40), page_bytes).replace("iB", "").replace(' ', "");
        Column::new(block::ORDERS + order, &[&size], Align::Right, COUNT, 3)
    };
    let first = [
        Column::new(block::NAME, &["NODE ZONE"], Align::Left, 16, 0),
        Column::new(block::LARGE, &["IN BLOCKS >= 2M", ">= 2M"], Align::Left, 6, 0).widths([6, 6, 24]),
        Column::new(block::FREE, &["FREE"], Align::Right, 8, 1),
    ];
    first.into_iter().chain(orders.map(order)).collect()
}

fn cell(buffer: &mut Buffer, place: Rect, app: &App, row: &BlockRow, column: usize) {
    let colours = app.colours;
    let plain = if row.of_type.is_none() { Colours::strong() } else { Style::new() };
    match column {
        block::NAME => {
            let name = match &row.of_type {
                None => format!("{:>4} {}", row.node, units::safe(&row.kind)),
                Some(name) => format!("{:7}{}", "", units::safe(name)),
            };
            text(buffer, place, Align::Left, &name, plain);
        }
        block::LARGE => share(buffer, place, colours, row.large),
        block::FREE => {
            let free = units::bytes(row.free, app.shown.sample.page_bytes);
            text(buffer, place, Align::Right, &free, plain);
        }
        order => {
            let Some(&count) = row.blocks.get(order - block::ORDERS) else { return };
            let is_large = order - block::ORDERS >= large_order(&app.shown.sample);
            let style = match count {
                0 => colours.dim(),
                _ if is_large => colours.hit(),
                _ => plain,
            };
            text(buffer, place, Align::Right, &units::count(count as f64), style);
        }
    }
}

/// Draws the share of large blocks as a number, and as a bar if there is space for it.
fn share(buffer: &mut Buffer, place: Rect, colours: Colours, share: Option<f64>) {
    let Some(share) = share else {
        return text(buffer, place, Align::Left, "-", colours.dim());
    };
    let number = Rect { width: place.width.min(6), ..place };
    text(buffer, number, Align::Left, &units::percent(share), Colours::strong());
    let rest = Rect { x: place.x + number.width, width: place.width - number.width, ..place };
    if rest.width >= 4 {
        bar(buffer, rest, share, colours.hit(), colours.dim());
    }
}
