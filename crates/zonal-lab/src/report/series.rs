//! Charts of values over virtual time. There is one line per name and one panel per variant; all panels of a chart
//! have the same axes.
//!
//! Long series are reduced to about [`POINTS_MAX`] points, which include their peaks. If there are many lines, such
//! as one per node, their colours form a gradient. Related files: `outcome.rs` defines the series.

use zonal_page::color::{self, DISTINCT_LINES};
use zonal_page::{Chart, Key, Line, Lines, Panel, Scale, Symbol, is_shown};

use super::parts::{self, Part};
use crate::outcome::Series;

/// Maximum number of points in a line.
const POINTS_MAX: usize = 300;
/// Maximum number of points in a line if the panel has many.
const POINTS_OF_MANY: usize = 120;
/// Maximum number of lines in a panel.
const LINES_MAX: usize = 32;

/// Lines of a panel: names and points.
type Named<'a> = Vec<(&'a str, Vec<(f64, f64)>)>;

/// Returns the charts of the part's runs, grouped by case. Each chart has a description of its case, which is empty
/// if the case has no values within its part.
pub(super) fn charts(part: &Part<'_>) -> Vec<(String, Chart)> {
    let mut cases: Vec<(String, Vec<(_, Vec<_>)>)> = Vec::new();
    for run in &part.runs {
        let plots = parts::group(&mut cases, parts::label(parts::within_part(&run.case), None));
        for series in &run.outcome.series {
            parts::group(plots, (series.plot, series.unit)).push((run.variant.as_str(), series));
        }
    }
    let charts = cases.into_iter().flat_map(|(case, plots)| {
        let charts = plots.into_iter().filter_map(|(plot, series)| chart(part, &case, plot, &series));
        charts.map(|chart| (case.clone(), chart)).collect::<Vec<_>>()
    });
    charts.collect()
}

fn chart(
    part: &Part<'_>,
    case: &str,
    (plot, unit): (&str, &str),
    series: &[(&str, &Series)],
) -> Option<Chart> {
    let panels = panels(series);
    let lines = || panels.iter().flat_map(|(_, lines)| lines);
    let points = || lines().flat_map(|(_, points)| points);
    let x = Scale::time(points().map(|point| point.0))?;
    let y = Scale::levels(points().map(|point| point.1), unit)?;
    let all = parts::unique(lines().map(|(name, _)| *name));
    let names = evenly(&all, LINES_MAX);
    let draw = |(variant, lines): &(&str, Named<'_>)| -> Panel {
        let title = if unit.is_empty() { (*variant).to_owned() } else { format!("{variant} ({unit})") };
        let shown = names.iter().enumerate().flat_map(|(at, name)| {
            let color = color::line(at, names.len());
            let own = lines.iter().filter(move |(other, _)| other == name);
            own.map(move |(_, points)| Line {
                color,
                points: points.clone(),
                has_dots: false,
                marks: Vec::new(),
            })
        });
        let lines: Vec<Line> = shown.collect();
        Lines { title: &title, x_name: "virtual time", x: &x, y: &y, lines: &lines }.panel()
    };
    Some(Chart {
        name: format!("series {} {plot} {case}", part.name.unwrap_or_default()),
        title: part.title(&if case.is_empty() { plot.to_owned() } else { format!("{plot}, {case}") }),
        about: format!(
            "Lines of {plot} in {} over virtual time, a panel for each variant: {}.",
            if unit.is_empty() { "numbers" } else { unit },
            panels.iter().map(|(variant, _)| *variant).collect::<Vec<_>>().join(", ")
        ),
        keys: keys(&names, all.len()),
        panels: panels.iter().map(draw).collect(),
    })
}

/// Returns the lines of each variant.
fn panels<'a>(series: &[(&'a str, &'a Series)]) -> Vec<(&'a str, Named<'a>)> {
    let lines = parts::unique(series.iter().map(|(_, series)| &series.name)).len();
    let most = if lines > DISTINCT_LINES { POINTS_OF_MANY } else { POINTS_MAX };
    let mut panels: Vec<(&str, Named<'_>)> = Vec::new();
    for (variant, series) in series {
        let points = thinned(&series.points, most);
        if !points.is_empty() {
            parts::group(&mut panels, *variant).push((series.name.as_str(), points));
        }
    }
    panels
}

/// Returns the legend. With many lines, it contains only five of them, spread along the gradient.
fn keys(names: &[&str], all: usize) -> Vec<Key> {
    let key = |at: usize| Key::new(Symbol::Line, color::line(at, names.len()), names[at]);
    let mut keys: Vec<Key> = match names.len() {
        of if of > DISTINCT_LINES => [0, of / 4, of / 2, of * 3 / 4, of - 1].map(key).into(),
        of => (0..of).map(key).collect(),
    };
    if all > names.len() {
        keys.push(Key::new(Symbol::None, color::SOFT, format!("{} of {all} lines", names.len())));
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

/// Returns about `most` finite points, including the minimum and the maximum of each interval.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let finite = points.iter().copied().filter(|(x, y)| is_shown(*x) && is_shown(*y));
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
