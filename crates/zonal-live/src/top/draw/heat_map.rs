//! Pagesets as a heat map: zones are rows, and CPUs are columns.
//!
//! Each cell has a digit from 1 to 9 besides its colour, or its value where cells are wide enough.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use zonal_machine::ids;

use super::paint::{Align, line, lines, parts, text, wrap};
use super::table::visible;
use crate::top::app::{App, Drawn, Target};
use crate::top::heat::{Cell, Grid, Metric};
use crate::top::theme::{self, Colours};
use crate::top::units;

/// Width of zone names, and of the sums at the right.
const NAME: u16 = 14;
const SUM: u16 = 10;
/// Width from which a cell shows its value, and the largest width.
const VALUE: u16 = 6;
const CELL_MAX: u16 = 8;
/// Width from which sums are shown.
const WITH_SUMS: u16 = 70;

/// The visible part of the grid.
struct View<'a> {
    app: &'a App,
    grid: Grid,
    /// Place of the cells, without names and sums.
    cells: Rect,
    width: u16,
    first_row: usize,
    first_column: usize,
    columns: usize,
    largest: f64,
}

pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let sums = if area.width >= WITH_SUMS { SUM } else { 0 };
    let space = area.width.saturating_sub(NAME + sums).max(1);
    let grid = Grid::new(&app.shown, app.heat.is_grouped.then_some(space.into()));
    if grid.columns == 0 {
        let of = if app.nodes.is_empty() { "This source reports" } else { "The selected nodes have" };
        return text(buffer, area, Align::Left, &format!("{of} no pagesets."), app.colours.dim());
    }
    let below = if area.height >= 9 { 2 } else { u16::from(area.height >= 5) };
    let cells = Rect {
        x: area.x + NAME.min(area.width - 1),
        y: area.y + 2,
        width: space,
        height: area.height.saturating_sub(2 + below),
    };
    let width = (space / u16::try_from(grid.columns).unwrap_or(u16::MAX)).clamp(1, CELL_MAX);
    let rows = app.shown.sample.zones.len();
    let columns = usize::from(space / width).min(grid.columns);
    let view = View {
        first_row: visible(
            app.heat.first_row,
            app.heat.row.min(rows.saturating_sub(1)),
            cells.height.into(),
            rows,
        ),
        first_column: visible(
            app.heat.first_column,
            app.heat.column.min(grid.columns - 1),
            columns,
            grid.columns,
        ),
        largest: match app.heat.metric {
            Metric::Fill => 1.0,
            metric => grid.largest(metric),
        },
        app,
        grid,
        cells,
        width,
        columns,
    };
    view.legend(buffer, line(area, 0));
    view.head(buffer, line(area, 1), sums);
    (drawn.rows, drawn.page, drawn.offset) = (rows, cells.height.into(), view.first_row);
    (drawn.columns, drawn.first_column) = (view.grid.columns, view.first_column);
    for row in (view.first_row..rows).take(cells.height.into()) {
        view.row(buffer, area, row, sums, drawn);
    }
    let detail = Rect { y: area.y + area.height - below, height: below, ..area };
    view.detail(buffer, detail);
    drawn.shows(usize::from(cells.height).min(rows - view.first_row), rows, "rows");
    drawn.shows(columns, view.grid.columns, "CPUs");
    let all = NAME + SUM + view.grid.cpus.len().min(60_000) as u16;
    drawn.needs = (drawn.needs.0.max(all), drawn.needs.1.max(lines(rows) + 4));
}

