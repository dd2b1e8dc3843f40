//! Runs a plan with the GIL released, and reports its progress to Python.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use zonal_lab::experiment::results::Results;
use zonal_lab::experiment::{self, Options, Plan};

use crate::calls;
use crate::failures::{RunError, SpecError, run_error};

/// Host memory for concurrent runs, in bytes, if the available memory of the host is not known.
const MEMORY_DEFAULT: u64 = 4 << 30;
/// Time between two checks of Python's signals.
const PATIENCE: Duration = Duration::from_millis(50);

/// The progress of an experiment.
#[pyclass(frozen, get_all, module = "zonal.lab")]
pub(crate) struct Progress {
    /// Number of completed runs.
    done: usize,
    /// Total number of runs.
    total: usize,
    /// Estimated completed share of the work, from 0 to 1.
    share: f64,
    /// Descriptions of the current runs.
    running: Vec<String>,
}

#[pymethods]
impl Progress {
    fn __repr__(&self) -> String {
        let Self { done, total, share, running } = self;
        format!("<zonal.lab.Progress {done} of {total} runs, {:.0} %, running {running:?}>", share * 100.0)
    }
}

/// A request to stop runs on other threads.
#[pyclass(frozen, module = "zonal.lab")]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Stops all runs that have this object.
    fn set(&self) {
        // Relaxed: the flag only requests a stop, and no data is published with it.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the memory that concurrent runs may use, in bytes: three quarters of what is available now.
#[pyfunction]
pub(super) fn usable_memory() -> u64 {
    zonal_linux::available_bytes().map_or(MEMORY_DEFAULT, |bytes| bytes / 4 * 3)
}

/// Returns the options of a run; without `jobs` there is a thread for each core.
pub(super) fn options(seed: u64, jobs: Option<usize>, memory_bytes: Option<u64>) -> PyResult<Options> {
    let jobs = match jobs {
        Some(jobs) => NonZeroUsize::new(jobs).ok_or_else(|| {
            SpecError::new_err("jobs is 0; it must be the number of concurrent runs, at least 1, or None")
        })?,
        None => thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    Ok(Options { seed, jobs, memory_bytes: memory_bytes.unwrap_or_else(usable_memory) })
}

/// Runs a plan to its end, or until `stop` is set, a signal handler raises, or `progress` raises.
pub(super) fn run(
    py: Python<'_>,
    plan: &Plan,
    options: &Options,
    progress: Option<&Py<PyAny>>,
    stop: &Arc<AtomicBool>,
) -> PyResult<Results> {
    let (results, raised) = py.detach(|| {
        let (sender, received) = mpsc::channel();
        thread::scope(|scope| {
            // The runner owns the sender, so that the channel ends with the last run.
            let runner = scope.spawn(move || {
                // The receiver exists until this thread has ended.
                experiment::run(plan, options, |now| drop(sender.send(now.clone())), stop)
            });
            let mut raised = None;
            loop {
                let now = match received.recv_timeout(PATIENCE) {
                    Ok(now) => Some(now),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| report(py, progress, now))
                {
                    raised = Some(error);
                    // Relaxed: the flag only requests a stop, and no data is published with it.
                    stop.store(true, Ordering::Relaxed);
                }
            }
            (runner.join(), raised)
        })
    });
    match (raised, results) {
        (Some(error), _) => Err(error),
        (None, Err(_)) => {
            Err(RunError::new_err("the lab failed outside of a run; this is a defect of zonal"))
        }
        (None, Ok(Err(failure))) => Err(run_error(&failure)),
        (None, Ok(Ok(results))) if results.missing > 0 => {
            Err(PyKeyboardInterrupt::new_err(format!("{} runs were not completed", results.missing)))
        }
        (None, Ok(Ok(results))) => Ok(results),
    }
}

/// Handles Python's signals, and passes on the progress.
fn report(py: Python<'_>, progress: Option<&Py<PyAny>>, now: Option<experiment::Progress>) -> PyResult<()> {
    py.check_signals()?;
    if let (Some(progress), Some(now)) = (progress, now) {
        let experiment::Progress { done, total, share, running } = now;
        calls::report(py, progress, (Progress { done, total, share, running },))?;
    }
    Ok(())
}
