//! Stacked bars of what the threads of runs waited for; the most expensive causes have their own colours.
//!
//! Seconds are summed over threads. Cases of very different magnitude have separate scales, and the chart says
//! so. Neighbours: `outcome.rs` has the causes, `report/frame.rs` the legend.

use super::canvas::{Anchor, Canvas, Chart, Font};
use super::figures;
use super::frame::{Head, Key, MARGIN, Symbol};
use super::parts::{self, Part};
use super::scale::{self, Scale};
use super::style;
use crate::experiment::results::RunResult;

const WIDTH: f64 = 860.0;
const NAME_WIDTH: f64 = 180.0;
const NUMBER_WIDTH: f64 = 90.0;
const CASE_HEIGHT: f64 = 24.0;
const BAR_LINE: f64 = 20.0;
const BAR_HEIGHT: f64 = 15.0;
const AXIS_HEIGHT: f64 = 36.0;
/// Ratio of the longest bars of two cases above which the cases do not share a scale.
const SPREAD_MAX: f64 = 30.0;

/// Name and kind (lock or line) of a cause.
type What<'a> = (&'a str, &'a str);

/// Runs of one case, and the seconds of each run by cause; the remaining causes are last.
struct Case<'a> {
    title: String,
    bars: Vec<(&'a str, Vec<f64>)>,
}

/// Returns a chart of what the part's runs waited for, or `None` if they did not wait.
pub(super) fn chart(part: &Part<'_>) -> Option<Chart> {
    let sums = sums(part);
    if sums.is_empty() {
        return None;
    }
    let top: Vec<What<'_>> = sums.iter().take(style::CAUSES.len()).map(|(what, _)| *what).collect();
    let cases = cases(part, &top);
    let own_scales = own_scales(&cases);
    let title = part.title(if own_scales {
        "seconds waited by cause, summed over threads; lengths compare within a case only"
    } else {
        "seconds waited by cause, summed over threads"
    });
    let keys = keys(&top, sums.len());
    let head = Head { title: &title, keys: &keys, width: WIDTH };
    let lines = cases.iter().map(Case::height).sum::<f64>();
    let axis = if own_scales { 0.0 } else { AXIS_HEIGHT };
    let size = (WIDTH, head.height() + lines + axis + MARGIN);
    let named: Vec<&str> = top.iter().map(|(what, _)| *what).collect();
    let about = format!(
        "Stacked bars of the seconds that threads waited, a bar for each case and variant. \
         Most was waited for: {}.",
        named.join(", ")
    );
    let name = format!("causes {}", part.name.unwrap_or_default());
    Some(Chart::draw(name, title.clone(), about, size, |canvas| {
        head.draw(canvas);
        draw(canvas, &cases, head.height(), own_scales);
    }))
}

