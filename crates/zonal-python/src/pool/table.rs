//! Tables of numbers and texts. Related file: `arrow.rs` exports them to other libraries.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::arrow;
use super::errors::invalid;

/// The values of a column.
#[derive(Clone)]
pub(crate) enum Values {
    Numbers(Vec<u64>),
    Texts(Vec<String>),
}

impl Values {
    fn item<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Numbers(numbers) => Ok(numbers[row].into_pyobject(py)?.into_any()),
            Self::Texts(texts) => Ok(PyString::new(py, &texts[row]).into_any()),
        }
    }
}

/// A column. Invariant: all columns of a table have the same number of values.
#[derive(Clone)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) values: Values,
}

/// A table. Other libraries read it through `__arrow_c_stream__`.
#[pyclass(frozen, module = "zonal")]
pub(crate) struct Table {
    columns: Arc<[Column]>,
    rows: usize,
}

impl Table {
    /// Returns a table with a row for each item. `texts` and `numbers` return the columns of a row.
    pub(crate) fn of<T, const A: usize, const B: usize>(
        items: &[T],
        texts: impl Fn(&T) -> [(&'static str, String); A],
        numbers: impl Fn(&T) -> [(&'static str, u64); B],
    ) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            for (index, (name, text)) in texts(item).into_iter().enumerate() {
                if at == 0 {
                    columns.push(Column { name, values: Values::Texts(Vec::new()) });
                }
                if let Values::Texts(column) = &mut columns[index].values {
                    column.push(text);
                }
            }
            for (index, (name, number)) in numbers(item).into_iter().enumerate() {
                if at == 0 {
                    columns.push(Column { name, values: Values::Numbers(Vec::new()) });
                }
                if let Values::Numbers(column) = &mut columns[A + index].values {
                    column.push(number);
                }
            }
        }
        Self { columns: columns.into(), rows: items.len() }
    }
}

#[pymethods]
impl Table {
    /// Returns the names of the columns.
    #[getter]
    fn columns(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.name).collect()
    }

    /// Returns the rows as dicts.
    fn to_dicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for row in 0..self.rows {
            let dict = PyDict::new(py);
            for column in &*self.columns {
                dict.set_item(column.name, column.values.item(py, row)?)?;
            }
            rows.append(dict)?;
        }
        Ok(rows)
    }

    /// Returns the table as a dict of lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for column in &*self.columns {
            let list = PyList::empty(py);
            for row in 0..self.rows {
                list.append(column.values.item(py, row)?)?;
            }
            dict.set_item(column.name, list)?;
        }
        Ok(dict)
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    fn __repr__(&self) -> String {
        format!("<zonal.Table of {} rows: {}>", self.rows, self.columns().join(", "))
    }

    /// Returns the table as a capsule of Arrow's C stream interface. The requested schema must be `None`.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // A producer may ignore the request; consumers cast then.
        drop(requested_schema);
        if self.columns.is_empty() {
            return Err(invalid("the table has no rows, so the types of its columns are not known"));
        }
        let stream = Box::into_raw(Box::new(arrow::stream(&self.columns, self.rows)));
        // SAFETY: the pointer is not null, and the destructor frees it.
        let capsule =
            unsafe { ffi::PyCapsule_New(stream.cast(), arrow::NAME.as_ptr(), Some(arrow::destroy)) };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }
}
