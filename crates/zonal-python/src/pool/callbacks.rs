//! Reclaimers and pressure callbacks, which are Python objects that a pool calls on any thread.
//!
//! A pool holds no lock while it calls one, and every call of a pool that may wait for one releases the interpreter lock.

use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use zonal_linux::{
    PageCount, PressureEvent, PressureKind, ReclaimReason, ReclaimRequest, Reclaimer, Registration,
};

use super::errors::{Kind, invalid};
use super::fork::Process;
use super::state::{Shared, held};
use crate::calls::{self, Exception, Function};

/// Longest time to wait for calls that other threads are in.
const CALLS_TIME: Duration = Duration::from_secs(5);
/// Time between two looks at them.
const PAUSE: Duration = Duration::from_micros(200);

thread_local! {
    /// The callees that this thread is in, outermost first.
    static WITHIN: RefCell<Vec<*const Callee>> = const { RefCell::new(Vec::new()) };
}

/// Whether the interpreter is about to end. No callback is called after that.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Returns an error if the calling thread is in a callback of a pool.
pub(crate) fn check_outside(call: &str) -> PyResult<()> {
    if WITHIN.with_borrow(Vec::is_empty) {
        return Ok(());
    }
    Err(Kind::Reentry.error(format_args!(
        "`{call}` waits for reclaimers and pressure callbacks to return, so these must not call it; use another thread"
    )))
}

/// The ways in which a pool calls an object.
#[derive(Clone, Copy)]
enum Method {
    Count,
    Reclaim,
    Report,
}

/// A Python object that a pool calls. The object is called only while `is_open`.
pub(crate) struct Callee {
    object: Py<PyAny>,
    is_open: AtomicBool,
    running: AtomicUsize,
    /// For each method, whether its last call raised an exception. Of exceptions in succession, the first is reported.
    raises: [AtomicBool; 3],
}

/// A call of a callee by this thread.
struct Running<'a>(&'a Callee);

impl<'a> Running<'a> {
    fn begin(callee: &'a Callee) -> Self {
        // Callers hold the interpreter's lock, which orders this count and the check of `is_open`.
        // Acquire: takes what earlier calls did; pairs with `Running::drop`.
        callee.running.fetch_add(1, Acquire);
        WITHIN.with_borrow_mut(|within| within.push(callee));
        Self(callee)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        WITHIN.with_borrow_mut(Vec::pop);
        // Release: publishes what the call did; pairs with `Callee::wait`, `Running::begin`.
        self.0.running.fetch_sub(1, Release);
    }
}

impl Callee {
    fn new(object: Bound<'_, PyAny>) -> Self {
        let raises = [const { AtomicBool::new(false) }; 3];
        Self { object: object.unbind(), is_open: AtomicBool::new(true), running: AtomicUsize::new(0), raises }
    }

    /// Calls a function for a method of the object, and reports the first exception in succession.
    fn call<'py>(
        &self,
        method: Method,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        object: &Bound<'py, PyAny>,
    ) -> Option<Bound<'py, PyAny>> {
        let raises = &self.raises[method as usize];
        // Relaxed: orders no other accesses.
        let exception = if raises.load(Relaxed) { Exception::Forgotten } else { Exception::Reported };
        let result = calls::call(function, arguments, object, exception);
        raises.store(result.is_none(), Relaxed);
        result
    }

    /// Calls `call` with the object, unless it is unregistered or the interpreter ends.
    fn with<R>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> Option<R>) -> Option<R> {
        Python::try_attach(|py| {
            let _running = Running::begin(self);
            // Acquire: takes what preceded the end; pairs with `Registered::unregister`, `end_callbacks`.
            let is_open = self.is_open.load(Acquire) && !ENDING.load(Acquire);
            if is_open { call(self.object.bind(py)) } else { None }
        })
        .flatten()
    }

    fn frames(&self, method: Method, request: &ReclaimRequest) -> PageCount {
        let name = if matches!(method, Method::Count) { "count" } else { "reclaim" };
        let frames: Option<u64> = self.with(|object| {
            let function = calls::function(object.py(), Function::Frames).ok()?;
            let arguments = (object, name, Request::of(request)).into_pyobject(object.py()).ok()?;
            self.call(method, &function, &arguments, object)?.extract().ok()
        });
        PageCount::new(frames.unwrap_or(0))
    }

    fn report(&self, event: &PressureEvent) {
        self.with(|object| {
            let arguments = (event_dict(object.py(), event).ok()?,).into_pyobject(object.py()).ok()?;
            self.call(Method::Report, object, &arguments, object).map(drop)
        });
    }
}

