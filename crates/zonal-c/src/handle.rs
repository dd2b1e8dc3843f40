//! Handles of pools: numbers that are checked in every call.
//!
//! A handle names a *slot*, which has the pool. Slots are never freed and never used again, so a handle of a closed pool is
//! refused for ever. A slot has 128 bytes.

use std::cell::UnsafeCell;
use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use std::thread;
use std::time::Duration;

use zonal_linux::Pool;

use crate::calls::{self, Call, Calls};
use crate::status::{Failure, Status};
use crate::types::zonal_pool;
use crate::{callbacks, policy};

/// The upper half of every handle, so that other numbers are not handles.
const TAG: u64 = 0x7A6F_6E61 << 32;
/// Number of slots of a chunk, and of chunks: a million pools for the life of a process.
const SLOTS: usize = 64;
const CHUNKS: usize = 16_384;

/// States of a slot.
const EMPTY: u32 = 0;
const OPEN: u32 = 1;
const CLOSING: u32 = 2;

/// A slot. Invariant: `pool` is `Some` while the state is `OPEN` or `CLOSING`.
#[repr(align(128))]
struct Slot {
    state: AtomicU32,
    pool: UnsafeCell<Option<Pool>>,
}

// SAFETY: `pool` is written only by the thread that opens the slot, before it is open, and by the thread that closes it,
// when no call of the slot is in progress and no other can begin.
unsafe impl Sync for Slot {}

static CHUNK: [AtomicPtr<[Slot; SLOTS]>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Number of slots that are or were in use. There is no lock, which a thread could hold when another forks.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Returns a slot, if it exists.
#[inline]
fn slot(index: usize) -> Option<&'static Slot> {
    let chunk = CHUNK.get(index / SLOTS)?.load(Acquire); // pairs with the release in `open`
    // SAFETY: chunks are never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % SLOTS])
}

