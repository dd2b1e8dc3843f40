//! The Python package `zonal`.
//!
//! - `pool/`: pools of this machine's memory;
//! - `machine.rs`: descriptions of machines; `lab.rs`: simulated machines;
//! - `table.rs`: tables, which Arrow libraries read; `failures.rs`: errors as exceptions.

mod failures;
mod lab;
mod machine;
mod pool;
mod table;

use pyo3::prelude::*;

/// Adds the native part of the package to its module.
#[pymodule]
fn _zonal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pool::add(module)?;
    machine::register(module)?;
    lab::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
