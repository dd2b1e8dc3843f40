//! The structure of an experiment file. This module checks only types, name lengths and the numbers of entries.
//!
//! Related files: `experiment/document.rs` reads sections, `experiment/resolve.rs` turns the result into a plan.

use serde::Deserialize;
use toml::Spanned;

use super::cases::{self, Case, RUNS_MAX};
use super::document::{Document, FileError, Section, Span, check_count, check_name};
use super::layer::{Group, Layer, Setting};
use super::limits::{LIST_MAX, PROGRAMS_MAX};
use super::published::CaseFilter;
use super::results::{CaseValue, Role};

/// An experiment.
#[derive(Debug)]
pub(super) struct Written<'t> {
    pub(super) name: Spanned<String>,
    pub(super) title: String,
    pub(super) source: String,
    pub(super) about: String,
    pub(super) assumptions: Vec<String>,
    pub(super) parts: Vec<WrittenPart<'t>>,
    pub(super) variants: Vec<WrittenVariant<'t>>,
    pub(super) published: Option<WrittenPublished>,
    pub(super) parameters: Vec<WrittenParameter>,
    pub(super) calibration: Option<WrittenCalibration>,
    pub(super) fitted: Vec<WrittenFigures>,
    pub(super) open: Vec<WrittenFigures>,
    pub(super) question: Option<WrittenQuestion>,
}

/// A machine, a workload, and the cases in which the workload runs.
#[derive(Debug)]
pub(super) struct WrittenPart<'t> {
    pub(super) span: Span,
    pub(super) name: Option<Spanned<String>>,
    pub(super) machine: Spanned<String>,
    /// The programs. A single one has no name, and its fields no prefix.
    pub(super) programs: Vec<WrittenProgram>,
    pub(super) layer: Layer<'t>,
    /// Location of the workload's table, or of the first program.
    pub(super) workload: Span,
    pub(super) cases: Vec<Case<'t>>,
}

/// A program. Its fields are in the layer of its part, with the program's name as prefix.
#[derive(Debug)]
pub(super) struct WrittenProgram {
    /// Name, and the CPUs that the program may use; `None` if the part has one workload.
    pub(super) named: Option<(Spanned<String>, Spanned<String>)>,
    pub(super) kind: Spanned<String>,
    pub(super) span: Span,
}

#[derive(Debug)]
pub(super) struct WrittenVariant<'t> {
    pub(super) name: Spanned<String>,
    pub(super) role: Spanned<Role>,
    pub(super) about: String,
    pub(super) layer: Layer<'t>,
}

#[derive(Debug)]
pub(super) struct WrittenPublished {
    pub(super) file: Spanned<String>,
    pub(super) only: Option<WrittenFilter>,
}

#[derive(Debug)]
pub(super) struct WrittenParameter {
    pub(super) name: Spanned<String>,
    pub(super) calibrated: bool,
    pub(super) why: String,
}

#[derive(Debug)]
pub(super) struct WrittenCalibration {
    pub(super) variant: Spanned<String>,
    pub(super) metrics: Vec<Spanned<String>>,
    pub(super) only: Option<WrittenFilter>,
    pub(super) about: Option<String>,
}

/// Published figures, and what is to be known about them.
#[derive(Debug)]
pub(super) struct WrittenFigures {
    pub(super) variant: Option<Spanned<String>>,
    pub(super) metrics: Vec<Spanned<String>>,
    pub(super) only: Option<WrittenFilter>,
    pub(super) why: String,
}

/// What the experiment is meant to find out.
#[derive(Debug)]
pub(super) struct WrittenQuestion {
    pub(super) text: String,
    pub(super) metrics: Vec<Spanned<String>>,
    pub(super) variant: Option<Spanned<String>>,
    pub(super) margin_pct: Option<Spanned<f64>>,
}

/// A filter and the location of each column.
#[derive(Debug)]
pub(super) struct WrittenFilter {
    pub(super) filter: CaseFilter,
    pub(super) spans: Vec<Span>,
}

