//! Published figures: tables with one row per figure, and the subset that a calibration may use.
//!
//! A table's header names the columns of cases, followed by `variant,metric,unit,value`. An empty cell means that the
//! column does not apply to the row; `#` starts a comment. A [`Baseline`] contains only figures of the baseline
//! variant, so a calibration cannot use figures of other variants. Related files: `experiment/figures.rs` matches
//! tables to the cases of an experiment.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::document::FileError;
use super::keys::{ValueKey, figure_key, value_key};
use super::limits::{LIST_MAX, NAME_BYTES_MAX};
use super::results::{CaseValue, CaseValues};

/// Case column that contains the name of the part.
pub(super) const PART: &str = "workload";
/// The last columns of every table.
const COLUMNS: [&str; 4] = ["variant", "metric", "unit", "value"];

/// Maximum number of figures in a table.
const ROWS_MAX: usize = 1 << 16;

/// A selection of cases: the allowed values for each named column.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CaseFilter(pub Vec<(String, Vec<CaseValue>)>);

impl CaseFilter {
    /// Whether the filter selects a case.
    #[must_use]
    pub fn takes(&self, case: &CaseValues) -> bool {
        self.ready().takes(case)
    }

    /// Prepares the filter for matching many cases.
    pub(super) fn ready(&self) -> ReadyFilter<'_> {
        let columns = self.0.iter();
        ReadyFilter(columns.map(|(name, values)| (&**name, values.iter().map(value_key).collect())).collect())
    }
}

/// A [`CaseFilter`] with its values in hash sets.
pub(super) struct ReadyFilter<'f>(Vec<(&'f str, HashSet<ValueKey<'f>>)>);

impl ReadyFilter<'_> {
    /// Whether the filter selects a case.
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
    /// Values that distinguish the case.
    pub case: CaseValues,
    /// Name of the variant.
    pub variant: String,
    /// Name of the metric.
    pub metric: String,
    /// Unit of the value.
    pub unit: String,
    /// The published value.
    pub value: f64,
    /// Line number of the figure in its table.
    pub line: usize,
    /// Whether the experiment's file says that a cost or a rule was chosen by the figure.
    pub fitted: bool,
    /// Whether the experiment's file says that the model does not explain the figure.
    pub open: bool,
}

impl PublishedRow {
    /// Returns the names by which an experiment's file may refer to the figure: METRIC and PART.METRIC.
    pub(super) fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let parts = self.case.iter().filter(|(column, _)| column == PART);
        let of_part = parts.map(|(_, part)| format!("{part}.{}", self.metric).into());
        std::iter::once(Cow::from(&self.metric)).chain(of_part)
    }
}

/// A table of published figures.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Published {
    /// Name of its file.
    pub file: String,
    /// Names of the case columns.
    pub columns: Vec<String>,
    /// Figures in the order of the table.
    pub rows: Vec<PublishedRow>,
    /// Indices into `rows` by the key of the figure. `experiment/figures.rs` fills this map while it checks the rows.
    pub(super) index: HashMap<String, usize>,
}

impl Published {
    /// Reads a table.
    ///
    /// # Errors
    /// Returns the first line that is not valid in a table of figures.
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
            // The error does not quote the text: the file might not be a table, and its contents might be private.
            let problem = format!("the header must be the columns of cases and then {}", COLUMNS.join(","));
            return Err(refused(&reader, problem));
        };
        if columns.len() > LIST_MAX {
            let problem = format!("{} columns of cases; the maximum is {LIST_MAX}", columns.len());
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
            // Each line is counted only once, because tables can be long.
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

    /// Returns the published figure of a metric, for a case and a variant.
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
            return Err(format!("the {name} has {} bytes; the maximum is {NAME_BYTES_MAX}", text.len()));
        }
    }
    let number = value.parse().ok().filter(|value: &f64| value.is_finite());
    // The error does not quote the text, for the same reason as in the header.
    let number = number.ok_or("the value must be a finite number")?;
    Ok(PublishedRow {
        case,
        variant: variant.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        value: number,
        line,
        fitted: false,
        open: false,
    })
}

/// Returns the number of the line that ends at a position. The position of a record itself cannot be used, because it
/// is the position of the comments before the record.
fn line_before(text: &str, position: &csv::Position) -> usize {
    let read = text.get(..position.byte() as usize).unwrap_or(text);
    1 + read.trim_end().matches('\n').count()
}

fn shape(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells; there must be {expected_len}, as in the header")
        }
        _ => "it must be cells separated by commas".to_owned(),
    }
}

/// A figure of the baseline.
#[derive(Clone, PartialEq, Debug)]
pub struct BaselineRow {
    /// Values that distinguish the case.
    pub case: CaseValues,
    /// Name of the metric.
    pub metric: String,
    /// Unit of the value.
    pub unit: String,
    /// The published value.
    pub value: f64,
}

/// Published figures of the state before a mechanism was introduced. Only these figures may be used for calibration.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Baseline {
    rows: Vec<BaselineRow>,
}

impl Baseline {
    /// Selects the figures of the variant `baseline` for some metrics and cases. All other figures are dropped.
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

    /// Returns the figures, in the order of the table.
    #[must_use]
    pub fn rows(&self) -> &[BaselineRow] {
        &self.rows
    }
}
