//! Matches published figures to the cases and variants of an experiment.
//!
//! Related files: `experiment/published.rs` reads tables. `experiment/resolve.rs` calls this module when the list of
//! runs is complete.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::document::{Document, FileError};
use super::file::{Written, WrittenFigures, WrittenFilter};
use super::keys::{case_key, figure_key, run_key};
use super::plan::{Calibration, Plan};
use super::published::{Baseline, CaseFilter, Published, PublishedRow};
use super::results::{NamedFigures, Role};
use super::source::Source;
use crate::workload::Workload;

/// File name extension of tables with published figures.
pub(super) const TABLE: &str = ".csv";

/// Reads an experiment's published figures and checks that each belongs to one of its cases and variants.
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
        let filter = only.filter.ready();
        published.rows.retain(|row| filter.takes(&row.case));
    }
    let known = Known::of(plan);
    for (at, row) in published.rows.iter().enumerate() {
        let checked = known.check(row, plan).and_then(|()| {
            let key = figure_key(&row.case, &row.variant, &row.metric);
            let before = published.index.insert(key, at).map(|before| published.rows[before].line);
            before.map_or(Ok(()), |line| {
                Err(format!("the same figure as in line {line}; figures must be unique"))
            })
        });
        checked.map_err(|problem| FileError { file: file.clone(), line: Some(row.line), problem })?;
    }
    Ok(published)
}

/// Cases and variants that rows of figures can belong to.
struct Known<'p> {
    variants: HashSet<&'p str>,
    columns: HashSet<&'p str>,
    cases: HashSet<String>,
    runs: HashMap<String, &'p Workload>,
}

impl<'p> Known<'p> {
    fn of(plan: &'p Plan) -> Self {
        Self {
            variants: plan.variants.iter().map(|variant| &*variant.name).collect(),
            columns: plan.runs.iter().flat_map(|run| &run.case).map(|(name, _)| &**name).collect(),
            cases: plan.runs.iter().map(|run| case_key(&run.case)).collect(),
            runs: plan.runs.iter().map(|run| (run_key(&run.case, &run.variant), &run.workload)).collect(),
        }
    }

    /// Checks a row. Errors do not quote the row, because the file may be private.
    fn check(&self, row: &PublishedRow, plan: &Plan) -> Result<(), String> {
        if !self.variants.contains(&*row.variant) {
            let known: Vec<&str> = plan.variants.iter().map(|variant| &*variant.name).collect();
            return Err(format!("the variant is not one of {}, which has {}", plan.name, known.join(", ")));
        }
        if !row.case.iter().all(|(name, _)| self.columns.contains(&**name)) {
            let columns = plan.columns_text();
            return Err(format!(
                "it has a value in a column that the case does not have; in {}, {columns}",
                plan.name
            ));
        }
        if !self.cases.contains(&case_key(&row.case)) {
            return Err(format!("there is no such case; in {}, {}", plan.name, plan.columns_text()));
        }
        let workload = self.runs.get(&run_key(&row.case, &row.variant));
        match workload.and_then(|workload| workload.unit_of(&row.metric)) {
            Some(unit) if unit != row.unit => Err(format!("the unit of this figure must be {unit}")),
            _ => Ok(()),
        }
    }
}

/// Refuses a filter that names a column that the figures do not have.
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

/// Reads the calibration of an experiment.
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
            "no variant has `role = \"baseline\"`; only the baseline can be used for calibration".to_owned(),
        ));
    }
    match plan.variants.iter().find(|variant| variant.name == *name) {
        Some(variant) if variant.role == Role::Baseline => {}
        Some(_) => {
            let problem = format!(
                "variant `{name}` does not have the role \"baseline\"; only the baseline can be used for calibration"
            );
            return Err(refused(problem));
        }
        None => {
            let known: Vec<&str> = plan.variants.iter().map(|variant| &*variant.name).collect();
            return Err(refused(format!("unknown variant `{name}`; variants are {}", known.join(", "))));
        }
    }
    let rows = plan.published.rows.iter().filter(|row| row.variant == *name);
    let names: HashSet<Cow<'_, str>> = rows.flat_map(PublishedRow::names).collect();
    for metric in &calibration.metrics {
        let wanted = metric.get_ref();
        if !names.contains(&**wanted) {
            let problem = format!("there is no published figure `{wanted}` of variant `{name}`");
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

/// Calls `mark` with each published figure that an entry of `written` names, and returns the entries' descriptions.
pub(super) fn named(
    document: Document<'_>,
    written: &[WrittenFigures],
    published: &mut Published,
    mark: impl Fn(&mut PublishedRow),
) -> Result<Vec<NamedFigures>, FileError> {
    written.iter().map(|figures| one_named(document, figures, published, &mark)).collect()
}

fn one_named(
    document: Document<'_>,
    figures: &WrittenFigures,
    published: &mut Published,
    mark: &impl Fn(&mut PublishedRow),
) -> Result<NamedFigures, FileError> {
    let variant = figures.variant.as_ref().map(toml::Spanned::get_ref);
    let none = CaseFilter::default();
    let cases = match &figures.only {
        Some(only) => {
            check_filter(document, only, published)?;
            &only.filter
        }
        None => &none,
    };
    let cases = cases.ready();
    for metric in &figures.metrics {
        let wanted = &**metric.get_ref();
        let is_meant = |row: &&mut PublishedRow| {
            variant.is_none_or(|variant| row.variant == *variant)
                && row.names().any(|name| name == wanted)
                && cases.takes(&row.case)
        };
        let mut found = false;
        for row in published.rows.iter_mut().filter(is_meant) {
            mark(row);
            found = true;
        }
        if !found {
            let of = variant.map_or_else(String::new, |variant| format!(" of variant `{variant}`"));
            let problem = format!("there is no published figure `{wanted}`{of} in the cases of `only`");
            return Err(document.error(metric.span(), problem));
        }
    }
    let metrics: Vec<&str> = figures.metrics.iter().map(|metric| &**metric.get_ref()).collect();
    let of = variant.map_or_else(String::new, |variant| format!(" of {variant}"));
    Ok(NamedFigures { what: metrics.join(", ") + &of, why: figures.why.clone() })
}
