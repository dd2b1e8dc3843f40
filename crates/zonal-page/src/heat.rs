//! Heat maps: matrices of values whose colours show how large the values are.
//!
//! A small matrix is a table with numbers, which screen readers can read cell by cell. A larger one is a picture
//! without numbers, and neighbouring cells of a very large one are merged, so that the size of the page is bounded.
//! Related files: `color.rs` has the colours of the levels, and `page.rs` includes heat maps in pages.

use std::fmt::Write as _;
use std::ops::Range;

use maud::{Markup, html};

use crate::color::HEAT_LEVELS;
use crate::figures::{NO_FIGURE, number};
use crate::text::{Font, printable};

/// Maximum number of rows and columns in a matrix that is shown with numbers.
const NUMBERS_MAX: usize = 40;
/// Maximum number of rows and columns in a picture; more are merged.
const CELLS_MAX: usize = 64;
/// Width and height of the largest picture, without its labels, in pixels.
const PICTURE: usize = 448;
/// Space for the labels of rows and columns, in pixels.
const LABELS: (usize, usize) = (44, 20);
/// Smallest distance between the labels of rows, in pixels.
const LABEL_LINE: usize = 28;

/// An axis of a heat map.
#[derive(Clone, Debug)]
pub struct HeatAxis {
    /// Name, such as `from node`.
    pub name: String,
    /// Name of the data attribute with a cell's label on this axis, without `data-`. It consists of lower-case letters
    /// and hyphens.
    pub data: &'static str,
    /// Labels.
    pub labels: Vec<String>,
}

/// The value that represents neighbouring cells which are merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merge {
    /// Their mean.
    Mean,
    /// The largest.
    Largest,
}

/// A heat map.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// Name, unique in the page, of lower-case letters, digits and hyphens.
    pub name: String,
    /// Title.
    pub title: String,
    /// Explanation below the title.
    pub note: String,
    /// Text alternative for readers that do not see a picture: what it shows, and where the numbers are.
    pub about: String,
    /// The axis of rows.
    pub rows: HeatAxis,
    /// The axis of columns.
    pub columns: HeatAxis,
    /// Values by row and column. A cell can be empty.
    pub values: Vec<Vec<Option<f64>>>,
    /// How cells of large matrices are merged.
    pub merge: Merge,
    /// The smallest and the largest value of the colours. `None`: those of the matrix, and values that are close to each
    /// other have different colours.
    pub range: Option<(f64, f64)>,
}

/// The levels of a heat map's values.
struct Levels {
    /// The distinct values, ascending.
    distinct: Vec<f64>,
    /// [`HeatMap::range`].
    range: Option<(f64, f64)>,
}

impl Levels {
    fn of(values: &[Vec<Option<f64>>], range: Option<(f64, f64)>) -> Self {
        let mut distinct: Vec<f64> = values.iter().flatten().filter_map(|value| *value).collect();
        distinct.retain(|value| value.is_finite());
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        Self { distinct, range }
    }

    /// Returns the level of a value: its share of a given range, or halfway between its share of the range and its rank.
    /// Values that are close to each other, compared with the range, thus still have different levels.
    fn of_value(&self, value: f64) -> usize {
        if let Some((low, high)) = self.range {
            let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
            return (share * (HEAT_LEVELS - 1) as f64).round() as usize;
        }
        let [low, .., high] = self.distinct.as_slice() else { return 0 };
        let rank = self.distinct.partition_point(|other| *other < value).min(self.distinct.len() - 1);
        let rank = rank as f64 / (self.distinct.len() - 1) as f64;
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        (f64::midpoint(share, rank) * (HEAT_LEVELS - 1) as f64).round() as usize
    }

    /// Returns the entries of the legend: every second level of a given range, or the levels that occur.
    fn legend(&self) -> Vec<(usize, String)> {
        let Some((low, high)) = self.range else { return self.occurring() };
        let value = |level: usize| low + (high - low) * level as f64 / (HEAT_LEVELS - 1) as f64;
        (0..HEAT_LEVELS).step_by(2).map(|level| (level, number(value(level)))).collect()
    }

    /// Returns the levels that occur, each with the smallest and the largest of its values.
    fn occurring(&self) -> Vec<(usize, String)> {
        let values = self.distinct.chunk_by(|a, b| self.of_value(*a) == self.of_value(*b));
        let entry = |values: &[f64]| {
            let (least, most) = (values[0], values[values.len() - 1]);
            let text = match least < most {
                true => format!("{} to {}", number(least), number(most)),
                false => number(least),
            };
            (self.of_value(least), text)
        };
        values.map(entry).collect()
    }
}

