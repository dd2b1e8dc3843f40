//! Writes results as one JSON document, for scripts. The keys of the document and their order are stable.
//!
//! The same seed produces the same bytes: the document contains no data about the host, and floats are rounded to
//! nine significant digits. Related files: `experiment/results.rs` defines the results.

use std::path::{Path, PathBuf};

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use zonal_machine::output::{self, Kind, Replace, WriteError};

use super::answer::Answer;
use super::results::{Effective, NamedFigures, Parameter, Results, Row, VariantInfo};

/// Schema identifier of experiment documents.
const SCHEMA: &str = "zonal.lab.v1";

/// The results of one experiment, as an element of a document with several experiments.
#[derive(Clone, Copy, Debug)]
pub struct ResultDocument<'r>(pub &'r Results);

/// The results as a standalone document, which includes the schema identifier.
struct Top<'r>(&'r Results);

impl ResultDocument<'_> {
    /// Returns the text of a standalone document, with a final line break.
    #[must_use]
    pub fn text(self) -> String {
        serde_json::to_string_pretty(&Top(self.0)).expect("names and numbers are always JSON") + "\n"
    }
}

/// Name of the result file.
pub(crate) const RESULT_FILE: &str = "result.json";

/// Writes `DIRECTORY/EXPERIMENT/result.json` atomically and returns its path.
///
/// # Errors
/// Returns an error if an existing file must not be replaced, or if the file system reports an error.
pub fn write(directory: &Path, results: &Results, replace: Replace) -> Result<PathBuf, WriteError> {
    let path = output::folder(directory, &results.experiment)?.join(RESULT_FILE);
    output::write(&path, &ResultDocument(results).text(), Kind::Results, replace)?;
    Ok(path)
}

/// Rounds to nine significant digits. The result is more precise than any prediction and short to print.
fn rounded(value: f64) -> f64 {
    format!("{value:.8e}").parse().unwrap_or(value)
}

impl Serialize for ResultDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        entries(self.0, &mut map)?;
        map.end()
    }
}

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema", SCHEMA)?;
        entries(self.0, &mut map)?;
        map.end()
    }
}

fn entries<M: SerializeMap>(results: &Results, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("experiment", &results.experiment)?;
    map.serialize_entry("seed", &results.seed)?;
    match &results.machines[..] {
        [only] => map.serialize_entry("machine", only)?,
        several => map.serialize_entry("machine", several)?,
    }
    map.serialize_entry("question", &results.question.text)?;
    map.serialize_entry("answer", &results.answer().as_ref().map(Answered::of))?;
    map.serialize_entry("against_published", &results.against_published())?;
    map.serialize_entry("effective", &EffectiveValues(&results.effective, &results.variants))?;
    map.serialize_entry("parameters", &Parameters(&results.parameters))?;
    map.serialize_entry("calibrated_on", &results.calibrated_on)?;
    map.serialize_entry("fitted", &Named(&results.fitted))?;
    map.serialize_entry("open", &Named(&results.open))?;
    if results.missing != 0 {
        map.serialize_entry("missing_runs", &results.missing)?;
    }
    map.serialize_entry("rows", &Rows(&results.rows))
}

struct Parameters<'r>(&'r [Parameter]);

impl Serialize for Parameters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Value<'r> {
            value: f64,
            calibrated: bool,
            why: &'r str,
        }
        serializer.collect_map(self.0.iter().map(|parameter| {
            let Parameter { name, value, calibrated, why } = parameter;
            (name, Value { value: rounded(*value), calibrated: *calibrated, why })
        }))
    }
}

/// The answer to the experiment's question.
#[derive(Serialize)]
struct Answered<'r> {
    text: &'r str,
    survives: Option<bool>,
    flips: &'r [String],
}

impl<'r> Answered<'r> {
    fn of(answer: &'r Answer) -> Self {
        Self { text: &answer.text, survives: answer.survives, flips: &answer.flips }
    }
}

struct Named<'r>(&'r [NamedFigures]);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct One<'r> {
            figures: &'r str,
            why: &'r str,
        }
        serializer.collect_seq(self.0.iter().map(|one| One { figures: &one.what, why: &one.why }))
    }
}

struct EffectiveValues<'r>(&'r [Effective], &'r [VariantInfo]);

impl Serialize for EffectiveValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Value<'r> {
            name: &'r str,
            workload: Option<&'r str>,
            differs: bool,
            values: ByVariant<'r>,
        }
        let Self(all, variants) = self;
        serializer.collect_seq(all.iter().map(|one| Value {
            name: &one.name,
            workload: one.part.as_deref(),
            differs: one.differs,
            values: ByVariant(&one.values, variants),
        }))
    }
}

struct ByVariant<'r>(&'r [String], &'r [VariantInfo]);

impl Serialize for ByVariant<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.1.iter().map(|variant| &variant.name).zip(self.0))
    }
}

struct Rows<'r>(&'r [Row]);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.0.len()))?;
        self.0.iter().try_for_each(|row| rows.serialize_element(&OneRow(row)))?;
        rows.end()
    }
}

struct OneRow<'r>(&'r Row);

impl Serialize for OneRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut map = serializer.serialize_map(None)?;
        row.case.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.serialize_entry("variant", &row.variant)?;
        map.serialize_entry("metric", &row.metric)?;
        map.serialize_entry("unit", &row.unit)?;
        map.serialize_entry("predicted", &rounded(row.predicted))?;
        map.serialize_entry("published", &row.published.map(rounded))?;
        map.serialize_entry("error_pct", &row.error_pct().map(rounded))?;
        map.serialize_entry("status", &row.status())?;
        map.serialize_entry("change_pct", &row.change_pct().map(rounded))?;
        map.serialize_entry("allocator_change_pct", &row.allocator_change_pct().map(rounded))?;
        map.serialize_entry("published_change_pct", &row.published_change_pct().map(rounded))?;
        map.serialize_entry("spread", &row.spread().map(|(least, most)| [rounded(least), rounded(most)]))?;
        map.end()
    }
}
