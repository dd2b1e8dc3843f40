//! Detects whether the calling thread is inside a section that its own signal handlers must not wait for.
//!
//! A signal handler deadlocks if it waits for a lock while the thread that it interrupted holds that lock or waits
//! for it. Each thread therefore counts the locks that it holds or waits for. If code finds a positive count before
//! it has locked anything itself, it runs in such a handler. Related files: `threads/lock.rs` counts, and
//! `pool/platform.rs` checks.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, compiler_fence};

thread_local! {
    // The count is atomic only because of handlers on the same thread: atomic loads and stores do not tear.
    static LOCKS: AtomicU32 = const { AtomicU32::new(0) };
}

/// Records that the calling thread holds one more lock or is about to wait for one.
#[inline]
pub(super) fn enter() {
    LOCKS.with(|locks| locks.store(locks.load(Relaxed) + 1, Relaxed));
    compiler_fence(SeqCst); // SeqCst: orders the count before the lock; pairs with this thread's handlers.
}

/// Records that the calling thread holds one lock less.
#[inline]
pub(super) fn leave() {
    compiler_fence(SeqCst); // SeqCst: orders the unlock before the count; pairs with this thread's handlers.
    LOCKS.with(|locks| locks.store(locks.load(Relaxed).saturating_sub(1), Relaxed));
}

/// Whether the calling thread holds or waits for any lock.
#[inline]
pub(crate) fn is_inside() -> bool {
    LOCKS.with(|locks| locks.load(Relaxed) != 0)
}

/// Guard of a section in which the calling thread counts as inside, even while it unwinds.
pub(crate) struct Inside {
    /// Makes this type neither `Send` nor `Sync`, because the guard belongs to its thread.
    _of_thread: PhantomData<*const ()>,
}

impl Inside {
    pub(crate) fn enter() -> Self {
        enter();
        Self { _of_thread: PhantomData }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}
