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
/// Number of slots in a chunk, and of chunks: a million pools for the life of a process.
const SLOTS: usize = 64;
const CHUNKS: usize = 16_384;

/// State of a slot without pool.
const EMPTY: u32 = 0;
/// State of a slot with a pool, to which bits are added.
const OPEN: u32 = 1;
/// Bit: a thread closes the pool, or finds out whether it can.
const CLOSING: u32 = 2;
/// Bit: a thread may hold locks of the pool that are never released. In a child made by `fork`, a thread that the child does not
/// have was in a call of the pool. With `CLOSING`, the closing thread uses the pool: if the process forks, the child keeps the bit.
const ABANDONED: u32 = 4;

/// A slot. Invariant: `pool` is `Some` while the state is not `EMPTY`, except in a child that was made while a thread closed
/// the pool.
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
    let chunk = CHUNK.get(index / SLOTS)?.load(Acquire); // Acquire: takes the slots; pairs with `open`.
    // SAFETY: chunks are never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % SLOTS])
}

/// Returns a handle of a pool.
pub(crate) fn open(pool: Pool) -> Result<zonal_pool, Failure> {
    calls::register_fork_handler()?;
    let index = USED.fetch_add(1, Relaxed); // relaxed: only the number itself counts
    let Some(chunk) = CHUNK.get(index / SLOTS) else {
        let most = SLOTS * CHUNKS;
        return Err(Failure::new(
            Status::ZONAL_BUILD_FAILED,
            format_args!("this process has built {most} pools, which is the limit"),
        ));
    };
    // Acquire: takes the slots; pairs with `open`.
    if chunk.load(Acquire).is_null() {
        let empty = || Slot { state: AtomicU32::new(EMPTY), pool: UnsafeCell::new(None) };
        let slots: *mut [Slot; SLOTS] = Box::into_raw(Box::new(std::array::from_fn(|_| empty())));
        // AcqRel: takes or publishes the slots; pairs with `slot`, `open`.
        if chunk.compare_exchange(ptr::null_mut(), slots, AcqRel, Acquire).is_err() {
            // SAFETY: another thread was faster, so no thread has seen these slots.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
    let slot = slot(index).expect("the slot was just created");
    // SAFETY: no handle names the slot yet, so no other thread accesses it.
    unsafe { *slot.pool.get() = Some(pool) };
    // Release: publishes the pool; pairs with `with_pool`, `begin_callback`, `Closing::begin`.
    slot.state.store(OPEN, Release);
    Ok(zonal_pool { id: TAG | (index as u64 + 1) })
}

/// Returns the number of the slot that a handle names, if it is a handle.
pub(crate) fn index_of(handle: zonal_pool) -> Result<usize, Failure> {
    let number = handle.id.wrapping_sub(TAG);
    let not_a_pool =
        || Failure::new(Status::ZONAL_NOT_A_POOL, format_args!("{:#x} is not a handle of a pool", handle.id));
    if number == 0 || number > (SLOTS * CHUNKS) as u64 { Err(not_a_pool()) } else { Ok(number as usize - 1) }
}

#[cold]
fn abandoned() -> Failure {
    let why = "another thread was in a call of the pool when this child was made, so the child can only close it, with \
               ZONAL_CLOSE_WITH_BLOCKS (zonal_pool_pause_threads has the rules)";
    Failure::new(Status::ZONAL_BUSY, why)
}

/// Whether this process has no copy of a pool's memory: it is a child made by `fork`, which has no shared memory and no
/// reserved huge pages.
#[cold]
pub(crate) fn is_unmapped(pool: &Pool) -> bool {
    pool.ranges().any(|zone| pool.ptr_of(zone.frames.start).is_none())
}

/// Whether a pool is one in which the parent of this process takes part, but not this child made by `fork`.
#[cold]
pub(crate) fn is_of_parent(pool: &Pool) -> bool {
    pool.shared_file().is_some() && is_unmapped(pool)
}

#[cold]
fn of_parent() -> Failure {
    let why = "a child process has no part in the shared pool of its parent; it can join the pool itself";
    Failure::new(Status::ZONAL_NOT_A_POOL, why)
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
        let call = Call::begin(index as u32)?;
        // A call that finds an open state is found by `wait_for_calls`.
        // Acquire: takes the pool; pairs with `open`, `Closing::end`, `Closing::drop`.
        match slot.state.load(Acquire) {
            EMPTY => return Err(closed(handle)),
            // A thread that closes the pool waits for the outer call of this thread, which therefore must go on.
            state if state & CLOSING != 0 && !call.is_nested() => {}
            state if state & ABANDONED != 0 => return Err(abandoned()),
            _ => {
                // SAFETY: the slot was open when this call, or an outer one, was noted, so no thread changes the pool until
                // it ends.
                let pool = unsafe { &*slot.pool.get() };
                let pool = pool.as_ref().ok_or_else(|| closed(handle))?;
                return if calls::is_child() && is_of_parent(pool) { Err(of_parent()) } else { body(pool) };
            }
        }
        drop(call);
        wait_for_decision();
    }
}

/// Notes that the calling thread runs a callback of the pool in a slot, so that calls within it need not wait for a thread that
/// closes the pool: that thread waits for the callback. Returns `None` if the pool has been closed or abandoned.
pub(crate) fn begin_callback(index: u32) -> Option<Call> {
    let slot = slot(index as usize)?;
    loop {
        let noted = Call::begin(index).ok()?;
        // A callback of a call in progress runs, because the pool stays until that call ends.
        // Acquire: takes the pool; pairs with `open`, `Closing::end`, `Closing::drop`.
        match slot.state.load(Acquire) {
            EMPTY => return None,
            state if state == OPEN || noted.is_nested() => return Some(noted),
            state if state & CLOSING == 0 => return None,
            _ => drop(noted),
        }
        wait_for_decision();
    }
}

/// A slot that the calling thread is closing. It has its former state again when this value is dropped.
struct Closing {
    slot: &'static Slot,
    /// `OPEN`, perhaps with `ABANDONED`.
    before: u32,
}

impl Closing {
    /// Begins to close a slot, when no other thread does. Returns `None` if its pool has been closed.
    fn begin(slot: &'static Slot) -> Option<Self> {
        let close = |state| (state != EMPTY && state & CLOSING == 0).then_some(state | CLOSING);
        loop {
            // This thread alone has the pool from here on, once no call is in progress.
            // Acquire: takes the pool; pairs with `open`, `Closing::end`, `Closing::drop`.
            match slot.state.fetch_update(Acquire, Acquire, close) {
                Ok(before) => return Some(Self { slot, before }),
                Err(EMPTY) => return None,
                Err(_) => wait_for_decision(),
            }
        }
    }

    /// Returns the pool.
    ///
    /// # Safety
    /// No call of the slot may be in progress.
    unsafe fn pool(&mut self) -> &mut Option<Pool> {
        // A child that has a part of what this thread does with the pool from here on also has the bit: `fork` copies what
        // each thread had done up to some instruction. Later calls find `CLOSING` first.
        // AcqRel: orders the bit before later accesses of the pool; pairs with fork(2).
        self.slot.state.fetch_or(ABANDONED, AcqRel);
        // SAFETY: no call is in progress and none can begin, and only one thread closes a slot at a time.
        unsafe { &mut *self.slot.pool.get() }
    }

    /// Leaves the slot empty for good.
    fn end(self) {
        // Release: publishes the end of the pool; pairs with `with_pool`, `begin_callback`, `Closing::begin`.
        self.slot.state.store(EMPTY, Release);
        mem::forget(self);
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        // Release: publishes the pool as it is now; pairs with `with_pool`, `begin_callback`, `Closing::begin`.
        self.slot.state.store(self.before, Release);
    }
}

/// Which pools are closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// Those without allocated blocks.
    IfUnused,
    Always,
}

