//! Processes whose pages outlive them, in pools that processes share: roots, and what is kept.
//!
//! Related files: `processes.rs` joins pools.

use std::sync::Arc;

use pyo3::prelude::*;
use zonal_linux::{FrameRange, PageCount, Pfn, SharedError};

use super::buffer::Buffer;
use super::errors::invalid;
use super::state::Shared;
use crate::table::{Column, Table};

/// Makes a buffer's pages those of a root, or removes the root.
pub(crate) fn set_root(
    py: Python<'_>,
    shared: &Arc<Shared>,
    name: &str,
    buffer: Option<&Buffer>,
) -> PyResult<()> {
    let block = buffer
        .map(|buffer| FrameRange { start: Pfn::new(buffer.frame()), count: PageCount::new(buffer.pages()) });
    if buffer.is_some_and(|buffer| !Arc::ptr_eq(&buffer.shared, shared)) {
        return Err(invalid("the buffer is of another pool"));
    }
    // Exported, so that no other thread frees the buffer while this one runs without the GIL.
    let exported = buffer.map(Buffer::exported).transpose()?;
    let set = shared.without(py, |pool| pool.set_root(name, block));
    drop(exported);
    set?.map_err(refused)
}

/// Returns a root's first page, and how many pages it has.
pub(crate) fn root(py: Python<'_>, shared: &Arc<Shared>, name: &str) -> PyResult<Option<(u64, u64)>> {
    let root = shared.without(py, |pool| pool.root(name))?.map_err(refused)?;
    Ok(root.map(|range| (range.start.get(), range.count.get())))
}

/// Returns a table with a row for each block that this process holds.
pub(crate) fn held(pool: &zonal_linux::Pool) -> Table {
    let (mut frames, mut pages) = (Vec::<u64>::new(), Vec::<u64>::new());
    pool.for_each_held(|range| {
        frames.push(range.start.get());
        pages.push(range.count.get());
    });
    Table::new(vec![Column::new("frame", frames), Column::new("pages", pages)])
}

/// Frees what is kept for a process of this name; returns how many pages.
pub(crate) fn discard(py: Python<'_>, shared: &Arc<Shared>, name: &str) -> PyResult<u64> {
    Ok(shared.without(py, |pool| pool.discard(name))?.map_err(refused)?.get())
}

/// Frees what processes held that have died; returns how many pages.
pub(crate) fn recover_dead(py: Python<'_>, shared: &Arc<Shared>) -> PyResult<u64> {
    Ok(shared.without(py, zonal_linux::Pool::recover_dead)?.map_err(refused)?.get())
}

#[cold]
fn refused(error: SharedError) -> PyErr {
    invalid(error)
}
