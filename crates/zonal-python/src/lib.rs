//! The Python package `zonal`.

use pyo3::prelude::*;

/// Defines the native part of the package.
#[pymodule]
fn _zonal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
