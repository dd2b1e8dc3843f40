//! The last 60 seconds as lines: free memory and rates.

use zonal_page::{Block, Chart, Key, Line, Lines, Scale, Symbol, color};

use super::words::{mib, total};
use crate::sample::{Counter, Sample};
use crate::serve::tick::Tick;
use crate::watch::{HISTORY_SECONDS, Moment};

/// Maximum number of points in a line.
const POINTS_MAX: usize = 120;
/// MiB from which memory is shown in GiB.
const GIB_FROM: f64 = 4096.0;
/// Charts of counters, with the unit and the counters that are drawn if the source has them.
const COUNTERS: [(&str, &str, &str, &[Counter]); 3] = [
    ("frames", "Frames allocated and freed", "frames per second", &[Counter::Allocated, Counter::Freed]),
    (
        "batches",
        "Refills and drains of pagesets",
        "batches per second",
        &[Counter::Refills, Counter::Drains, Counter::RemoteDrains],
    ),
    ("reclaim", "Reclaim", "frames per second", &[Counter::BackgroundReclaimed, Counter::DirectReclaimed]),
];

/// A line before it has a colour: its name and points.
type Named = (String, Vec<(f64, f64)>);

/// Returns the charts.
pub(super) fn charts(tick: &Tick) -> Vec<Chart> {
    let sample = &*tick.sample;
    let every = tick.history.len().div_ceil(POINTS_MAX).max(1);
    // The newest moment is always shown.
    let mut moments: Vec<&Moment> = tick.history.iter().rev().step_by(every).collect();
    moments.reverse();
    let charts = [free(sample, &moments), locality(&moments)].into_iter();
    charts.chain(COUNTERS.map(|chart| counters(chart, sample, &moments))).flatten().collect()
}

/// Returns the contents of the section.
pub(super) fn blocks(charts: &[Chart]) -> Vec<Block<'_>> {
    match charts {
        [] => vec![Block::Text("There are no figures yet.".to_owned())],
        charts => vec![Block::Charts(charts)],
    }
}

/// Returns the points of a line, at seconds before now.
fn points(moments: &[&Moment], value: impl Fn(&Moment) -> Option<f64>) -> Vec<(f64, f64)> {
    let now = moments.last().map_or(0.0, |moment| moment.seconds);
    moments.iter().filter_map(|moment| Some((moment.seconds - now, value(moment)?))).collect()
}

fn free(sample: &Sample, moments: &[&Moment]) -> Option<Chart> {
    let sum = |moment: &Moment, node: Option<u64>| {
        let zones = sample.zones.iter().zip(&moment.free);
        total(zones.filter(|(zone, _)| node.is_none_or(|node| zone.node == node)).map(|(_, free)| *free))
    };
    let of = |node: Option<u64>| points(moments, |moment| Some(mib(sample, sum(moment, node))));
    let mut lines: Vec<Named> = match sample.nodes.len() <= color::DISTINCT_LINES {
        true => sample.nodes.iter().map(|node| (format!("node {}", node.id), of(Some(node.id)))).collect(),
        false => vec![("all nodes".to_owned(), of(None))],
    };
    let most = lines.iter().flat_map(|(_, points)| points).fold(0.0, |most: f64, point| most.max(point.1));
    let unit = if most >= GIB_FROM { "GiB" } else { "MiB" };
    if unit == "GiB" {
        lines.iter_mut().flat_map(|(_, points)| points).for_each(|point| point.1 /= 1024.0);
    }
    chart(("free", "Free memory"), unit, lines)
}

/// Returns the chart of hits and misses. In all nodes together, there are as many foreign allocations as misses.
fn locality(moments: &[&Moment]) -> Option<Chart> {
    let kinds = ["hit", "miss"].into_iter().enumerate();
    let line = |(at, name): (usize, &str)| {
        let points = points(moments, |moment| moment.locality.map(|rates| rates[at]));
        (name.to_owned(), points)
    };
    chart(("locality", "Allocations by locality"), "allocations per second", kinds.map(line).collect())
}

fn counters(
    (name, title, unit, counters): (&str, &str, &str, &[Counter]),
    sample: &Sample,
    moments: &[&Moment],
) -> Option<Chart> {
    let known = counters.iter().copied().filter(|counter| sample.totals.get(*counter).is_some());
    let line = |counter: Counter| {
        let points = points(moments, |moment| moment.rates.get(counter as usize).copied().flatten());
        (counter.name().replace('_', " "), points)
    };
    chart((name, title), unit, known.map(line).collect())
}

fn chart((name, title): (&str, &str), unit: &str, lines: Vec<Named>) -> Option<Chart> {
    let values = lines.iter().flat_map(|(_, points)| points).map(|point| point.1);
    let y = Scale::lengths(values, "")?;
    let x = Scale::time([-HISTORY_SECONDS, 0.0])?;
    let of = lines.len();
    let keys = lines.iter().enumerate();
    let keys = keys.map(|(at, (name, _))| Key::new(Symbol::Line, color::line(at, of), name)).collect();
    let drawn: Vec<Line> = lines
        .into_iter()
        .enumerate()
        .map(|(at, (_, points))| Line { color: color::line(at, of), points, has_dots: false, marks: vec![] })
        .collect();
    let panel = Lines { title: unit, x_name: "time before now", x: &x, y: &y, lines: &drawn }.panel();
    Some(Chart {
        name: format!("history-{name}"),
        title: title.to_owned(),
        about: format!("Lines of the last {HISTORY_SECONDS} seconds. The tables have the newest numbers."),
        keys,
        panels: vec![panel],
    })
}
