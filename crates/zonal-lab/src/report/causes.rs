//! Stacked bars of the locks and cache lines that the runs' threads waited for. The causes with the longest waiting
//! times have their own colours.
//!
//! Seconds are summed over threads. There is one panel per case. If the sums of the cases differ greatly, each case
//! has its own scale, and the chart says so. Related files: `outcome.rs` defines the causes.

use zonal_page::color::{FILLS, REST};
use zonal_page::{Bar, Bars, Chart, Key, Panel, Scale, Symbol, is_shown};

use super::figures;
use super::parts::{self, Part};
use crate::experiment::results::RunResult;
use crate::outcome::Cause;

/// Space for the sum next to a bar, in pixels.
const SUM_WIDTH: f64 = 70.0;
/// Ratio of two cases' longest bars above which each case has its own scale.
const SPREAD_MAX: f64 = 30.0;

/// Name and kind (lock or line) of a cause.
type What<'a> = (&'a str, &'a str);

/// Description of a case, and the seconds of each variant by cause. The last element is the sum of all causes without
/// their own colour.
type Case<'a> = (String, Vec<(&'a str, Vec<f64>)>);

/// Returns a chart of the causes for which the part's runs waited, or `None` if they did not wait.
pub(super) fn chart(part: &Part<'_>) -> Option<Chart> {
    let sums = sums(part);
    let top: Vec<What<'_>> = sums.iter().take(FILLS.len()).map(|(what, _)| *what).collect();
    let mut cases: Vec<Case<'_>> = Vec::new();
    for run in &part.runs {
        let bars = parts::group(&mut cases, parts::label(parts::within_part(&run.case), None));
        bars.push((run.variant.as_str(), seconds(run, &top)));
    }
    let (own_scales, shared) = (own_scales(&cases), Scale::lengths(cases.iter().map(longest), "s")?);
    let panel = |case: &Case<'_>| {
        panel(case, &Scale::lengths([longest(case)], "s").filter(|_| own_scales).unwrap_or(shared.clone()))
    };
    let named: Vec<&str> = top.iter().map(|(what, _)| *what).collect();
    let title = "seconds waited by cause, summed over threads";
    (!top.is_empty()).then(|| Chart {
        name: format!("causes {}", part.name.unwrap_or_default()),
        title: part.title(&match own_scales {
            true => format!("{title}; lengths compare within a case only"),
            false => title.to_owned(),
        }),
        about: format!(
            "Stacked bars of the seconds that threads waited, a bar for each case and variant. \
             Most was waited for: {}.",
            named.join(", ")
        ),
        keys: keys(&top, sums.len()),
        panels: cases.iter().map(panel).collect(),
    })
}

/// Returns the causes of a run whose waiting time is positive and can be shown in a chart.
fn causes(run: &RunResult) -> impl Iterator<Item = &Cause> {
    run.outcome.causes.iter().filter(|cause| is_shown(cause.seconds) && cause.seconds > 0.0)
}

/// Returns all causes with their total seconds over all runs, longest first.
fn sums<'a>(part: &Part<'a>) -> Vec<(What<'a>, f64)> {
    let mut sums = Vec::new();
    for cause in part.runs.iter().flat_map(|run| causes(run)) {
        *parts::group(&mut sums, (cause.what.as_str(), cause.kind)) += cause.seconds;
    }
    sums.sort_by(|a, b| f64::total_cmp(&b.1, &a.1));
    sums
}

/// Returns the seconds of a run by cause. The last element is the sum of all causes that are not in `top`.
fn seconds(run: &RunResult, top: &[What<'_>]) -> Vec<f64> {
    let mut seconds = vec![0.0; top.len() + 1];
    for cause in causes(run) {
        let at = top.iter().position(|what| *what == (cause.what.as_str(), cause.kind));
        seconds[at.unwrap_or(top.len())] += cause.seconds;
    }
    seconds
}

fn keys(top: &[What<'_>], causes: usize) -> Vec<Key> {
    let named = top.iter().zip(FILLS).enumerate();
    let key = |(at, ((what, kind), color)): (usize, (&What<'_>, _))| {
        Key::new(Symbol::Fill, color, format!("{} {what} ({kind})", at + 1))
    };
    let mut keys: Vec<Key> = named.map(key).collect();
    if causes > top.len() {
        keys.push(Key::new(Symbol::Fill, REST, format!("{} others", causes - top.len())));
    }
    keys
}

fn longest((_, bars): &Case<'_>) -> f64 {
    bars.iter().map(|(_, seconds)| seconds.iter().sum()).fold(0.0, f64::max)
}

fn own_scales(cases: &[Case<'_>]) -> bool {
    let lengths = cases.iter().map(longest).filter(|length| *length > 0.0);
    let (least, most) =
        lengths.fold((f64::INFINITY, 0.0_f64), |(least, most), length| (least.min(length), most.max(length)));
    most > SPREAD_MAX * least
}

fn panel((title, bars): &Case<'_>, scale: &Scale) -> Panel {
    let bars = bars.iter().map(|(variant, seconds)| {
        let (rest, named) = seconds.split_last().expect("the remaining causes are last");
        let numbered = named.iter().zip(FILLS).enumerate();
        let mut parts: Vec<_> =
            numbered.map(|(at, (part, color))| (*part, color, (at + 1).to_string())).collect();
        parts.push((*rest, REST, String::new()));
        let text = figures::quantity(seconds.iter().sum(), "s");
        Bar { name: (*variant).to_owned(), parts, spread: None, mark: None, text }
    });
    let groups = vec![(String::new(), bars.collect())];
    let axis = Some("waited (s, summed over threads)");
    Bars { title, scale, axis, groups, text_width: SUM_WIDTH }.panel()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_far_apart_have_scales_of_their_own() {
        let own = |longest: &[f64]| {
            let case = |&seconds: &f64| (String::new(), vec![("a", vec![seconds])]);
            own_scales(&longest.iter().map(case).collect::<Vec<_>>())
        };
        assert!(own(&[1.0, 31.0]) && own(&[0.0, 40.0, 1.0]));
        assert!(!own(&[1.0, 30.0]) && !own(&[0.0, 1.0, 2.0]), "a case without waits has no length");
        assert!(!own(&[]) && !own(&[0.0, 0.0]));
    }
}
