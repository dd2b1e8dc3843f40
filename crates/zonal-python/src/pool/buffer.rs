//! Buffers: memory of a pool that Python code reads and writes without copies.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zonal_linux::PageCount;

use super::block::{Block, Run, freed};
use super::errors::{invalid, unless_raised};
use super::placement::Placement;
use super::state::Shared;
use super::{dlpack, placement};
use crate::table::Table;

/// Adjacent pages of a pool. Supports the buffer protocol and DLPack.
#[pyclass(frozen, weakref, module = "zonal")]
pub(crate) struct Buffer {
    pub(crate) block: Arc<Block>,
    pub(crate) shared: Arc<Shared>,
    address: usize,
    nbytes: usize,
    pages: PageCount,
    node: u16,
    frame: u64,
}

/// A view that ends when it is dropped.
pub(crate) struct Exported<'a>(&'a Block);

impl Drop for Exported<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Buffer {
    pub(crate) fn new(shared: &Arc<Shared>, run: Run, nbytes: usize, page: usize) -> Self {
        let (address, node, frame) = (run.address().addr(), run.node().get(), run.frame());
        // DLPack and the buffer protocol make pointers of the address.
        run.address().expose_provenance();
        let pages = PageCount::new((run.len() / page) as u64);
        let block = shared.blocks.add(run);
        Self { block, shared: Arc::clone(shared), address, nbytes, pages, node, frame }
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    fn check(&self) -> PyResult<()> {
        if self.block.is_alive() { Ok(()) } else { Err(freed()) }
    }

    /// Exports the memory, so that no thread frees it until the result is dropped.
    pub(crate) fn exported(&self) -> PyResult<Exported<'_>> {
        self.block.export()?;
        Ok(Exported(&self.block))
    }

    /// Calls `ask` with the addresses, without the GIL, and exported so that no other thread frees the memory meanwhile.
    fn while_exported<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(Range<usize>) -> T + Send,
    ) -> PyResult<T> {
        let exported = self.exported()?;
        let range = self.address..self.address + self.nbytes;
        let answer = py.detach(|| ask(range));
        drop(exported);
        Ok(answer)
    }
}

#[pymethods]
impl Buffer {
    /// Returns the address of the first byte.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        self.check().map(|()| self.address)
    }

    /// Returns the number of bytes that were requested.
    #[getter]
    pub(crate) fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Returns the node that the pages belong to.
    #[getter]
    fn node(&self) -> u16 {
        self.node
    }

    /// Returns the number of the first page within the pool.
    #[getter]
    pub(crate) fn frame(&self) -> u64 {
        self.frame
    }

    /// Returns the number of pages.
    #[getter]
    pub(crate) fn pages(&self) -> u64 {
        self.pages.get()
    }

    /// Whether the memory has been freed, by `free` or with the pool.
    #[getter]
    fn freed(&self) -> bool {
        !self.block.is_alive()
    }

    /// Frees the memory at once. Raises an error while views of it exist, and if it has been freed.
    pub(crate) fn free(&self) -> PyResult<()> {
        self.block.take()?.map(drop).ok_or_else(freed)
    }

    /// Releases the memory without freeing it, after another process has taken it over. Raises an error while views of it
    /// exist, and if it has been freed.
    ///
    /// Memory that no process has taken over is freed when this process ends or closes the pool.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        let is_shared = self.shared.with(py, |pool| pool.shared_file().is_some())?;
        if !is_shared {
            return Err(invalid(
                "the pool is not shared, so no other process can have taken the buffer over",
            ));
        }
        self.block.take()?.map(Run::forget).ok_or_else(freed)
    }

    /// Returns on which nodes the kernel has put the pages, as sums.
    fn placement(&self, py: Python<'_>) -> PyResult<Placement> {
        let placement = self.while_exported(py, |range| Placement::of(self.node, range))?;
        if let Some(why) = placement.problem() {
            self.shared.warn(why);
        }
        Ok(placement)
    }

    /// Returns where each page is, as a table. A row is the longest run of pages in the same place: its offset within
    /// the buffer and its length in bytes, its state (resident, absent or unknown), and its node if it is resident.
    fn page_runs(&self, py: Python<'_>) -> PyResult<Table> {
        let (table, asked) = self.while_exported(py, placement::runs)?;
        if let Err(why) = asked {
            self.shared.warn(Placement::failed(self.node, &why).problem().unwrap_or_default());
        }
        Ok(table)
    }

    fn __len__(&self) -> usize {
        self.nbytes
    }

    fn __repr__(&self) -> String {
        let Self { address, nbytes, node, .. } = self;
        match self.freed() {
            true => "<zonal.Buffer, freed>".to_owned(),
            false => format!("<zonal.Buffer of {nbytes} bytes at {address:#x} on node {node}>"),
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Frees the memory. If an exception is on its way and views exist, the memory stays until it is no longer used.
    fn __exit__(&self, kind: Bound<'_, PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) -> PyResult<()> {
        unless_raised(&kind, self.block.take().map(drop))
    }

    /// Fills a view of the memory, which ends with `__releasebuffer__`.
    ///
    /// # Safety
    /// The interpreter passes a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let this = slf.get();
        this.block.export()?;
        let length = this.nbytes as ffi::Py_ssize_t;
        // SAFETY: the interpreter passes a view to fill; the memory is valid until `__releasebuffer__`, as exports are counted.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.start(), length, 0, flags) };
        if filled == 0 {
            return Ok(());
        }
        this.block.release();
        Err(PyErr::fetch(slf.py()))
    }

    /// Ends a view.
    ///
    /// # Safety
    /// The interpreter passes a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.block.release();
    }

    /// Returns the memory as a DLPack capsule: one dimension of unsigned bytes on the CPU.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(stream) = stream {
            return Err(PyBufferError::new_err(format!(
                "stream is {}; memory of a CPU has none",
                stream.repr()?
            )));
        }
        if let Some(device) = dl_device.filter(|&device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err(format!(
                "dl_device is {device:?}; the memory is on the CPU, (1, 0)"
            )));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("copy is True; a buffer is exported without a copy only"));
        }
        dlpack::capsule(py, self, max_version.is_some_and(|(major, _)| major >= 1))
    }

    /// Returns the device of DLPack: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// Returns the attributes as a dict.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("address", self.address()?)?;
        dict.set_item("nbytes", self.nbytes)?;
        dict.set_item("node", self.node)?;
        dict.set_item("frame", self.frame)?;
        dict.set_item("pages", self.pages.get())?;
        Ok(dict)
    }
}
