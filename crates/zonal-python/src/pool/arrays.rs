//! NumPy's hook for the memory of arrays (NEP 49, <https://numpy.org/neps/nep-0049.html>).
//!
//! The hook is a capsule with a structure of functions. Each array holds a reference to the capsule that was set when its data
//! was allocated, and the capsule owns an [`ArrayMemory`]; so the functions are valid for as long as arrays need them.
//! Related file: `numpy.rs` finds the functions that set the hook.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, TryLockError};

use pyo3::prelude::*;
use zonal_linux::{Pool, PoolRequest};

use super::block::Run;
use super::fork::Process;
use super::policy::Policy;
use super::request::{Wanted, ZEROED_ATTACHED, take};
use super::state::{Shared, held};

/// Every address that a pool allocates is a multiple of this, so other addresses need no search.
const PAGE: usize = 4096;

/// Which arrays have their data in a pool, and where.
pub(crate) struct ArrayMemory {
    pub(crate) shared: Arc<Shared>,
    pub(crate) policy: Option<Py<Policy>>,
    /// Smaller arrays have their data on the heap.
    pub(crate) min_bytes: usize,
    /// Whether a request may call reclaimers.
    pub(crate) waits: bool,
    /// Whether the heap serves arrays for which the pool has no memory.
    pub(crate) falls_back: bool,
    process: Process,
    runs: Mutex<Runs>,
}

/// Whose memory is at an address.
enum Owner<R> {
    Pool(R),
    Heap,
    /// In a child that another thread's lock came with: the memory must not be touched.
    Unknown,
}

/// The data of arrays, by address.
type Runs = HashMap<usize, Run>;

/// `PyDataMemAllocator` of NumPy.
#[repr(C)]
struct Functions {
    context: *const ArrayMemory,
    // SAFETY: NumPy calls the functions with this context, and with pointers that they returned.
    malloc: unsafe extern "C" fn(*const ArrayMemory, usize) -> *mut c_void,
    // SAFETY: as above.
    calloc: unsafe extern "C" fn(*const ArrayMemory, usize, usize) -> *mut c_void,
    // SAFETY: as above.
    realloc: unsafe extern "C" fn(*const ArrayMemory, *mut c_void, usize) -> *mut c_void,
    // SAFETY: as above.
    free: unsafe extern "C" fn(*const ArrayMemory, *mut c_void, usize),
}

/// `PyDataMem_Handler` of NumPy.
#[repr(C)]
pub(crate) struct Hook {
    name: [c_char; 127],
    version: u8,
    functions: Functions,
}

impl Hook {
    /// Returns a hook that owns `memory`; [`Hook::destroy`] frees both.
    pub(crate) fn new(memory: Arc<ArrayMemory>) -> *mut Self {
        let mut name = [0; 127];
        name.iter_mut().zip(b"zonal").for_each(|(to, from)| *to = *from as c_char);
        let functions = Functions { context: Arc::into_raw(memory), malloc, calloc, realloc, free };
        Box::into_raw(Box::new(Self { name, version: 1, functions }))
    }

    /// Frees a hook.
    ///
    /// # Safety
    /// `hook` must come from [`Hook::new`], and no array may use it any more.
    pub(crate) unsafe fn destroy(hook: *mut Self) {
        // SAFETY: guaranteed by the caller.
        let hook = unsafe { Box::from_raw(hook) };
        // SAFETY: the context comes from `Arc::into_raw`.
        drop(unsafe { Arc::from_raw(hook.functions.context) });
    }
}

impl ArrayMemory {
    pub(crate) fn new(
        shared: Arc<Shared>,
        policy: Option<Py<Policy>>,
        min_bytes: usize,
        waits: bool,
        falls_back: bool,
    ) -> Self {
        let (process, runs) = (Process::current(), Mutex::default());
        Self { shared, policy, min_bytes, waits, falls_back, process, runs }
    }

    /// Returns how many arrays have their data in the pool.
    pub(crate) fn count(&self) -> usize {
        held(&self.runs).len()
    }

    /// Whether the data of an array begins at the frame.
    pub(crate) fn has_frame(&self, frame: u64) -> bool {
        held(&self.runs).values().any(|run| run.frame() == frame)
    }

    /// Allocates `bytes`, in the pool if they are many.
    fn allocate(&self, bytes: usize, zeroed: bool) -> *mut c_void {
        if bytes < self.min_bytes || !self.process.is_current() {
            return on_heap(bytes, zeroed);
        }
        let run = catch_unwind(AssertUnwindSafe(|| self.run(bytes, zeroed))).unwrap_or(None);
        let Some(run) = run else {
            return if self.falls_back { on_heap(bytes, zeroed) } else { ptr::null_mut() };
        };
        self.keep(run)
    }

    /// Allocates for a call during which the caller uses other memory of this hook, so no other Python code must run.
    fn allocate_at_once(&self, bytes: usize) -> *mut c_void {
        // An array that outlives its pool moves to the heap.
        let Some(pool) = self.shared.handle() else { return on_heap(bytes, false) };
        if bytes < self.min_bytes {
            return on_heap(bytes, false);
        }
        let run = catch_unwind(AssertUnwindSafe(|| self.attempt(&pool, false, Wanted { bytes, align: 1 })));
        drop(pool); // not the last handle, as this thread has been attached to the interpreter all the time
        match run.unwrap_or(None) {
            Some(run) => self.keep(run),
            None if self.falls_back => on_heap(bytes, false),
            None => ptr::null_mut(),
        }
    }

