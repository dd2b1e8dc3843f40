//! Pools that processes share: where the file of one is, joining it, handing blocks over, and who holds how much.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use zonal_linux::{FreeError, PageCount, Pfn, PoolBuilder, PoolError, PoolOwner, SharedError};

use super::block::Run;
use super::buffer::Buffer;
use super::build::error_of_build;
use super::errors::{Kind, invalid};
use super::handle::Pool;
use super::request::{count, integer};
use super::state::Shared;
use crate::table::{Column, Table};

/// The most processes that can share a pool.
const PROCESSES_MAX: u64 = 64;

/// Where a new pool has its file.
pub(crate) enum Place {
    /// Nowhere: this process has the pool for itself.
    Nowhere,
    /// In memory without a path.
    Memory,
    Path(PathBuf),
}

impl Place {
    /// Returns the place that Python passes as `shared`: a path, or whether there is a file without a path.
    pub(crate) fn of(shared: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(shared) = shared else { return Ok(Self::Nowhere) };
        match shared.cast::<PyBool>() {
            Ok(is_shared) if is_shared.is_true() => Ok(Self::Memory),
            Ok(_) => Ok(Self::Nowhere),
            Err(_) => Ok(Self::Path(path("shared", shared, "a path, True or False")?)),
        }
    }

    /// Adds the place, and how many processes can share the pool, to a builder.
    pub(crate) fn add_to<'a>(
        &self,
        builder: PoolBuilder<'a>,
        processes: Option<u64>,
        name: Option<&str>,
    ) -> PyResult<PoolBuilder<'a>> {
        let builder = match (self, processes) {
            (Self::Nowhere, None) if name.is_some() => {
                return Err(invalid(
                    "the process has a name, but the pool is not shared; pass shared=True or a path",
                ));
            }
            (Self::Nowhere, None) => return Ok(builder),
            (Self::Nowhere, Some(processes)) => {
                return Err(invalid(format_args!(
                    "processes is {processes}, but the pool is not shared; pass shared=True or a path"
                )));
            }
            (Self::Memory, _) => builder.shared_by_descriptor(),
            (Self::Path(path), _) => builder.shared(path),
        };
        let builder = match name {
            Some(name) => builder.process_name(name),
            None => builder,
        };
        match processes {
            None => Ok(builder),
            Some(processes @ 1..=PROCESSES_MAX) => Ok(builder.processes(processes as u8)),
            Some(processes) => {
                Err(invalid(format_args!("processes is {processes}; it must be 1 to {PROCESSES_MAX}")))
            }
        }
    }
}

/// Returns the path that Python passes as the argument `name`, which can also be something else.
fn path(name: &str, value: &Bound<'_, PyAny>, allowed: &str) -> PyResult<PathBuf> {
    match value.extract::<PathBuf>() {
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(PyTypeError::new_err(format!("{name} is {}; it must be {allowed}", value.repr()?)))
        }
        found => found,
    }
}

/// Joins a pool that another process has built with `shared`: at its path or that of a socket on which it is published, or by a
/// descriptor (`pool.shared_fd`).
///
/// Under a name, the process leaves its pages to the next one that joins under this name, which finds them with `root` and
/// `held`.
///
/// Raises `OSError` if the file cannot be opened, and `BuildError` if it is not that of a pool that this process can join.
#[pyfunction]
#[pyo3(signature = (place, /, *, name=None))]
pub(crate) fn join(py: Python<'_>, place: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<Pool> {
    let joined = if place.hasattr("__index__")? && !place.is_instance_of::<PyBool>() {
        let number = integer("place", place)?;
        let fd = i32::try_from(number).ok().filter(|&fd| fd >= 0);
        let fd = fd.ok_or_else(|| invalid(format_args!("place is {number}, which is no descriptor")))?;
        py.detach(|| {
            // SAFETY: the number is not negative. The calls open its file by number, and fail if there is none.
            let file = unsafe { BorrowedFd::borrow_raw(fd) };
            match name {
                Some(name) => zonal_linux::Pool::join_file_as(file, name),
                None => zonal_linux::Pool::join_file(file),
            }
        })
    } else {
        let path = path("place", place, "a path or a descriptor")?;
        py.detach(|| match name {
            Some(name) => zonal_linux::Pool::join_as(path, name),
            None => zonal_linux::Pool::join(path),
        })
    };
    let pool = joined.map_err(|error| error_of_join(&error))?;
    Ok(Pool { shared: Arc::new(Shared::new(pool)) })
}