/// Returns a handle of a pool.
pub(crate) fn open(pool: Pool) -> Result<zonal_pool, Failure> {
    let index = USED.fetch_add(1, Relaxed); // relaxed: only the number itself counts
    let Some(chunk) = CHUNK.get(index / SLOTS) else {
        let most = SLOTS * CHUNKS;
        return Err(Failure::new(
            Status::ZONAL_BUILD_FAILED,
            format_args!("this process has built {most} pools, which is the limit"),
        ));
    };
    if chunk.load(Acquire).is_null() {
        let empty = || Slot { state: AtomicU32::new(EMPTY), pool: UnsafeCell::new(None) };
        let slots: *mut [Slot; SLOTS] = Box::into_raw(Box::new(std::array::from_fn(|_| empty())));
        // AcqRel: publishes the slots; pairs with the acquire in `slot`.
        if chunk.compare_exchange(ptr::null_mut(), slots, AcqRel, Acquire).is_err() {
            // SAFETY: another thread was faster, so no thread has seen these slots.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
    let slot = slot(index).expect("the slot was just created");
    // SAFETY: no handle names the slot yet, so no other thread accesses it.
    unsafe { *slot.pool.get() = Some(pool) };
    slot.state.store(OPEN, Release); // pairs with the acquire in `with_pool`
    Ok(zonal_pool { id: TAG | (index as u64 + 1) })
}

/// Returns the number of the slot that a handle names, if it is a handle.
pub(crate) fn index_of(handle: zonal_pool) -> Result<usize, Failure> {
    let number = handle.id.wrapping_sub(TAG);
    let not_a_pool =
        || Failure::new(Status::ZONAL_NOT_A_POOL, format_args!("{:#x} is not a handle of a pool", handle.id));
    if number == 0 || number > (SLOTS * CHUNKS) as u64 { Err(not_a_pool()) } else { Ok(number as usize - 1) }
}

fn closed(handle: zonal_pool) -> Failure {
    Failure::new(Status::ZONAL_NOT_A_POOL, format_args!("the pool {:#x} has been closed", handle.id))
}

/// The longest time for which a thread that closes a pool keeps other threads from calling it. If their calls have not ended
/// then, one of them may wait for a thread that cannot call the pool, for example for a lock.
const CLOSING_TIME: Duration = Duration::from_millis(2);

/// Waits a little while another thread decides whether a pool closes.
fn wait_for_decision() {
    thread::sleep(Duration::from_micros(50));
}

/// Runs `body` with the pool of a handle, which cannot be closed meanwhile.
#[inline]
pub(crate) fn with_pool<R>(
    handle: zonal_pool,
    body: impl FnOnce(&Pool) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let index = index_of(handle)?;
    let slot = slot(index).ok_or_else(|| closed(handle))?;
    loop {
        let call = Call::begin(index as u32).ok_or_else(|| {
            Failure::new(Status::ZONAL_REENTERED, "too many calls of this thread are in progress")
        })?;
        // Acquire: pairs with the release in `open`. A state that is open here is found by `wait_for_calls`.
        match slot.state.load(Acquire) {
            EMPTY => return Err(closed(handle)),
            // A thread that closes the pool waits for the outer call of this thread, which therefore must go on.
            state if state == OPEN || call.is_nested() => {
                // SAFETY: the slot was open when this call, or an outer one, was noted, so no thread changes the pool until
                // it ends.
                let pool = unsafe { &*slot.pool.get() };
                return pool.as_ref().ok_or_else(|| closed(handle)).and_then(body);
            }
            _ => {} // another thread closes the pool, or finds that it cannot
        }
        drop(call);
        wait_for_decision();
    }
}

/// Notes that the calling thread runs a callback of the pool in a slot, so that calls within it need not wait for a thread that
/// closes the pool: that thread waits for the callback. Returns `None` if the pool is being closed.
pub(crate) fn begin_callback(index: u32) -> Option<Call> {
    let slot = slot(index as usize)?;
    loop {
        let noted = Call::begin(index)?;
        // Acquire: as in `with_pool`. A callback of a call in progress runs, because the pool stays until that call ends.
        match slot.state.load(Acquire) {
            EMPTY => return None,
            state if state == OPEN || noted.is_nested() => return Some(noted),
            _ => drop(noted),
        }
        wait_for_decision();
    }
}

/// Whether the calling thread is in a call or a callback of a pool.
pub(crate) fn is_in_use_here(handle: zonal_pool) -> bool {
    index_of(handle).is_ok_and(|index| calls::is_calling(index as u32))
}

/// A slot that the calling thread is closing. It is open again when this value is dropped.
struct Closing(&'static Slot);

impl Closing {
    /// Begins to close a slot, when no other thread does. Returns `None` if its pool has been closed.
    fn begin(slot: &'static Slot) -> Option<Self> {
        // Acquire: this thread alone has the pool from here on, once no call is in progress.
        while let Err(state) = slot.state.compare_exchange(OPEN, CLOSING, Acquire, Acquire) {
            if state == EMPTY {
                return None;
            }
            wait_for_decision();
        }
        Some(Self(slot))
    }

    /// Leaves the slot empty for good.
    fn end(self) {
        self.0.state.store(EMPTY, Release); // pairs with the acquire in `with_pool`
        mem::forget(self);
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.state.store(OPEN, Release); // pairs with the acquire in `with_pool`
    }
}

/// Closes the pool of a handle, if `may_close` agrees, when no other call of it is in progress.
pub(crate) fn close(
    handle: zonal_pool,
    may_close: impl FnOnce(&Pool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let index = index_of(handle)?;
    let slot = slot(index).ok_or_else(|| closed(handle))?;
    if calls::is_calling(index as u32) || calls::is_in_callback() {
        let why = "a call of the pool, or a callback, is in progress on this thread, from which no pool can be closed";
        return Err(Failure::new(Status::ZONAL_BUSY, why));
    }
    // If this function returns early or panics, the slot is open again.
    let closing = loop {
        let closing = Closing::begin(slot).ok_or_else(|| closed(handle))?;
        match calls::wait_for_calls(index as u32, Some(CLOSING_TIME)) {
            Calls::Ended => break closing,
            Calls::Running => drop(closing),
            Calls::Unknown => {
                let why =
                    "the kernel denies membarrier(2) since the first call, so calls in progress are unknown";
                return Err(Failure::new(Status::ZONAL_BUSY, why));
            }
        }
        thread::sleep(CLOSING_TIME);
    };
    // SAFETY: no call of the slot is in progress, none can begin, and only one thread can be here.
    let pool = unsafe { &mut *slot.pool.get() };
    pool.as_ref().map_or(Ok(()), may_close)?;
    let pool = pool.take();
    closing.end();
    callbacks::unregister_all_of(index as u32);
    policy::destroy_all_of(index as u32);
    drop(pool);
    Ok(())
}

/// Decides about pools that threads were closing which a child made by `fork` does not have: they stay open.
pub(crate) fn after_fork_in_child() {
    // Relaxed: the child has one thread.
    for index in 0..USED.load(Relaxed) {
        if let Some(slot) = slot(index) {
            slot.state.compare_exchange(CLOSING, OPEN, Relaxed, Relaxed).ok();
        }
    }
}
