//! The class `Pool`.
//!
//! Related files: `build.rs` builds pools, `request.rs` serves requests, `observe.rs` reports the state, and `state.rs` has
//! what the objects of a pool share.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zonal_linux::{GrowError, NodeId, Order, PageCount, ShrinkError, TrimError};

use crate::table::Table;

use super::arrays::ArrayMemory;
use super::buffer::Buffer;
use super::build::Options;
use super::callbacks::{Handle, Registered, check_outside};
use super::errors::{Kind, invalid, resize_error, unless_raised};
use super::kept;
use super::numpy::NumpyArrays;
use super::observe;
use super::placement::Placement;
use super::policy::Policy;
use super::processes::{self, Place};
use super::publication::{self, Published};
use super::request::{Asked, NodeNumber, Wanted, alignment, bytes, count, integer, node_numbers};
use super::settings::Settings;
use super::state::{Shared, held};

/// Arrays with less data stay on the heap, unless the program sets another limit.
const MIN_BYTES: u64 = 32 << 10;

/// Memory that this process maps, of which each part is bound to a NUMA node, and an allocator of pages in it.
#[pyclass(frozen, weakref, module = "zonal")]
pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        Python::attach(|py| self.shared.end(py));
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (
        size, nodes=None, *, max_size=None, huge_pages="transparent", prefault=false, prefault_threads=None,
        progress=None, shared_memory=false, shared=None, processes=None, name=None, fake_nodes=None, require_huge_pages=false,
        require_binding=false, settings=None
    ))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "they have names in Python"
    )]
    fn new(
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        nodes: Option<Vec<NodeNumber>>,
        max_size: Option<&Bound<'_, PyAny>>,
        huge_pages: &str,
        prefault: bool,
        prefault_threads: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
        shared_memory: bool,
        shared: Option<&Bound<'_, PyAny>>,
        processes: Option<&Bound<'_, PyAny>>,
        name: Option<&str>,
        fake_nodes: Option<&Bound<'_, PyAny>>,
        require_huge_pages: bool,
        require_binding: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = Options {
            size,
            nodes: nodes.map(node_numbers),
            max_size,
            huge_pages,
            prefault,
            prefault_threads: prefault_threads
                .map(|value| count("prefault_threads", value, 1))
                .transpose()?,
            progress,
            shared_memory,
            shared: Place::of(shared)?,
            processes: processes.map(|value| count("processes", value, 1)).transpose()?,
            name,
            fake_nodes: fake_nodes.map(|value| count("fake_nodes", value, 0)).transpose()?,
            require_huge_pages,
            require_binding,
            settings,
        };
        Ok(Self { shared: Arc::new(Shared::new(options.build(py)?)) })
    }

    /// Allocates at least `nbytes`, in adjacent pages.
    #[pyo3(signature = (nbytes, *, node=None, policy=None, align=None, zeroed=false, wait=true))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn alloc(
        &self,
        py: Python<'_>,
        nbytes: &Bound<'_, PyAny>,
        node: Option<NodeNumber>,
        policy: Option<PyRef<'_, Policy>>,
        align: Option<&Bound<'_, PyAny>>,
        zeroed: bool,
        wait: bool,
    ) -> PyResult<Buffer> {
        let count = bytes("nbytes", nbytes)? as usize;
        let pool = self.shared.pool()?;
        let asked = Asked { node: node.map(|node| node.0), policy: policy.as_deref(), zeroed, wait };
        let page = pool.page_bytes();
        let run = alignment(&pool, align)
            .and_then(|align| asked.run(py, &self.shared, &pool, Wanted { bytes: count, align }));
        self.shared.drop_handle(py, pool);
        let run = run?;
        if self.shared.is_closed() {
            py.detach(move || drop(run));
            return Err(Kind::Closed.error("the pool was closed by another thread during the request"));
        }
        Ok(Buffer::new(&self.shared, run, count, page))
    }

    /// Frees a buffer of this pool, as `buffer.free()` does.
    fn free(&self, buffer: &Buffer) -> PyResult<()> {
        if !Arc::ptr_eq(&buffer.shared, &self.shared) {
            return Err(invalid("the buffer belongs to another pool"));
        }
        buffer.free()
    }

    /// Returns a policy that prefers a node, and then the nodes nearest to it.
    fn preferred(&self, py: Python<'_>, node: NodeNumber) -> PyResult<Policy> {
        self.shared.with(py, |pool| Policy::preferred(&self.shared, pool, node.0))?
    }

    /// Returns a policy that allocates from these nodes only.
    fn bind(&self, py: Python<'_>, nodes: Vec<NodeNumber>) -> PyResult<Policy> {
        let nodes = node_numbers(nodes);
        self.shared.with(py, |pool| Policy::bind(&self.shared, pool, &nodes))?
    }

    /// Returns a policy that uses these nodes, or all, in turn: each request the next one.
    #[pyo3(signature = (nodes=None))]
    fn interleave(&self, py: Python<'_>, nodes: Option<Vec<NodeNumber>>) -> PyResult<Policy> {
        let nodes = nodes.map(node_numbers);
        self.shared.with(py, |pool| Policy::interleave(&self.shared, pool, nodes.as_deref()))?
    }

    /// Returns a policy that uses nodes in turn, in the ratio of their weights.
    fn weighted_interleave(&self, py: Python<'_>, weights: &Bound<'_, PyDict>) -> PyResult<Policy> {
        // A copy, because code of the keys and values could change the dict.
        let pairs: PyResult<Vec<(i64, i64)>> = weights
            .copy()?
            .iter()
            .map(|(node, weight)| {
                Ok((integer("a node in weights", &node)?, integer("a weight in weights", &weight)?))
            })
            .collect();
        let pairs = pairs?;
        self.shared.with(py, |pool| Policy::weighted(&self.shared, pool, &pairs))?
    }

    /// Closes the pool. Raises an error while views of its buffers, or arrays in its memory, exist.
    ///
    /// Buffers without views are freed. It is no error to close a pool twice.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.shared.is_closed() {
            return Ok(());
        }
        check_outside("close")?;
        self.shared.close(py)
    }

    /// Whether the pool has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.shared.check_open().map(|()| slf)
    }

    /// Closes the pool. If an exception is on its way and views exist, the pool stays open until it is no longer used.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        _value: Py<PyAny>,
        _traceback: Py<PyAny>,
    ) -> PyResult<()> {
        unless_raised(&kind, self.close(py))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        if !self.shared.is_here() {
            return "<zonal.Pool of a parent process>".to_owned();
        }
        let text = self.shared.with(py, |pool| format!("<zonal.{pool:?}>"));
        text.unwrap_or_else(|_| "<zonal.Pool, closed>".to_owned())
    }

    /// Returns the bytes that are in use or free now, without memory that is offline.
    #[getter]
    fn current_size(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, |pool| pool.accounting().managed.get() * pool.page_bytes() as u64)
    }

    /// Returns the size in bytes, including memory that is offline.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, |pool| pool.frames().get() * pool.page_bytes() as u64)
    }

    /// Returns the size of a page in bytes.
    #[getter]
    fn page_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared.with(py, zonal_linux::Pool::page_bytes)
    }

    /// Returns the nodes that have memory in the pool.
    #[getter]
    fn node_ids(&self, py: Python<'_>) -> PyResult<Vec<u16>> {
        self.shared.with(py, |pool| pool.memory_nodes().iter().map(NodeId::get).collect())
    }

    /// Returns the ways in which the pool differs from what was requested, and what could not be found out.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        held(&self.shared.warnings).clone()
    }

    /// Returns how the memory is bound: "each node's memory on that node", "not bound to nodes", or "nodes emulated".
    #[getter]
    fn binding(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.with(py, |pool| pool.placement().to_string())
    }

    /// Returns, for each node, where the kernel has put the pages of the pool that belong to it.
    fn placement(&self, py: Python<'_>) -> PyResult<Vec<Placement>> {
        let found = self.shared.without(py, |pool| match pool.residency() {
            Ok(nodes) => nodes.iter().map(Placement::of_node).collect(),
            Err(why) => {
                let failed = |node: NodeId| Placement::failed(node.get(), &why);
                pool.memory_nodes().iter().map(failed).collect::<Vec<_>>()
            }
        })?;
        found.iter().filter_map(Placement::problem).for_each(|why| self.shared.warn(why));
        Ok(found)
    }

    /// Returns the accounting in pages: `managed = free + in_pagesets + allocated`.
    fn accounting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let accounting = self.shared.with(py, zonal_linux::Pool::accounting)?;
        observe::dict(py, &observe::accounting(&accounting))
    }

    /// Returns how often events occurred since the pool was built.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        observe::dict(py, &self.shared.with(py, observe::statistics)?)
    }

    /// Returns a table of the zones.
    fn zones(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.without(py, observe::zones)
    }

    /// Returns a table of the nodes.
    fn nodes(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.without(py, observe::nodes)
    }

    /// Returns a table of the pagesets (per-CPU caches) that are or were in use.
    fn pagesets(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.without(py, observe::pagesets)
    }

    /// Returns the state as a text: json, zoneinfo, buddyinfo, vmstat, fallback_lists or numastat.
    #[pyo3(signature = (format="json"))]
    fn snapshot(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        self.shared.without(py, |pool| observe::snapshot(pool, format))?
    }

    /// Returns which zones a request would try, and why each of them would not serve it. Nothing is allocated.
    #[pyo3(signature = (nbytes=None, *, node=None, policy=None, wait=true))]
    fn explain(
        &self,
        py: Python<'_>,
        nbytes: Option<&Bound<'_, PyAny>>,
        node: Option<NodeNumber>,
        policy: Option<PyRef<'_, Policy>>,
        wait: bool,
    ) -> PyResult<String> {
        let node = node.map(|node| node.0);
        let count = nbytes.map_or(Ok(1), |value| bytes("nbytes", value))? as usize;
        let asked = Asked { node, policy: policy.as_deref(), zeroed: false, wait };
        let explained = self.shared.with(py, |pool| {
            let order: Option<Order> = pool.order_holding(count);
            let order = order
                .ok_or_else(|| invalid(format_args!("nbytes is {count}, more than the largest block")))?;
            asked.with(&self.shared, pool, |request| {
                let request =
                    if wait { request.with_order(order) } else { request.with_order(order).no_wait() };
                let mut text = String::new();
                let explain = || pool.explain(&request, |step| text.push_str(&format!("{step}\n")));
                py.detach(explain).map(|served| (text, served))
            })
        })??;
        let (text, served) = explained.map_err(invalid)?;
        Ok(served.map_or_else(|| format!("{text}not served\n"), |zone| format!("{text}served by {zone}\n")))
    }

    /// Returns the settings, as a mapping.
    #[getter]
    fn settings(&self) -> Settings {
        Settings(Arc::clone(&self.shared))
    }

    /// Brings memory online, up to `max_size`, and returns how many bytes.
    fn grow(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<u64> {
        let count = bytes("nbytes", nbytes)?;
        self.shared.without(py, |pool| pool.grow(count))?.map_err(|error| {
            let done = if let GrowError::NoMemory { done, .. } = error { done } else { 0 };
            resize_error(error, done)
        })
    }

    /// Returns memory to the kernel, calling reclaimers for what is in use, and returns how many bytes.
    fn shrink(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<u64> {
        let count = bytes("nbytes", nbytes)?;
        self.shared.without(py, |pool| pool.shrink(count))?.map_err(|error| {
            // Memory that the kernel keeps is offline, too.
            let (ShrinkError::InUse { done, .. } | ShrinkError::NotReturned { offline: done, .. }) = error;
            resize_error(error, done)
        })
    }

    /// Returns the memory of pages that are free now to the kernel, and returns how many bytes. The pages stay usable.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.without(py, zonal_linux::Pool::trim)?.map_err(|error| {
            let done = if let TrimError::Refused { done, .. } = error { done } else { 0 };
            resize_error(error, done)
        })
    }

    /// Calls the reclaimers to free pages of a node, and returns how many they freed.
    fn reclaim(&self, py: Python<'_>, node: NodeNumber, pages: &Bound<'_, PyAny>) -> PyResult<u64> {
        let pages = count("pages", pages, 0)?;
        let node = self.shared.with(py, |pool| self.shared.node(pool, node.0))??;
        self.shared.without(py, |pool| pool.shrink_caches(node, PageCount::new(pages)).get())
    }

    /// Returns the descriptor of a shared pool's file, with which other processes can join, or `None`. The pool closes it.
    #[getter]
    fn shared_fd(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        self.shared.with(py, processes::descriptor)
    }

    /// Makes this process the holder of a block that another process in a shared pool has allocated, and returns it as a
    /// buffer. `frame` and `pages` are those of the other's buffer, which then calls `forget()`.
    fn take_over(
        &self,
        py: Python<'_>,
        frame: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<Buffer> {
        processes::take_over(py, &self.shared, frame, pages)
    }

    /// Names a buffer of a shared pool, so that other processes find its pages with `root`; with `None`, removes the name. It lasts until this process ends; if the process has a name, until what is kept for it is discarded.
    #[pyo3(signature = (name, buffer, /))]
    fn set_root(&self, py: Python<'_>, name: &str, buffer: Option<&Buffer>) -> PyResult<()> {
        kept::set_root(py, &self.shared, name, buffer)
    }

    /// Returns the first page and the number of pages of a root, or `None`.
    #[pyo3(signature = (name, /))]
    fn root(&self, py: Python<'_>, name: &str) -> PyResult<Option<(u64, u64)>> {
        kept::root(py, &self.shared, name)
    }

    /// Returns a table of the blocks that this process has allocated or taken over in a shared pool, those of the processes
    /// that had its name before included.
    fn held(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.without(py, kept::held)
    }

    /// Frees what is kept for a process of this name that has ended, and returns how many pages.
    #[pyo3(signature = (name, /))]
    fn discard(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        kept::discard(py, &self.shared, name)
    }

    /// Returns a table of the processes that share the pool, with how many pages each has allocated or taken over.
    fn owners(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.without(py, processes::owners)
    }

    /// Frees what processes of a shared pool held that have died, and returns how many pages: 0 if another thread or
    /// process has done so, for which the call waits. The pool does so itself once the kernel has torn down the process. Raises
    /// ValueError if another process has the table of processes locked for ten seconds.
    fn recover_dead(&self, py: Python<'_>) -> PyResult<u64> {
        kept::recover_dead(py, &self.shared)
    }

    /// Checks the invariants of all metadata, and returns the accounting.
    fn verify<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        check_outside("verify")?;
        let found = self.shared.without(py, zonal_linux::Pool::verify)?;
        observe::dict(py, &observe::accounting(&found.map_err(|error| Kind::Corruption.error(error))?))
    }

    /// Publishes the pool on a Unix socket, where the tools of zonal read its state and change its settings.
    fn publish(&self, py: Python<'_>, path: PathBuf) -> PyResult<Published> {
        let published = self.shared.without(py, |pool| pool.publish(&path))?;
        Published::new(py, &self.shared, published.map_err(|error| publication::error_of(&error))?)
    }

    /// Registers an object with the methods `count(request)` and `reclaim(request)`, which return numbers of pages.
    fn register_reclaimer(&self, py: Python<'_>, reclaimer: Bound<'_, PyAny>) -> PyResult<Handle> {
        let registered = Registered::reclaimer(py, &self.shared, reclaimer)?;
        Ok(Handle::new(&self.shared, &registered))
    }

    /// Registers a function that a pool thread calls with a dict for each memory pressure event.
    fn on_pressure(&self, py: Python<'_>, callback: Bound<'_, PyAny>) -> PyResult<Handle> {
        let registered = Registered::pressure(py, &self.shared, callback)?;
        Ok(Handle::new(&self.shared, &registered))
    }

    /// Returns a context manager in which NumPy puts the data of new arrays into the pool.
    #[pyo3(signature = (*, node=None, policy=None, min_bytes=None, wait=true, fallback=false))]
    fn numpy_arrays(
        slf: Bound<'_, Self>,
        node: Option<NodeNumber>,
        policy: Option<Py<Policy>>,
        min_bytes: Option<&Bound<'_, PyAny>>,
        wait: bool,
        fallback: bool,
    ) -> PyResult<NumpyArrays> {
        let (py, shared) = (slf.py(), Arc::clone(&slf.get().shared));
        let min_bytes = min_bytes.map_or(Ok(MIN_BYTES), |value| count("min_bytes", value, 0))? as usize;
        let policy = match (node.map(|node| node.0), policy) {
            (Some(node), Some(_)) => {
                return Err(invalid(format_args!("node is {node} and a policy is given; pass one of them")));
            }
            (Some(node), None) => {
                Some(Py::new(py, shared.with(py, |pool| Policy::preferred(&shared, pool, node))??)?)
            }
            (None, Some(policy)) => policy.get().of(&shared).map(|_| Some(policy.clone_ref(py)))?,
            (None, None) => shared.with(py, |_| None)?,
        };
        let memory = ArrayMemory::new(shared, policy, min_bytes, wait, fallback);
        Ok(NumpyArrays::new(memory, slf.unbind()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // No thread holds the lock: it is held only by threads that are attached to the interpreter.
        if let Ok(registered) = self.shared.registered.try_lock() {
            registered.iter().try_for_each(|one| visit.call(one.object()))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        Python::attach(|py| self.shared.end(py));
    }
}
