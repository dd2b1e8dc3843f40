//! Holds published figures against the cases and variants of an experiment.
//!
//! Neighbours: `published.rs` reads tables, `resolve.rs` calls this once the runs are known.

use super::document::{Document, FileError};
use super::file::{Written, WrittenFilter};
use super::plan::{Calibration, Plan};
use super::published::{Baseline, CaseFilter, Published, PublishedRow, same_case};
use super::results::Role;
use super::source::Source;

/// Ending of tables of published figures.
const TABLE: &str = ".csv";

/// The published figures of an experiment, all of which belong to one of its cases and variants.
pub(super) fn published(
    document: Document<'_>,
    source: &Source,
    written: &Written<'_>,
    plan: &Plan,
) -> Result<Published, FileError> {
    let Some(named) = &written.published else { return Ok(Published::default()) };
    let companion = source.companion(named.file.get_ref(), TABLE);
    let (file, text) =
        companion.map_err(|error| document.error(named.file.span(), format!("file: {error}")))?;
    let mut published = Published::read(&text, &file)?;
    if let Some(only) = &named.only {
        check_filter(document, only, &published)?;
        published.rows.retain(|row| only.filter.takes(&row.case));
    }
    for (at, row) in published.rows.iter().enumerate() {
        let checked = check_row(row, plan).and_then(|()| check_twice(row, &published.rows[..at]));
        checked.map_err(|problem| FileError { file: file.clone(), line: Some(row.line), problem })?;
    }
    Ok(published)
}

/// Errors show nothing of the row: the file may be one that the reader keeps to himself.
fn check_row(row: &PublishedRow, plan: &Plan) -> Result<(), String> {
    if !plan.variants.iter().any(|variant| variant.name == row.variant) {
        let known: Vec<&str> = plan.variants.iter().map(|variant| &*variant.name).collect();
        return Err(format!("the variant is none of {}, which has {}", plan.name, known.join(", ")));
    }
    let has_column =
        |name: &String| plan.runs.iter().flat_map(|run| &run.case).any(|(known, _)| known == name);
    if !row.case.iter().all(|(name, _)| has_column(name)) {
        let columns = plan.columns_text();
        return Err(format!(
            "it has a value in a column that cases do not have; in {}, {columns}",
            plan.name
        ));
    }
    if !plan.runs.iter().any(|run| same_case(&run.case, &row.case)) {
        return Err(format!("there is no such case; in {}, {}", plan.name, plan.columns_text()));
    }
    Ok(())
}

fn check_twice(row: &PublishedRow, before: &[PublishedRow]) -> Result<(), String> {
    let same = |other: &&PublishedRow| {
        other.variant == row.variant && other.metric == row.metric && same_case(&other.case, &row.case)
    };
    match before.iter().find(same) {
        Some(other) => Err(format!("the same figure as in line {}; each must be there once", other.line)),
        None => Ok(()),
    }
}

/// Refuses filters by columns that the figures do not have.
fn check_filter(
    document: Document<'_>,
    only: &WrittenFilter,
    published: &Published,
) -> Result<(), FileError> {
    for ((name, _), span) in only.filter.0.iter().zip(&only.spans) {
        if !published.columns.contains(name) {
            let problem = format!("unknown column `{name}`; {} does not have it", published.file);
            return Err(document.error(span.clone(), problem));
        }
    }
    Ok(())
}

/// What the experiment was calibrated on.
pub(super) fn calibration(
    document: Document<'_>,
    written: &Written<'_>,
    plan: &Plan,
) -> Result<Option<Calibration>, FileError> {
    let Some(calibration) = &written.calibration else { return Ok(None) };
    let name = calibration.variant.get_ref();
    let refused = |problem: String| document.error(calibration.variant.span(), problem);
    if !plan.variants.iter().any(|variant| variant.role == Role::Baseline) {
        return Err(refused(
            "no variant has `role = \"baseline\"`; that is what can be calibrated on".to_owned(),
        ));
    }
    match plan.variants.iter().find(|variant| variant.name == *name) {
        Some(variant) if variant.role == Role::Baseline => {}
        Some(_) => {
            let problem = format!(
                "variant `{name}` is not of the role \"baseline\"; nothing else can be calibrated on"
            );
            return Err(refused(problem));
        }
        None => {
            let known: Vec<&str> = plan.variants.iter().map(|variant| &*variant.name).collect();
            return Err(refused(format!("unknown variant `{name}`; there are {}", known.join(", "))));
        }
    }
    for metric in &calibration.metrics {
        let wanted = metric.get_ref();
        let mut rows = plan.published.rows.iter().filter(|row| row.variant == *name);
        if !rows.any(|row| row.is_called(wanted)) {
            let problem = format!("no figure `{wanted}` of variant `{name}` is published here");
            return Err(document.error(metric.span(), problem));
        }
    }
    let none = CaseFilter::default();
    let cases = match &calibration.only {
        Some(only) => {
            check_filter(document, only, &plan.published)?;
            &only.filter
        }
        None => &none,
    };
    let metrics: Vec<String> = calibration.metrics.iter().map(|metric| metric.get_ref().clone()).collect();
    let rows = Baseline::of(&plan.published, name, &metrics, cases);
    let about = calibration.about.clone();
    let about = about.unwrap_or_else(|| format!("{} of variant {name}", metrics.join(", ")));
    Ok(Some(Calibration { about, rows }))
}
