//! Whether the calling thread is where a signal handler of its own must not wait for it.
//!
//! A handler that runs while its thread holds a lock of a pool, or waits for one, would wait for itself if it
//! took the lock too. So each thread counts the locks that it holds or waits for; what finds the count above zero
//! before it has taken any itself is such a handler. Neighbours: `lock.rs` counts, `pool/platform.rs` asks.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, compiler_fence};

thread_local! {
    // Atomic for the handlers of the same thread alone: loads and stores that are not torn.
    static LOCKS: AtomicU32 = const { AtomicU32::new(0) };
}

/// The calling thread holds one lock more, or is about to wait for it.
#[inline]
pub(super) fn enter() {
    LOCKS.with(|locks| locks.store(locks.load(Relaxed) + 1, Relaxed));
    compiler_fence(SeqCst); // not after the lock
}

/// It holds one less.
#[inline]
pub(super) fn leave() {
    compiler_fence(SeqCst); // not before the lock is free
    LOCKS.with(|locks| locks.store(locks.load(Relaxed).saturating_sub(1), Relaxed));
}

/// Whether it holds or waits for any.
#[inline]
pub(crate) fn is_inside() -> bool {
    LOCKS.with(|locks| locks.load(Relaxed) != 0)
}

/// A section in which the calling thread is inside, unwinding included.
pub(crate) struct Inside {
    /// Belongs to its thread: neither `Send` nor `Sync`.
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
