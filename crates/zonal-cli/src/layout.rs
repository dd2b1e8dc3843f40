//! Fits text to the width of the output: tables, paragraphs and labelled lines.
//!
//! The width is the value of the variable `COLUMNS`, or else the width of the terminal on standard output. Output to
//! a file or a pipe has no limit unless `COLUMNS` is set. A table that is too wide is split into parts, each of which
//! repeats the columns that identify a row. Long text wraps within its column. Related files: the `text.rs` of each
//! command describes its tables with [`Grid`].

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use terminal_size::{Height, terminal_size_of};
use textwrap::core::display_width;

/// Maximum width of a prose line. Longer lines are hard to read, even if the terminal is wider.
const PROSE_COLUMNS: usize = 100;
/// Minimum width to which text is fitted. On narrower terminals, lines are longer than the terminal is wide.
const COLUMNS_MIN: usize = 20;
/// Columns between two columns of a table.
const GAP: usize = 2;
/// Minimum width of a text column that is wrapped.
const TEXT_COLUMNS_MIN: usize = 8;

thread_local! {
    /// Whether this thread runs [`unlimited`].
    static IS_UNLIMITED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `make` as if the output had no width, for text that is fitted to a width later.
pub(crate) fn unlimited<T>(make: impl FnOnce() -> T) -> T {
    let before = IS_UNLIMITED.replace(true);
    let made = make();
    IS_UNLIMITED.set(before);
    made
}

/// The width of the output in columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Width(Option<usize>);

impl Width {
    /// Returns the width of standard output.
    pub(crate) fn of_output() -> Self {
        if IS_UNLIMITED.get() {
            return Self(None);
        }
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
        let columns = columns.filter(|&columns| columns > 0).or_else(terminal_columns);
        Self(columns.map(|columns: usize| columns.max(COLUMNS_MIN)))
    }

    #[cfg(test)]
    pub(crate) const fn of(columns: usize) -> Self {
        Self(Some(columns))
    }

    /// Returns the width for lines of prose.
    fn prose(self) -> usize {
        self.0.map_or(PROSE_COLUMNS, |columns| columns.min(PROSE_COLUMNS))
    }

    /// Returns the width that clap uses for help texts. In clap, 0 means that there is no limit.
    pub(crate) fn of_help(self) -> usize {
        self.0.map_or(0, |columns| columns.min(PROSE_COLUMNS))
    }

    /// Wraps a paragraph. All lines after the first line begin with `indent`. The result ends with a line break.
    pub(crate) fn paragraph(self, first: &str, indent: &str, text: &str) -> String {
        wrapped(self.prose(), first, indent, text)
    }

    /// Formats `text` after a label, and wraps it only if the output has a width. The result ends with a line break.
    pub(crate) fn labelled(self, label: &str, text: &str) -> String {
        let Some(columns) = self.0 else { return format!("{label}{text}\n") };
        // On narrow outputs, alignment with the label would leave too little space for the text.
        let indent = display_width(label).min(columns / 4);
        wrapped(columns, label, &" ".repeat(indent), text)
    }
}

/// Formats the entries of a help text. An entry has a name or a command in its own column, and a description.
pub(crate) fn entries<A: AsRef<str>, B: AsRef<str>>(entries: impl IntoIterator<Item = (A, B)>) -> String {
    let entries: Vec<(A, B)> = entries.into_iter().collect();
    let described = entries.iter().filter(|(_, text)| !text.as_ref().is_empty());
    let widest = described.map(|(label, _)| display_width(label.as_ref())).max().unwrap_or(0);
    let width = Width::of_output();
    let entry = |(label, text): &(A, B)| width.entry(label.as_ref(), text.as_ref(), widest);
    entries.iter().map(entry).collect()
}

impl Width {
    fn entry(self, label: &str, text: &str, widest: usize) -> String {
        let line = format!("  {label:widest$}  {text}");
        let (columns, line) = (self.of_help(), line.trim_end());
        if columns == 0 || display_width(line) <= columns {
            format!("{line}\n")
        } else if widest <= columns / 3 {
            wrapped(columns, &format!("  {label:widest$}  "), &" ".repeat(widest + 4), text)
        } else {
            let text =
                if text.is_empty() { String::new() } else { wrapped(columns, "      ", "      ", text) };
            wrapped(columns, "  ", "      ", label) + &text
        }
    }
}

fn terminal_columns() -> Option<usize> {
    let output = io::stdout();
    let (columns, Height(_)) = terminal_size_of(&output).filter(|_| output.is_terminal())?;
    Some(columns.0.into())
}

fn wrapped(columns: usize, first: &str, indent: &str, text: &str) -> String {
    let options = textwrap::Options::new(columns).initial_indent(first).subsequent_indent(indent);
    let filled = textwrap::fill(text.trim_end(), options.break_words(false));
    filled.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// Contents of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Aligned to the right and never wrapped.
    Numbers,
    /// Aligned to the left, and wrapped if the table is too wide.
    Text,
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    content: Content,
    /// Width of the widest cell or title.
    natural: usize,
    /// Width of the widest word, which cannot be wrapped.
    least: usize,
}

/// A table. Its first columns, called keys, identify a row.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    keys: usize,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// Creates a table without rows, whose first `keys` columns identify a row.
    pub(crate) fn new<T: Into<String>>(keys: usize, columns: impl IntoIterator<Item = (T, Content)>) -> Self {
        let columns = columns.into_iter().map(|(title, content)| {
            let title = title.into();
            let width = title.lines().map(display_width).max().unwrap_or(0);
            Column { title, content, natural: width, least: width }
        });
        Self { columns: columns.collect(), keys, rows: Vec::new() }
    }

    /// Sets the minimum width of a column, so that several tables are aligned.
    pub(crate) fn at_least(mut self, column: usize, width: usize) -> Self {
        let column = &mut self.columns[column];
        column.natural = column.natural.max(width);
        self
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        for (column, cell) in self.columns.iter_mut().zip(&cells) {
            let width = display_width(cell);
            let word = || cell.split(' ').map(display_width).max().unwrap_or(0);
            let least = if column.content == Content::Text { word() } else { width };
            column.natural = column.natural.max(width);
            column.least = column.least.max(least);
        }
        self.rows.push(cells);
    }

    /// Formats the table in parts that fit into `width`. Each line begins with `indent`.
    pub(crate) fn render(&self, indent: &str, width: Width) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let Width(Some(columns)) = width else { return self.part(&all, &self.natural(), indent) };
        let columns = columns.saturating_sub(indent.len());
        if total(self.natural()) <= columns {
            return self.part(&all, &self.natural(), indent);
        }
        let widths = self.fitted(columns);
        let parts = self.split(&widths, columns);
        let parts = parts.iter().map(|part| self.part(part, &widths, indent));
        parts.collect::<Vec<_>>().join("\n")
    }

    fn natural(&self) -> Vec<usize> {
        self.columns.iter().map(|column| column.natural).collect()
    }

    /// Returns widths with which the keys and any one other column fit into `columns`, as far as wrapping of text
    /// makes this possible.
    fn fitted(&self, columns: usize) -> Vec<usize> {
        let mut widths = self.natural();
        let is_text = |at: &usize| self.columns[*at].content == Content::Text;
        let others = |widths: &[usize]| widths[self.keys..].iter().copied().max().unwrap_or(0);
        let (key_text, other_text): (Vec<usize>, Vec<usize>) =
            (0..widths.len()).filter(is_text).partition(|&at| at < self.keys);
        // Text in other columns gets the space that the keys leave. Then text in the keys gets the space that the
        // other columns leave.
        let keys = total(widths[..self.keys].iter().copied());
        for at in other_text {
            let rest = columns.saturating_sub(keys + GAP);
            widths[at] = widths[at].min(rest.max(self.columns[at].least).max(TEXT_COLUMNS_MIN));
        }
        let excess = (keys + GAP + others(&widths)).saturating_sub(columns);
        if let Some(&widest) = key_text.iter().max_by_key(|&&at| widths[at]) {
            let least = self.columns[widest].least.max(TEXT_COLUMNS_MIN);
            widths[widest] = widths[widest].saturating_sub(excess).max(least).min(widths[widest]);
        }
        widths
    }

    /// Returns the columns of each part. A part contains the keys and as many other columns as fit, at least one.
    fn split(&self, widths: &[usize], columns: usize) -> Vec<Vec<usize>> {
        let keys: Vec<usize> = (0..self.keys).collect();
        let mut parts = vec![keys.clone()];
        for at in self.keys..self.columns.len() {
            let part = parts.last_mut().expect("there is a part from the beginning");
            let used = total(part.iter().chain([&at]).map(|&at| widths[at]));
            if part.len() > self.keys && used > columns {
                parts.push(keys.clone());
            }
            parts.last_mut().expect("there is a part from the beginning").push(at);
        }
        parts
    }

    /// Formats some of the columns with the given widths.
    fn part(&self, part: &[usize], widths: &[usize], indent: &str) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(part.iter().map(|&at| &self.columns[at].title));
        for row in &self.rows {
            table.add_row(part.iter().map(|&at| cell(&row[at], widths[at])));
        }
        for (column, &at) in table.column_iter_mut().zip(part) {
            let Column { content, .. } = &self.columns[at];
            let is_text = *content == Content::Text;
            column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, GAP as u16));
            let width = u16::try_from(widths[at] + GAP).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(comfy_table::Width::Fixed(width)));
        }
        let mut text = String::new();
        for line in table.lines() {
            let _ = writeln!(text, "{}", format_args!("{indent}{}", line.trim_end()));
        }
        text
    }
}

