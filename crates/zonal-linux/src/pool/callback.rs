//! Calling the user's code from threads that must live on.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic of a callback. What it carried is dropped already, or lost if that panicked too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Panicked;

/// Calls the user's code, and keeps its panics from the caller.
pub(super) fn contained<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(end)
}

/// Drops what a panic carried: code of the user's, too.
fn end(payload: Box<dyn Any + Send>) -> Panicked {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another); // this could go on for ever
    }
    Panicked
}
