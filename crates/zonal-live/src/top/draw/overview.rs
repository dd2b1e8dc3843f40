//! Nodes and zones against their watermarks, and charts of the last 60 seconds.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::lanes;
use super::paint::{Align, Extreme, bar, chart, columns, line, lines, parts, text};
use super::table::{Column, Table};
use crate::sample::{Owner, Pressure};
use crate::top::app::{App, Drawn};
use crate::top::rows::{MemoryRow, memory, memory_rows};
use crate::top::theme::{self, Colours};
use crate::top::units;
use crate::watch::Moment;

/// The most lines with processes that share the pool, unless there is space for everything.
const OWNERS_MAX: usize = 8;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let rows = memory_rows(&app.shown, app.overview.sort);
    let lines = lines(rows.len()) + 1;
    let below = owners(buffer, area, app, lines);
    let area = Rect { height: area.height - below, ..area };
    let charts = lanes::height(area, lines);
    let top = Rect { height: area.height - charts, ..area };
    let table = Table {
        columns: table_columns(&rows),
        hidden: 0,
        rows: rows.len(),
        state: &app.overview,
        colours: app.colours,
    };
    table.draw(buffer, top, drawn, |buffer, row, column, place| {
        cell(buffer, place, app, &rows[row], column);
    });
    let owners = app.shown.sample.owners.len();
    drawn.shows(below.into(), owners, "processes");
    drawn.needs.1 = drawn.needs.1.max(lines + lanes::SUFFICIENT + owners as u16);
    let below = Rect { y: area.y + top.height, height: charts, ..area };
    if let Some(row) = rows.get(app.overview.selected.min(rows.len().saturating_sub(1))) {
        lanes::draw(buffer, below, app, row);
    }
}

/// Draws the processes that share the pool below everything else, if there is space; returns how many.
fn owners(buffer: &mut Buffer, area: Rect, app: &App, table_lines: u16) -> u16 {
    let (owners, page) = (&app.shown.sample.owners, app.shown.sample.page_bytes);
    let space = |others: u16| usize::from(area.height.saturating_sub(table_lines + others));
    let shown = match owners.len() {
        all if all <= space(lanes::SUFFICIENT) => all,
        all => all.min(OWNERS_MAX).min(space(1)),
    };
    let first = area.height - shown as u16;
    let mut largest: Vec<&Owner> = owners.iter().collect();
    largest.sort_by_key(|owner| (std::cmp::Reverse(owner.held), owner.process));
    for (at, owner) in largest.into_iter().take(shown).enumerate() {
        let place = line(area, first + at as u16);
        let held = units::bytes(owner.held, page);
        let name = owner.name.as_deref().map(units::safe).unwrap_or_default();
        let state = if owner.is_alive { "" } else { "  has ended, blocks are kept" };
        let process = format!(" process {:<2} pid {:<8}", owner.process, owner.pid);
        let dim = app.colours.dim();
        let shown = [
            (process.as_str(), dim),
            (" holds ", dim),
            (&format!("{held:>9}"), Colours::strong()),
            ("  ", dim),
            (&name, Style::new()),
            (state, dim),
        ];
        parts(buffer, place, &shown);
    }
    shown as u16
}

fn table_columns(rows: &[MemoryRow]) -> Vec<Column> {
    use Align::{Left, Right};
    let mut columns = vec![
        Column::new(memory::NAME, &["NODE ZONE"], Left, 12, 0),
        Column::new(memory::CPUS, &["CPUS"], Left, 8, 9),
        Column::new(memory::MEMORY, &["MEMORY"], Right, 8, 4),
        Column::new(memory::FREE, &["FREE"], Right, 8, 1),
        Column::new(memory::BAR, &["FREE: m=min l=low h=high", "m=min l=low h=high", "m l h"], Left, 10, 2)
            .widths([10, 18, 30]),
        Column::new(memory::STATE, &["STATE"], Left, 6, 0),
        Column::new(memory::IN_PAGESETS, &["PAGESETS"], Right, 9, 8),
        Column::new(memory::HIT, &["HITS/s"], Right, 8, 5),
        Column::new(memory::MISS, &["MISSES/s"], Right, 9, 6),
        Column::new(memory::FOREIGN, &["FOREIGN/s"], Right, 10, 7),
        Column::new(memory::STALLED, &["STALLED"], Right, 8, 3),
        Column::new(memory::HISTORY, &["FREE, LAST 60 s", "60 s"], Left, 8, 10).widths([8, 10, 30]),
    ];
    let has = |known: fn(&MemoryRow) -> bool| rows.iter().any(known);
    let (cpus, stalled) = (has(|row| row.cpus.is_some()), has(|row| row.stalled.is_some()));
    columns.retain(|column| match column.id {
        memory::CPUS => cpus,
        memory::STALLED => stalled,
        _ => true,
    });
    columns
}

