//! Reads what an experiment is meant to find out, and checks that its runs can answer it.
//!
//! Related files: `experiment/answer.rs` answers the question.

use super::document::{Document, FileError};
use super::file::Written;
use super::plan::Plan;
use super::results::{Question, baseline, compared};

/// Reads the question of an experiment.
pub(super) fn question(
    document: Document<'_>,
    written: &Written<'_>,
    plan: &Plan,
) -> Result<Question, FileError> {
    let Some(written) = &written.question else { return Ok(Question::default()) };
    let metrics = written.metrics.iter().map(|metric| metric.get_ref().clone()).collect();
    let question = Question {
        text: written.text.clone(),
        metrics,
        variant: written.variant.as_ref().map(|variant| variant.get_ref().clone()),
        margin_pct: written.margin_pct.as_ref().map(|margin| *margin.get_ref()),
    };
    for metric in &written.metrics {
        let name = metric.get_ref();
        if !plan.runs.iter().any(|run| run.reports(name)) {
            let problem =
                format!("no run has a figure `{name}`; write METRIC, PART.METRIC or PROGRAM.METRIC");
            return Err(document.error(metric.span(), problem));
        }
    }
    if let Some(variant) = &written.variant {
        let found = compared(&plan.variants, &question);
        let baseline = baseline(&plan.variants);
        if found.is_none() || found == baseline {
            let others = plan.variants.iter().filter(|info| Some(*info) != baseline);
            let others: Vec<&str> = others.map(|info| &*info.name).collect();
            let problem = format!(
                "variant `{}` cannot be compared with the baseline; those that can are {}",
                variant.get_ref(),
                others.join(", ")
            );
            return Err(document.error(variant.span(), problem));
        }
    }
    if let Some(margin) = &written.margin_pct
        && !(0.0..=100.0).contains(margin.get_ref())
    {
        let problem = format!("margin_pct is {}, must be a number from 0 to 100", margin.get_ref());
        return Err(document.error(margin.span(), problem));
    }
    Ok(question)
}
