//! Locks and condition variables for a pool's threads that a child made by `fork` can safely drop: those of the
//! standard library, which keep no table of waiters, and are never handed to a waiter that the child lacks.
//!
//! `threads/wake.rs` imports them from here because a model checker runs the same file with its own
//! (`zonal-verify`, `tests/wake_ups.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex};
use std::sync::{LockResult, PoisonError};

/// Returns the guard of a lock even if a thread panicked while holding it: the data cannot be left half-changed.
pub(crate) fn held<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
