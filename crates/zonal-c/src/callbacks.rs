//! Functions of the program that a pool calls: reclaimers, and callbacks for memory pressure.
//!
//! A running callback is noted twice (`calls.rs`): as a call of its pool, so that a thread that closes the pool waits for it,
//! and under its own number, so that a thread that unregisters it waits for it.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use zonal_linux::{PageCount, PressureEvent, PressureKind, ReclaimReason, ReclaimRequest, Reclaimer};

use crate::arguments::{check_pointer, node_id, sized, store, text_of};
use crate::calls::{self, CALLBACK, Call, Calls, PASSED_CALLBACK, check_outside_callbacks};
use crate::handle::{begin_callback, index_of, with_pool};
use crate::status::{Failure, Status, call, zonal_status};
use crate::table::Table;
use crate::types::*;

static REGISTERED: Table<Registered> = Table::new(2);

/// A registered callback.
struct Registered {
    admission: Arc<Admission>,
    /// The registration or publication, which ends when it is dropped.
    _kept: Box<dyn Send + Sync>,
}

/// Says whether a callback may still be called, and by which number its calls are noted.
struct Admission {
    /// Slot of the pool.
    slot: u32,
    number: u32,
    state: AtomicU32,
}

const OPEN: u32 = 0;
const ENDED: u32 = 1;

impl Admission {
    fn new(pool: zonal_pool) -> Result<Arc<Self>, Failure> {
        let slot = index_of(pool)? as u32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Relaxed); // relaxed: only the number itself counts
        let used_up = || {
            Failure::new(
                Status::ZONAL_BUSY,
                "this process has registered 2^31 - 2 callbacks, which is the limit",
            )
        };
        if CALLBACK | next >= PASSED_CALLBACK {
            Err(used_up())
        } else {
            Ok(Arc::new(Self { slot, number: CALLBACK | next, state: AtomicU32::new(OPEN) }))
        }
    }

    /// Runs a callback unless it has been unregistered. Returns `None` if it did not run.
    fn pass<R>(&self, callback: impl FnOnce() -> R) -> Option<R> {
        let _in_pool = begin_callback(self.slot)?;
        let _noted = Call::begin(self.number).ok()?;
        // If callbacks are admitted here, `wait_for_calls` waits for this call.
        // Acquire: takes what preceded the end; pairs with `Admission::end`.
        (self.state.load(Acquire) == OPEN).then(callback)
    }

    /// Prevents later calls, and waits for those in progress. Returns `false`, and changes nothing, if that is not possible.
    fn end(&self) -> bool {
        // AcqRel: takes and publishes what preceded an end; pairs with `Admission::pass`, `Admission::end`.
        let was_open = self.state.swap(ENDED, AcqRel) == OPEN;
        let has_ended = calls::wait_for_calls(self.number, None) == Calls::Ended;
        if !has_ended && was_open {
            // Release: publishes what preceded the end; pairs with `Admission::pass`, `Admission::end`.
            self.state.store(OPEN, Release);
        }
        has_ended
    }
}

/// Forgets what other threads were doing with registrations, in a child made by `fork`.
pub(crate) fn after_fork_in_child() {
    REGISTERED.after_fork_in_child(|_| 0); // a registration is in use only while a thread ends it
}

/// Unregisters all callbacks of a pool that is being closed, none of which is running.
pub(crate) fn unregister_all_of(slot: u32) {
    REGISTERED.destroy_all_of(slot);
}

/// A context of the program.
struct Context(*mut c_void);

// SAFETY: the interface says that any thread may call the callback, so the context of the program allows it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A function of the program's reclaimer.
// SAFETY: `zonal_reclaimer_register` states what the function must do.
type Function = unsafe extern "C" fn(*mut c_void, *const zonal_reclaim_request) -> u64;

struct CReclaimer {
    admission: Arc<Admission>,
    count: Function,
    reclaim: Function,
    context: Context,
    page_bytes: u64,
}

