//! A table that drops its least important columns where the screen is narrow.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::paint::{Align, text};
use crate::top::app::{Drawn, TableState, Target};
use crate::top::rows::Direction;
use crate::top::theme::Colours;
use crate::top::units;

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    /// The number that sorting uses.
    pub(super) id: usize,
    /// Titles from the longest to the shortest, of which the first that fits is shown.
    pub(super) titles: Vec<String>,
    pub(super) align: Align,
    /// Smallest width, the one at which everything can be read, and the largest.
    pub(super) widths: [u16; 3],
    /// Columns of high rank are dropped first; those of rank 0 never.
    pub(super) rank: u8,
}

impl Column {
    /// Creates a column with a fixed width.
    pub(super) fn new(id: usize, titles: &[&str], align: Align, width: u16, rank: u8) -> Self {
        let titles = titles.iter().map(|&title| title.to_owned()).collect();
        Self { id, titles, align, widths: [width; 3], rank }
    }

    /// Lets the width vary between a smallest, a sufficient and a largest one.
    pub(super) fn widths(self, widths: [u16; 3]) -> Self {
        Self { widths, ..self }
    }

    fn title(&self, width: u16) -> &str {
        let fits = |title: &&String| units::width(title) <= width.into();
        self.titles.iter().find(fits).or(self.titles.last()).map_or("", String::as_str)
    }
}

/// A table to draw.
pub(super) struct Table<'t> {
    pub(super) columns: Vec<Column>,
    /// Columns that the caller left out.
    pub(super) hidden: usize,
    pub(super) rows: usize,
    pub(super) state: &'t TableState,
    pub(super) colours: Colours,
}

impl Table<'_> {
    /// Draws the head, and each visible cell by `cell`, which receives the row, the column's number and its place.
    pub(super) fn draw(
        mut self,
        buffer: &mut Buffer,
        area: Rect,
        drawn: &mut Drawn,
        mut cell: impl FnMut(&mut Buffer, usize, usize, Rect),
    ) {
        let needed: u16 = total(&self.columns, 1);
        drawn.needs.0 = drawn.needs.0.max(needed);
        drawn.sortable = self.columns.iter().map(|column| column.id).collect();
        let all = self.columns.len() + self.hidden;
        while total(&self.columns, 0) > area.width {
            let Some(rank) = self.columns.iter().map(|column| column.rank).max().filter(|&rank| rank > 0)
            else {
                break;
            };
            self.columns.retain(|column| column.rank < rank);
        }
        let places = places(&self.columns, area);
        self.head(buffer, area, &places, drawn);
        let page = usize::from(area.height.saturating_sub(1));
        let selected = self.state.selected.min(self.rows.saturating_sub(1));
        let offset = visible(self.state.offset, selected, page, self.rows);
        for (at, row) in (offset..self.rows).take(page).enumerate() {
            let line = Rect { y: area.y + 1 + at as u16, height: 1, ..area };
            drawn.targets.push((line, Target::Row(row)));
            for (column, place) in self.columns.iter().zip(&places) {
                cell(buffer, row, column.id, Rect { y: line.y, ..*place });
            }
            if row == selected {
                buffer.set_style(line, self.colours.selected());
            }
        }
        (drawn.rows, drawn.page, drawn.offset) = (self.rows, page, offset);
        drawn.shows(page.min(self.rows - offset), self.rows, "rows");
        drawn.shows(self.columns.len(), all, "columns");
    }

    fn head(&self, buffer: &mut Buffer, area: Rect, places: &[Rect], drawn: &mut Drawn) {
        let line = Rect { height: area.height.min(1), ..area };
        buffer.set_style(line, self.colours.head());
        if line.is_empty() {
            return;
        }
        for (column, place) in self.columns.iter().zip(places) {
            let is_sorted = self.state.sort.column == column.id;
            let arrow = match self.state.sort.direction {
                _ if !is_sorted => "",
                Direction::Ascending => "▲",
                Direction::Descending => "▼",
            };
            let title = column.title(place.width.saturating_sub(units::width(arrow) as u16));
            let style = if is_sorted { self.colours.sorted() } else { self.colours.head() };
            text(buffer, *place, column.align, &format!("{title}{arrow}"), style);
            drawn.targets.push((*place, Target::Head(column.id)));
        }
    }
}

/// Returns the first visible row, such that the selected row is visible and the page is full if possible.
pub(super) fn visible(offset: usize, selected: usize, page: usize, rows: usize) -> usize {
    let offset = offset.min(selected).max((selected + 1).saturating_sub(page.max(1)));
    offset.min(rows.saturating_sub(page))
}

/// Returns the total width of columns with a space between each two.
fn total(columns: &[Column], width: usize) -> u16 {
    columns.iter().map(|column| column.widths[width] + 1).sum::<u16>().saturating_sub(1)
}

/// Returns each column's place in the first line of an area. What is left goes to columns that can use it.
fn places(columns: &[Column], area: Rect) -> Vec<Rect> {
    let mut widths: Vec<u16> = columns.iter().map(|column| column.widths[0]).collect();
    let mut left = area.width.saturating_sub(total(columns, 0));
    for goal in [1, 2] {
        for (width, column) in widths.iter_mut().zip(columns) {
            let more = column.widths[goal].saturating_sub(*width).min(left);
            *width += more;
            left -= more;
        }
    }
    let mut x = area.x;
    let place = |width: &u16| {
        let place = Rect { x, width: *width, height: area.height.min(1), ..area }.intersection(area);
        x = x.saturating_add(width + 1);
        place
    };
    widths.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_visible() {
        assert_eq!([visible(0, 3, 5, 9), visible(0, 5, 5, 9), visible(4, 2, 5, 9)], [0, 1, 2]);
        assert_eq!([visible(8, 8, 5, 9), visible(3, 1, 20, 9), visible(0, 0, 0, 0)], [4, 0, 0]);
    }

    #[test]
    fn space_that_is_left_is_used() {
        let fixed = Column::new(0, &["A"], Align::Left, 5, 0);
        let wide = Column::new(1, &["B"], Align::Left, 5, 1).widths([5, 8, 20]);
        let columns = [wide, fixed];
        let widths = |width| {
            let places = places(&columns, Rect::new(0, 0, width, 9));
            places.iter().map(|place| (place.x, place.width)).collect::<Vec<_>>()
        };
        assert_eq!(widths(11), [(0, 5), (6, 5)]);
        assert_eq!(widths(40), [(0, 20), (21, 5)]);
        assert_eq!(widths(3), [(0, 3), (6, 0)], "nothing is outside");
    }
}
