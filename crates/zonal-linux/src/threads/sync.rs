//! The locks and condition variables of a pool's threads: those of the standard library. A child made by `fork` can
//! drop them safely, because they have no table of waiters and are never handed over to a waiter that does not exist
//! in the child.
//!
//! `threads/wake.rs` imports them from this module because `tests/wake_ups.rs` in `zonal-verify` compiles the same
//! file with a model checker's versions instead.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex};
use std::sync::{LockResult, PoisonError};

/// Returns the guard of a lock even if a thread panicked while holding the lock. The panic cannot have left the data
/// half-changed.
pub(crate) fn held<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