/// Wraps a cell to its width. Words that are longer than the width are not broken.
fn cell(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    textwrap::fill(text, textwrap::Options::new(width).break_words(false))
}

/// Returns the total width of a table from its column widths.
fn total(widths: impl IntoIterator<Item = usize>) -> usize {
    widths.into_iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

#[cfg(test)]
mod tests {
    use super::Content::{Numbers, Text};
    use super::*;

    fn nodes() -> Grid {
        let columns = [("node", Numbers), ("memory", Numbers), ("free", Numbers), ("fallback order", Text)];
        let mut grid = Grid::new(1, columns);
        grid.row(["0", "966 MiB", "1", "0 1 2 3 4 5 6 7"].map(str::to_owned));
        grid.row(["10", "1 GiB", "22", "7 6 5 4 3 2 1 0"].map(str::to_owned));
        grid
    }

    #[test]
    fn a_table_that_fits_is_one_part() {
        let lines = [
            "  node   memory  free  fallback order\n",
            "     0  966 MiB     1  0 1 2 3 4 5 6 7\n",
            "    10    1 GiB    22  7 6 5 4 3 2 1 0\n",
        ];
        for width in [None, Some(38), Some(200)] {
            assert_eq!(nodes().render("  ", Width(width)), lines.concat(), "{width:?}");
        }
    }

    #[test]
    fn a_wide_table_is_split_and_repeats_its_keys() {
        let table = "\
node   memory  free
   0  966 MiB     1
  10    1 GiB    22

node  fallback order
   0  0 1 2 3 4 5 6 7
  10  7 6 5 4 3 2 1 0
";
        assert_eq!(nodes().render("", Width(Some(22))), table);
    }

    #[test]
    fn text_wraps_within_its_column() {
        let mut grid = Grid::new(1, [("figure", Text), ("off", Numbers), ("on", Numbers)]);
        grid.row(["zones probed past 255 full nodes", "256", "0"].map(str::to_owned));
        let table = "\
figure               off
zones probed past    256
255 full nodes

figure               on
zones probed past     0
255 full nodes
";
        assert_eq!(grid.render("", Width(Some(24))), table);
    }

    #[test]
    fn labelled_lines_wrap_only_to_a_width() {
        let (label, text) = ("  speed       ", "10.4 M pairs/s, 193 ns a pair");
        assert_eq!(Width(None).labelled(label, text), format!("{label}{text}\n"));
        let wrapped = Width(Some(40)).labelled(label, text);
        assert_eq!(wrapped, "  speed       10.4 M pairs/s, 193 ns a\n          pair\n");
    }
}
