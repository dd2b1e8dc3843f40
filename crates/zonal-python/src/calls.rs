//! Calls of Python code by threads that the interpreter may end.
//!
//! Before Python 3.14, the interpreter ends a thread, with `pthread_exit`, that waits for its lock while it finalizes. That
//! unwinds the stack, which frames of Rust do not allow. So Python code that a pool or the lab calls runs within one call of
//! C, and the frame that makes the call stops the unwinding. `python/zonal/_calls.py` has the code that is called.

use std::mem;

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

/// Functions of the interpreter that may run Python code, and so may unwind.
///
/// `pyo3` declares them as functions that do not, and a symbol has one declaration for the compiler, so they are called
/// through pointers.
struct MayUnwind {
    call: CallMayUnwind,
    write_unraisable: WriteMayUnwind,
    clear: ClearMayUnwind,
}

type Object = *mut ffi::PyObject;
// SAFETY: the types are those of the interpreter's documentation.
type Call = unsafe extern "C" fn(Object, Object, Object) -> Object;
// SAFETY: as above.
type CallMayUnwind = unsafe extern "C-unwind" fn(Object, Object, Object) -> Object;
// SAFETY: as above.
type Write = unsafe extern "C" fn(Object);
// SAFETY: as above.
type WriteMayUnwind = unsafe extern "C-unwind" fn(Object);
// SAFETY: as above.
type Clear = unsafe extern "C" fn();
// SAFETY: as above.
type ClearMayUnwind = unsafe extern "C-unwind" fn();

static MAY_UNWIND: MayUnwind = MayUnwind {
    // SAFETY: the function has this type, except that it may unwind.
    call: unsafe { mem::transmute::<Call, CallMayUnwind>(ffi::PyObject_Call) },
    // SAFETY: as above.
    write_unraisable: unsafe { mem::transmute::<Write, WriteMayUnwind>(ffi::PyErr_WriteUnraisable) },
    // SAFETY: as above.
    clear: unsafe { mem::transmute::<Clear, ClearMayUnwind>(ffi::PyErr_Clear) },
};

/// Blocks the thread for ever when it is dropped, which happens only if the interpreter ends the thread.
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// What happens to an exception.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exception {
    /// It goes to `sys.unraisablehook`.
    Reported,
    /// It is forgotten, because one like it was reported.
    Forgotten,
}

/// Calls a function. An exception goes to `sys.unraisablehook` with `object`, or is forgotten, except that a
/// `KeyboardInterrupt` is raised again in the main thread as soon as that runs Python code.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
    object: &Bound<'py, PyAny>,
    exception: Exception,
) -> Option<Bound<'py, PyAny>> {
    let interrupt = function.py().get_type::<PyKeyboardInterrupt>();
    let reported = if exception == Exception::Reported { object.as_ptr() } else { std::ptr::null_mut() };
    // SAFETY: all are references to objects, which live until this function returns, or null for no report.
    let result = unsafe { call_raw(function.as_ptr(), arguments.as_ptr(), reported, interrupt.as_ptr()) };
    // SAFETY: a new reference, or null without an exception.
    unsafe { Bound::from_owned_ptr_or_opt(function.py(), result) }
}

/// Makes the call. This is the frame that the interpreter's unwinding must not leave, so it drops nothing except the guard.
///
/// # Safety
/// The thread is attached to the interpreter, and the arguments are references. `object` may be null.
unsafe fn call_raw(function: Object, arguments: Object, object: Object, interrupt: Object) -> Object {
    // A volatile read, so that the compiler does not find out which functions these are.
    // SAFETY: a static, which is initialized and never written.
    let MayUnwind { call, write_unraisable, clear } =
        unsafe { std::ptr::read_volatile(&raw const MAY_UNWIND) };
    let guard = Hang;
    // SAFETY: guaranteed by the caller.
    let result = unsafe { call(function, arguments, std::ptr::null_mut()) };
    if result.is_null() {
        // SAFETY: the call has set an exception.
        if unsafe { ffi::PyErr_ExceptionMatches(interrupt) } == 0 {
            if object.is_null() {
                // SAFETY: no conditions.
                unsafe { clear() };
            } else {
                // SAFETY: the call has set an exception.
                unsafe { write_unraisable(object) };
            }
        } else {
            // SAFETY: no conditions.
            unsafe { clear() };
            // SAFETY: no conditions.
            unsafe { ffi::PyErr_SetInterrupt() };
        }
    }
    mem::forget(guard);
    result
}

/// Calls a callback for progress, and returns whether it lets the work go on, or its exception.
pub(crate) fn report<'py>(
    py: Python<'py>,
    callback: &Py<PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<bool> {
    let callback = callback.bind(py);
    let arguments = arguments.into_pyobject(py)?.to_list();
    arguments.insert(0, callback)?;
    let function = function(py, Function::Progress)?;
    let result = call(&function, &arguments.to_tuple(), callback, Exception::Reported);
    match result {
        Some(result) if result.is_instance_of::<PyBaseException>() => Err(PyErr::from_value(result)),
        Some(result) => result.is_truthy(),
        // Ctrl-C came before the function could catch it.
        None => py.check_signals().map(|()| true),
    }
}

/// A function of `zonal._calls`.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Frames,
    Progress,
}

/// Returns the function. The package has imported it before the first call.
pub(crate) fn function(py: Python<'_>, which: Function) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTIONS: [PyOnceLock<Py<PyAny>>; 2] = [const { PyOnceLock::new() }; 2];
    let name = match which {
        Function::Frames => "frames",
        Function::Progress => "progress",
    };
    let import = || py.import("zonal._calls")?.getattr(name).map(Bound::unbind);
    FUNCTIONS[which as usize].get_or_try_init(py, import).map(|found| found.bind(py).clone())
}

/// Imports the functions, so that no later call runs the code of an import.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    [Function::Frames, Function::Progress].into_iter().try_for_each(|which| function(py, which).map(drop))
}
