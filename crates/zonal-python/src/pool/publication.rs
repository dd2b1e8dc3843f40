//! A published pool.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use zonal_linux::{Publication, PublishError};

use super::errors::invalid;
use super::state::{Shared, held};

/// A pool that is published on a Unix socket until `close` is called or the pool is closed. It is a context manager.
#[pyclass(frozen, module = "zonal", name = "Publication")]
pub(crate) struct Published {
    publication: Arc<Mutex<Option<Publication>>>,
    path: PathBuf,
}

impl Published {
    /// Returns a publication that ends with the pool, which another thread may have closed meanwhile.
    pub(crate) fn new(py: Python<'_>, shared: &Shared, publication: Publication) -> PyResult<Self> {
        if let Err(error) = shared.check_open() {
            py.detach(move || drop(publication));
            return Err(error);
        }
        let path = publication.path().to_owned();
        let publication = Arc::new(Mutex::new(Some(publication)));
        let mut all = held(&shared.publications);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&publication));
        drop(all);
        Ok(Self { publication, path })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

/// Returns the exception for a pool that cannot be published. What the system refuses is an `OSError` with its number.
#[cold]
pub(crate) fn error_of(error: &PublishError) -> PyErr {
    match error {
        PublishError::Socket { path, why } | PublishError::Thread { path, why } => {
            let text = error.to_string();
            // The arguments are converted when the exception is raised, where a signal handler of Python must not run. A
            // `PathBuf` would become a `pathlib.Path`, whose constructor is Python code.
            PyOSError::new_err((why.raw_os_error(), text, path.clone().into_os_string()))
        }
        _ => invalid(error),
    }
}

#[pymethods]
impl Published {
    /// Returns the path of the socket.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Removes the socket.
    fn close(&self, py: Python<'_>) {
        let ended = held(&self.publication).take();
        py.detach(move || drop(ended));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) {
        self.close(py);
    }
}
