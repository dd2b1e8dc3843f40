//! The results of an experiment, as a table and as the files that the command line writes.

use std::path::PathBuf;

use pyo3::prelude::*;
use zonal_lab::experiment::results::{CaseValue, Results as Found, Role, Row};
use zonal_lab::experiment::{self, Plan, ResultDocument};
use zonal_lab::report;

use crate::failures::write_error;
use crate::machine::replace;
use crate::table::{Column, Table, Values};

/// The results of one experiment with one seed.
#[pyclass(frozen, module = "zonal.lab")]
pub(crate) struct Results {
    found: Found,
    hash: String,
    /// Names of the machines, one for each row.
    machines: Vec<String>,
}

impl Results {
    pub(super) fn new(plan: &Plan, found: Found, hash: &str) -> Self {
        // Rows are in the order of the runs, and all rows of a run are adjacent. Stopped runs have no rows.
        let mut runs = plan.runs.iter();
        let mut current = runs.next();
        let mut machines = Vec::with_capacity(found.rows.len());
        for row in &found.rows {
            while current.is_some_and(|run| run.case != row.case || run.variant != row.variant) {
                current = runs.next();
            }
            machines.push(current.map_or_else(String::new, |run| run.model.name.clone()));
        }
        Self { found, hash: hash.to_owned(), machines }
    }

    /// Returns the values of a column that distinguishes cases.
    fn case_values(&self, name: &str) -> Values {
        let value =
            |row: &Row| row.case.iter().find(|(column, _)| column == name).map(|(_, value)| value.clone());
        let values: Vec<Option<CaseValue>> = self.found.rows.iter().map(value).collect();
        let number = |value: &Option<CaseValue>| match value {
            Some(CaseValue::Number(number)) => Some(*number),
            _ => None,
        };
        let has_text = values.iter().any(|value| matches!(value, Some(CaseValue::Text(_))));
        let is_whole = |value: &f64| value.fract() == 0.0 && value.abs() < 1e15;
        if has_text {
            values.into_iter().map(|value| value.map(|value| value.to_string())).collect()
        } else if values.iter().filter_map(number).all(|number| is_whole(&number)) {
            values.iter().map(|value| number(value).map(|number| number as i64)).collect()
        } else {
            values.iter().map(number).collect()
        }
    }

    fn role(&self, variant: &str) -> &'static str {
        let info = self.found.variants.iter().find(|info| info.name == variant);
        match info.map(|info| info.role) {
            Some(Role::Baseline) => "baseline",
            Some(Role::Published) => "published",
            Some(Role::Ours) | None => "ours",
        }
    }
}

#[pymethods]
impl Results {
    /// Returns the name of the experiment.
    #[getter]
    fn experiment(&self) -> &str {
        &self.found.experiment
    }

    /// Returns the seed of the experiment.
    #[getter]
    const fn seed(&self) -> u64 {
        self.found.seed
    }

    /// Returns the hash of the specification, in hexadecimal.
    #[getter]
    fn spec_hash(&self) -> &str {
        &self.hash
    }

    /// Returns all results: a row for each case, variant and metric, in the order of the file.
    ///
    /// Columns: experiment, spec_hash, seed, machine; one for each setting that distinguishes cases; variant, role,
    /// metric, unit, predicted (in that unit), published (None if unknown), error_pct (deviation from the published
    /// value), calibrated_on; and one for each documented parameter, such as hardware.transfer_ns.
    #[getter]
    fn table(&self) -> Table {
        let rows = &self.found.rows;
        let same = |name: &str, text: &str| Column::new(name, rows.iter().map(|_| text));
        let mut columns = vec![
            same("experiment", &self.found.experiment),
            same("spec_hash", &self.hash),
            Column::new("seed", rows.iter().map(|_| self.found.seed)),
            Column::new("machine", self.machines.iter().map(|name| &**name)),
        ];
        let mut names: Vec<&String> = Vec::new();
        for (name, _) in rows.iter().flat_map(|row| &row.case) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        columns.extend(
            names.into_iter().map(|name| Column { name: name.clone(), values: self.case_values(name) }),
        );
        columns.extend([
            Column::new("variant", rows.iter().map(|row| &*row.variant)),
            Column::new("role", rows.iter().map(|row| self.role(&row.variant))),
            Column::new("metric", rows.iter().map(|row| &*row.metric)),
            Column::new("unit", rows.iter().map(|row| &*row.unit)),
            Column::new("predicted", rows.iter().map(|row| row.predicted)),
            Column::new("published", rows.iter().map(|row| row.published)),
            Column::new("error_pct", rows.iter().map(Row::error_pct)),
            Column::new("calibrated_on", rows.iter().map(|row| row.calibrated_on)),
        ]);
        for parameter in &self.found.parameters {
            if columns.iter().all(|column| column.name != parameter.name) {
                columns.push(Column::new(&*parameter.name, rows.iter().map(|_| parameter.value)));
            }
        }
        Table::new(columns)
    }

    /// Returns the documented parameters: name, value, calibrated, why.
    #[getter]
    fn parameters(&self) -> Table {
        let parameters = &self.found.parameters;
        Table::new(vec![
            Column::new("name", parameters.iter().map(|parameter| &*parameter.name)),
            Column::new("value", parameters.iter().map(|parameter| parameter.value)),
            Column::new("calibrated", parameters.iter().map(|parameter| parameter.calibrated)),
            Column::new("why", parameters.iter().map(|parameter| &*parameter.why)),
        ])
    }

    /// Counts of allocator events: case (a text), variant, event, count.
    #[getter]
    fn events(&self) -> Table {
        let rows = self
            .found
            .runs
            .iter()
            .flat_map(|run| run.outcome.events.iter().map(move |(event, count)| (run, *event, *count)));
        let rows: Vec<_> = rows.collect();
        let case = |run: &experiment::results::RunResult| experiment::results::case_text(&run.case);
        Table::new(vec![
            Column::new("case", rows.iter().map(|(run, _, _)| case(run))),
            Column::new("variant", rows.iter().map(|(run, _, _)| &*run.variant)),
            Column::new("event", rows.iter().map(|(_, event, _)| *event)),
            Column::new("count", rows.iter().map(|(_, _, count)| *count)),
        ])
    }

    /// Returns the text of result.json: the same seed gives the same bytes.
    fn to_json(&self) -> String {
        ResultDocument(&self.found).text()
    }

    /// Returns the report: one self-contained HTML page.
    fn to_html(&self) -> String {
        report::html(&self.found)
    }

    /// Writes DIRECTORY/EXPERIMENT/result.json, report.html and its charts; returns their paths. Files that zonal did
    /// not write are replaced only with `force`; otherwise FileExistsError is raised.
    #[pyo3(signature = (directory, *, force = false))]
    #[expect(clippy::needless_pass_by_value, reason = "Python passes paths by value")]
    fn save(&self, directory: PathBuf, force: bool) -> PyResult<Vec<PathBuf>> {
        let first = experiment::write(&directory, &self.found, replace(force))
            .map_err(|error| write_error(&error))?;
        let more =
            report::write(&directory, &self.found, replace(force)).map_err(|error| write_error(&error))?;
        Ok([vec![first], more].concat())
    }

    fn __repr__(&self) -> String {
        let Found { experiment, seed, rows, .. } = &self.found;
        format!("<zonal.lab.Results of {experiment:?}, seed {seed}: {} rows>", rows.len())
    }
}
