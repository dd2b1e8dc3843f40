//! The Python interface of tables.

use arrow_schema::ArrowError;
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};

use super::{Column, Table, Values};

/// Rows that the text of a table shows.
const ROWS_SHOWN: usize = 20;

impl Values {
    const fn kind(&self) -> &'static str {
        match self {
            Self::I64(_) => "int64",
            Self::U64(_) => "uint64",
            Self::F64(_) => "float64",
            Self::Text(_) => "string",
            Self::Bool(_) => "bool",
        }
    }

    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        match self {
            Self::I64(values) => PyList::new(py, values),
            Self::U64(values) => PyList::new(py, values),
            Self::F64(values) => PyList::new(py, values),
            Self::Text(values) => PyList::new(py, values),
            Self::Bool(values) => PyList::new(py, values),
        }
    }

    fn from_list(kind: &str, values: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(match kind {
            "int64" => Self::I64(values.extract()?),
            "uint64" => Self::U64(values.extract()?),
            "float64" => Self::F64(values.extract()?),
            "string" => Self::Text(values.extract()?),
            "bool" => Self::Bool(values.extract()?),
            other => {
                let problem = format!(
                    "{other:?} is not a type of columns; types are int64, uint64, float64, string and bool"
                );
                return Err(PyValueError::new_err(problem));
            }
        })
    }
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

#[pymethods]
impl Table {
    /// Returns the names of the columns, in order.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| &*column.name).collect()
    }

    /// Returns the types of the columns: int64, uint64, float64, string or bool.
    #[getter]
    fn types(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.values.kind()).collect()
    }

    /// Returns the number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.rows()
    }

    fn __len__(&self) -> usize {
        self.rows()
    }

    /// Returns the values of a column; rows without a value have None. Raises KeyError for an unknown name.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let Some(column) = self.find(name) else {
            let known = self.names().join(", ");
            return Err(PyKeyError::new_err(format!("there is no column {name:?}; columns are {known}")));
        };
        column.values.to_list(py)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, name)
    }

    /// Returns one dictionary for each row, from names of columns to values.
    fn to_dicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns = self.columns.iter().map(|column| column.values.to_list(py));
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let row = |place: usize| {
            let row = PyDict::new(py);
            for (column, values) in self.columns.iter().zip(&columns) {
                row.set_item(&column.name, values.get_item(place)?)?;
            }
            Ok(row)
        };
        PyList::new(py, (0..self.rows()).map(row).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the rows of all tables, in order. Rows of tables that lack a column have None in it.
    #[staticmethod]
    #[pyo3(name = "concat")]
    fn concat_py(tables: Vec<PyRef<'_, Self>>) -> Self {
        Self::concat(tables.iter().map(|table| &**table))
    }

    /// Returns a capsule with an Arrow C stream. The requested schema is ignored, as the interface allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let stream = self.to_stream().map_err(arrow_error)?;
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Returns a capsule with an Arrow C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, self.to_schema().map_err(arrow_error)?, c"arrow_schema")
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| *self == *other.get())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut lines = vec![self.names().iter().map(|&name| name.to_owned()).collect::<Vec<_>>()];
        let columns = self.columns.iter().map(|column| column.values.to_list(py));
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        for row in 0..self.rows().min(ROWS_SHOWN) {
            let cells = columns.iter().map(|column| Ok(column.get_item(row)?.str()?.to_string()));
            lines.push(cells.collect::<PyResult<_>>()?);
        }
        let width = |place: usize| lines.iter().map(|cells| cells[place].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut text: Vec<String> = lines.iter().map(line).collect();
        if self.rows() > ROWS_SHOWN {
            text.push(format!("... {} rows in all", self.rows()));
        }
        Ok(text.join("\n"))
    }

    /// Pickles the table.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let columns = self
            .columns
            .iter()
            .map(|column| Ok((&column.name, column.values.kind(), column.values.to_list(py)?)));
        let columns = PyList::new(py, columns.collect::<PyResult<Vec<_>>>()?)?;
        Ok((py.get_type::<Self>().into_any(), PyTuple::new(py, [columns])?))
    }

    /// Creates a table from the name, the type and the values of each column. Raises ValueError for an unknown type,
    /// and for columns that have the same name or different lengths.
    #[new]
    fn from_columns(columns: Vec<(String, String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let mut found: Vec<Column> = Vec::new();
        for (name, kind, values) in columns {
            let values = Values::from_list(&kind, &values)?;
            let fits = found.iter().all(|other| other.name != name && other.values.len() == values.len());
            if !fits {
                let problem = format!("column {name:?} occurs twice or has another length than the others");
                return Err(PyValueError::new_err(problem));
            }
            found.push(Column { name, values });
        }
        Ok(Self::new(found))
    }
}
