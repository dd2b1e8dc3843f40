//! `zonal.lab`: experiments on simulated machines.
//!
//! A [`Spec`] is an experiment as text, with the texts of the files that it names, so that it can run anywhere.
//! Related files: `lab/values.rs` and `lab/change.rs` make experiments from Python values, `lab/document.rs` writes
//! them as text, `lab/run.rs` runs them, and `lab/results.rs` has the results. The Python files of `zonal.lab` run
//! sweeps.

mod change;
mod document;
mod results;
mod run;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use toml::{Table as TomlTable, Value};
use zonal_lab::experiment::{
    BUILT_IN, EXAMPLE, FileError, Plan, Source, Texts, built_in, load, silence_faults,
};

use crate::failures::{RunError, SpecError};
use crate::table::combine::Constant;
use crate::table::{Column, Table};
use document::Document;
use results::Results;
use run::{Progress, Stop};
use values::Converter;

/// A checked experiment. Immutable; it can be pickled and runs the same on any machine.
#[pyclass(frozen, module = "zonal.lab")]
pub(crate) struct Spec {
    /// Canonical text, and the files that it names.
    texts: Texts,
    plan: Plan,
    hash: String,
}

impl Spec {
    /// Checks an experiment from a source with line numbers that people know.
    fn of_source(py: Python<'_>, source: &Source) -> PyResult<Self> {
        let refused = |error: FileError| SpecError::new_err(error.to_string());
        let texts = py.detach(|| {
            load(source)?;
            source.texts()
        });
        let texts = texts.map_err(refused)?;
        let table: TomlTable = texts.text.parse().expect("the experiment has been read from this text");
        Self::of_table(py, texts.name, &table, texts.files)
    }

    /// Checks an experiment; errors name its fields.
    fn of_table(
        py: Python<'_>,
        name: String,
        table: &TomlTable,
        files: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        let document = Document::new(table);
        let texts = Texts { name, text: document.text.clone(), files };
        let source = Source::Texts(texts);
        let plan = py.detach(|| load(&source)).map_err(|error| {
            let field = error.line.and_then(|line| document.field(line));
            let FileError { file, problem, .. } = &error;
            let is_named = *file == source.name();
            SpecError::new_err(match field {
                Some(field) if is_named => format!("{file}: {field}: {problem}"),
                None if is_named => format!("{file}: {problem}"),
                _ => error.to_string(),
            })
        })?;
        let Source::Texts(texts) = source else { unreachable!("made above") };
        let hash = hash(py, &texts)?;
        Ok(Self { texts, plan, hash })
    }

    fn toml(&self) -> TomlTable {
        self.texts.text.parse().expect("a canonical text is TOML")
    }
}

/// Returns the SHA-256 of the text and its files, in hexadecimal. The name of the file does not matter.
fn hash(py: Python<'_>, texts: &Texts) -> PyResult<String> {
    let hash = py.import("hashlib")?.call_method0("sha256")?;
    let files = texts.files.iter().flat_map(|(name, text)| [name, text]);
    for text in std::iter::once(&texts.text).chain(files) {
        // Lengths keep texts apart.
        hash.call_method1("update", (text.len().to_le_bytes().as_slice(),))?;
        hash.call_method1("update", (text.as_bytes(),))?;
    }
    hash.call_method0("hexdigest")?.extract()
}

#[pymethods]
impl Spec {
    /// Returns a built-in experiment. Raises SpecError, with the known names, if there is none of this name.
    #[staticmethod]
    #[pyo3(name = "built_in")]
    fn of_built_in(py: Python<'_>, name: &str) -> PyResult<Self> {
        let Some(known) = built_in(name) else {
            let known: Vec<&str> = BUILT_IN.iter().map(|known| known.name).collect();
            let problem = format!(
                "there is no experiment {name:?}; the experiments are {}, and your own files FILE.toml and FILE.json",
                known.join(", ")
            );
            return Err(SpecError::new_err(problem));
        };
        Self::of_source(py, &Source::BuiltIn(known))
    }

