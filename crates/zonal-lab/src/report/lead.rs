//! The first sentences of a report, derived only from its rows.
//!
//! Errors are absolute deviations from published figures. Related files: `report/page.rs` puts the sentences on the page,
//! `experiment/answer.rs` has the answer to the experiment's question.

use std::collections::HashSet;

use super::parts;
use crate::experiment::keys::case_key;
use crate::experiment::results::{Results, Row};

/// Deviations of some rows' predictions from the published values: the median and the largest.
pub(super) struct Deviations {
    pub(super) rows: usize,
    /// Median absolute deviation, in percent.
    pub(super) median: f64,
    /// Largest deviation, in percent, with its sign.
    pub(super) worst: f64,
}

/// Returns the deviations of `rows`, or `None` if no row has both a predicted and a published value.
pub(super) fn deviations<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<Deviations> {
    let errors = rows.into_iter().filter_map(|row| row.error_pct().filter(|error| error.is_finite()));
    let mut errors: Vec<f64> = errors.collect();
    errors.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let worst = *errors.last()?;
    let (below, above) = (errors[(errors.len() - 1) / 2].abs(), errors[errors.len() / 2].abs());
    Some(Deviations { rows: errors.len(), median: f64::midpoint(below, above), worst })
}

/// Returns the first sentences of the report.
pub(super) fn sentences(results: &Results) -> Vec<String> {
    let rows = &results.rows;
    if rows.is_empty() && !results.runs.is_empty() {
        let answer = results.answer().map(|answer| answer.text);
        return vec![answer.unwrap_or_else(|| "There are no figures: nothing was measured.".to_owned())];
    }
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
    let mut sentences: Vec<String> = results.answer().map(|answer| answer.text).into_iter().collect();
    sentences.push(format!("{figures} of {variants} in {cases}; {known}."));
    sentences.extend(results.against_published());
    let lost = rows.iter().filter(|row| !row.predicted.is_finite()).count();
    if lost > 0 {
        sentences.push(format!("{} came out as no number.", counted(lost, "figure")));
    }
    sentences
}

/// Whether a published value is known for any row.
pub(super) fn has_published(results: &Results) -> bool {
    results.rows.iter().any(|row| row.published.is_some())
}

/// Formats a count with its noun: `1 case`, `2 cases`.
pub(super) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