impl HeatMap {
    /// Whether the heat map has numbers in its cells.
    #[must_use]
    pub fn has_numbers(&self) -> bool {
        self.rows.labels.len() <= NUMBERS_MAX && self.columns.labels.len() <= NUMBERS_MAX
    }

    /// Returns how many rows and columns one cell of the picture represents.
    #[must_use]
    pub fn merged(&self) -> (usize, usize) {
        let merged = |axis: &HeatAxis| match self.has_numbers() {
            true => 1,
            false => axis.labels.len().div_ceil(CELLS_MAX).max(1),
        };
        (merged(&self.rows), merged(&self.columns))
    }

    /// Returns the heat map as a figure of a page.
    pub(crate) fn figure(&self) -> Markup {
        let cells = self.cells();
        let levels = Levels::of(&cells, self.range);
        let title = printable(&self.title);
        html! {
            figure.heat id=(self.name) aria-labelledby={ (self.name) "-title" } {
                figcaption id={ (self.name) "-title" } { (title) }
                @if !self.note.is_empty() { p.note { (printable(&self.note)) } }
                div.keys aria-hidden="true" {
                    @for (level, text) in levels.legend() {
                        span { i.swatch.{ "h" (level) } {} (text) }
                    }
                }
                div.scroll role="region" tabindex="0" aria-label=(title) {
                    @if self.has_numbers() { (self.table(&levels)) } @else { (self.picture(&cells, &levels)) }
                }
            }
        }
    }

    fn table(&self, levels: &Levels) -> Markup {
        let (rows, columns) = (&self.rows, &self.columns);
        let (row_data, column_data) = (data_name(rows), data_name(columns));
        html! {
            table {
                caption.unseen { (printable(&self.about)) }
                thead {
                    tr {
                        th scope="col" rowspan="2" { (printable(&rows.name)) }
                        th.group scope="colgroup" colspan=(columns.labels.len()) { (printable(&columns.name)) }
                    }
                    tr { @for label in &columns.labels { th scope="col" { (printable(label)) } } }
                }
                tbody {
                    @for (row, values) in rows.labels.iter().zip(&self.values) {
                        tr {
                            th scope="row" { (printable(row)) }
                            @for (column, value) in columns.labels.iter().zip(values) {
                                (self.cell(*value, levels, &attributes(&[(&row_data, row), (&column_data, column)])))
                            }
                        }
                    }
                }
            }
        }
    }

    fn cell(&self, value: Option<f64>, levels: &Levels, data: &str) -> Markup {
        let (class, text) = match value {
            Some(value) => (format!(" class=\"h{}\"", levels.of_value(value)), number(value)),
            None => (String::new(), NO_FIGURE.to_owned()),
        };
        maud::PreEscaped(format!("<td{class}{data}>{text}</td>"))
    }

    /// Returns the values of the picture's cells.
    fn cells(&self) -> Vec<Vec<Option<f64>>> {
        let (down, across) = self.merged();
        if (down, across) == (1, 1) {
            return self.values.clone();
        }
        let columns = self.columns.labels.len();
        let row = |rows: &[Vec<Option<f64>>]| -> Vec<Option<f64>> {
            let starts = (0..columns).step_by(across);
            starts.map(|start| self.merge(rows, start..(start + across).min(columns))).collect()
        };
        self.values.chunks(down).map(row).collect()
    }

    /// Returns the value that represents the columns of `range` in `rows`.
    fn merge(&self, rows: &[Vec<Option<f64>>], range: Range<usize>) -> Option<f64> {
        let values = || rows.iter().flat_map(|row| row.get(range.clone()).unwrap_or_default()).flatten();
        match self.merge {
            Merge::Largest => values().copied().reduce(f64::max),
            Merge::Mean => {
                let count = values().count();
                // Rounding bounds the number of distinct values, and so the size of the legend.
                (count > 0).then(|| (values().sum::<f64>() / count as f64).round())
            }
        }
    }

