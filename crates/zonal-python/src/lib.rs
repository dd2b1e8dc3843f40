//! The Python package `zonal`.
//!
//! - `pool/`: pools of this machine's memory;
//! - `machine.rs`: descriptions of machines; `lab.rs`: simulated machines;
//! - `table.rs`: tables, which Arrow libraries read; `failures.rs`: errors as exceptions;
//! - `calls.rs`: calls of Python code by any thread.

mod calls;
mod failures;
mod lab;
mod machine;
mod pool;
mod table;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Adds the native part of the package to its module.
///
/// Several checks rely on no other thread running Python code meanwhile, so the module requires the interpreter's lock.
#[pymodule(gil_used = true)]
fn _zonal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    check_interpreter()?;
    calls::load(module.py())?;
    pool::add(module)?;
    machine::register(module)?;
    lab::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

/// Raises `ImportError` in other interpreters than the first, because the threads of pools belong to that one.
fn check_interpreter() -> PyResult<()> {
    // SAFETY: the thread is attached to an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: the interpreter is that of this thread.
    match unsafe { ffi::PyInterpreterState_GetID(interpreter) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "zonal supports only the main interpreter of a process; use processes instead of subinterpreters",
        )),
    }
}
