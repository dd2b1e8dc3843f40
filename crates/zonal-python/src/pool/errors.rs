//! The exceptions of the package, which `python/zonal/_errors.py` defines.

use std::fmt::Display;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// An exception of the package.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    InvalidArgument,
    Build,
    OutOfMemory,
    Closed,
    InUse,
    Forked,
    Reentry,
    Setting,
    UnknownSetting,
    Resize,
    Corruption,
}

const NAMES: [&str; 11] = [
    "InvalidArgumentError",
    "BuildError",
    "OutOfMemoryError",
    "ClosedError",
    "InUseError",
    "ForkedError",
    "ReentryError",
    "SettingError",
    "UnknownSettingError",
    "ResizeError",
    "CorruptionError",
];

/// The classes of the exceptions.
static TYPES: [PyOnceLock<Py<PyType>>; NAMES.len()] = [const { PyOnceLock::new() }; NAMES.len()];

/// Finds the classes, so that no exception needs an import, which runs Python code.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    let mut each = TYPES.iter().zip(NAMES);
    each.try_for_each(|(class, name)| class.import(py, "zonal._errors", name).map(drop))
}

impl Kind {
    /// Returns an exception of this kind.
    #[cold]
    pub(crate) fn error(self, message: impl Display) -> PyErr {
        let message = message.to_string();
        Python::attach(|py| match TYPES[self as usize].import(py, "zonal._errors", NAMES[self as usize]) {
            Ok(class) => PyErr::from_type(class.clone(), message),
            Err(error) => PyRuntimeError::new_err(format!("{message} ({error})")),
        })
    }
}

/// Returns a `ResizeError` with the bytes by which the pool has changed.
#[cold]
pub(crate) fn resize_error(message: impl Display, done: u64) -> PyErr {
    let error = Kind::Resize.error(message);
    // Without memory for the attribute, its default of 0 remains.
    Python::attach(|py| error.value(py).setattr("done", done)).ok();
    error
}

/// Returns the result of leaving a context. An exception of the program, of the type `kind`, is more important than an error.
pub(crate) fn unless_raised(kind: &Bound<'_, PyAny>, left: PyResult<()>) -> PyResult<()> {
    if kind.is_none() { left } else { Ok(()) }
}

/// Returns an error about an argument.
#[cold]
pub(crate) fn invalid(message: impl Display) -> PyErr {
    Kind::InvalidArgument.error(message)
}
