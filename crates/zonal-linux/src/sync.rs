//! What `wake.rs` is made of. Apart, because a model checker tries the same room with its own
//! (`zonal-trust`, `tests/wake_ups.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
