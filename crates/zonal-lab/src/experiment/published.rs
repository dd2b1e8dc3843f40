//! Published figures: tables with a row for each figure, and the part of them that may be calibrated on.
//!
//! The header of a table names the columns of cases, then `variant,metric,unit,value`; an empty cell
//! means that the column says nothing about the row, `#` begins a comment. A [`Baseline`] has no room for
//! figures of other variants: what is calibrated on it cannot have seen them. Neighbours: `resolve.rs`
//! holds tables against the cases of an experiment.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::document::FileError;
use super::keys::{ValueKey, figure_key, value_key};
use super::limits::{LIST_MAX, NAME_BYTES_MAX};
use super::results::{CaseValue, CaseValues};

/// Column of cases that says which part they are of.
pub(super) const PART: &str = "workload";
/// Columns that every table ends with.
const COLUMNS: [&str; 4] = ["variant", "metric", "unit", "value"];

/// Most figures of a table.
const ROWS_MAX: usize = 1 << 16;

/// Which cases are meant: for each column named, the values it may have.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CaseFilter(pub Vec<(String, Vec<CaseValue>)>);

impl CaseFilter {
    /// Whether a case is among them.
    #[must_use]
    pub fn takes(&self, case: &CaseValues) -> bool {
        self.ready().takes(case)
    }

    /// Made ready to look at many cases.
    pub(super) fn ready(&self) -> ReadyFilter<'_> {
        let columns = self.0.iter();
        ReadyFilter(columns.map(|(name, values)| (&**name, values.iter().map(value_key).collect())).collect())
    }
}

/// A [`CaseFilter`] whose values are found at once.
pub(super) struct ReadyFilter<'f>(Vec<(&'f str, HashSet<ValueKey<'f>>)>);

impl ReadyFilter<'_> {
    /// Whether a case is among them.
    pub(super) fn takes(&self, case: &CaseValues) -> bool {
        let has = |name: &str, values: &HashSet<ValueKey<'_>>| {
            case.iter().any(|(column, value)| column == name && values.contains(&value_key(value)))
        };
        self.0.iter().all(|(name, values)| has(name, values))
    }
}

/// A published figure.
#[derive(Clone, PartialEq, Debug)]
pub struct PublishedRow {
    /// The case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// Name of the figure.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Its value.
    pub value: f64,
    /// Where it stands in its table.
    pub line: usize,
}

impl PublishedRow {
    /// What a calibration may call it: its metric, and PART.METRIC.
    pub(super) fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let parts = self.case.iter().filter(|(column, _)| column == PART);
        let of_part = parts.map(|(_, part)| format!("{part}.{}", self.metric).into());
        std::iter::once(Cow::from(&self.metric)).chain(of_part)
    }
}

/// A table of published figures.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Published {
    /// Its file.
    pub file: String,
    /// Names of the columns of cases.
    pub columns: Vec<String>,
    /// The figures.
    pub rows: Vec<PublishedRow>,
    /// Where a figure stands among them, once they have been checked.
    pub(super) index: HashMap<String, usize>,
}

