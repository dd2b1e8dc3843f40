//! The options of a pool.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Mutex;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyDictMethods};
use zonal_linux::{
    Config, HugePages, NodeId, Pool, PoolError, Prefault, Progress, SettingError, SharedError,
};

use super::errors::{Kind, invalid};
use super::processes::Place;
use super::request::bytes;
use super::settings::{error_of, text_of};
use super::state::held;
use crate::calls;

/// Options as Python passes them.
pub(crate) struct Options<'a, 'py> {
    pub(crate) size: &'a Bound<'py, PyAny>,
    pub(crate) nodes: Option<Vec<i64>>,
    pub(crate) max_size: Option<&'a Bound<'py, PyAny>>,
    pub(crate) huge_pages: &'a str,
    pub(crate) prefault: bool,
    pub(crate) prefault_threads: Option<u64>,
    pub(crate) progress: Option<Py<PyAny>>,
    pub(crate) shared_memory: bool,
    pub(crate) shared: Place,
    pub(crate) processes: Option<u64>,
    pub(crate) name: Option<&'a str>,
    pub(crate) fake_nodes: Option<u64>,
    pub(crate) require_huge_pages: bool,
    pub(crate) require_binding: bool,
    pub(crate) settings: Option<&'a Bound<'py, PyDict>>,
}

impl Options<'_, '_> {
    /// Builds the pool while other threads can run Python code.
    pub(crate) fn build(&self, py: Python<'_>) -> PyResult<Pool> {
        let callback = self.progress.as_ref();
        let raised: Mutex<Option<PyErr>> = Mutex::new(None);
        let on_progress = |progress: Progress| {
            if is_interrupted(&raised) {
                return ControlFlow::Break(());
            }
            report(callback, progress, &raised)
        };
        let size = bytes("size", self.size)?;
        let mut builder = Pool::builder().size(size).config(self.config(size)?);
        if let Some(nodes) = &self.nodes {
            if nodes.is_empty() {
                return Err(invalid("nodes is empty; name at least one node, or pass None for all"));
            }
            builder = builder.nodes(node_ids(nodes)?);
        }
        if let Some(max_size) = self.max_size {
            builder = builder.max_size(bytes("max_size", max_size)?);
        }
        builder = builder.huge_pages(self.huge_pages()?);
        if self.prefault {
            builder = builder.prefault(Prefault::AtOnce);
        }
        if let Some(threads) = self.prefault_threads {
            let threads = NonZeroUsize::new(threads as usize).unwrap_or(NonZeroUsize::MIN);
            builder = builder.prefault_threads(threads);
        }
        builder = builder.on_progress(&on_progress);
        if self.shared_memory {
            builder = builder.shared_memory();
        }
        builder = self.shared.add_to(builder, self.processes, self.name)?;
        if let Some(count) = self.fake_nodes {
            builder = builder.fake_nodes(count as usize);
        }
        if self.require_huge_pages {
            builder = builder.require_huge_pages();
        }
        if self.require_binding {
            builder = builder.require_binding();
        }
        let built = py.detach(|| builder.build());
        if let Some(error) = held(&raised).take() {
            return Err(error);
        }
        built.map_err(|error| error_of_build(&error))
    }

    fn huge_pages(&self) -> PyResult<HugePages> {
        match self.huge_pages {
            "transparent" => Ok(HugePages::Transparent),
            "never" => Ok(HugePages::Never),
            "2m" => Ok(HugePages::Explicit),
            "1g" => Ok(HugePages::Explicit1G),
            other => Err(invalid(format_args!(
                "huge_pages is \"{other}\"; allowed: \"transparent\", \"never\", \"2m\", \"1g\""
            ))),
        }
    }

    fn config(&self, size: u64) -> PyResult<Config> {
        let mut config = Pool::default_config(Some(size));
        // A copy, because code of `value` could change the dict.
        let settings = self.settings.map(PyDictMethods::copy).transpose()?;
        for (name, value) in settings.iter().flatten() {
            let Ok(name) = name.extract::<String>() else {
                let message = format!("settings has the key {}; keys are names of settings", name.repr()?);
                return Err(PyTypeError::new_err(message));
            };
            let set: Result<(), SettingError> = config.set(&name, &text_of(&name, &value)?);
            set.map_err(|error| error_of(&error))?;
        }
        Ok(config)
    }
}

/// Runs the handlers of signals if this is the main thread, which takes part in prefaulting. Returns whether one of them, such
/// as that of Ctrl-C, raised.
fn is_interrupted(raised: &Mutex<Option<PyErr>>) -> bool {
    // SAFETY: both calls only read.
    let is_main = unsafe { libc::gettid() } == unsafe { libc::getpid() };
    // Other threads may not attach, because the interpreter may be about to end.
    if !is_main {
        return false;
    }
    #[allow(clippy::redundant_closure_for_method_calls)] // the method is not general over the lifetime
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(error) => {
            held(raised).get_or_insert(error);
            true
        }
    }
}

/// Calls the callback. Any of the threads that prefault may do so.
fn report(
    callback: Option<&Py<PyAny>>,
    progress: Progress,
    raised: &Mutex<Option<PyErr>>,
) -> ControlFlow<()> {
    let Some(callback) = callback else { return ControlFlow::Continue(()) };
    let called = Python::try_attach(|py| calls::report(py, callback, (progress.done, progress.total)));
    match called {
        Some(Ok(true)) => ControlFlow::Continue(()),
        Some(Ok(false)) | None => ControlFlow::Break(()),
        Some(Err(error)) => {
            let mut first = held(raised);
            let late = if first.is_some() { Some(error) } else { first.replace(error) };
            drop(first);
            drop(late); // may run Python code
            ControlFlow::Break(())
        }
    }
}

fn node_ids(nodes: &[i64]) -> PyResult<Vec<NodeId>> {
    let id = |&node| {
        let id = u16::try_from(node).ok().and_then(NodeId::new);
        id.ok_or_else(|| {
            invalid(format_args!("node {node} does not exist; nodes have numbers from 0 to 1023"))
        })
    };
    nodes.iter().map(id).collect()
}

/// Returns the exception for a pool that cannot be built.
#[cold]
pub(crate) fn error_of_build(error: &PoolError) -> PyErr {
    let kind = match error {
        PoolError::UnknownNode { .. }
        | PoolError::NodeWithoutMemory { .. }
        | PoolError::FakeNodes { .. }
        | PoolError::TooSmall { .. }
        | PoolError::MaxSize { .. }
        | PoolError::ReservedHugePages
        | PoolError::Shared { source: SharedError::Option(_), .. }
        | PoolError::Config(_) => Kind::InvalidArgument,
        PoolError::TooLarge { .. } | PoolError::Prefault { .. } => Kind::OutOfMemory,
        _ => Kind::Build,
    };
    kind.error(error)
}
