//! The context manager that sets NumPy's hook for the memory of arrays, and the functions of NumPy that it needs.
//!
//! NumPy exports its C functions as a table in a capsule, so its headers are not needed. Related file: `arrays.rs` has the hook.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::arrays::{ArrayMemory, Hook};
use super::errors::{invalid, unless_raised};
use super::state::held;
use crate::pool::Pool;

/// The name of the capsule, which NumPy prescribes.
const NAME: &CStr = c"mem_handler";
/// Indices in NumPy's table: of the feature version, and of `PyDataMem_SetHandler`.
const FEATURES: usize = 211;
const SET: usize = 304;
/// Index of `PyDataMem_GetHandler`.
const GET: usize = 305;
/// The features of NumPy 1.22, the first with the hook.
const FEATURES_MIN: c_uint = 0xf;

// SAFETY: NumPy documents these types.
type Features = unsafe extern "C" fn() -> c_uint;
// SAFETY: as above.
type Set = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
// SAFETY: as above.
type Get = unsafe extern "C" fn() -> *mut ffi::PyObject;

/// The functions of NumPy that set and return the calling context's hook.
#[derive(Clone, Copy)]
struct NumPy {
    set: Set,
    get: Get,
}

/// Finds the functions, which may import NumPy.
fn numpy(py: Python<'_>) -> PyResult<NumPy> {
    let module = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))
        .map_err(|error| {
            PyImportError::new_err(format!("numpy_arrays needs NumPy 1.22 or later: {error}"))
        })?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: the capsule of NumPy has no name.
    let table =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) }.cast::<*mut c_void>();
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: every version of NumPy has this entry, a function of this type.
    let features = unsafe { *table.wrapping_add(FEATURES).cast::<Features>() };
    // SAFETY: the function has no conditions.
    let version = unsafe { features() };
    if version < FEATURES_MIN {
        return Err(PyImportError::new_err("numpy_arrays needs NumPy 1.22 or later"));
    }
    // SAFETY: NumPy has had this entry since that version.
    let set = unsafe { *table.wrapping_add(SET).cast::<Set>() };
    // SAFETY: as above.
    let get = unsafe { *table.wrapping_add(GET).cast::<Get>() };
    Ok(NumPy { set, get })
}

impl NumPy {
    /// Sets the hook for the calling context, and returns the one before.
    fn set<'py>(self, hook: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: a function of NumPy, which holds a reference of its own to the capsule.
        let before = unsafe { (self.set)(hook.as_ptr()) };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(hook.py(), before) }
    }

    /// Returns the hook of the calling context.
    fn get(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        // SAFETY: a function of NumPy without conditions.
        let hook = unsafe { (self.get)() };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, hook) }
    }
}

// SAFETY: the interpreter calls this once, when no array and no context holds the capsule.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule has this name.
    let hook = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) }.cast::<Hook>();
    if !hook.is_null() {
        // SAFETY: the pointer comes from `Hook::new`, and the capsule goes away.
        unsafe { Hook::destroy(hook) };
    }
}

/// A context manager in which NumPy puts the data of new arrays into a pool.
#[pyclass(frozen, module = "zonal")]
pub(crate) struct NumpyArrays {
    memory: Arc<ArrayMemory>,
    /// The pool stays open in the context.
    pool: Mutex<Option<Py<Pool>>>,
    entered: Mutex<Option<Entered>>,
}

/// The hooks of a context that has been entered.
struct Entered {
    own: Py<PyAny>,
    before: Py<PyAny>,
}

impl NumpyArrays {
    pub(crate) fn new(memory: ArrayMemory, pool: Py<Pool>) -> Self {
        let memory = Arc::new(memory);
        let mut all = held(&memory.shared.arrays);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&memory));
        drop(all);
        Self { memory, pool: Mutex::new(Some(pool)), entered: Mutex::new(None) }
    }

    /// Restores NumPy's memory handler from before the context. If that fails, the context is still entered.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let numpy = numpy(py)?;
        let current = numpy.get(py)?;
        let before = match &*held(&self.entered) {
            Some(entered) if entered.own.is(&current) => entered.before.clone_ref(py),
            Some(_) => {
                return Err(invalid(
                    "this context must be left by the thread or task that entered it, after the contexts that it \
                     entered later; it is still entered",
                ));
            }
            None => return Err(invalid("this context has not been entered, or has been left before")),
        };
        numpy.set(before.bind(py))?;
        let left = held(&self.entered).take();
        drop(left); // may free the hook
        Ok(())
    }
}

#[pymethods]
impl NumpyArrays {
    /// Returns the number of arrays that have their data in the pool through this object.
    #[getter]
    fn count(&self) -> usize {
        self.memory.count()
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        // Python code may run here, so this comes first.
        let numpy = numpy(py)?;
        this.memory.shared.check_open()?;
        if held(&this.entered).is_some() {
            return Err(invalid("this context has been entered; make another with `pool.numpy_arrays()`"));
        }
        let hook = Hook::new(Arc::clone(&this.memory));
        // SAFETY: the pointer is not null, the name is static, and the destructor frees the hook.
        let capsule = unsafe { ffi::PyCapsule_New(hook.cast(), NAME.as_ptr(), Some(destroy)) };
        // SAFETY: a new reference, or null with an exception set.
        let own = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?;
        let before = numpy.set(&own)?.unbind();
        *held(&this.entered) = Some(Entered { own: own.unbind(), before });
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        _value: Py<PyAny>,
        _traceback: Py<PyAny>,
    ) -> PyResult<()> {
        unless_raised(&kind, self.leave(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Threads that hold the locks are attached to the interpreter, so none does while this runs.
        if let Ok(pool) = self.pool.try_lock() {
            visit.call(&*pool)?;
        }
        if let Ok(entered) = self.entered.try_lock()
            && let Some(Entered { own, before }) = &*entered
        {
            visit.call(own)?;
            visit.call(before)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let pool = held(&self.pool).take();
        let entered = held(&self.entered).take();
        drop((pool, entered)); // may run Python code
    }
}
