//! Charts of values over virtual time: one line per name, one panel per variant with the same axes.
//!
//! Long series are thinned to about [`POINTS_MAX`] points while keeping their peaks. If there are many lines,
//! such as one per node, their colours form a gradient. Neighbours: `outcome.rs` has the series,
//! `report/frame.rs` the axes.

use plotters::style::RGBColor;

use super::canvas::{Canvas, Chart};
use super::frame::{self, EndLabel, GiveWay, Head, Key, PLOT_PANEL_HEIGHT, Plot, Symbol};
use super::parts::{self, Part};
use super::scale::{self, Scale};
use super::style;
use crate::outcome::Series;

/// Maximum points of a line.
const POINTS_MAX: usize = 300;
/// Maximum points of a line in a panel with many lines.
const POINTS_OF_MANY: usize = 120;
/// Maximum lines of a panel.
const LINES_MAX: usize = 32;

/// A line: its name and its points.
type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// Lines of one chart: its name, its unit, and lines by variant.
struct Picture<'a> {
    plot: &'a str,
    unit: &'a str,
    panels: Vec<(&'a str, Vec<Line<'a>>)>,
}

/// Returns the charts of the part's runs case by case, each with a description of its case, which is empty for
/// the only case.
pub(super) fn charts(part: &Part<'_>) -> Vec<(String, Chart)> {
    let mut cases = Vec::new();
    for run in &part.runs {
        parts::group(&mut cases, parts::label(parts::within_part(&run.case), None), *run);
    }
    let mut charts = Vec::new();
    for (case, runs) in cases {
        let mut pictures = Vec::new();
        for run in runs {
            for series in &run.outcome.series {
                let item = (run.variant.as_str(), series);
                parts::group(&mut pictures, (series.plot, series.unit), item);
            }
        }
        for ((plot, unit), series) in pictures {
            let picture = Picture { plot, unit, panels: panels(series) };
            charts.extend(picture.chart(part, &case).map(|chart| (case.clone(), chart)));
        }
    }
    charts
}

fn panels<'a>(series: Vec<(&'a str, &'a Series)>) -> Vec<(&'a str, Vec<Line<'a>>)> {
    let lines = parts::unique(series.iter().map(|(_, series)| &series.name)).len();
    let most = if lines > style::distinct_lines() { POINTS_OF_MANY } else { POINTS_MAX };
    let mut panels = Vec::new();
    for (variant, series) in series {
        let points = thinned(&series.points, most);
        if !points.is_empty() {
            parts::group(&mut panels, variant, (series.name.as_str(), points));
        }
    }
    panels
}

impl Picture<'_> {
    fn chart(&self, part: &Part<'_>, case: &str) -> Option<Chart> {
        let lines = || self.panels.iter().flat_map(|(_, lines)| lines);
        let points = || lines().flat_map(|(_, points)| points);
        let scales = (
            Scale::of_time(points().map(|point| point.0))?,
            Scale::of_levels(points().map(|point| point.1))?,
        );
        let all = parts::unique(lines().map(|(name, _)| *name));
        let names = evenly(&all, LINES_MAX);
        let what = if case.is_empty() { self.plot.to_owned() } else { format!("{}, {case}", self.plot) };
        let title = part.title(&what);
        let keys = keys(&names, all.len());
        let head = Head { title: &title, keys: &keys, width: frame::width(self.panels.len()) };
        let (corners, size) = frame::grid(&vec![PLOT_PANEL_HEIGHT; self.panels.len()], head.height());
        let about = format!(
            "Lines of {} in {} over virtual time, a panel for each variant: {}.",
            self.plot,
            if self.unit.is_empty() { "numbers" } else { self.unit },
            self.panels.iter().map(|(variant, _)| *variant).collect::<Vec<_>>().join(", ")
        );
        let name = format!("series {} {} {case}", part.name.unwrap_or_default(), self.plot);
        Some(Chart::draw(name, title.clone(), about, size, |canvas| {
            head.draw(canvas);
            for ((variant, lines), corner) in self.panels.iter().zip(corners) {
                self.panel(canvas, (variant, lines), &names, scales, corner);
            }
        }))
    }

    fn panel(
        &self,
        canvas: &Canvas<'_>,
        (variant, lines): (&str, &[Line<'_>]),
        names: &[&str],
        scales: (Scale, Scale),
        corner: (f64, f64),
    ) {
        let room = if frame::labels_fit(names) { frame::label_width(names) } else { 0.0 };
        let plot = Plot::new(corner, room, scales, ("virtual time", self.unit));
        let title =
            if self.unit.is_empty() { variant.to_owned() } else { format!("{variant} ({})", self.unit) };
        let ticks = scales.0.marks(7, "s");
        plot.axes(canvas, &title, &ticks);
        let mut labels = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let color = style::line(at, names.len());
            for (_, points) in lines.iter().filter(|(other, _)| other == name) {
                let end = draw_line(canvas, &plot, points, color);
                labels.extend(end.map(|end| EndLabel { end, text: name, color }));
            }
        }
        if room > 0.0 {
            let few = names.len() <= style::distinct_lines();
            frame::end_labels(canvas, &plot, labels, if few { GiveWay::Move } else { GiveWay::LeaveOut });
        }
    }
}

