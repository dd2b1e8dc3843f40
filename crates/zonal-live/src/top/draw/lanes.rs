//! Charts of the last 60 seconds, as many as the screen has space for.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::overview::{free_of, pressure_at};
use super::paint::{Align, Extreme, chart, columns, line, parts, text};
use crate::sample::Counter;
use crate::top::app::App;
use crate::top::rows::{MemoryRow, Series};
use crate::top::theme::Colours;
use crate::top::units;
use crate::watch::Moment;

/// Height at which the charts that matter most are shown, with the line of times.
pub(super) const SUFFICIENT: u16 = 2 * 4 + 1;
/// Height of a chart with its title, and the most that one uses.
const LANE: u16 = 4;
const LANE_MAX: u16 = 9;
/// Width of a chart.
const WIDTH: u16 = 50;

/// Rates that charts show, the most important first.
const RATES: [(&str, Series); 12] = [
    ("hits", Series::Locality(0)),
    ("misses", Series::Locality(1)),
    ("foreign", Series::Locality(2)),
    ("frames allocated", Series::Total(Counter::Allocated)),
    ("frames freed", Series::Total(Counter::Freed)),
    ("refills", Series::Total(Counter::Refills)),
    ("drains", Series::Total(Counter::Drains)),
    ("reclaimed in the background", Series::Total(Counter::BackgroundReclaimed)),
    ("reclaimed by requests", Series::Total(Counter::DirectReclaimed)),
    ("requests stalled", Series::Total(Counter::DirectStalls)),
    ("requests refused", Series::Total(Counter::Failures)),
    ("compaction stalls", Series::Total(Counter::CompactStalls)),
];

impl Series {
    /// Returns the value at a moment.
    pub(super) fn at(self, moment: &Moment) -> Option<f64> {
        match self {
            Self::Locality(part) => moment.locality.map(|parts| parts[part]),
            Self::Total(counter) => moment.rates.get(counter as usize).copied().flatten(),
            Self::None => None,
        }
    }

    /// Returns the style of its charts.
    pub(super) fn style(self, colours: Colours) -> Style {
        match self {
            Self::Locality(0) => colours.hit(),
            Self::Locality(_)
            | Self::Total(
                Counter::DirectStalls
                | Counter::DirectReclaimed
                | Counter::Failures
                | Counter::CompactStalls
                | Counter::CompactFailures
                | Counter::OomKills,
            ) => colours.miss(),
            _ => colours.neutral(),
        }
    }
}

/// Returns the height that charts have below a table with `lines`.
pub(super) fn height(area: Rect, lines: u16) -> u16 {
    let least_table = lines.min(area.height / 2);
    let left = area.height.saturating_sub(least_table.max(3));
    match left > LANE {
        true if lines + SUFFICIENT > area.height => left.min(SUFFICIENT),
        true => area.height - lines,
        false => 0,
    }
}

/// Draws the free memory of a row, and rates of all nodes that are shown.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, row: &MemoryRow) {
    if area.height <= LANE {
        return;
    }
    let history = &app.shown.history;
    let is_known = |&&(_, series): &&(&str, Series)| history.iter().any(|moment| series.at(moment).is_some());
    let rates: Vec<_> = RATES.iter().filter(is_known).collect();
    let across = (area.width / WIDTH).clamp(1, 3);
    let height = area.height - 1;
    let rows_needed = (rates.len() as u16 + 1).div_ceil(across);
    let down = (height / LANE).clamp(1, rows_needed);
    let lane_height = (height / down).min(LANE_MAX);
    let width = (area.width + 2) / across - 2;
    let mut places = (0..down).flat_map(|at| {
        let y = area.y + 1 + at * lane_height;
        (0..across).map(move |across| Rect {
            x: area.x + across * (width + 2),
            y,
            width,
            height: lane_height,
        })
    });
    times(buffer, area, app);
    if let Some(place) = places.next() {
        free(buffer, place, app, row);
    }
    for ((name, series), place) in rates.into_iter().zip(places) {
        rate(buffer, place, app, name, *series);
    }
}

/// Says what the columns of the charts are.
fn times(buffer: &mut Buffer, area: Rect, app: &App) {
    let last = app.shown.history.last().map_or(0, |moment| moment.unix_ms);
    let title = format!("Last 60 s until {}", app.clock(last));
    let of = match app.nodes.as_slice() {
        [] => String::new(),
        [node] => format!("; rates of node {node}"),
        nodes => format!("; rates of nodes {}", units::list(nodes)),
    };
    let style = app.colours.dim();
    let rule = "─".repeat(area.width.into());
    text(buffer, line(area, 0), Align::Left, &rule, style);
    parts(buffer, line(area, 0), &[("── ", style), (&title, Colours::strong()), (&of, style), (" ", style)]);
}

/// Draws a title with a value at its right, and returns the place of the chart.
fn title(buffer: &mut Buffer, place: Rect, app: &App, name: &str, value: &str, note: &str) -> Rect {
    let head = line(place, 0);
    let note_width = units::width(note) as u16;
    let shown =
        [(name, app.colours.key()), ("  ", Style::new()), (value, Colours::strong()), ("  ", Style::new())];
    let rest = parts(buffer, head, &shown);
    if rest.width >= note_width {
        text(buffer, rest, Align::Right, note, app.colours.dim());
    }
    Rect { y: place.y + 1, height: place.height.saturating_sub(1), ..place }
}

fn free(buffer: &mut Buffer, place: Rect, app: &App, row: &MemoryRow) {
    let page = app.shown.sample.page_bytes;
    let size = |frames| units::bytes(frames, page);
    let note = format!("min {}  low {}  high {}", size(row.min), size(row.low), size(row.high));
    let value = format!("{} of {}", size(row.free), size(row.managed));
    let name = format!("free, {}", row.name());
    let inside = title(buffer, place, app, &units::safe(&name), &value, &note);
    let values =
        columns(app.shown.history.iter(), inside.width, Extreme::Smallest, |moment| free_of(row, moment));
    chart(buffer, inside, &values, row.managed as f64, |free| app.colours.pressure(pressure_at(row, free)));
}

fn rate(buffer: &mut Buffer, place: Rect, app: &App, name: &str, series: Series) {
    let history = &app.shown.history;
    let values = columns(history.iter(), place.width, Extreme::Largest, |moment| series.at(moment));
    let largest = history.iter().filter_map(|moment| series.at(moment)).fold(0.0, f64::max);
    let now = history.last().and_then(|moment| series.at(moment));
    let value = now.map_or_else(|| "-".to_owned(), |now| format!("{}/s", units::count(now)));
    let inside = title(buffer, place, app, name, &value, &format!("peak {}/s", units::count(largest)));
    chart(buffer, inside, &values, largest, |_| series.style(app.colours));
}
