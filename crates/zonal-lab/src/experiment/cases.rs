//! The cases of a part: the product of its axes, or an explicit list.
//!
//! An *axis* is a setting together with a list of values for it. Related files: `experiment/layer.rs` defines
//! settings.

use std::collections::HashSet;

use toml::Spanned;
use toml::de::DeValue;

use super::document::{Document, FileError, Section, Span, Table, check_count, check_name};
use super::keys::case_key;
use super::layer::{Group, Layer, Setting, settings};
use super::limits::LIST_MAX;
use super::results::{CaseValue, CaseValues};

/// Name of the column for a case that has a label but no distinguishing settings.
const LABEL: &str = "case";
/// Columns of the results. Cases cannot have columns with these names.
const TAKEN: [&str; 7] = ["workload", "variant", "metric", "unit", "predicted", "published", "error_pct"];

/// Maximum number of runs in an experiment. A limit is needed because the product of the axes grows quickly.
pub(super) const RUNS_MAX: usize = 4096;

/// A case of a part.
#[derive(Clone, Debug)]
pub(super) struct Case<'t> {
    /// Values that distinguish the case from other cases.
    pub(super) values: CaseValues,
    /// Location in the file.
    pub(super) span: Span,
    /// Settings of the case.
    pub(super) layer: Layer<'t>,
}

impl Case<'_> {
    /// Creates the only case of a part. This case has no distinguishing values.
    pub(super) fn only(span: Span) -> Self {
        Self { values: Vec::new(), span, layer: Layer::default() }
    }
}

/// Returns the product of the axes. The first axis changes most slowly.
pub(super) fn of_axes<'t>(
    document: Document<'t>,
    axes: Spanned<Table<'t>>,
) -> Result<Vec<Case<'t>>, FileError> {
    let span = axes.span();
    let mut cases = vec![Case::only(span.clone())];
    let axes = settings(document, axes.into_inner())?;
    check_count(document, "cases", axes.len(), LIST_MAX, span)?;
    for axis in axes {
        let name = column(document, &axis)?;
        if let DeValue::Array(values) = axis.value.get_ref() {
            check_count(document, &name, values.len(), RUNS_MAX, axis.key.span())?;
        }
        let values = match axis.value.get_ref() {
            DeValue::Array(values) => values.iter().cloned().collect(),
            _ => vec![axis.value.clone()],
        };
        if values.is_empty() {
            return Err(document.error(axis.key.span(), format!("`{name}` has no values; add one or more")));
        }
        let (mut settings, mut seen) = (Vec::new(), HashSet::new());
        let Setting { group, key, .. } = axis.clone();
        for value in values {
            let setting = Setting { group, key: key.clone(), value };
            let value = case_value(document, &name, &setting)?;
            if !seen.insert(case_key(&vec![(String::new(), value.clone())])) {
                let problem = format!("`{name}` has {value} twice; values must be unique");
                return Err(document.error(setting.value.span(), problem));
            }
            settings.push((value, setting));
        }
        if cases.len() * settings.len() > RUNS_MAX {
            let problem =
                format!("`{name}` raises the product of all axes above {RUNS_MAX} cases; use fewer values");
            return Err(document.error(axis.key.span(), problem));
        }
        let mut product = Vec::with_capacity(cases.len() * settings.len());
        for case in &cases {
            for (value, setting) in &settings {
                let mut case = case.clone();
                case.values.push((name.clone(), value.clone()));
                case.layer.set(setting.clone());
                product.push(case);
            }
        }
        cases = product;
    }
    Ok(cases)
}

/// Reads one case of an explicit list.
pub(super) fn of_section(mut section: Section<'_>) -> Result<Case<'_>, FileError> {
    let document = section.document;
    let mut case = Case::only(section.span.clone());
    let label: Option<Spanned<CaseValue>> = section.optional(LABEL)?;
    section.check_size("case")?;
    for setting in settings(document, section.rest())? {
        if label.is_none() {
            let name = column(document, &setting)?;
            let value = case_value(document, &name, &setting)?;
            case.values.push((name, value));
        }
        case.layer.set(setting);
    }
    if let Some(label) = label {
        case.span = label.span();
        let label = label.into_inner();
        fit(document, LABEL, &label, case.span.clone())?;
        case.values = vec![(LABEL.to_owned(), label)];
    }
    Ok(case)
}

/// Returns the column name of a setting.
fn column(document: Document<'_>, setting: &Setting<'_>) -> Result<String, FileError> {
    let name = setting.name();
    check_name(document, "the name of a column", &name, setting.key.span())?;
    let taken = setting.group == Group::Workload && (TAKEN.contains(&&*name) || name == LABEL);
    if taken {
        let problem = format!("`{name}` cannot be an axis; results already have a column of that name");
        return Err(document.error(setting.key.span(), problem));
    }
    Ok(name)
}

fn case_value(document: Document<'_>, name: &str, setting: &Setting<'_>) -> Result<CaseValue, FileError> {
    let span = setting.value.span();
    let lists =
        matches!(setting.value.get_ref(), DeValue::Array(_) | DeValue::Table(_) | DeValue::Boolean(_));
    if lists {
        let problem = format!(
            "`{name}`: a case is identified by numbers and names; list [[part.case]] with `{LABEL} = ...` instead"
        );
        return Err(document.error(span, problem));
    }
    let value = document.read(name, setting.value.clone())?;
    fit(document, name, &value, span)?;
    Ok(value)
}

/// Refuses numbers that are not finite and names that are too long.
fn fit(document: Document<'_>, name: &str, value: &CaseValue, span: Span) -> Result<(), FileError> {
    match value {
        CaseValue::Number(number) if !number.is_finite() => {
            Err(document.error(span, format!("`{name}` is {number}; it must be a finite number or a name")))
        }
        CaseValue::Text(text) => check_name(document, &format!("`{name}`"), text, span),
        CaseValue::Number(_) => Ok(()),
    }
}