impl CReclaimer {
    fn pass(&self, function: Function, request: &ReclaimRequest) -> PageCount {
        let reason = match request.reason {
            ReclaimReason::Node => ZONAL_RECLAIM_NODE,
            ReclaimReason::Direct => ZONAL_RECLAIM_DIRECT,
            ReclaimReason::Background => ZONAL_RECLAIM_BACKGROUND,
            ReclaimReason::Range => ZONAL_RECLAIM_RANGE,
            _ => ZONAL_RECLAIM_SHRINK,
        };
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let passed = zonal_reclaim_request {
            struct_size: size_of::<zonal_reclaim_request>(),
            reason,
            flags: flag(request.may_write, ZONAL_RECLAIM_MAY_WRITE)
                | flag(request.may_unmap, ZONAL_RECLAIM_MAY_UNMAP),
            node: request.node.get(),
            reserved: [0; 3],
            pages: request.target.get(),
            block_bytes: self.page_bytes << request.order.get(),
            range_frame: request.range.map_or(0, |range| range.start.get()),
            range_pages: request.range.map_or(0, |range| range.count.get()),
        };
        // SAFETY: the program registered this function with this context, and has not unregistered it.
        let pages = self.admission.pass(|| unsafe { function(self.context.0, &raw const passed) });
        PageCount::new(pages.unwrap_or(0))
    }
}

impl Reclaimer for CReclaimer {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.pass(self.count, request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.pass(self.reclaim, request)
    }
}

/// Stores the handle of a new callback for the caller.
///
/// # Safety
/// `place` must point to a handle.
unsafe fn keep(
    admission: Arc<Admission>,
    kept: Box<dyn Send + Sync>,
    place: *mut zonal_registration,
) -> Result<(), Failure> {
    let slot = admission.slot;
    let registered = Registered { admission, _kept: kept };
    let full = |_| {
        Failure::new(
            Status::ZONAL_BUSY,
            "65536 registrations exist, which is the limit, or the heap has no memory for more",
        )
    };
    let id = REGISTERED.add(slot, registered).map_err(full)?;
    // SAFETY: guaranteed by the caller.
    unsafe { place.write(zonal_registration { id }) };
    Ok(())
}

/// Registers a reclaimer, which the pool calls when memory is short, and stores its handle in `registration`.
///
/// Any thread may call it: threads that allocate, and threads of the pool. It may free and allocate blocks of the pool. It must
/// not acquire a lock that a thread holds while it makes a request without `ZONAL_REQUEST_NO_WAIT`, unregisters the
/// reclaimer, or calls `zonal_pool_close`, `zonal_pool_reclaim`, `zonal_pool_shrink` or `zonal_pool_verify`. A thread holds no
/// lock of the library while it calls a reclaimer. A callback cannot close or verify pools, unregister callbacks, or set
/// `stat_refresh`.
///
/// # Safety
/// `reclaimer` must point to a reclaimer, whose functions must do what their types say until it is unregistered or the pool is
/// closed. `registration` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_reclaimer_register(
    pool: zonal_pool,
    reclaimer: *const zonal_reclaimer,
    registration: *mut zonal_registration,
) -> zonal_status {
    call(|| {
        check_pointer("registration", registration)?;
        // SAFETY: guaranteed by the caller.
        unsafe { registration.write(zonal_registration::default()) };
        // SAFETY: guaranteed by the caller.
        let given = *unsafe { sized("reclaimer", reclaimer) }?;
        let (Some(count), Some(reclaim)) = (given.count, given.reclaim) else {
            return Err(Failure::invalid("a reclaimer needs both functions, count and reclaim"));
        };
        with_pool(pool, |found| {
            let admission = Admission::new(pool)?;
            let page_bytes = found.page_bytes() as u64;
            let context = Context(given.context);
            let object = Arc::new(CReclaimer {
                admission: Arc::clone(&admission),
                count,
                reclaim,
                context,
                page_bytes,
            });
            let registered = Box::new(found.register_reclaimer(&object));
            // SAFETY: guaranteed by the caller.
            unsafe { keep(admission, registered, registration) }
        })
    })
}