fn cell(buffer: &mut Buffer, place: Rect, app: &App, row: &MemoryRow, column: usize) {
    let colours = app.colours;
    let page = app.shown.sample.page_bytes;
    let is_node = row.node.is_some();
    let plain = if is_node { Colours::strong() } else { Style::new() };
    let size = |frames| (units::bytes(frames, page), plain);
    let rate = |at: usize, style: Style| match row.locality[at] {
        Some(rate) if rate > 0.0 => (units::count(rate), style),
        rate => (units::known(rate), colours.dim()),
    };
    let (shown, style) = match column {
        memory::NAME => (name(row), plain),
        memory::CPUS => (row.cpus.clone().unwrap_or_default(), colours.dim()),
        memory::MEMORY => size(row.managed),
        memory::FREE => size(row.free),
        memory::BAR => return watermarks(buffer, place, colours, row),
        memory::STATE => match row.zones.is_empty() {
            true => ("-".to_owned(), colours.dim()),
            false => (theme::words(row.pressure).to_owned(), colours.pressure(row.pressure)),
        },
        memory::IN_PAGESETS => size(row.in_pagesets),
        memory::HIT => rate(0, colours.hit()),
        memory::MISS => rate(1, colours.miss()),
        memory::FOREIGN => rate(2, colours.miss()),
        memory::STALLED => match row.stalled {
            Some(percent) if percent > 0.0 => (units::percent(percent / 100.0), colours.miss()),
            Some(_) => ("0 %".to_owned(), colours.dim()),
            None => return,
        },
        _ => {
            let free = columns(app.shown.history.iter(), place.width, Extreme::Smallest, |moment| {
                free_of(row, moment)
            });
            return chart(buffer, place, &free, row.managed as f64, |free| {
                colours.pressure(pressure_at(row, free))
            });
        }
    };
    let align = table_align(column);
    text(buffer, place, align, &shown, style);
}

const fn table_align(column: usize) -> Align {
    match column {
        memory::NAME | memory::CPUS | memory::STATE => Align::Left,
        _ => Align::Right,
    }
}

fn name(row: &MemoryRow) -> String {
    let node = row.node.map(|node| node.to_string()).unwrap_or_default();
    let kind = match &row.kind {
        Some(kind) => units::safe(kind),
        None if row.zones.is_empty() => "(none)".to_owned(),
        None => "(all)".to_owned(),
    };
    format!("{node:>4} {kind}")
}

/// Returns the free frames of a row at a moment.
pub(super) fn free_of(row: &MemoryRow, moment: &Moment) -> Option<f64> {
    row.zones.iter().map(|&zone| moment.free.get(zone).map(|&free| free as f64)).sum()
}

/// Returns the pressure with some free frames.
pub(super) fn pressure_at(row: &MemoryRow, free: f64) -> Pressure {
    match free as u64 {
        free if free < row.min => Pressure::BelowMin,
        free if free < row.low => Pressure::BelowLow,
        free if free < row.high => Pressure::BelowHigh,
        _ => Pressure::None,
    }
}

/// Draws free frames as a bar. Its left half is 0 to `high`, and its right half `high` to all memory, so that the
/// watermarks can be distinguished although they are a small share of the memory.
fn watermarks(buffer: &mut Buffer, place: Rect, colours: Colours, row: &MemoryRow) {
    if row.managed == 0 || place.is_empty() {
        return;
    }
    let half = f64::from(place.width / 2);
    let rest = f64::from(place.width) - half;
    let (free, high, managed) = (row.free as f64, row.high as f64, row.managed as f64);
    let share = match free <= high {
        true => free / high.max(1.0) * half,
        false => half + (free - high) / (managed - high).max(1.0) * rest,
    };
    let share = share / f64::from(place.width);
    let style = colours.pressure(row.pressure);
    bar(buffer, place, share, style, colours.dim());
    if row.high == 0 {
        return;
    }
    for (mark, frames) in [("m", row.min), ("l", row.low), ("h", row.high)] {
        let at = ((frames as f64 / high * half) as u16).min(place.width - 1);
        buffer[(place.x + at, place.y)]
            .set_symbol(mark)
            .set_style(Style::reset())
            .set_style(Colours::strong());
    }
}