/// Draws a line, or a dot for a single point, and returns the position of its end.
fn draw_line(
    canvas: &Canvas<'_>,
    plot: &Plot<'_>,
    points: &[(f64, f64)],
    color: RGBColor,
) -> Option<(f64, f64)> {
    let places: Vec<(f64, f64)> = points.iter().map(|(x, y)| plot.at(*x, *y)).collect();
    match places.as_slice() {
        [one] => canvas.dot(*one, 3.0, color),
        more => canvas.line(more, color, 1.4),
    }
    places.last().copied()
}

/// Returns the legend entries that are needed in addition to the labels at the ends of lines.
fn keys(names: &[&str], all: usize) -> Vec<Key> {
    let many = names.len() > style::distinct_lines();
    let key = |at: usize| Key::new(Symbol::Line, style::line(at, names.len()), names[at]);
    let mut keys: Vec<Key> = match names.len() {
        of if many => [0, of / 4, of / 2, of * 3 / 4, of - 1].map(key).into(),
        of if frame::labels_fit(names) => Vec::with_capacity(of),
        of => (0..of).map(key).collect(),
    };
    if all > names.len() {
        keys.push(Key::new(Symbol::None, style::SOFT, format!("{} of {all} lines", names.len())));
    }
    keys
}

/// Returns at most `most` evenly spaced elements of `items`, including the first and the last.
fn evenly<'a>(items: &[&'a str], most: usize) -> Vec<&'a str> {
    if items.len() <= most {
        return items.to_vec();
    }
    (0..most).map(|at| items[at * (items.len() - 1) / (most - 1)]).collect()
}

/// Returns about `most` finite points, keeping the minimum and the maximum of each interval.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let finite = points.iter().copied().filter(|(x, y)| scale::is_shown(*x) && scale::is_shown(*y));
    let points: Vec<(f64, f64)> = finite.collect();
    if points.len() <= most {
        return points;
    }
    let (last, inner) = (points[points.len() - 1], &points[1..points.len() - 1]);
    let mut kept = vec![points[0]];
    for stretch in inner.chunks(inner.len().div_ceil(most / 2 - 1)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (Some(least), Some(greatest)) =
            (stretch.iter().min_by(by_value), stretch.iter().max_by(by_value))
        else {
            continue;
        };
        kept.extend(if least.0 <= greatest.0 { [*least, *greatest] } else { [*greatest, *least] });
    }
    kept.push(last);
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_ends_peaks_and_order() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|at| (f64::from(at), f64::from(at % 7))).collect();
        points[5001].1 = 99.0;
        points[7001].1 = -99.0;
        points[3000].1 = f64::NAN;
        let kept = thinned(&points, POINTS_MAX);
        assert!(kept.len() <= POINTS_MAX && kept.len() > POINTS_MAX / 2, "{}", kept.len());
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[9_999]));
        assert!(kept.contains(&(5001.0, 99.0)) && kept.contains(&(7001.0, -99.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn few_lines_of_many_go_from_the_first_to_the_last() {
        let names: Vec<String> = (0..512).map(|at| at.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let kept = evenly(&names, LINES_MAX);
        assert_eq!((kept.len(), kept[0], kept[31]), (32, "0", "511"));
        assert_eq!(evenly(&names[..3], LINES_MAX), ["0", "1", "2"]);
    }
}
