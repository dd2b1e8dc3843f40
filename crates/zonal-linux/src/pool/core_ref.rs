//! The type [`CoreRef`], with which blocks keep the memory of their pool mapped.
//!
//! All references of this kind to a core share one `Arc`, which [`Owned`] holds for them, and are counted in a
//! `SharedCount`, because the count of an `Arc` would make each allocation change a cache line that all threads share.
//! Related files: `sequences/shared_count.rs` has the count, `pool/workers.rs` ends it with the last handle of a pool, and
//! `pool/frames.rs` and `pool/frame_buffer.rs` hold references.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::core::PoolCore;
use crate::sequences::shared_count::Left;

/// A reference to the core of a pool, which keeps it alive as an `Arc` does. The type is opaque.
///
/// Invariant: `owners` of the core counts this reference, so the `Arc` that all references share is not dropped yet.
pub struct CoreRef(NonNull<PoolCore>);

// SAFETY: like an `Arc`, the value gives shared access to the core and may drop it; `PoolCore` is `Send` and `Sync`, which
// `const _` below checks.
unsafe impl Send for CoreRef {}
// SAFETY: as above.
unsafe impl Sync for CoreRef {}

const _: () = {
    const fn assert_shared<T: Send + Sync>() {}
    assert_shared::<PoolCore>();
};

impl CoreRef {
    /// Returns a reference to `core`.
    ///
    /// # Safety
    /// [`Owned`] of the core must exist, as it does while the pool has a handle.
    #[inline(always)]
    pub(super) unsafe fn of(core: &Arc<PoolCore>) -> Self {
        core.owners.add(); // the count is open
        // SAFETY: an `Arc` is not null.
        Self(unsafe { NonNull::new_unchecked(Arc::as_ptr(core).cast_mut()) })
    }
}

impl Clone for CoreRef {
    fn clone(&self) -> Self {
        self.owners.add();
        Self(self.0)
    }
}

impl Deref for CoreRef {
    type Target = PoolCore;

    #[inline(always)]
    fn deref(&self) -> &PoolCore {
        // SAFETY: the core is alive while this reference is counted.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for CoreRef {
    #[inline(always)]
    fn drop(&mut self) {
        let core = self.0;
        if self.owners.remove() == Left::None {
            // SAFETY: this was the last reference, and the count is closed.
            unsafe { drop_shared(core) };
        }
    }
}

impl fmt::Debug for CoreRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The `Arc` that all references share, until the last handle of the pool is dropped.
#[derive(Debug)]
pub(super) struct Owned(NonNull<PoolCore>);

// SAFETY: as for `CoreRef`.
unsafe impl Send for Owned {}
// SAFETY: as for `CoreRef`.
unsafe impl Sync for Owned {}

impl Owned {
    /// Lets references to `core` exist. Must be called once for a core.
    pub(super) fn begin(core: &Arc<PoolCore>) -> Self {
        // SAFETY: an `Arc` is not null.
        Self(unsafe { NonNull::new_unchecked(Arc::into_raw(Arc::clone(core)).cast_mut()) })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the `Arc` is dropped only after the count is closed, or by the last reference, which may happen during
        // the call only after the count was closed; `close` does not access the count after that.
        if unsafe { self.0.as_ref() }.owners.close() == Left::None {
            // SAFETY: the count is closed, and no reference is left.
            unsafe { drop_shared(self.0) };
        }
    }
}

/// Drops the `Arc` that all references shared.
///
/// # Safety
/// The count of references must be closed and zero, and the function must be called once.
#[cold]
unsafe fn drop_shared(core: NonNull<PoolCore>) {
    // SAFETY: `Owned::begin` created the pointer from an `Arc`, and the caller guarantees that nothing else uses or drops it.
    drop(unsafe { Arc::from_raw(core.as_ptr().cast_const()) });
}
