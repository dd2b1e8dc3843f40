//! The Python package `zonal`.

use pyo3::prelude::*;

mod failures;
mod lab;
mod machine;
mod table;

/// Fills the native part of the package.
#[pymodule]
fn _zonal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    machine::register(module)?;
    lab::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
