//! The exceptions of machines and the lab.

use std::io;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use zonal_lab::experiment::Failure;
use zonal_machine::output::WriteError;

pyo3::create_exception!(
    zonal.machine,
    MachineError,
    PyValueError,
    "A machine or a kernel version that cannot be used. The text names the file, the field and what is allowed."
);
pyo3::create_exception!(
    zonal.lab,
    SpecError,
    PyValueError,
    "An experiment that cannot run. The text names the file and the line, or the field, and what is allowed."
);
pyo3::create_exception!(
    zonal.lab,
    RunError,
    PyRuntimeError,
    "A run that failed. The text names the experiment, the case, the variant and the seed."
);

/// Returns the exception for an error of a machine. A file that cannot be read raises an `OSError`.
pub(crate) fn machine_error(error: &zonal_machine::MachineError) -> PyErr {
    match error {
        zonal_machine::MachineError::Read { source, .. } => {
            io::Error::new(source.kind(), error.to_string()).into()
        }
        error => MachineError::new_err(error.to_string()),
    }
}

/// Returns the exception for a file that could not be written.
pub(crate) fn write_error(error: &WriteError) -> PyErr {
    io::Error::new(error.source.kind(), error.to_string()).into()
}

/// Returns the exception for a run that failed.
pub(crate) fn run_error(failure: &Failure) -> PyErr {
    RunError::new_err(failure.to_string())
}
