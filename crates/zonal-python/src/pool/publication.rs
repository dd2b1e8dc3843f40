//! A published pool.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use zonal_linux::Publication;

use super::state::{Shared, held};

/// A pool that is published on a Unix socket until `close` is called or the pool is closed. It is a context manager.
#[pyclass(frozen, module = "zonal", name = "Publication")]
pub(crate) struct Published {
    publication: Arc<Mutex<Option<Publication>>>,
    path: PathBuf,
}

impl Published {
    pub(crate) fn new(shared: &Shared, publication: Publication) -> Self {
        let path = publication.path().to_owned();
        let publication = Arc::new(Mutex::new(Some(publication)));
        let mut all = held(&shared.publications);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&publication));
        drop(all);
        Self { publication, path }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
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
