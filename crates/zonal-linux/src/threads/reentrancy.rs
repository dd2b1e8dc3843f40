//! Detects whether the calling thread is inside a section that its own signal handlers must not wait for.
//!
//! A handler that interrupts its thread while that holds or waits for a lock of a pool would deadlock if it waited
//! for the lock too. Each thread therefore counts the locks that it holds or waits for. Code that finds a positive
//! count before it has locked anything itself runs in such a handler. Neighbours: `threads/lock.rs` counts,
//! `pool/platform.rs` checks.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, compiler_fence};

thread_local! {
    // Atomic only for handlers on the same thread, so that loads and stores do not tear.
    static LOCKS: AtomicU32 = const { AtomicU32::new(0) };
}

/// Records that the calling thread holds one more lock, or is about to wait for it.
#[inline]
pub(super) fn enter() {
    LOCKS.with(|locks| locks.store(locks.load(Relaxed) + 1, Relaxed));
    compiler_fence(SeqCst); // not after the lock
}

/// Records that the calling thread holds one lock less.
#[inline]
pub(super) fn leave() {
    compiler_fence(SeqCst); // not before the unlock
    LOCKS.with(|locks| locks.store(locks.load(Relaxed).saturating_sub(1), Relaxed));
}

/// Whether the calling thread holds or waits for any lock.
#[inline]
pub(crate) fn is_inside() -> bool {
    LOCKS.with(|locks| locks.load(Relaxed) != 0)
}

/// Guard of a section in which the calling thread counts as inside, also while unwinding.
pub(crate) struct Inside {
    /// Makes this neither `Send` nor `Sync`: it belongs to its thread.
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