impl<'t> Written<'t> {
    /// Reads a file.
    pub(super) fn read(document: Document<'t>) -> Result<Self, FileError> {
        let mut file = document.parse()?;
        let written = Self {
            name: name(&mut file)?,
            title: file.required("title")?,
            source: file.or_default("source")?,
            about: file.or_default("about")?,
            assumptions: file.or_default("assumptions")?,
            parts: file.sections("part", LIST_MAX)?.into_iter().map(part).collect::<Result<_, _>>()?,
            variants: file
                .sections("variant", LIST_MAX)?
                .into_iter()
                .map(variant)
                .collect::<Result<_, _>>()?,
            published: file.section("published")?.map(published).transpose()?,
            parameters: file
                .sections("parameter", LIST_MAX)?
                .into_iter()
                .map(parameter)
                .collect::<Result<_, _>>()?,
            calibration: file.section("calibration")?.map(calibration).transpose()?,
            fitted: figures(&mut file, "fitted")?,
            open: figures(&mut file, "open")?,
            question: file.section("question")?.map(question).transpose()?,
        };
        let span = file.span.clone();
        file.finish()?;
        for (key, missing) in [("part", written.parts.is_empty()), ("variant", written.variants.is_empty())] {
            if missing {
                return Err(document.error(span, format!("there is no [[{key}]]; at least one is needed")));
            }
        }
        Ok(written)
    }
}

/// Reads the required name of a section.
fn name(section: &mut Section<'_>) -> Result<Spanned<String>, FileError> {
    let name: Spanned<String> = section.required("name")?;
    check_name(section.document, "name", name.get_ref(), name.span())?;
    Ok(name)
}

fn part(mut section: Section<'_>) -> Result<WrittenPart<'_>, FileError> {
    let name: Option<Spanned<String>> = section.optional("name")?;
    if let Some(name) = &name {
        check_name(section.document, "name", name.get_ref(), name.span())?;
    }
    let machine = section.required("machine")?;
    let mut layer = layer(&mut section)?;
    let workload = section.section(Group::Workload.name())?;
    let list = section.sections("program", PROGRAMS_MAX)?;
    let (programs, workload) = match (workload, list.is_empty()) {
        (Some(workload), true) => {
            let span = workload.span.clone();
            (vec![program(workload, &mut layer, None)?], span)
        }
        (None, false) => (named_programs(list, &mut layer)?, section.span.clone()),
        (None, true) => return Err(section.missing("workload")),
        (Some(workload), false) => {
            let problem =
                "a part must have either a workload or a list of [[part.program]], which run together";
            return Err(section.document.error(workload.span, problem));
        }
    };
    let cases = part_cases(&mut section)?;
    let span = section.span.clone();
    section.finish()?;
    Ok(WrittenPart { span, name, machine, programs, layer, workload, cases })
}

fn named_programs<'t>(
    list: Vec<Section<'t>>,
    layer: &mut Layer<'t>,
) -> Result<Vec<WrittenProgram>, FileError> {
    let mut programs: Vec<WrittenProgram> = Vec::new();
    for mut section in list {
        let name = name(&mut section)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let is_known = |other: &WrittenProgram| {
            other.named.as_ref().is_some_and(|(other, _)| other.get_ref() == name.get_ref())
        };
        let problem = match &**name.get_ref() {
            "" => Some("a program must have a name".to_owned()),
            text if !text.chars().all(is_plain) || Group::named(text).is_some() => Some(format!(
                "name = {text:?}: must be letters, digits, `-` and `_`, and not the name of a table of settings"
            )),
            text if programs.iter().any(is_known) => {
                Some(format!("program `{text}` is defined twice; names must be unique"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(section.document.error(name.span(), problem));
        }
        let cpus = section.required("on_cpus")?;
        programs.push(program(section, layer, Some((name, cpus)))?);
    }
    Ok(programs)
}

/// Reads a program, and moves its fields to the layer of its part.
fn program<'t>(
    mut section: Section<'t>,
    layer: &mut Layer<'t>,
    named: Option<(Spanned<String>, Spanned<String>)>,
) -> Result<WrittenProgram, FileError> {
    let kind = section.required("kind")?;
    let span = section.span.clone();
    section.check_size(Group::Workload.name())?;
    for (key, value) in section.rest() {
        let key = match &named {
            Some((name, _)) => {
                Spanned::new(key.span(), format!("{}.{}", name.get_ref(), key.get_ref()).into())
            }
            None => key,
        };
        layer.set(Setting { group: Group::Workload, key, value });
    }
    Ok(WrittenProgram { named, kind, span })
}

/// Reads the settings that both parts and variants can have.
fn layer<'t>(section: &mut Section<'t>) -> Result<Layer<'t>, FileError> {
    let mut layer = Layer::default();
    for group in [Group::Hardware, Group::Config] {
        if let Some(table) = section.table(group.name())? {
            check_count(section.document, group.name(), table.get_ref().len(), LIST_MAX, table.span())?;
            layer.set_all(group, table.into_inner());
        }
    }
    Ok(layer)
}