    /// Reads an experiment from a TOML file, and the files that it names. Raises SpecError with the file and the line.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Self::of_source(py, &Source::File(path))
    }

    /// Reads an experiment from TOML text. `files` has the texts of the machine files and tables that it names, and
    /// `origin` is its name in errors.
    #[new]
    #[pyo3(signature = (text, files = None, origin = None))]
    fn from_text(
        py: Python<'_>,
        text: String,
        files: Option<BTreeMap<String, String>>,
        origin: Option<String>,
    ) -> PyResult<Self> {
        let name = origin.unwrap_or_else(|| "experiment".to_owned());
        Self::of_source(py, &Source::Texts(Texts { name, text, files: files.unwrap_or_default() }))
    }

    /// Makes an experiment from a dictionary with the keys of an experiment file. A part's machine may be a
    /// zonal.machine.Machine. Files that the experiment names are read from `folder`. Raises SpecError with the field.
    #[staticmethod]
    #[pyo3(signature = (values, folder = None, origin = None))]
    fn from_dict(
        py: Python<'_>,
        values: &Bound<'_, PyMapping>,
        folder: Option<PathBuf>,
        origin: Option<String>,
    ) -> PyResult<Self> {
        let mut files = BTreeMap::new();
        let table = Converter { files: &mut files }.table(values, "")?;
        let origin = origin.unwrap_or_else(|| "experiment".to_owned());
        if let Some(folder) = folder {
            for (name, text) in companions(&folder, &table, &files)? {
                files.insert(name, text);
            }
        }
        Self::of_table(py, origin, &table, files)
    }

    /// Returns the name of the experiment.
    #[getter]
    fn name(&self) -> &str {
        &self.plan.name
    }

    /// Returns the title, in one line.
    #[getter]
    fn title(&self) -> &str {
        &self.plan.title
    }

    /// Returns the experiment as TOML in canonical form: without comments, one line for each setting.
    #[getter]
    fn text(&self) -> &str {
        &self.texts.text
    }

    /// Returns the texts of the files that the experiment names.
    #[getter]
    fn files(&self) -> BTreeMap<String, String> {
        self.texts.files.clone()
    }

    /// Returns the SHA-256 of the canonical text and the files, in hexadecimal. Comments and the name of the file do not
    /// change it.
    #[getter]
    fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the names of the machines.
    #[getter]
    fn machines(&self) -> Vec<String> {
        self.plan.machines.clone()
    }

    /// Returns the names of the variants.
    #[getter]
    fn variants(&self) -> Vec<&str> {
        self.plan.variants.iter().map(|variant| &*variant.name).collect()
    }

    /// Returns the number of runs: cases times variants.
    #[getter]
    fn runs(&self) -> usize {
        self.plan.runs.len()
    }

    /// Returns the host memory that the largest run needs at most, in bytes.
    #[getter]
    fn host_bytes(&self) -> u64 {
        self.plan.runs.iter().map(|run| run.host_bytes).max().unwrap_or(0)
    }

    /// Returns the experiment with other values. Names are `machine`, `hardware.FIELD`, `workload.FIELD` and
    /// `config.KEY` for all parts, with the name of a part or a variant before it only for that one. Raises SpecError
    /// for unknown names, and for settings that would have no effect because cases or variants override them.
    fn with_values(&self, py: Python<'_>, values: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (mut table, mut files) = (self.toml(), self.texts.files.clone());
        for (name, value) in values {
            let name: String = name.extract()?;
            let value = Converter { files: &mut files }.value(&value, &name)?;
            change::set(&mut table, &name, &value)
                .map_err(|problem| SpecError::new_err(format!("{}: {problem}", self.texts.name)))?;
        }
        Self::of_table(py, self.texts.name.clone(), &table, files)
    }

    /// Runs the experiment with the GIL released. Python's signals are handled between runs.
    #[pyo3(signature = (*, seed = 1, jobs = None, variants = None, progress = None, stop = None, memory_bytes = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn run(
        &self,
        py: Python<'_>,
        seed: u64,
        jobs: Option<usize>,
        variants: Option<Vec<String>>,
        progress: Option<Bound<'_, PyAny>>,
        stop: Option<PyRef<'_, Stop>>,
        memory_bytes: Option<u64>,
    ) -> PyResult<Results> {
        let mut plan = self.plan.clone();
        plan.keep(&variants.unwrap_or_default(), &Default::default()).map_err(SpecError::new_err)?;
        let options = run::options(seed, jobs, memory_bytes)?;
        let stop = stop.map(|stop| stop.flag()).unwrap_or_default();
        let found = run::run(py, &plan, &options, progress.map(Bound::unbind).as_ref(), &stop)?;
        Ok(Results::new(&plan, found, &self.hash))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.hash == other.get().hash)
    }

    fn __hash__(&self) -> u64 {
        u64::from_str_radix(&self.hash[..16], 16).unwrap_or_default()
    }

    fn __repr__(&self) -> String {
        format!("<zonal.lab.Spec {:?}: {} runs>", self.plan.name, self.plan.runs.len())
    }

    /// Pickles the experiment as text.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Texts { name, text, files } = &self.texts;
        let texts = (text, files.clone(), name).into_pyobject(py)?;
        Ok((py.get_type::<Self>().into_any(), texts))
    }
}

