//! Calls user code from threads that must survive its panics.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic of a callback. Its payload is already dropped, or leaked if dropping it panicked too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Panicked;

/// Calls user code and catches its panics.
pub(super) fn contained<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(end)
}

/// Drops the payload of a panic, which also runs user code.
fn end(payload: Box<dyn Any + Send>) -> Panicked {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another); // its destructor may panic again, without end
    }
    Panicked
}