impl Reclaimer for Callee {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.frames(Method::Count, request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.frames(Method::Reclaim, request)
    }
}

/// The callbacks of all pools.
static REGISTERED: Mutex<Vec<Weak<Registered>>> = Mutex::new(Vec::new());

/// Ends the callbacks of all pools, before the interpreter ends. Threads of pools could not call them afterwards.
#[pyfunction]
pub(crate) fn end_callbacks(py: Python<'_>) {
    ENDING.store(true, Release); // Release: publishes what preceded the end; pairs with `Callee::with`.
    let all: Vec<_> = held(&REGISTERED).iter().filter_map(Weak::upgrade).collect();
    end_all(py, &all);
}

/// Unregisters callbacks, and waits for calls that other threads are in, at most `CALLS_TIME` for all together.
///
/// In a child made by `fork`, these threads do not exist.
pub(crate) fn end_all(py: Python<'_>, all: &[Arc<Registered>]) {
    let here = all.iter().filter(|registered| registered.process.is_current());
    let ended: Vec<(&Callee, Registration)> =
        here.filter_map(|one| Some((&*one.callee, one.unregister()?))).collect();
    if ended.is_empty() {
        return;
    }
    let own: Vec<usize> = ended.iter().map(|(callee, _)| callee.within_this_thread()).collect();
    py.detach(move || {
        let deadline = Instant::now() + CALLS_TIME;
        for ((callee, registration), own) in ended.into_iter().zip(own) {
            drop(registration);
            callee.wait(own, deadline);
        }
    });
}

/// A registered callback.
pub(crate) struct Registered {
    process: Process,
    callee: Arc<Callee>,
    registration: Mutex<Option<Registration>>,
}

impl Registered {
    /// Registers a reclaimer.
    pub(crate) fn reclaimer(
        py: Python<'_>,
        shared: &Shared,
        object: Bound<'_, PyAny>,
    ) -> PyResult<Arc<Self>> {
        for method in ["count", "reclaim"] {
            if !object.getattr(method).is_ok_and(|found| found.is_callable()) {
                let class = object.get_type().name()?;
                return Err(invalid(format_args!(
                    "{class} has no method `{method}`; a reclaimer needs `count(request)` and `reclaim(request)`"
                )));
            }
        }
        let callee = Arc::new(Callee::new(object));
        let registration = shared.without(py, |pool| pool.register_reclaimer(&callee))?;
        Self::keep(py, shared, callee, registration)
    }

    /// Registers a callback for memory pressure.
    pub(crate) fn pressure(py: Python<'_>, shared: &Shared, object: Bound<'_, PyAny>) -> PyResult<Arc<Self>> {
        if !object.is_callable() {
            return Err(invalid(format_args!("the callback is {}, which cannot be called", object.repr()?)));
        }
        let callee = Arc::new(Callee::new(object));
        // The pool holds the closure with a strong reference, so the closure must not own the object.
        let weak = Arc::downgrade(&callee);
        let report = move |event: &PressureEvent| {
            if let Some(callee) = weak.upgrade() {
                callee.report(event);
            }
        };
        let registration = shared.without(py, |pool| pool.on_pressure(report))?;
        Self::keep(py, shared, callee, registration)
    }