/// Reads the files that an experiment names, except those that are in `files`.
fn companions(
    folder: &Path,
    table: &TomlTable,
    files: &BTreeMap<String, String>,
) -> PyResult<BTreeMap<String, String>> {
    let mut missing = table.clone();
    let parts = missing.get_mut("part").and_then(Value::as_array_mut).into_iter().flatten();
    for part in parts.filter_map(Value::as_table_mut) {
        if part.get("machine").and_then(Value::as_str).is_some_and(|name| files.contains_key(name)) {
            part.remove("machine");
        }
    }
    let found = Source::File(folder.join("experiment.toml")).files_of(&missing);
    found.map_err(|error| SpecError::new_err(error.to_string()))
}

/// Returns a row for each built-in experiment: name, title, runs, source.
#[pyfunction]
fn experiments() -> PyResult<Table> {
    let plans = BUILT_IN.iter().map(|known| load(&Source::BuiltIn(known)));
    let plans: Vec<Plan> =
        plans.collect::<Result<_, _>>().map_err(|error| SpecError::new_err(error.to_string()))?;
    Ok(Table::new(vec![
        Column::new("name", plans.iter().map(|plan| &*plan.name)),
        Column::new("title", plans.iter().map(|plan| &*plan.title)),
        Column::new("runs", plans.iter().map(|plan| plan.runs.len() as i64)),
        Column::new("source", plans.iter().map(|plan| &*plan.source)),
    ]))
}

/// Puts columns that are the same in each row before the others of a table. Columns that it has already are kept.
#[pyfunction]
fn with_columns(table: PyRef<'_, Table>, values: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Table> {
    let constant = |value: &Bound<'_, PyAny>| -> PyResult<Constant> {
        Ok(match value.extract::<bool>() {
            Ok(value) => Constant::Bool(value),
            Err(_) => match (value.extract::<i64>(), value.extract::<u64>(), value.extract::<f64>()) {
                (Ok(value), _, _) => Constant::I64(value),
                (_, Ok(value), _) => Constant::U64(value),
                (_, _, Ok(value)) => Constant::F64(value),
                _ => Constant::Text(value.extract()?),
            },
        })
    };
    let constants = values.iter().map(|(name, value)| Ok((name.clone(), constant(value)?)));
    Ok(table.with_constants(constants.collect::<PyResult<Vec<_>>>()?))
}

/// Adds the names of this module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    silence_faults();
    let py = module.py();
    module.add_class::<Spec>()?;
    module.add_class::<Results>()?;
    module.add_class::<Progress>()?;
    module.add_class::<Stop>()?;
    module.add("SpecError", py.get_type::<SpecError>())?;
    module.add("RunError", py.get_type::<RunError>())?;
    module.add("EXAMPLE", EXAMPLE)?;
    module.add_function(wrap_pyfunction!(experiments, module)?)?;
    module.add_function(wrap_pyfunction!(run::usable_memory, module)?)?;
    module.add_function(wrap_pyfunction!(with_columns, module)?)
}
