//! Charts of the last 60 seconds, as many as the screen has space for.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use zonal_machine::ids;

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

/// Draws the free memory of a row, and rates of all nodes that are shown. Rates that were 0 for the whole time are
/// only named.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, row: &MemoryRow) {
    if area.height <= LANE {
        return;
    }
    let history = &app.shown.history;
    let peak = |series: Series| history.iter().filter_map(|moment| series.at(moment)).reduce(f64::max);
    let (mut rates, mut quiet) = (Vec::new(), Vec::new());
    for (name, series) in RATES {
        match peak(series) {
            Some(peak) if peak > 0.0 || series == Series::Locality(0) => rates.push((name, series, peak)),
            Some(_) => quiet.push(name),
            None => {}
        }
    }
    let across = (area.width / WIDTH).clamp(1, 3);
    let has_quiet = !quiet.is_empty() && area.height > 2 * LANE;
    let height = area.height - 1 - u16::from(has_quiet);
    let lanes = rates.len() as u16 + 1;
    let down = (height / LANE).clamp(1, lanes.div_ceil(across));
    let lane_height = (height / down).min(LANE_MAX);
    let width = (area.width + 2) / across - 2;
    let mut places = (0..down).flat_map(|at| {
        let y = area.y + 1 + at * lane_height;
        (0..across).map(move |at| Rect { x: area.x + at * (width + 2), y, width, height: lane_height })
    });
    if let Some(place) = places.next() {
        // The first chart takes a whole line if one place would be empty.
        let is_whole = across == 2 && lanes % 2 == 1 && places.next().is_some();
        free(buffer, if is_whole { Rect { width: area.width, ..place } } else { place }, app, row);
    }
    let mut visible = 1;
    for ((name, series, peak), place) in rates.into_iter().zip(places) {
        rate(buffer, place, app, name, series, peak);
        visible += 1;
    }
    times(buffer, area, app, (visible, lanes));
    if has_quiet {
        let shown = format!("none: {}", quiet.join(", "));
        text(buffer, line(area, 1 + down * lane_height), Align::Left, &shown, app.colours.dim());
    }
}

/// Draws the time that the charts cover, how many there are, and of which nodes they are.
fn times(buffer: &mut Buffer, area: Rect, app: &App, (visible, all): (u16, u16)) {
    let last = app.shown.history.last().map_or(0, |moment| moment.unix_ms);
    let until = format!("Last 60 s until {}", app.clock(last));
    let title = match visible < all {
        true if area.width < 48 => format!("Last 60 s; {visible} of {all} charts"),
        true => format!("{until}; {visible} of {all} charts"),
        false => until,
    };
    let of = match app.nodes.as_slice() {
        [] => String::new(),
        [node] => format!("; rates of node {node}"),
        nodes => format!("; rates of nodes {}", ids::format(nodes.iter().copied())),
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
    let history = &app.shown.history;
    let peak = history.iter().filter_map(|moment| free_of(row, moment)).fold(0.0, f64::max);
    let top = scale(row, peak);
    let size = |frames| units::bytes(frames, app.shown.sample.page_bytes);
    let marks = [size(row.min), size(row.low), size(row.high), size(top as u64)];
    let [min, low, high, largest] = &marks;
    let notes = [
        format!("min {min}  low {low}  high {high}  top {largest}"),
        format!("high {high}  top {largest}"),
        format!("top {largest}"),
    ];
    let value = format!("{} of {}", size(row.free), size(row.managed));
    let name = units::safe(&format!("free, {}", row.name()));
    let used = units::width(&name) + units::width(&value) + 4;
    let fits = |note: &&String| used + units::width(note) <= place.width.into();
    let note = notes.iter().find(fits).map_or("", String::as_str);
    let inside = title(buffer, place, app, &name, &value, note);
    let values = columns(history.iter(), inside.width, Extreme::Smallest, |moment| free_of(row, moment));
    let rows = f64::from(inside.height);
    let at_high = (row.high as f64 / top * rows) as u16;
    if (1..inside.height).contains(&at_high) {
        let dots = "┈".repeat(inside.width.into());
        text(buffer, line(inside, inside.height - 1 - at_high), Align::Left, &dots, app.colours.dim());
    }
    chart(buffer, inside, &values, top, |free| app.colours.pressure(pressure_at(row, free)));
}

/// Returns the free frames at the top of a chart: all memory, or half of it, or a quarter and so on, such that the peak
/// and `high` are below the top.
fn scale(row: &MemoryRow, peak: f64) -> f64 {
    let least = peak.max(row.high as f64 * 1.5).max(1.0);
    let mut top = row.managed.max(1) as f64;
    while top / 2.0 >= least {
        top /= 2.0;
    }
    top
}

fn rate(buffer: &mut Buffer, place: Rect, app: &App, name: &str, series: Series, peak: f64) {
    let history = &app.shown.history;
    let values = columns(history.iter(), place.width, Extreme::Largest, |moment| series.at(moment));
    let now = history.last().and_then(|moment| series.at(moment));
    let value = now.map_or_else(|| "-".to_owned(), |now| format!("{}/s", units::count(now)));
    let inside = title(buffer, place, app, name, &value, &format!("peak {}/s", units::count(peak)));
    chart(buffer, inside, &values, peak, |_| series.style(app.colours));
}