    fn picture(&self, cells: &[Vec<Option<f64>>], levels: &Levels) -> Markup {
        let (across, down) = (cells.first().map_or(0, Vec::len), cells.len());
        let size = (PICTURE / across.max(down).max(1)).max(1);
        let (left, top) = LABELS;
        let (width, height) = (left + across * size + 1, top + down * size + 1);
        let (rows_merged, columns_merged) = self.merged();
        let (rows, columns) = (&self.rows.labels, &self.columns.labels);
        html! {
            svg width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } role="img"
                aria-label=(printable(&self.about)) {
                @for (at, label) in ticks(columns, columns_merged, label_width(columns).div_ceil(size)) {
                    text.tick x=(left + at * size + size / 2) y=(top - 6) text-anchor="middle" { (label) }
                }
                @for (at, label) in ticks(rows, rows_merged, LABEL_LINE.div_ceil(size)) {
                    text.tick x=(left - 6) y=(top + at * size + size / 2 + 4) text-anchor="end" { (label) }
                }
                g transform={ "translate(" (left) " " (top) ") scale(" (size) ")" } shape-rendering="crispEdges" {
                    @for (level, _) in levels.occurring() {
                        path.{ "h" (level) } d=(outline(cells, levels, level)) {}
                    }
                }
            }
        }
    }
}

/// Returns the name of an axis's data attribute.
fn data_name(axis: &HeatAxis) -> String {
    format!("data-{}", axis.data)
}

/// Formats attributes, with a space before each.
fn attributes(pairs: &[(&String, &String)]) -> String {
    let pair = |(name, value): &(&String, &String)| {
        let value = html! { (printable(value)) }.into_string();
        format!(" {name}=\"{value}\"")
    };
    pairs.iter().map(pair).collect()
}

/// Returns the space that each label of a column needs, in pixels.
fn label_width(labels: &[String]) -> usize {
    let widest = labels.iter().map(|label| Font::TICK.width(&printable(label))).fold(0.0, f64::max);
    widest as usize + 10
}

/// Returns the labels of some picture rows or columns, each with its place. They are at least `apart` cells apart.
fn ticks(labels: &[String], merged: usize, apart: usize) -> Vec<(usize, String)> {
    let shown = labels.iter().step_by(merged).enumerate().step_by(apart.max(1).next_power_of_two());
    shown.map(|(at, label)| (at, printable(label))).collect()
}

