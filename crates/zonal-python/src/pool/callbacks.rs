//! Reclaimers and pressure callbacks, which are Python objects that a pool calls on any thread.
//!
//! A pool holds no lock while it calls one, and every call of a pool that may wait for one releases the interpreter lock.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zonal_linux::{
    PageCount, PressureEvent, PressureKind, ReclaimReason, ReclaimRequest, Reclaimer, Registration,
};

use super::errors::{Kind, invalid};
use super::state::{Shared, held};

/// Longest time for which `close` waits for calls that other threads are in.
const CALLS_TIME: Duration = Duration::from_secs(5);

thread_local! {
    /// Number of callbacks that this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns an error if the calling thread is in a callback of a pool.
pub(crate) fn check_outside(call: &str) -> PyResult<()> {
    if DEPTH.get() == 0 {
        return Ok(());
    }
    Err(Kind::Reentry.error(format_args!(
        "`{call}` waits for reclaimers and pressure callbacks to return, so these must not call it; use another thread"
    )))
}

/// A Python object that a pool calls. The object is called only while `is_open`.
pub(crate) struct Callee {
    object: Py<PyAny>,
    is_open: AtomicBool,
    running: AtomicUsize,
}

impl Callee {
    /// Calls the object, unless it is unregistered or the interpreter ends. Exceptions go to `sys.unraisablehook`.
    fn call<R>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Option<R> {
        Python::try_attach(|py| {
            self.running.fetch_add(1, Acquire); // pairs with the release below
            DEPTH.set(DEPTH.get() + 1);
            let object = self.object.bind(py);
            // Acquire: pairs with the release in `Registered::end`.
            let result = self.is_open.load(Acquire).then(|| call(object));
            DEPTH.set(DEPTH.get() - 1);
            self.running.fetch_sub(1, Release); // pairs with the acquire in `Registered::end`
            match result? {
                Ok(value) => Some(value),
                Err(error) => {
                    error.write_unraisable(py, Some(object));
                    None
                }
            }
        })
        .flatten()
    }

    fn frames(&self, method: &str, request: &ReclaimRequest) -> PageCount {
        let frames = self.call(|object| {
            let result = object.call_method1(method, (Request::of(request),))?;
            result.extract::<i64>().and_then(|frames| {
                u64::try_from(frames)
                    .map_err(|_| invalid(format_args!("`{method}` returned {frames}; it must be 0 or more")))
            })
        });
        PageCount::new(frames.unwrap_or(0))
    }
}

impl Reclaimer for Callee {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.frames("count", request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.frames("reclaim", request)
    }
}

/// The callbacks of all pools.
static REGISTERED: Mutex<Vec<Weak<Registered>>> = Mutex::new(Vec::new());

/// Unregisters the callbacks of all pools, before the interpreter ends. Threads of pools could not call them afterwards.
#[pyfunction]
pub(crate) fn end_callbacks(py: Python<'_>) {
    let all: Vec<_> = held(&REGISTERED).iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|registered| registered.end(py));
}

/// A registered callback.
pub(crate) struct Registered {
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
        Ok(Self::keep(shared, callee, registration))
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
                callee.call(|object| object.call1((event_dict(object.py(), event)?,)).map(drop));
            }
        };
        let registration = shared.without(py, |pool| pool.on_pressure(report))?;
        Ok(Self::keep(shared, callee, registration))
    }

    fn keep(shared: &Shared, callee: Arc<Callee>, registration: Registration) -> Arc<Self> {
        let registered = Arc::new(Self { callee, registration: Mutex::new(Some(registration)) });
        held(&shared.registered).push(Arc::clone(&registered));
        let mut all = held(&REGISTERED);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&registered));
        drop(all);
        registered
    }

    /// Unregisters the object, and waits for calls that other threads are in, at most `CALLS_TIME`.
    pub(crate) fn end(&self, py: Python<'_>) {
        self.callee.is_open.store(false, Release); // pairs with the acquire in `Callee::call`
        let registration = held(&self.registration).take();
        let own = usize::from(DEPTH.get() > 0);
        py.detach(|| {
            drop(registration);
            let mut waited = Duration::ZERO;
            // Acquire: pairs with the release in `Callee::call`.
            while self.callee.running.load(Acquire) > own && waited < CALLS_TIME {
                let pause = Duration::from_micros(200);
                std::thread::sleep(pause);
                waited += pause;
            }
        });
    }

    /// Returns the object, for the garbage collector.
    pub(crate) fn object(&self) -> &Py<PyAny> {
        &self.callee.object
    }
}

impl Callee {
    fn new(object: Bound<'_, PyAny>) -> Self {
        Self { object: object.unbind(), is_open: AtomicBool::new(true), running: AtomicUsize::new(0) }
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
            held(&shared.registered).retain(|one| !Arc::ptr_eq(one, &registered));
        }
        registered.end(py);
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