/// Closes the pool of a handle, when no other call of it is in progress. `check` returns an error if blocks of a pool are
/// allocated.
pub(crate) fn close(
    handle: zonal_pool,
    which: Close,
    check: impl FnOnce(&Pool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let index = index_of(handle)?;
    let slot = slot(index).ok_or_else(|| closed(handle))?;
    calls::check_outside_callbacks("close pools")?;
    // If this function returns early or panics, the slot has its former state again.
    let mut closing = loop {
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
    let is_abandoned = closing.before & ABANDONED != 0;
    // SAFETY: the calls of the slot have ended.
    let pool = unsafe { closing.pool() };
    match &pool {
        // The locks with which blocks are counted may be held for ever.
        Some(_) if which == Close::IfUnused && is_abandoned => return Err(abandoned()),
        Some(pool) if which == Close::IfUnused => check(pool)?,
        _ => {}
    }
    let pool = pool.take();
    closing.end();
    callbacks::unregister_all_of(index as u32);
    policy::destroy_all_of(index as u32);
    drop(pool);
    Ok(())
}

/// Ends the closing of pools by threads that a child made by `fork` does not have. Pools that such threads were using stay
/// abandoned.
pub(crate) fn after_fork_in_child() {
    // Relaxed, here and below: the child has one thread.
    for index in 0..USED.load(Relaxed) {
        if let Some(slot) = slot(index) {
            slot.state.fetch_and(!CLOSING, Relaxed);
        }
    }
}

/// Notes that a thread which a child made by `fork` does not have was in a call of a pool.
pub(crate) fn abandon(index: u32) {
    if let Some(slot) = slot(index as usize).filter(|slot| slot.state.load(Relaxed) != EMPTY) {
        slot.state.fetch_or(ABANDONED, Relaxed);
    }
}
