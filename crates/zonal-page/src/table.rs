//! Tables: columns with headings, which can be grouped, and rows of cells. Related files: `page.rs` includes tables in
//! pages.

use maud::{Markup, html};

use crate::text::printable;

/// Kind of the cells in a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Names of the row.
    Head,
    /// Names of the row in code.
    Code,
    /// Text.
    Text,
    /// Units.
    Unit,
    /// Numbers.
    Number,
}

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading.
    pub title: String,
    /// Heading above this column and its neighbours of the same group. Empty if there is no group.
    pub group: String,
    /// Kind of its cells.
    pub kind: Kind,
}

/// Colour of a cell, which shows how large a deviation is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// Small deviation.
    Near,
    /// Moderate deviation.
    Fair,
    /// Large deviation.
    Off,
    /// Very large deviation.
    Far,
}

/// A cell.
#[derive(Clone, Default, Debug)]
pub struct Cell {
    /// Text.
    pub text: String,
    /// Colour.
    pub tone: Tone,
    /// A symbol behind the text, and its meaning.
    pub mark: Option<(&'static str, &'static str)>,
}

/// A table.
#[derive(Clone, Default, Debug)]
pub struct Table {
    /// Caption, which is also the name of the area in which a wide table scrolls.
    pub caption: String,
    /// Columns.
    pub columns: Vec<Column>,
    /// Groups of rows, separated by lines. Each row has as many cells as the table has columns.
    pub rows: Vec<Vec<Vec<Cell>>>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Column {
    /// Creates a column without a group.
    pub fn new(kind: Kind, title: impl Into<String>) -> Self {
        Self::of(String::new(), kind, title)
    }

    /// Creates a column of a group.
    pub fn of(group: impl Into<String>, kind: Kind, title: impl Into<String>) -> Self {
        Self { title: title.into(), group: group.into(), kind }
    }
}

impl Tone {
    /// Returns the CSS class.
    pub(crate) fn class(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Near => Some("near"),
            Self::Fair => Some("fair"),
            Self::Off => Some("off"),
            Self::Far => Some("far"),
        }
    }
}

impl Table {
    pub(crate) fn html(&self) -> Markup {
        let caption = printable(&self.caption);
        html! {
            div.scroll role="region" tabindex="0" aria-label=(caption) {
                table.grouped[self.is_grouped()] {
                    caption { (caption) }
                    thead { (self.heads()) }
                    @for rows in &self.rows {
                        tbody { @for row in rows { tr {
                            @for (at, cell) in row.iter().enumerate() { (self.cell(at, cell)) }
                        } } }
                    }
                }
            }
        }
    }

    fn is_grouped(&self) -> bool {
        self.columns.iter().any(|column| !column.group.is_empty())
    }

    fn heads(&self) -> Markup {
        let lines = if self.is_grouped() { 2 } else { 1 };
        html! {
            tr {
                @for group in self.columns.chunk_by(|a, b| !a.group.is_empty() && a.group == b.group) {
                    @if group[0].group.is_empty() {
                        th.number[group[0].kind == Kind::Number] scope="col" rowspan=(lines) {
                            (printable(&group[0].title))
                        }
                    } @else {
                        th.first scope="colgroup" colspan=(group.len()) { (printable(&group[0].group)) }
                    }
                }
            }
            @if self.is_grouped() {
                tr {
                    @for (at, column) in self.columns.iter().enumerate() {
                        @if !column.group.is_empty() {
                            th.first[self.is_first(at)].number[column.kind == Kind::Number] scope="col" {
                                (printable(&column.title))
                            }
                        }
                    }
                }
            }
        }
    }

    /// Whether a column is the first one of its group.
    fn is_first(&self, at: usize) -> bool {
        let group = &self.columns[at].group;
        !group.is_empty() && (at == 0 || self.columns[at - 1].group != *group)
    }

    fn cell(&self, at: usize, cell: &Cell) -> Markup {
        let (text, first) = (printable(&cell.text), self.is_first(at));
        html! {
            @match self.columns[at].kind {
                Kind::Head => th scope="row" { (text) },
                Kind::Code => th scope="row" { code { (text) } },
                Kind::Text => td.first[first] { (text) },
                Kind::Unit => td.unit.first[first] { (text) },
                Kind::Number => td.number.first[first].(cell.tone.class().unwrap_or("plain")) {
                    (text)
                    @if let Some((symbol, meaning)) = cell.mark { abbr title=(meaning) { (symbol) } }
                },
            }
        }
    }
}
