//! What threads of a pool wait by, where a child made by `fork` may let go of it: the standard library's
//! locks, which keep no table of who waits, and are never handed to a waiter that the child lacks.
//!
//! `wake.rs` has its parts from here because a model checker tries the same room with its own (`zonal-verify`,
//! `tests/wake_ups.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex};
use std::sync::{LockResult, PoisonError};

/// What a lock guards, though a thread panicked with it: these guard nothing that can be half done.
pub(crate) fn held<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