/// Returns the exception for a pool that cannot be joined. What the system refuses is an `OSError` with its number.
#[cold]
fn error_of_join(error: &PoolError) -> PyErr {
    let PoolError::Shared { source: SharedError::Open { path, source }, .. } = error else {
        return error_of_build(error);
    };
    // A `PathBuf` would become a `pathlib.Path` when the exception is raised, by Python code.
    PyOSError::new_err((source.raw_os_error(), error.to_string(), path.clone().into_os_string()))
}

/// Returns the descriptor of a shared pool's file.
pub(crate) fn descriptor(pool: &zonal_linux::Pool) -> Option<i32> {
    pool.shared_file().map(|file| file.as_raw_fd())
}

/// Makes this process the holder of a block, and returns it as a buffer.
pub(crate) fn take_over(
    py: Python<'_>,
    shared: &Arc<Shared>,
    frame: &Bound<'_, PyAny>,
    pages: &Bound<'_, PyAny>,
) -> PyResult<Buffer> {
    let (first, pages) = (Pfn::new(count("frame", frame, 0)?), PageCount::new(count("pages", pages, 1)?));
    let is_shared = shared.with(py, |pool| descriptor(pool).is_some())?;
    if !is_shared {
        return Err(invalid("the pool is not shared, so this process holds all of its blocks"));
    }
    if shared.has_frame(first.get()) {
        let text = "is in a buffer of this process already, or in an array";
        return Err(invalid(format_args!("frame {first} {text}")));
    }
    // This thread stays attached to the interpreter from the check to the buffer, so no other thread does the same meanwhile.
    let taken = shared.with(py, |pool| {
        pool.take_over(first, pages)?;
        // SAFETY: exactly these frames are allocated together, no buffer or array of this process has them, and the process
        // that had them uses them no more, as the interface says.
        let run = Run::Buffer(unsafe { pool.own_frames_raw(first, pages) });
        Ok::<_, FreeError>((run, pool.page_bytes()))
    })?;
    let (run, page) = taken.map_err(|error| match error {
        FreeError::Reentered(_) => Kind::Reentry.error(error),
        _ => invalid(format_args!("{pages} pages from frame {first} cannot be taken over: {error}")),
    })?;
    let bytes = run.len();
    Ok(Buffer::new(shared, run, bytes, page))
}

/// Returns a table with a row for each process of a shared pool.
pub(crate) fn owners(pool: &zonal_linux::Pool) -> Table {
    let owners = pool.owners();
    let name = |owner: &PoolOwner| owner.name.map_or_else(String::new, |name| name.to_string());
    let numbers = |of: fn(&PoolOwner) -> u64| owners.iter().map(of).collect::<Vec<u64>>();
    Table::new(vec![
        Column::new("process", numbers(|owner| owner.process.into())),
        Column::new("pid", numbers(|owner| owner.pid.into())),
        Column::new("epoch", numbers(|owner| owner.epoch)),
        Column::new("held", numbers(|owner| owner.held.get())),
        Column::new("is_this", owners.iter().map(|owner| owner.is_this).collect::<Vec<bool>>()),
        Column::new("is_alive", owners.iter().map(|owner| owner.is_alive).collect::<Vec<bool>>()),
        Column::new("name", owners.iter().map(name).collect::<Vec<String>>()),
    ])
}
