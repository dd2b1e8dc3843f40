//! Which pools the threads of the process are using, so that a pool can be closed while other threads call it, and which
//! callbacks they are running.
//!
//! Every call that uses a pool notes the pool's slot in a record of the calling thread, and then checks whether the pool
//! is open. Closing a pool first marks it as closing, and then waits until no record names its slot. The two sides need
//! a barrier between the store and the load. The frequent side, a call, has only a compiler fence; the rare side, closing,
//! calls `membarrier(2)`, which executes a barrier on all running threads. Where the kernel denies that call, every call
//! executes a barrier itself.

use std::alloc::{Layout, alloc};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, compiler_fence, fence};
use std::thread;
use std::time::{Duration, Instant};

use crate::status::{Failure, Status};

/// The most notes that one thread has at a time: calls, their policies, the callbacks that they run, and calls of
/// these.
const NESTED_MAX: usize = 20;
/// Bit of a number that is not a slot but a callback, which is noted in the same way while it runs.
pub(crate) const CALLBACK: u32 = 1 << 31;
/// Number of all callbacks that end with the call to which they are passed.
pub(crate) const PASSED_CALLBACK: u32 = NOTHING - 1;
/// Bit of a number that is a policy's index, which is noted while a request uses it. Slots are smaller numbers.
pub(crate) const POLICY: u32 = 1 << 30;
/// Value of a place that names no slot.
const NOTHING: u32 = u32::MAX;

/// `membarrier` commands; Linux `membarrier(2)`.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The calls of a thread that are in progress. Records are never freed; a thread that ends leaves its record to another.
#[repr(align(128))]
struct Record {
    slots: [AtomicU32; NESTED_MAX],
    depth: AtomicUsize,
    is_taken: AtomicBool,
    next: AtomicPtr<Record>,
}

/// The list of all records.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The record of the thread, or null before its first call. It has no destructor, so it is there until the thread ends.
    static RECORD: Cell<*const Record> = const { Cell::new(ptr::null()) };
}

/// Number of the `pthread_setspecific` key plus 1 whose destructor gives records back; 0 before it exists.
///
/// A destructor of a thread-local would not run for a thread whose first call comes from another key's destructor.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// Returns an ending thread's record to the list of free ones. The C library calls it with the destructors of keys.
// SAFETY: the C library calls it with the value of the key.
unsafe extern "C" fn give_back(_record: *mut libc::c_void) {
    let record = RECORD.replace(ptr::null());
    // SAFETY: records are never freed.
    if let Some(record) = unsafe { record.as_ref() } {
        // Release: publishes the record of the ending thread; pairs with `take_record`.
        record.is_taken.store(false, Release);
    }
}

/// Returns the key, which is created if necessary.
fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Acquire); // Acquire: takes the creation of the key; pairs with `key`.
    if known != 0 {
        return Some((known - 1) as libc::pthread_key_t);
    }
    let mut key = 0;
    // SAFETY: the key has a place, and the destructor may be called by any thread.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } != 0 {
        return None;
    }
    // AcqRel: takes or publishes the creation of the key; pairs with `key`.
    match KEY.compare_exchange(0, key as usize + 1, AcqRel, Acquire) {
        Ok(_) => Some(key),
        Err(first) => {
            // SAFETY: no thread has set a value for this key.
            unsafe { libc::pthread_key_delete(key) };
            Some((first - 1) as libc::pthread_key_t)
        }
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call has no effect on the memory of the program.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether `membarrier` executes a barrier on all threads of the process.
///
/// Several threads may find it out at the same time. There is no lock, which a thread could hold when another forks.
#[inline]
fn has_membarrier() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    #[cold]
    fn find_out() -> u8 {
        let has = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        let found = if has { YES } else { NO };
        // The first answer holds, so that both sides of the protocol act on the same one.
        // AcqRel: takes or publishes the registration; pairs with `find_out`.
        KNOWN.compare_exchange(UNKNOWN, found, AcqRel, Acquire).map_or_else(|first| first, |_| found)
    }
    match KNOWN.load(Relaxed) {
        UNKNOWN => find_out() == YES,
        known => known == YES,
    }
}

/// Returns the record of the calling thread, and whether the thread keeps it after the call. Returns `None` if there is no
/// memory for a record.
#[inline]
fn record() -> Option<(&'static Record, bool)> {
    // SAFETY: records are never freed.
    match unsafe { RECORD.get().as_ref() } {
        Some(record) => Some((record, true)),
        None => take_record(),
    }
}

