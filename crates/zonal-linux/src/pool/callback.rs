//! Calls user code on threads that must continue to run if that code panics.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic of a callback. Its payload has already been dropped. If the destructor of the payload panicked too, the
/// payload of that second panic has been leaked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Panicked;

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