impl View<'_> {
    fn colours(&self) -> Colours {
        self.app.colours
    }

    fn legend(&self, buffer: &mut Buffer, area: Rect) {
        let colours = self.colours();
        let metric = self.app.heat.metric;
        let rest = parts(buffer, area, &[(metric.name(), colours.key()), (" ", Style::new())]);
        let mut at = rest;
        for step in 0..10 {
            at = parts(buffer, at, &[(&format!(" {} ", digit(step)), colours.heat(step))]);
        }
        let group = match self.grid.group {
            1 => String::new(),
            group => format!("; {group} CPUs a cell, a separates them"),
        };
        let top = match metric {
            Metric::Fill => " 9: at high".to_owned(),
            _ if self.largest > 0.0 => format!(" 9: {}/s", units::count(self.largest)),
            _ => format!(" {}", self.absent()),
        };
        parts(buffer, at, &[(&format!("{top}{group}"), colours.dim())]);
    }

    /// Returns the place of a sum, after the cells.
    fn sums(&self, line: Rect, width: u16) -> Rect {
        let x = (self.cells.x + self.columns as u16 * self.width).min(line.right().saturating_sub(width));
        Rect { x, width, ..line }
    }

    /// Returns why there are no rates.
    fn absent(&self) -> &'static str {
        let counts = self.app.shown.sample.pagesets.iter().any(|pageset| pageset.refills.is_some());
        match (counts, &self.app.shown.rates) {
            (false, _) => "this source does not count them by pageset; m shows frames",
            (true, None) => "rates need two readings",
            (true, Some(_)) => "none in the last interval",
        }
    }

    /// Draws the numbers of CPUs, as many as there is space for.
    fn head(&self, buffer: &mut Buffer, area: Rect, sums: u16) {
        let colours = self.colours();
        buffer.set_style(area, colours.head());
        text(
            buffer,
            Rect { width: area.width.min(NAME), ..area },
            Align::Left,
            "NODE ZONE CPU",
            colours.head(),
        );
        let longest = self.grid.cpus.last().map_or(1, |cpu| cpu.to_string().len() as u16);
        let every = usize::from((longest + 1).div_ceil(self.width));
        for column in (0..self.columns).step_by(every) {
            let Some(cpu) = self.grid.cpus_of(self.first_column + column).first() else { continue };
            let x = self.cells.x + column as u16 * self.width;
            let width = (every as u16 * self.width).min(area.right().saturating_sub(x));
            let place = Rect { x, width, ..area };
            let align = if self.width >= VALUE { Align::Right } else { Align::Left };
            text(buffer, place, align, &cpu.to_string(), colours.head());
        }
        text(buffer, self.sums(area, sums), Align::Right, "FRAMES", colours.head());
    }

    fn row(&self, buffer: &mut Buffer, area: Rect, row: usize, sums: u16, drawn: &mut Drawn) {
        let colours = self.colours();
        let zone = &self.app.shown.sample.zones[row];
        let place = Rect { y: self.cells.y + (row - self.first_row) as u16, height: 1, ..self.cells };
        let name = format!("{:>4} {}", zone.node, units::safe(&zone.kind));
        let style = if row == self.app.heat.row { colours.selected() } else { Colours::strong() };
        let left = Rect { x: area.x, width: NAME.saturating_sub(1).min(area.width), ..place };
        text(buffer, left, Align::Left, &name, style);
        for column in 0..self.columns {
            let at = self.first_column + column;
            let x = place.x + column as u16 * self.width;
            let cell = self.grid.cell(row, at);
            self.cell(buffer, Rect { x, width: self.width, ..place }, &cell, (row, at));
        }
        let (first, width) = (self.first_column, self.width);
        drawn.targets.push((place, Target::Cells { row, first, width }));
        let right = self.sums(Rect { y: place.y, height: 1, ..area }, sums);
        text(buffer, right, Align::Right, &units::count(zone.in_pagesets as f64), Style::new());
    }

    fn cell(&self, buffer: &mut Buffer, place: Rect, cell: &Cell, at: (usize, usize)) {
        let value = cell.value(self.app.heat.metric);
        let share = value.map(|value| if self.largest > 0.0 { value / self.largest } else { 0.0 });
        let step = share.map(theme::step);
        let is_wide = self.width >= VALUE;
        let shown = match (step, value) {
            (None, _) | (_, None) => " ".to_owned(),
            (Some(_), _) if is_wide && self.app.heat.metric == Metric::Fill => cell.count.to_string(),
            (Some(_), Some(value)) if is_wide => units::count(value),
            (Some(step), _) => digit(step).to_owned(),
        };
        let is_selected = (self.app.heat.row, self.app.heat.column) == at;
        let style = match step {
            _ if is_selected => self.colours().cursor(),
            None => Style::new(),
            Some(step) => self.colours().heat(step),
        };
        buffer.set_style(place, style);
        let inside = Rect { width: place.width.saturating_sub(u16::from(place.width > 1)), ..place };
        text(buffer, inside, Align::Right, &shown, style);
    }

    /// Describes the cell under the cursor.
    fn detail(&self, buffer: &mut Buffer, area: Rect) {
        let sample = &self.app.shown.sample;
        let row = self.app.heat.row.min(sample.zones.len() - 1);
        let column = self.app.heat.column.min(self.grid.columns - 1);
        let (zone, cell) = (&sample.zones[row], self.grid.cell(row, column));
        let cpus = self.grid.cpus_of(column);
        let plural = if cpus.len() == 1 { "" } else { "s" };
        let fill = cell.value(Metric::Fill).map(units::percent).unwrap_or_default();
        let mut shown = format!(
            "node {} {}, CPU{plural} {}: {} of {} frames ({fill}), batch {}",
            zone.node,
            units::safe(&zone.kind),
            ids::format(cpus.iter().copied()),
            cell.count,
            cell.high,
            cell.batch,
        );
        if let Some((refills, drains)) = cell.totals {
            let rate = |rate: Option<f64>| {
                rate.map_or_else(String::new, |rate| format!(" ({}/s)", units::count(rate)))
            };
            let refill_rate = rate(cell.rates.map(|rates| rates.refills));
            let drain_rate = rate(cell.rates.map(|rates| rates.drains));
            let (refills, drains) = (units::count(refills as f64), units::count(drains as f64));
            shown += &format!(", {refills} refills{refill_rate}, {drains} drains{drain_rate}");
        }
        for (at, part) in wrap(&shown, area.width.into()).iter().take(area.height.into()).enumerate() {
            text(buffer, line(area, at as u16), Align::Left, part, Style::new());
        }
    }
}

fn digit(step: usize) -> &'static str {
    ["·", "1", "2", "3", "4", "5", "6", "7", "8", "9"][step.min(9)]
}
