//! The Python package `zonal`.

mod pool;

use pyo3::prelude::*;

/// Adds the native part of the package to its module.
#[pymodule]
fn _zonal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pool::add(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
