//! What the Python objects of one pool share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use zonal_linux::{NodeId, Pool, Publication};

use super::arrays::ArrayMemory;
use super::block::{Blocks, forked};
use super::callbacks::{self, Registered};
use super::errors::{Kind, invalid};
use super::fork::Process;

/// The state of a pool object. No lock is held while Python code runs or the interpreter lock changes hands.
pub(crate) struct Shared {
    process: Process,
    pub(crate) blocks: Arc<Blocks>,
    open: Mutex<Option<Pool>>,
    pub(crate) arrays: Mutex<Vec<Weak<ArrayMemory>>>,
    /// What ends when the pool closes.
    pub(crate) registered: Mutex<Vec<Arc<Registered>>>,
    pub(crate) publications: Mutex<Vec<Weak<Mutex<Option<Publication>>>>>,
    pub(crate) warnings: Mutex<Vec<String>>,
}

#[cold]
fn closed() -> PyErr {
    Kind::Closed.error("the pool has been closed")
}

/// Locks a mutex, also after a panic.
pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(pool: Pool) -> Self {
        let warnings = pool.warnings().iter().map(ToString::to_string).collect();
        Self {
            process: Process::current(),
            blocks: Arc::default(),
            open: Mutex::new(Some(pool)),
            arrays: Mutex::default(),
            registered: Mutex::default(),
            publications: Mutex::default(),
            warnings: Mutex::new(warnings),
        }
    }

    /// Whether the pool was built in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_current()
    }

    /// Returns a handle to the pool, which must be dropped by `without`, because it may be the last one.
    pub(crate) fn pool(&self) -> PyResult<Pool> {
        if !self.is_here() {
            return Err(forked());
        }
        let pool = held(&self.open).clone();
        pool.ok_or_else(closed)
    }

    /// Returns a handle to the pool if it is open and belongs to this process.
    pub(crate) fn handle(&self) -> Option<Pool> {
        if self.is_here() { held(&self.open).clone() } else { None }
    }

    /// Runs a short call with the pool, while this thread stays attached to the interpreter. The call must not reclaim.
    pub(crate) fn with<R>(&self, py: Python<'_>, call: impl FnOnce(&Pool) -> R) -> PyResult<R> {
        let pool = self.pool()?;
        let result = call(&pool);
        self.drop_handle(py, pool);
        Ok(result)
    }

    /// Runs a call with the pool while other threads can run Python code.
    pub(crate) fn without<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Pool) -> R + Send,
    ) -> PyResult<R> {
        let pool = self.pool()?;
        Ok(py.detach(move || {
            let result = call(&pool);
            drop(pool);
            result
        }))
    }

    /// Drops a handle. If the pool was closed meanwhile, the handle may be the last one.
    pub(crate) fn drop_handle(&self, py: Python<'_>, pool: Pool) {
        let is_open = held(&self.open).is_some();
        if is_open { drop(pool) } else { py.detach(move || drop(pool)) }
    }

    /// Whether the pool has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        held(&self.open).is_none()
    }

    /// Returns a node of the pool that has memory.
    pub(crate) fn node(&self, pool: &Pool, node: i64) -> PyResult<NodeId> {
        let nodes = pool.memory_nodes();
        let found = u16::try_from(node).ok().and_then(NodeId::new).filter(|&id| nodes.contains(id));
        found.ok_or_else(|| {
            let existing: Vec<String> = nodes.iter().map(|id| id.to_string()).collect();
            invalid(format_args!(
                "the pool has no memory on node {node}; it has memory on {}",
                existing.join(", ")
            ))
        })
    }

    /// Closes the pool, unless views of its buffers or arrays in its memory exist.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_here() {
            return Err(forked());
        }
        let views = self.blocks.exported();
        let arrays: usize = self.array_memory().iter().map(|memory| memory.count()).sum();
        if views + arrays > 0 {
            return Err(Kind::InUse.error(format_args!(
                "the memory of the pool is in use: buffers with views: {views}, arrays: {arrays}; delete these first"
            )));
        }
        // This thread has been attached to the interpreter since it counted, so no view or array is new.
        let pool = held(&self.open).take();
        let runs = self.blocks.take_all();
        self.finish(py, pool);
        py.detach(move || drop(runs));
        Ok(())
    }

    /// Drops the handle of the pool, and ends its callbacks and publications. Memory in use stays.
    pub(crate) fn end(&self, py: Python<'_>) {
        let pool = held(&self.open).take();
        if self.is_here() { self.finish(py, pool) } else { std::mem::forget(pool) }
    }

    /// Ends the callbacks and publications of a pool that is closed for all other threads already.
    fn finish(&self, py: Python<'_>, pool: Option<Pool>) {
        let registered: Vec<_> = std::mem::take(&mut *held(&self.registered));
        callbacks::end_all(py, &registered);
        drop(registered); // may run Python code
        let publications: Vec<_> = std::mem::take(&mut *held(&self.publications));
        let take = |one: Arc<Mutex<Option<Publication>>>| held(&one).take();
        let ended: Vec<_> = publications.iter().filter_map(Weak::upgrade).filter_map(take).collect();
        py.detach(move || {
            drop(ended);
            drop(pool);
        });
    }

    /// Returns an error if the pool has been closed, for what a request made while another thread closed it.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Whether a buffer or an array of this pool object begins at the frame.
    pub(crate) fn has_frame(&self, frame: u64) -> bool {
        self.blocks.has_frame(frame) || self.array_memory().iter().any(|memory| memory.has_frame(frame))
    }

    /// Returns the memory of arrays that may still exist.
    fn array_memory(&self) -> Vec<Arc<ArrayMemory>> {
        let mut all = held(&self.arrays);
        all.retain(|one| one.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a warning once.
    pub(crate) fn warn(&self, text: String) {
        let mut warnings = held(&self.warnings);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
}
