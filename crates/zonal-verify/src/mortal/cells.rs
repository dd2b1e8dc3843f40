//! Cells and locks of processes that die: before any write, a process may end, and what it was about to write is lost.
//!
//! All processes of a history run on one thread, one at a time. A death unwinds the operation to its caller; what destructors
//! write meanwhile is dropped, because a process that is killed runs none. Related files: `processes.rs` runs operations.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zonal::platform::{Atomic, RawLock};

/// Reads of one operation after which it counts as endless.
const READS_MAX: u64 = 50_000_000;
/// Bit of a lock whose holder died, until what it guards is repaired.
const TORN: u32 = 1 << 31;
/// Writes that are left to a process that does not die.
const ALL: u64 = u64::MAX;

thread_local! {
    /// Writes that are left to the process that runs.
    static LEFT: Cell<u64> = const { Cell::new(ALL) };
    /// Writes that the last operation has made.
    static MADE: Cell<u64> = const { Cell::new(0) };
    static IS_DEAD: Cell<bool> = const { Cell::new(false) };
    static READS: Cell<u64> = const { Cell::new(0) };
    /// The name with which the process that runs holds locks.
    static NAME: Cell<u32> = const { Cell::new(1) };
    /// The names of those that have died.
    static DEAD: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// What a death unwinds with.
struct Death;

/// Returns how many writes the last operation has made.
pub(super) fn writes_made() -> u64 {
    MADE.get()
}

/// Returns the names of the processes that have died.
pub(super) fn dead() -> Vec<u32> {
    DEAD.with_borrow(Vec::clone)
}

/// Makes those the processes that have died.
pub(super) fn set_dead(names: Vec<u32>) {
    DEAD.set(names);
}

/// Runs an operation of the process that holds locks as `name`, which dies before its write number `writes` + 1 if that is
/// given; returns `None` if it has died. A panic is an error.
pub(super) fn run<T>(
    name: u32,
    writes: Option<u64>,
    operation: impl FnOnce() -> Result<T, String>,
) -> Option<Result<T, String>> {
    NAME.set(name);
    let limit = writes.unwrap_or(ALL);
    LEFT.set(limit);
    READS.set(0);
    let done = panic::catch_unwind(AssertUnwindSafe(operation));
    MADE.set(limit - LEFT.replace(ALL));
    if IS_DEAD.replace(false) {
        DEAD.with_borrow_mut(|dead| dead.push(name));
    }
    match done {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<Death>() => None,
        Err(payload) => {
            let said = payload.downcast_ref::<String>().map(String::as_str);
            Some(Err(format!("it panics: {}", said.or(payload.downcast_ref().copied()).unwrap_or_default())))
        }
    }
}

/// Drops what a dead process had, without a write.
pub(super) fn bury<T>(what: T) {
    IS_DEAD.set(true);
    drop(what);
    IS_DEAD.set(false);
}

/// Whether the process may write; the process dies instead if none of its writes are left.
fn may_write() -> bool {
    if IS_DEAD.get() {
        return false;
    }
    match LEFT.get() {
        0 if !std::thread::panicking() => {
            IS_DEAD.set(true);
            panic::resume_unwind(Box::new(Death));
        }
        left => LEFT.set(left.saturating_sub(1)),
    }
    true
}

fn note_read() {
    let reads = READS.get() + 1;
    READS.set(reads);
    assert!(reads < READS_MAX || IS_DEAD.get(), "the operation does not end");
}

/// A cell of processes that die.
#[repr(transparent)]
pub(super) struct MortalCell<A>(A);

macro_rules! mortal_cell {
    ($($atomic:ident: $value:ident),*) => {$(
        impl Atomic<$value> for MortalCell<$atomic> {
            fn new(value: $value) -> Self {
                Self($atomic::new(value))
            }
            fn load(&self, order: Ordering) -> $value {
                note_read();
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                if may_write() {
                    self.0.store(value, order);
                }
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                if may_write() { self.0.swap(value, order) } else { self.0.load(Ordering::Relaxed) }
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                note_read();
                match self.0.load(Ordering::Relaxed) {
                    found if found != current => Err(found),
                    _ if may_write() => self.0.compare_exchange(current, new, ok, failed),
                    found => Ok(found),
                }
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if may_write() { self.0.fetch_add(value, order) } else { self.0.load(Ordering::Relaxed) }
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                if may_write() { self.0.fetch_or(value, order) } else { self.0.load(Ordering::Relaxed) }
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                if may_write() { self.0.fetch_and(value, order) } else { self.0.load(Ordering::Relaxed) }
            }
        }
    )*};
}
mortal_cell!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

/// A lock that names its holder, and that is taken from a holder which has died. Zero means that it is free.
#[repr(transparent)]
pub(super) struct MortalLock(AtomicU32);

// Relaxed, everywhere here: one thread.
impl RawLock for MortalLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        let found = self.0.load(Ordering::Relaxed);
        let holder = found & !TORN;
        let is_free = found == 0 || DEAD.with_borrow(|dead| dead.contains(&holder));
        assert!(is_free || IS_DEAD.get(), "the only thread there is waits for process {holder}");
        if may_write() {
            self.0.store(NAME.get() | if found == 0 { 0 } else { TORN }, Ordering::Relaxed);
        }
    }

    fn try_lock(&self) -> bool {
        let is_free = self.0.load(Ordering::Relaxed) == 0;
        if is_free && may_write() {
            self.0.store(NAME.get(), Ordering::Relaxed);
        }
        is_free
    }

    fn unlock(&self) {
        if may_write() {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn is_torn(&self) -> bool {
        self.0.load(Ordering::Relaxed) & TORN != 0
    }

    fn set_repaired(&self) {
        if may_write() {
            self.0.fetch_and(!TORN, Ordering::Relaxed);
        }
    }
}