fn part_cases<'t>(section: &mut Section<'t>) -> Result<Vec<Case<'t>>, FileError> {
    let document = section.document;
    let axes = section.table("cases")?;
    let list = section.sections("case", RUNS_MAX)?;
    match (axes, list.is_empty()) {
        (Some(axes), false) => {
            let problem = "a part must have either `cases`, all of whose combinations are run, or a list of [[part.case]]";
            Err(document.error(axes.span(), problem))
        }
        (Some(axes), true) => cases::of_axes(document, axes),
        (None, true) => Ok(vec![Case::only(section.span.clone())]),
        (None, false) => list.into_iter().map(cases::of_section).collect(),
    }
}

fn variant(mut section: Section<'_>) -> Result<WrittenVariant<'_>, FileError> {
    let name = name(&mut section)?;
    let role = section.required("role")?;
    let about = section.or_default("about")?;
    let layer = layer(&mut section)?;
    section.finish()?;
    Ok(WrittenVariant { name, role, about, layer })
}

fn published(mut section: Section<'_>) -> Result<WrittenPublished, FileError> {
    let file = section.required("file")?;
    let only = filter(&mut section)?;
    section.finish()?;
    Ok(WrittenPublished { file, only })
}

fn parameter(mut section: Section<'_>) -> Result<WrittenParameter, FileError> {
    let name = name(&mut section)?;
    let calibrated = section.or_default("calibrated")?;
    let why = section.required("why")?;
    section.finish()?;
    Ok(WrittenParameter { name, calibrated, why })
}

fn calibration(mut section: Section<'_>) -> Result<WrittenCalibration, FileError> {
    let variant = section.required("variant")?;
    let metrics = metrics(&mut section)?.ok_or_else(|| section.missing("metrics"))?;
    let only = filter(&mut section)?;
    let about = section.optional("about")?;
    section.finish()?;
    Ok(WrittenCalibration { variant, metrics, only, about })
}

/// Reads a list of sections that each name published figures.
fn figures(file: &mut Section<'_>, key: &'static str) -> Result<Vec<WrittenFigures>, FileError> {
    let one = |mut section: Section<'_>| {
        let variant = section.optional("variant")?;
        let metrics = metrics(&mut section)?.ok_or_else(|| section.missing("metrics"))?;
        let only = filter(&mut section)?;
        let why = section.required("why")?;
        section.finish()?;
        Ok(WrittenFigures { variant, metrics, only, why })
    };
    file.sections(key, LIST_MAX)?.into_iter().map(one).collect()
}

fn question(mut section: Section<'_>) -> Result<WrittenQuestion, FileError> {
    let text = section.or_default("text")?;
    let metrics = metrics(&mut section)?.unwrap_or_default();
    let variant = section.optional("variant")?;
    let margin_pct = section.optional("margin_pct")?;
    section.finish()?;
    Ok(WrittenQuestion { text, metrics, variant, margin_pct })
}

/// Reads a list of metrics, if it is present.
fn metrics(section: &mut Section<'_>) -> Result<Option<Vec<Spanned<String>>>, FileError> {
    let metrics: Option<Spanned<Vec<Spanned<String>>>> = section.optional("metrics")?;
    let Some(metrics) = metrics else { return Ok(None) };
    check_count(section.document, "metrics", metrics.get_ref().len(), LIST_MAX, metrics.span())?;
    let metrics = metrics.into_inner();
    for metric in &metrics {
        check_name(section.document, "a name in `metrics`", metric.get_ref(), metric.span())?;
    }
    Ok(Some(metrics))
}

/// Values of a column in a filter.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a number, a name or a list of them")]
enum OneOrMore {
    One(CaseValue),
    More(Vec<CaseValue>),
}

fn filter(section: &mut Section<'_>) -> Result<Option<WrittenFilter>, FileError> {
    let document = section.document;
    let Some(table) = section.table("only")? else { return Ok(None) };
    check_count(document, "only", table.get_ref().len(), LIST_MAX, table.span())?;
    let (mut columns, mut spans, mut all) = (Vec::new(), Vec::new(), 0);
    for (name, value) in table.into_inner() {
        let span = name.span();
        let name = name.into_inner().into_owned();
        let values = match document.read(&name, value)? {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        };
        all += values.len();
        check_count(document, if all == values.len() { &name } else { "only" }, all, RUNS_MAX, span.clone())?;
        spans.push(span);
        columns.push((name, values));
    }
    Ok(Some(WrittenFilter { filter: CaseFilter(columns), spans }))
}