/// Returns an SVG path for all cells of a level. Neighbours in a row form one rectangle.
fn outline(cells: &[Vec<Option<f64>>], levels: &Levels, level: usize) -> String {
    let mut path = String::new();
    for (y, row) in cells.iter().enumerate() {
        let of_level: Vec<bool> =
            row.iter().map(|value| value.is_some_and(|value| levels.of_value(value) == level)).collect();
        let mut x = 0;
        for run in of_level.chunk_by(|a, b| a == b) {
            if run[0] {
                let _ = write!(path, "M{x} {y}h{}v1h-{}z", run.len(), run.len());
            }
            x += run.len();
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(side: usize, value: impl Fn(usize, usize) -> Option<f64>) -> HeatMap {
        let axis = |name: &str, data| HeatAxis {
            name: name.to_owned(),
            data,
            labels: (0..side).map(|at| at.to_string()).collect(),
        };
        HeatMap {
            name: "distances".to_owned(),
            title: "Distances <b>".to_owned(),
            note: String::new(),
            about: "Each cell is a distance.".to_owned(),
            rows: axis("from", "from"),
            columns: axis("to", "to"),
            values: (0..side).map(|row| (0..side).map(|column| value(row, column)).collect()).collect(),
            merge: Merge::Mean,
            range: None,
        }
    }

    fn parsed(map: &HeatMap, check: impl Fn(&roxmltree::Document<'_>)) {
        let text = map.figure().into_string();
        check(&roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
    }

    #[test]
    fn small_maps_are_tables_with_numbers_and_data() {
        let distance = |from, to| (from + to < 6).then(|| [10.0, 12.0, 32.0, 32.0][from ^ to]);
        parsed(&map(4, distance), |document| {
            let cells: Vec<_> = document.descendants().filter(|node| node.has_tag_name("td")).collect();
            assert_eq!(cells.len(), 16);
            let cell = cells.iter().find(|cell| {
                cell.attribute("data-from") == Some("2") && cell.attribute("data-to") == Some("3")
            });
            assert_eq!(cell.unwrap().text(), Some("12"));
            let classes = [0, 1, 2].map(|at| cells[at].attribute("class"));
            assert_eq!(classes, [Some("h0"), Some("h2"), Some("h8")]);
            assert_eq!((cells[15].text(), cells[15].attribute("class")), (Some("–"), None));
            let heads = document.descendants().filter(|node| node.attribute("scope") == Some("row"));
            assert_eq!(heads.count(), 4);
            let title = document.descendants().find(|node| node.has_tag_name("figcaption")).unwrap();
            assert_eq!(title.text(), Some("Distances <b>"));
        });
    }

    #[test]
    fn large_maps_are_pictures_of_bounded_size() {
        for (side, merged) in [(41, 1), (64, 1), (65, 2), (1024, 16)] {
            let map = map(side, |from, to| Some((from * 31 % 97 + to * 17 % 89) as f64));
            assert_eq!((map.has_numbers(), map.merged()), (false, (merged, merged)));
            let length = map.figure().into_string().len();
            assert!(length < 150_000, "{side}: {length}");
            parsed(&map, |document| {
                let picture = document.descendants().find(|node| node.has_tag_name("svg")).unwrap();
                assert_eq!(picture.attribute("aria-label"), Some("Each cell is a distance."));
                let labels = document.descendants().filter(|node| node.has_tag_name("text"));
                assert!((8..=32).contains(&labels.count()));
            });
        }
    }

    #[test]
    fn labels_of_columns_do_not_overlap() {
        let labels: Vec<String> = (0..64).map(|at| format!("{at:04}")).collect();
        let apart = label_width(&labels).div_ceil(7);
        let places: Vec<usize> = ticks(&labels, 2, apart).into_iter().map(|(at, _)| at).collect();
        assert_eq!(places, [0, 8, 16, 24]);
        assert!(Font::TICK.width("0000") < 8.0 * 7.0);
    }

    /// The paths together cover all cells that have a value.
    #[test]
    fn every_cell_of_a_picture_is_drawn_once() {
        let map = map(130, |from, to| (from != to || from >= 9).then(|| (from / 30 + to / 50) as f64));
        let cells = map.cells();
        assert_eq!((cells.len(), cells[0].len()), (44, 44));
        let levels = Levels::of(&cells, None);
        let area: usize = levels
            .legend()
            .iter()
            .flat_map(|(level, _)| {
                let path = outline(&cells, &levels, *level);
                let runs = path.split('h').skip(1).map(|run| run.split('v').next().unwrap().to_owned());
                runs.filter_map(|run| run.parse::<usize>().ok()).collect::<Vec<_>>()
            })
            .sum();
        assert_eq!(area, 44 * 44);
    }

    #[test]
    fn merged_cells_have_the_mean_or_the_largest_value() {
        let mut map = map(65, |from, to| (from > 0 || to > 0).then_some((from + to) as f64));
        assert_eq!((map.cells()[0][0], map.cells()[32][32]), (Some(1.0), Some(128.0)));
        map.merge = Merge::Largest;
        assert_eq!(map.cells()[0][0], Some(2.0));
        // Only the long side is merged.
        map.columns.labels.truncate(30);
        map.values.iter_mut().for_each(|row| row.truncate(30));
        assert_eq!((map.has_numbers(), map.merged()), (false, (2, 1)));
        assert_eq!((map.cells().len(), map.cells()[0].len()), (33, 30));
    }

    #[test]
    fn close_values_have_different_levels_and_equal_ones_the_first() {
        let legend =
            |values: &[f64]| Levels::of(&[values.iter().copied().map(Some).collect()], None).legend();
        let entry = |level, text: &str| (level, text.to_owned());
        assert_eq!(legend(&[32.0, 10.0, 12.0]), [entry(0, "10"), entry(2, "12"), entry(8, "32")]);
        assert_eq!(legend(&[1.0, 1.0]), [entry(0, "1")]);
        assert_eq!(legend(&[f64::NAN]), []);
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(legend(&many).len(), HEAT_LEVELS);
        assert_eq!(legend(&many)[0].1, "0 to 6");
    }

    #[test]
    fn colours_of_a_given_range_do_not_depend_on_the_values() {
        let levels =
            |values: &[f64]| Levels::of(&[values.iter().copied().map(Some).collect()], Some((0.0, 100.0)));
        for values in [&[50.0][..], &[49.0, 50.0, 51.0], &[]] {
            let levels = levels(values);
            assert_eq!([-5.0, 0.0, 50.0, 100.0, 120.0].map(|value| levels.of_value(value)), [0, 0, 4, 8, 8]);
            let texts: Vec<String> = levels.legend().into_iter().map(|(_, text)| text).collect();
            assert_eq!(texts, ["0", "25", "50", "75", "100"]);
        }
    }
}