/// Registers a callback for events of memory pressure, and stores its handle in `registration`.
///
/// A thread of the pool calls it, at most once a second for each node and kind of event. It may call the library, as reclaimers
/// may.
///
/// # Safety
/// `callback` must do what its type says until it is unregistered or the pool is closed. `registration` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pressure_register(
    pool: zonal_pool,
    callback: zonal_on_pressure,
    context: *mut c_void,
    registration: *mut zonal_registration,
) -> zonal_status {
    call(|| {
        check_pointer("registration", registration)?;
        // SAFETY: guaranteed by the caller.
        unsafe { registration.write(zonal_registration::default()) };
        let callback = callback.ok_or_else(|| Failure::invalid("callback is null"))?;
        with_pool(pool, |found| {
            let admission = Admission::new(pool)?;
            let (context, passes) = (Context(context), Arc::clone(&admission));
            let report = move |event: &PressureEvent| {
                let context = &context;
                let event = event_of(event);
                // SAFETY: the program registered this function with this context, and has not unregistered it.
                passes.pass(|| unsafe { callback(context.0, &raw const event) });
            };
            let registered = Box::new(found.on_pressure(report));
            // SAFETY: guaranteed by the caller.
            unsafe { keep(admission, registered, registration) }
        })
    })
}

fn event_of(event: &PressureEvent) -> zonal_pressure_event {
    let kind = match event.kind {
        PressureKind::BelowLow => ZONAL_PRESSURE_BELOW_LOW,
        PressureKind::AboveHigh => ZONAL_PRESSURE_ABOVE_HIGH,
        PressureKind::Stalling => ZONAL_PRESSURE_STALLING,
        PressureKind::Failing => ZONAL_PRESSURE_FAILING,
        _ => ZONAL_PRESSURE_OTHER,
    };
    zonal_pressure_event {
        struct_size: size_of::<zonal_pressure_event>(),
        kind,
        node: event.node.get(),
        reserved: 0,
        free: event.free.get(),
        low: event.low.get(),
        high: event.high.get(),
        stalled: [event.stalled.last_10s, event.stalled.last_60s, event.stalled.last_300s],
        reserved_2: 0,
    }
}

/// Publishes a pool on a Unix socket at `path`, and stores a handle in `registration`. Until it is unregistered or the pool is
/// closed, `zonal settings --pool PATH` and other tools of this user read its state and change its settings.
///
/// # Safety
/// `path` must be a text that ends with a zero. `registration` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_publish(
    pool: zonal_pool,
    path: *const c_char,
    registration: *mut zonal_registration,
) -> zonal_status {
    call(|| {
        check_pointer("registration", registration)?;
        // SAFETY: guaranteed by the caller.
        unsafe { registration.write(zonal_registration::default()) };
        // SAFETY: guaranteed by the caller.
        let path = unsafe { text_of("path", path) }?;
        with_pool(pool, |found| {
            let admission = Admission::new(pool)?;
            let published =
                found.publish(path).map_err(|why| Failure::new(Status::ZONAL_PUBLISH_FAILED, why))?;
            // SAFETY: guaranteed by the caller.
            unsafe { keep(admission, Box::new(published), registration) }
        })
    })
}

/// Unregisters a reclaimer or a callback, and waits until no thread runs it, or ends a publication. Closing its pool does the
/// same.
///
/// Fails with `ZONAL_BUSY` from within any callback, and changes nothing then.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_unregister(registration: zonal_registration) -> zonal_status {
    call(|| {
        let unknown =
            || Failure::invalid(format_args!("{:#x} is not registered, or no longer", registration.id));
        // Two callbacks that unregistered each other would wait for each other.
        check_outside_callbacks("unregister callbacks")?;
        let registered = REGISTERED.get(registration.id).ok_or_else(unknown)?;
        if !registered.admission.end() {
            let why =
                "the kernel denies membarrier(2) since the first call, so calls in progress are unknown";
            return Err(Failure::new(Status::ZONAL_BUSY, why));
        }
        drop(registered);
        if REGISTERED.destroy_and_wait(registration.id) { Ok(()) } else { Err(unknown()) }
    })
}

/// Calls a pool's reclaimers to free `pages` pages of a node, and stores in `freed` how many they freed, if that is not
/// null.
///
/// # Safety
/// `freed` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_reclaim(
    pool: zonal_pool,
    node: u16,
    pages: u64,
    freed: *mut u64,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store("freed", freed, 0) }?;
        let node = node_id(node)?;
        let count = with_pool(pool, |found| {
            if !found.memory_nodes().contains(node) {
                return Err(Failure::invalid(format_args!("the pool has no memory on node {node}")));
            }
            Ok(found.shrink_caches(node, PageCount::new(pages)))
        })?;
        // SAFETY: as above.
        unsafe { store("freed", freed, count.get()) }
    })
}