#[cold]
fn take_record() -> Option<(&'static Record, bool)> {
    let mut at = RECORDS.load(Acquire); // Acquire: takes the records of the list; pairs with `take_record`.
    // SAFETY: records are never freed.
    while let Some(record) = unsafe { at.as_ref() } {
        // Acquire: takes the record of the thread that had it; pairs with `give_back`, `Call::drop`.
        if record.is_taken.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
            return Some(own(record));
        }
        at = record.next.load(Relaxed); // relaxed: written before the record was published
    }
    // A box would end the process if the heap is exhausted.
    // SAFETY: the layout has a size.
    let place = unsafe { alloc(Layout::new::<Record>()) }.cast::<MaybeUninit<Record>>();
    // SAFETY: the place was allocated just now for a record, and is never freed.
    let record: &'static Record = unsafe { place.as_mut() }?.write(Record {
        slots: [const { AtomicU32::new(NOTHING) }; NESTED_MAX],
        depth: AtomicUsize::new(0),
        is_taken: AtomicBool::new(true),
        next: AtomicPtr::new(ptr::null_mut()),
    });
    let mut first = RECORDS.load(Relaxed); // relaxed: the exchange below decides
    loop {
        record.next.store(first, Relaxed);
        // AcqRel: takes and publishes records; pairs with `take_record`, `wait_for_calls`, `after_fork_in_child`.
        match RECORDS.compare_exchange(first, ptr::from_ref(record).cast_mut(), AcqRel, Relaxed) {
            Ok(_) => return Some(own(record)),
            Err(now) => first = now,
        }
    }
}

/// Makes the thread keep a record until it ends. If that is not possible, for lack of keys or memory, the thread keeps the
/// record until its outermost call ends.
fn own(record: &'static Record) -> (&'static Record, bool) {
    RECORD.set(record);
    // SAFETY: the key exists, and its destructor ignores the value, which must not be null.
    let set = |key| unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) == 0 };
    (record, key().is_some_and(set))
}

/// A call in progress, which is noted until this value is dropped.
pub(crate) struct Call {
    record: &'static Record,
    depth: usize,
    keeps_record: bool,
}

impl Call {
    /// Notes that the calling thread uses `slot`. Fails if too many of its calls are in progress.
    ///
    /// A load that follows sees that the slot is closing, or else [`wait_for_calls`] sees the note.
    #[inline]
    pub(crate) fn begin(slot: u32) -> Result<Self, Failure> {
        let (record, keeps_record) = record().ok_or_else(no_record)?;
        let depth = record.depth.load(Relaxed); // relaxed: only this thread accesses it
        let place = record.slots.get(depth).ok_or_else(too_deep)?;
        record.depth.store(depth + 1, Relaxed);
        // Release: publishes what an earlier call in this place did; pairs with `wait_for_calls`.
        place.store(slot, Release);
        if has_membarrier() {
            // SeqCst: orders the note before loads of the state; pairs with `wait_for_calls`, membarrier(2).
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst); // SeqCst: orders the note before loads of the state; pairs with `wait_for_calls`.
        }
        Ok(Self { record, depth, keeps_record })
    }

    /// Whether an outer call of this thread uses the same slot, so that no thread can close it before that call ends.
    pub(crate) fn is_nested(&self) -> bool {
        // Relaxed: only this thread writes them.
        let own = self.record.slots[self.depth].load(Relaxed);
        self.record.slots[..self.depth].iter().any(|place| place.load(Relaxed) == own)
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        // Release: publishes what this call did; pairs with `wait_for_calls`.
        self.record.slots[self.depth].store(NOTHING, Release);
        self.record.depth.store(self.depth, Relaxed);
        if !self.keeps_record {
            // Calls within this one had the record too, and have ended.
            RECORD.set(ptr::null());
            // Release: publishes the record; pairs with `take_record`.
            self.record.is_taken.store(false, Release);
        }
    }
}

#[cold]
fn no_record() -> Failure {
    Failure::new(Status::ZONAL_REENTERED, "the heap has no memory for the record of this thread's calls")
}

#[cold]
fn too_deep() -> Failure {
    Failure::new(Status::ZONAL_REENTERED, "too many calls of this thread are in progress")
}

/// Returns an error if the calling thread runs a callback, which may not do what `what` says.
pub(crate) fn check_outside_callbacks(what: &str) -> Result<(), Failure> {
    if is_in_callback() {
        return Err(Failure::new(Status::ZONAL_BUSY, format_args!("a callback cannot {what}")));
    }
    Ok(())
}

/// Whether the calling thread runs a callback.
pub(crate) fn is_in_callback() -> bool {
    // SAFETY: records are never freed.
    let record = unsafe { RECORD.get().as_ref() };
    let is_callback = |noted: u32| noted != NOTHING && noted & CALLBACK != 0;
    // Relaxed: only this thread writes them.
    record.is_some_and(|record| record.slots.iter().any(|place| is_callback(place.load(Relaxed))))
}

/// Returns how many notes of `slot` the calling thread has.
pub(crate) fn own_notes(slot: u32) -> usize {
    // SAFETY: records are never freed. A thread without a record has no notes.
    let record = unsafe { RECORD.get().as_ref() };
    // Relaxed: only this thread writes them.
    record.map_or(0, |record| record.slots.iter().filter(|place| place.load(Relaxed) == slot).count())
}