    fn keep(&self, run: Run) -> *mut c_void {
        let address = run.address();
        held(&self.runs).insert(address.addr(), run);
        address.cast()
    }

    /// Allocates without waiting.
    fn attempt(&self, pool: &Pool, zeroed: bool, wanted: Wanted) -> Option<Run> {
        take(pool, &self.request(zeroed).no_wait(), wanted).ok()
    }

    fn request(&self, zeroed: bool) -> PoolRequest<'_> {
        let mut request = PoolRequest::page();
        if zeroed {
            request = request.zeroed();
        }
        match self.policy.as_ref().and_then(|policy| policy.get().of(&self.shared).ok()) {
            Some(policy) => request.policy(policy),
            None => request,
        }
    }

    fn run(&self, bytes: usize, zeroed: bool) -> Option<Run> {
        let pool = self.shared.handle()?;
        let wanted = Wanted { bytes, align: 1 };
        let is_long = pool.order_holding(bytes).is_none() || zeroed && bytes > ZEROED_ATTACHED;
        let first = if is_long { None } else { self.attempt(&pool, zeroed, wanted) };
        if first.is_some() || !is_long && !self.waits {
            return first; // the handle is not the last, as this thread has been attached to the interpreter all the time
        }
        Python::attach(|py| {
            // Other threads may need the interpreter lock, for example in a reclaimer that this request waits for.
            let run = py.detach(move || match self.waits {
                true => take(&pool, &self.request(zeroed), wanted).ok(),
                false => self.attempt(&pool, zeroed, wanted),
            });
            if self.shared.is_closed() {
                py.detach(move || drop(run));
                return None;
            }
            run
        })
    }

    /// Looks an address up.
    fn look<R>(&self, address: *mut c_void, found: impl FnOnce(&mut Runs, usize) -> Option<R>) -> Owner<R> {
        if !address.addr().is_multiple_of(PAGE) {
            return Owner::Heap;
        }
        let mut runs = match self.process.is_current() {
            true => held(&self.runs),
            false => match self.runs.try_lock() {
                Ok(runs) => runs,
                Err(TryLockError::Poisoned(runs)) => runs.into_inner(),
                Err(TryLockError::WouldBlock) => return Owner::Unknown,
            },
        };
        found(&mut runs, address.addr()).map_or(Owner::Heap, Owner::Pool)
    }

    /// Returns whose memory is at an address, and its length if it is the pool's.
    fn capacity(&self, address: *mut c_void) -> Owner<usize> {
        self.look(address, |runs, at| runs.get(&at).map(Run::len))
    }

    fn release(&self, address: *mut c_void) {
        match self.look(address, |runs, at| runs.remove(&at)) {
            Owner::Pool(run) if self.process.is_current() => drop(run),
            Owner::Pool(run) => std::mem::forget(run), // locks of the pool may be held for ever in a child
            // SAFETY: the address came from the heap.
            Owner::Heap => unsafe { libc::free(address) },
            Owner::Unknown => {}
        }
    }
}

fn on_heap(bytes: usize, zeroed: bool) -> *mut c_void {
    match zeroed {
        // SAFETY: calls of the C library without conditions.
        true => unsafe { libc::calloc(bytes.max(1), 1) },
        // SAFETY: as above.
        false => unsafe { libc::malloc(bytes.max(1)) },
    }
}

/// Returns the context of a call.
///
/// # Safety
/// NumPy passes the context of a hook that has not been destroyed.
unsafe fn memory<'a>(context: *const ArrayMemory) -> &'a ArrayMemory {
    // SAFETY: guaranteed by the caller.
    unsafe { &*context }
}

// SAFETY: NumPy keeps to the contract of `Functions`.
unsafe extern "C" fn malloc(context: *const ArrayMemory, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { memory(context) }.allocate(bytes, false)
}

// SAFETY: as above.
unsafe extern "C" fn calloc(context: *const ArrayMemory, count: usize, each: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(each) else { return ptr::null_mut() };
    // SAFETY: as above.
    unsafe { memory(context) }.allocate(bytes, true)
}

// SAFETY: as above.
unsafe extern "C" fn realloc(context: *const ArrayMemory, old: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe { memory(context) };
    if old.is_null() {
        return memory.allocate(bytes, false);
    }
    let used = match memory.capacity(old) {
        Owner::Pool(capacity) if bytes <= capacity && bytes > capacity / 2 => return old,
        Owner::Pool(capacity) => capacity,
        Owner::Unknown => return ptr::null_mut(),
        // SAFETY: the address came from the heap.
        Owner::Heap if bytes < memory.min_bytes || !memory.process.is_current() => unsafe {
            return libc::realloc(old, bytes.max(1));
        },
        // SAFETY: as above.
        Owner::Heap => unsafe { libc::malloc_usable_size(old) },
    };
    // If Python code ran before `old` is released, it could resize or free the array too.
    let new = memory.allocate_at_once(bytes);
    if !new.is_null() {
        // SAFETY: both have this many bytes, and are different.
        unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), used.min(bytes)) };
        memory.release(old);
    }
    new
}

// SAFETY: as above.
unsafe extern "C" fn free(context: *const ArrayMemory, address: *mut c_void, _bytes: usize) {
    if !address.is_null() {
        // SAFETY: as above.
        unsafe { memory(context) }.release(address);
    }
}