impl Published {
    /// Reads a table.
    ///
    /// # Errors
    /// The first line that is none of a table of figures.
    pub fn read(text: &str, file: &str) -> Result<Self, FileError> {
        let mut reader =
            csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text.as_bytes());
        let refused = |reader: &csv::Reader<_>, problem: String| FileError {
            file: file.to_owned(),
            line: Some(line_before(text, reader.position())),
            problem,
        };
        let header = match reader.headers() {
            Ok(header) => header.clone(),
            Err(error) => return Err(refused(&reader, shape(&error))),
        };
        let names: Vec<&str> = header.iter().collect();
        let Some(columns) = names.strip_suffix(&COLUMNS) else {
            // Not what stands there: the file may be no table at all, but somebody's secret.
            let problem = format!("the header must be the columns of cases and then {}", COLUMNS.join(","));
            return Err(refused(&reader, problem));
        };
        if columns.len() > LIST_MAX {
            let problem = format!("{} columns of cases; at most {LIST_MAX} can be", columns.len());
            return Err(refused(&reader, problem));
        }
        let (mut rows, mut record) = (Vec::new(), csv::StringRecord::new());
        let (mut lines, mut counted) = (0, 0);
        loop {
            match reader.read_record(&mut record) {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => return Err(refused(&reader, shape(&error))),
            }
            if rows.len() == ROWS_MAX {
                return Err(refused(&reader, format!("more than {ROWS_MAX} figures; split the experiment")));
            }
            // Each line is looked at once: tables are long.
            let end = reader.position().byte() as usize;
            lines += text.get(counted..end).unwrap_or_default().matches('\n').count();
            counted = end;
            let trailing = text.get(..end).unwrap_or(text);
            let line = 1 + lines - trailing[trailing.trim_end().len()..].matches('\n').count();
            rows.push(row(&record, columns, line).map_err(|problem| refused(&reader, problem))?);
        }
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Ok(Self { file: file.to_owned(), columns, rows, index: HashMap::new() })
    }

    /// The figure of a case in a variant.
    #[must_use]
    pub fn find(&self, case: &CaseValues, variant: &str, metric: &str) -> Option<&PublishedRow> {
        self.index.get(&figure_key(case, variant, metric)).map(|&at| &self.rows[at])
    }
}

fn row(record: &csv::StringRecord, columns: &[&str], line: usize) -> Result<PublishedRow, String> {
    let cell = |at: usize| record.get(at).unwrap_or_default();
    let cells = columns.iter().enumerate().filter(|(at, _)| !cell(*at).is_empty());
    let case = cells.map(|(at, name)| ((*name).to_owned(), CaseValue::of(cell(at)))).collect();
    let [variant, metric, unit, value] = std::array::from_fn(|at| cell(columns.len() + at));
    for (name, text) in COLUMNS.into_iter().zip([variant, metric, unit]) {
        if text.is_empty() {
            return Err(format!("the {name} is missing"));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(format!("the {name} has {} bytes; at most {NAME_BYTES_MAX} can be", text.len()));
        }
    }
    let number = value.parse().ok().filter(|value: &f64| value.is_finite());
    // Not what stands there, as with the header.
    let number = number.ok_or("the value must be a finite number")?;
    Ok(PublishedRow {
        case,
        variant: variant.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        value: number,
        line,
    })
}

/// The line that ends at a position: a record's own position is that of the comments before it.
fn line_before(text: &str, position: &csv::Position) -> usize {
    let read = text.get(..position.byte() as usize).unwrap_or(text);
    1 + read.trim_end().matches('\n').count()
}

fn shape(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells; the header has {expected_len}")
        }
        _ => "it must be cells with commas between".to_owned(),
    }
}

/// A figure of the baseline.
#[derive(Clone, PartialEq, Debug)]
pub struct BaselineRow {
    /// The case.
    pub case: CaseValues,
    /// Name of the figure.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Its value.
    pub value: f64,
}

/// Published figures of how things were before a mechanism: what may be calibrated on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Baseline {
    rows: Vec<BaselineRow>,
}

impl Baseline {
    /// The figures of the variant `baseline` alone, of some metrics and cases; all others are dropped.
    #[must_use]
    pub fn of(published: &Published, baseline: &str, metrics: &[String], cases: &CaseFilter) -> Self {
        let (metrics, cases) =
            (metrics.iter().map(|metric| &**metric).collect::<HashSet<&str>>(), cases.ready());
        let wanted = |row: &&PublishedRow| {
            let is_named = || row.names().any(|name| metrics.contains(&*name));
            row.variant == baseline && is_named() && cases.takes(&row.case)
        };
        let rows = published.rows.iter().filter(wanted).map(|row| BaselineRow {
            case: row.case.clone(),
            metric: row.metric.clone(),
            unit: row.unit.clone(),
            value: row.value,
        });
        Self { rows: rows.collect() }
    }

    /// The figures, in the order of the table.
    #[must_use]
    pub fn rows(&self) -> &[BaselineRow] {
        &self.rows
    }
}