/// The state of calls in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    /// No call is in progress.
    Ended,
    /// A call is in progress.
    Running,
    /// The kernel has begun to deny `membarrier` since the first call, for example because the program uses seccomp.
    Unknown,
}

/// Waits until no call of `slot` is in progress, but at most for `time`. Later calls must see that the slot is closing.
#[must_use]
pub(crate) fn wait_for_calls(slot: u32, time: Option<Duration>) -> Calls {
    fence(SeqCst); // SeqCst: orders the closing state before loads of notes; pairs with `Call::begin`, membarrier(2).
    if has_membarrier() && !membarrier(PRIVATE_EXPEDITED) {
        return Calls::Unknown;
    }
    let start = Instant::now();
    let mut at = RECORDS.load(Acquire); // Acquire: takes the records of the list; pairs with `take_record`.
    // SAFETY: records are never freed.
    while let Some(record) = unsafe { at.as_ref() } {
        // Acquire: takes what the calls did; pairs with `Call::begin`, `Call::drop`.
        while record.slots.iter().any(|place| place.load(Acquire) == slot) {
            if time.is_some_and(|time| start.elapsed() >= time) {
                return Calls::Running;
            }
            thread::sleep(Duration::from_micros(50));
        }
        at = record.next.load(Relaxed); // relaxed: written before the record was published
    }
    Calls::Ended
}

/// Whether this process is a child of one that built a pool.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child, made by `fork`, of one that built a pool.
#[inline]
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Relaxed) // relaxed: written before the child has a second thread
}

/// Makes every child that is made by `fork` from now on run [`after_fork_in_child`].
pub(crate) fn register_fork_handler() -> Result<(), Failure> {
    static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
    // Acquire: takes the registration; pairs with `register_fork_handler`.
    if HAS_HANDLER.load(Acquire) {
        return Ok(());
    }
    // Several threads may register it; it may run several times.
    // SAFETY: the handler only accesses atomic integers and a thread-local without destructor.
    if unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) } != 0 {
        let why = "the heap has no memory for the handler that prepares children made by fork";
        return Err(Failure::new(Status::ZONAL_BUILD_FAILED, why));
    }
    HAS_HANDLER.store(true, Release); // Release: publishes the registration; pairs with `register_fork_handler`.
    Ok(())
}

/// Forgets the calls of threads that a child made by `fork` does not have, after closing the pools that they used to calls.
extern "C" fn after_fork_in_child() {
    IS_CHILD.store(true, Relaxed);
    crate::handle::after_fork_in_child();
    crate::policy::after_fork_in_child();
    crate::callbacks::after_fork_in_child();
    let own = RECORD.get();
    let mut at = RECORDS.load(Acquire); // Acquire: takes the records of the list; pairs with `take_record`.
    // SAFETY: records are never freed.
    while let Some(record) = unsafe { at.as_ref() } {
        if !ptr::eq(record, own) {
            for place in &record.slots {
                let noted = place.swap(NOTHING, Relaxed); // relaxed: the child has one thread
                if noted < POLICY {
                    crate::handle::abandon(noted);
                }
            }
            record.depth.store(0, Relaxed);
            record.is_taken.store(false, Relaxed);
        }
        at = record.next.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nest_up_to_a_limit() {
        let calls: Vec<_> = (0..NESTED_MAX as u32).map(|slot| Call::begin(slot).ok().unwrap()).collect();
        assert!(Call::begin(99).is_err() && own_notes(3) == 1 && own_notes(99) == 0);
        calls.into_iter().rev().for_each(drop);
        assert!(own_notes(3) == 0 && Call::begin(99).is_ok());
    }

    #[test]
    fn waiting_ends_when_the_last_call_ends() {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let call = Call::begin(7).ok().unwrap();
            scope.spawn(|| {
                assert_eq!(wait_for_calls(7, Some(Duration::from_millis(1))), Calls::Running);
                assert_eq!([8, 7].map(|slot| wait_for_calls(slot, None)), [Calls::Ended; 2]);
                assert!(is_done.load(Acquire), "the call was still in progress");
            });
            thread::sleep(Duration::from_millis(20));
            is_done.store(true, Release);
            drop(call);
        });
    }

    #[test]
    fn a_thread_that_ends_leaves_its_record() {
        let count = || {
            let (mut count, mut at) = (0, RECORDS.load(Acquire));
            // SAFETY: records are never freed.
            while let Some(record) = unsafe { at.as_ref() } {
                (count, at) = (count + 1, record.next.load(Relaxed));
            }
            count
        };
        for _ in 0..100 {
            thread::spawn(|| drop(Call::begin(1))).join().unwrap();
        }
        assert!(count() < 50, "{} records", count());
    }
}