    fn keep(
        py: Python<'_>,
        shared: &Shared,
        callee: Arc<Callee>,
        registration: Registration,
    ) -> PyResult<Arc<Self>> {
        let process = Process::current();
        let registered = Arc::new(Self { process, callee, registration: Mutex::new(Some(registration)) });
        if let Err(error) = shared.check_open() {
            end_all(py, &[registered]);
            return Err(error);
        }
        held(&shared.registered).push(Arc::clone(&registered));
        let mut all = held(&REGISTERED);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&registered));
        drop(all);
        Ok(registered)
    }

    /// Makes sure that no further call begins. Returns what must be dropped without the interpreter lock.
    fn unregister(&self) -> Option<Registration> {
        // Release: publishes what preceded the end; pairs with `Callee::with`.
        self.callee.is_open.store(false, Release);
        held(&self.registration).take()
    }

    /// Returns the object, for the garbage collector.
    pub(crate) fn object(&self) -> &Py<PyAny> {
        &self.callee.object
    }
}

impl Callee {
    /// Returns how many calls of this callee the thread is in.
    fn within_this_thread(&self) -> usize {
        WITHIN.with_borrow(|within| within.iter().filter(|&&callee| std::ptr::eq(callee, self)).count())
    }

    /// Waits until only `own` calls remain.
    fn wait(&self, own: usize, deadline: Instant) {
        // Acquire: takes what the calls did; pairs with `Running::drop`.
        while self.running.load(Acquire) > own && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
    }
}

/// A handle by which a callback is unregistered. It is a context manager.
#[pyclass(frozen, module = "zonal", name = "Registration")]
pub(crate) struct Handle {
    registered: Weak<Registered>,
    shared: Weak<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: &Arc<Shared>, registered: &Arc<Registered>) -> Self {
        Self { registered: Arc::downgrade(registered), shared: Arc::downgrade(shared) }
    }
}

#[pymethods]
impl Handle {
    /// Unregisters the callback. No thread is in it afterwards, unless a call takes longer than five seconds.
    fn close(&self, py: Python<'_>) {
        let Some(registered) = self.registered.upgrade() else { return };
        if let Some(shared) = self.shared.upgrade() {
            let mut all = held(&shared.registered);
            let place = all.iter().position(|one| Arc::ptr_eq(one, &registered));
            let ended = place.map(|place| all.remove(place));
            drop(all);
            drop(ended); // not the last handle, because dropping that runs Python code
        }
        end_all(py, std::slice::from_ref(&registered));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) {
        self.close(py);
    }
}

/// A request to a reclaimer.
#[pyclass(frozen, get_all, module = "zonal", name = "ReclaimRequest")]
pub(crate) struct Request {
    reason: &'static str,
    node: u16,
    pages: u64,
    block_pages: u64,
    first_frame: Option<u64>,
    frames: Option<u64>,
    may_write: bool,
    may_unmap: bool,
}

impl Request {
    fn of(request: &ReclaimRequest) -> Self {
        let reason = match request.reason {
            ReclaimReason::Node => "node",
            ReclaimReason::Direct => "direct",
            ReclaimReason::Background => "background",
            ReclaimReason::Range => "range",
            _ => "shrink",
        };
        Self {
            reason,
            node: request.node.get(),
            pages: request.target.get(),
            block_pages: request.order.pages().get(),
            first_frame: request.range.map(|range| range.start.get()),
            frames: request.range.map(|range| range.count.get()),
            may_write: request.may_write,
            may_unmap: request.may_unmap,
        }
    }
}

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        format!("ReclaimRequest(reason={:?}, node={}, pages={})", self.reason, self.node, self.pages)
    }
}

fn event_dict<'py>(py: Python<'py>, event: &PressureEvent) -> PyResult<Bound<'py, PyDict>> {
    let kind = match event.kind {
        PressureKind::BelowLow => "below_low",
        PressureKind::AboveHigh => "above_high",
        PressureKind::Stalling => "stalling",
        PressureKind::Failing => "failing",
        _ => "other",
    };
    let dict = PyDict::new(py);
    dict.set_item("node", event.node.get())?;
    dict.set_item("kind", kind)?;
    dict.set_item("free_pages", event.free.get())?;
    dict.set_item("low_pages", event.low.get())?;
    dict.set_item("high_pages", event.high.get())?;
    Ok(dict)
}
