//! Proof that a lock is held: state guarded by a lock asks for a [`Held`] in its signatures.
//!
//! Neighbours: `platform.rs` supplies the lock, `zone.rs` and `pageset.rs` guard state with it.

use crate::platform::RawLock;

/// A lock that is held until this value is dropped.
pub(crate) struct Held<'a, L: RawLock>(&'a L);

impl<'a, L: RawLock> Held<'a, L> {
    /// Waits for the lock.
    pub(crate) fn wait(lock: &'a L) -> Self {
        lock.lock();
        Self(lock)
    }
}

impl<L: RawLock> Drop for Held<'_, L> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
