//! The first sentences of a report, derived only from its rows.
//!
//! Errors are absolute deviations from published figures. Rows used for calibration and rows that are predictions are
//! counted separately. Related files: `report/page.rs` puts the sentences on the page.

use std::collections::HashSet;

use super::figures;
use super::parts;
use crate::experiment::keys::case_key;
use crate::experiment::results::{Results, Row};

/// Deviations of some rows' predictions from the published values: the median and the largest.
pub(super) struct Deviations<'a> {
    pub(super) rows: usize,
    /// Median absolute deviation, in percent.
    pub(super) median: f64,
    /// Largest deviation, in percent, with its sign.
    pub(super) worst: f64,
    pub(super) worst_row: &'a Row,
}

/// Returns the deviations of `rows`, or `None` if no row has both a predicted and a published value.
pub(super) fn deviations<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<Deviations<'a>> {
    let errors = rows.into_iter().filter_map(|row| Some((row.error_pct().filter(|e| e.is_finite())?, row)));
    let mut errors: Vec<(f64, &Row)> = errors.collect();
    errors.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    let (worst, worst_row) = *errors.last()?;
    let (below, above) = (errors[(errors.len() - 1) / 2].0.abs(), errors[errors.len() / 2].0.abs());
    Some(Deviations { rows: errors.len(), median: f64::midpoint(below, above), worst, worst_row })
}

/// Returns the first sentences of the report.
pub(super) fn sentences(results: &Results) -> Vec<String> {
    let rows = &results.rows;
    if rows.is_empty() {
        return vec!["There are no figures: no run was finished.".to_owned()];
    }
    let variants = parts::unique(rows.iter().map(|row| &row.variant)).len();
    let cases = rows.iter().map(|row| case_key(&row.case)).collect::<HashSet<_>>().len();
    let published = rows.iter().filter(|row| row.published.is_some()).count();
    let counts = [(rows.len(), "figure"), (variants, "variant"), (cases, "case")];
    let [figures, variants, cases] = counts.map(|(number, what)| counted(number, what));
    let known = match published {
        0 => "no published value is known for them".to_owned(),
        1 => "a published value is known for 1".to_owned(),
        _ => format!("published values are known for {published}"),
    };
    let mut sentences = vec![format!("{figures} of {variants} in {cases}; {known}.")];
    if let Some(of) = deviations(rows.iter().filter(|row| !row.calibrated_on)) {
        sentences.push(sentence(&of, "predicted without their published values"));
    }
    if let Some(of) = deviations(rows.iter().filter(|row| row.calibrated_on)) {
        sentences.push(sentence(&of, "calibrated on"));
    }
    let lost = rows.iter().filter(|row| !row.predicted.is_finite()).count();
    if lost > 0 {
        sentences.push(format!("{} came out as no number.", counted(lost, "figure")));
    }
    sentences
}

fn sentence(of: &Deviations<'_>, what: &str) -> String {
    let worst = format!("{} % ({})", figures::deviation(of.worst), place(of.worst_row));
    if of.rows == 1 {
        return format!("Of figures {what} there is one: it is off by {worst}.");
    }
    let median = figures::deviation(of.median);
    let median = median.trim_start_matches('+');
    format!("The {} figures {what} are off by {median} % in the median, and at worst by {worst}.", of.rows)
}

/// Describes a row: `wall of overstep32, counters, cpus 256`.
fn place(row: &Row) -> String {
    let figure = format!("{} of {}", row.metric, row.variant);
    let case = parts::label(parts::within_part(&row.case), None);
    let part = parts::part_name(&row.case).unwrap_or_default().to_owned();
    let texts: Vec<String> = [figure, part, case].into_iter().filter(|text| !text.is_empty()).collect();
    texts.join(", ")
}

/// Formats a count with its noun: `1 case`, `2 cases`.
pub(super) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
