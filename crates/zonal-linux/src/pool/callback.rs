//! Calls user code on threads that must continue to run if that code panics.

use std::any::Any;
use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::threads::presence::Presence;

thread_local! {
    /// Whether this thread of a pool is in user code. Has no destructor.
    static IN_USER_CODE: Cell<bool> = const { Cell::new(false) };
}

/// A panic of a callback. Its payload has already been dropped. If the destructor of the payload panicked too, the
/// payload of that second panic has been leaked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Panicked;

/// Calls user code on a thread of the pool that is at work, and counts the thread as in a reclaimer meanwhile. Returns
/// `None` if the pool is being dropped.
///
/// The thread is counted once, although user code may call other user code: a callback may make a request that reclaims.
pub(super) fn outside<R>(presence: &Presence, call: impl FnOnce() -> R) -> Option<R> {
    if IN_USER_CODE.get() {
        return Some(call());
    }
    let _counted = presence.enter_reclaimer()?;
    let _marked = InUserCode::begin();
    Some(call())
}

/// Marks the calling thread as in user code until dropped.
struct InUserCode;

impl InUserCode {
    fn begin() -> Self {
        IN_USER_CODE.set(true);
        Self
    }
}

impl Drop for InUserCode {
    fn drop(&mut self) {
        IN_USER_CODE.set(false);
    }
}

/// Calls user code and catches its panics.
pub(super) fn contained<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(end)
}

/// Drops the payload of a panic. The payload's destructor is user code, which can panic too.
fn end(payload: Box<dyn Any + Send>) -> Panicked {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another); // its destructor could panic again, any number of times
    }
    Panicked
}