/// Returns all causes with their seconds in all runs, longest first.
fn sums<'a>(part: &Part<'a>) -> Vec<(What<'a>, f64)> {
    let mut groups: Vec<(What<'a>, Vec<f64>)> = Vec::new();
    for cause in part.runs.iter().flat_map(|run| &run.outcome.causes) {
        if scale::is_shown(cause.seconds) && cause.seconds > 0.0 {
            parts::group(&mut groups, (cause.what.as_str(), cause.kind), cause.seconds);
        }
    }
    let mut sums: Vec<(What<'a>, f64)> =
        groups.into_iter().map(|(what, seconds)| (what, seconds.iter().sum())).collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums
}

fn cases<'a>(part: &Part<'a>, top: &[What<'_>]) -> Vec<Case<'a>> {
    let mut groups = Vec::new();
    for run in &part.runs {
        let bar = (run.variant.as_str(), seconds(run, top));
        parts::group(&mut groups, parts::label(parts::within_part(&run.case), None), bar);
    }
    groups.into_iter().map(|(title, bars)| Case { title, bars }).collect()
}

/// Returns the seconds of a run by cause; the remaining causes are last.
fn seconds(run: &RunResult, top: &[What<'_>]) -> Vec<f64> {
    let mut seconds = vec![0.0; top.len() + 1];
    for cause in
        run.outcome.causes.iter().filter(|cause| scale::is_shown(cause.seconds) && cause.seconds > 0.0)
    {
        let at = top.iter().position(|what| *what == (cause.what.as_str(), cause.kind));
        seconds[at.unwrap_or(top.len())] += cause.seconds;
    }
    seconds
}

fn keys(top: &[What<'_>], causes: usize) -> Vec<Key> {
    let named = top.iter().zip(style::CAUSES).enumerate();
    let mut keys: Vec<Key> = named
        .map(|(at, ((what, kind), color))| {
            Key::new(Symbol::Fill, color, format!("{} {what} ({kind})", at + 1))
        })
        .collect();
    if causes > top.len() {
        keys.push(Key::new(Symbol::Fill, style::REST, format!("{} others", causes - top.len())));
    }
    keys
}

impl Case<'_> {
    fn height(&self) -> f64 {
        let head = if self.title.is_empty() { 0.0 } else { CASE_HEIGHT };
        head + self.bars.len() as f64 * BAR_LINE
    }

    fn longest(&self) -> f64 {
        self.bars.iter().map(|(_, seconds)| seconds.iter().sum()).fold(0.0, f64::max)
    }
}

fn own_scales(cases: &[Case<'_>]) -> bool {
    let lengths = cases.iter().map(Case::longest).filter(|length| *length > 0.0);
    let (least, most) =
        lengths.fold((f64::INFINITY, 0.0_f64), |(least, most), length| (least.min(length), most.max(length)));
    most > SPREAD_MAX * least
}

fn draw(canvas: &Canvas<'_>, cases: &[Case<'_>], top: f64, own_scales: bool) {
    let Some(shared) = Scale::of_lengths(cases.iter().map(Case::longest)) else { return };
    let (from, to) = (MARGIN + NAME_WIDTH, WIDTH - MARGIN - NUMBER_WIDTH);
    let mut y = top;
    if !own_scales {
        let bottom = top + cases.iter().map(Case::height).sum::<f64>() + 4.0;
        axis(canvas, shared, (from, to), (top, bottom));
    }
    for case in cases {
        if !case.title.is_empty() {
            let text = Font::HEAD.fit(&case.title, WIDTH - 2.0 * MARGIN);
            canvas.text(&text, (MARGIN, y + CASE_HEIGHT / 2.0 + 2.0), Anchor::Left, Font::HEAD);
            y += CASE_HEIGHT;
        }
        let own = Scale::of_lengths([case.longest()]).filter(|_| own_scales);
        for (variant, seconds) in &case.bars {
            let name = Font::LABEL.fit(variant, NAME_WIDTH - 10.0);
            canvas.text(&name, (from - 7.0, y + BAR_LINE / 2.0), Anchor::Right, Font::LABEL);
            bar(canvas, seconds, own.unwrap_or(shared), (from, to), y);
            y += BAR_LINE;
        }
    }
}

fn axis(canvas: &Canvas<'_>, scale: Scale, (from, to): (f64, f64), (top, bottom): (f64, f64)) {
    for (value, text) in scale.marks(6, "s") {
        let x = scale.place(value, from, to);
        canvas.line(&[(x, top), (x, bottom)], style::GRID, 1.0);
        canvas.text(&text, (x, bottom + 9.0), Anchor::Middle, Font::TICK);
    }
    let middle = f64::midpoint(from, to);
    canvas.text("waited (s, summed over threads)", (middle, bottom + 24.0), Anchor::Middle, Font::TICK);
}

/// Draws a stacked bar with its total; segments that are wide enough show the number of their cause.
fn bar(canvas: &Canvas<'_>, seconds: &[f64], scale: Scale, (from, to): (f64, f64), top: f64) {
    let (upper, middle) = (top + (BAR_LINE - BAR_HEIGHT) / 2.0, top + BAR_LINE / 2.0);
    let (mut sum, mut x) = (0.0, from);
    for (at, part) in seconds.iter().enumerate() {
        sum += part;
        let end = scale.place(sum, from, to);
        let color = style::CAUSES.get(at).copied().filter(|_| at + 1 < seconds.len()).unwrap_or(style::REST);
        // A gap of half a pixel separates segments with similar colours.
        canvas.fill((x, upper), ((end - 0.5).max(x), upper + BAR_HEIGHT), color);
        if at + 1 < seconds.len() && end - x > 14.0 {
            let font = Font::TICK.in_color(style::text_on(color));
            canvas.text(&(at + 1).to_string(), (f64::midpoint(x, end), middle), Anchor::Middle, font);
        }
        x = end;
    }
    canvas.text(&figures::quantity(sum, "s"), (x + 6.0, middle), Anchor::Left, Font::LABEL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_far_apart_have_scales_of_their_own() {
        let own = |longest: &[f64]| {
            let case = |&seconds: &f64| Case { title: String::new(), bars: vec![("a", vec![seconds])] };
            own_scales(&longest.iter().map(case).collect::<Vec<_>>())
        };
        assert!(own(&[1.0, 31.0]) && own(&[0.0, 40.0, 1.0]));
        assert!(!own(&[1.0, 30.0]) && !own(&[0.0, 1.0, 2.0]), "a case without waits has no length");
        assert!(!own(&[]) && !own(&[0.0, 0.0]));
    }
}
