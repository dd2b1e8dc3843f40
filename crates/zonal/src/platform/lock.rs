//! Proof that a lock is held: functions on state that a lock guards take a [`Held`] argument.
//!
//! Related files: `platform/mod.rs` defines the lock; `zone/free_areas.rs` and `buddy/mod.rs` use it to guard their
//! state.

use crate::platform::RawLock;

/// Guard of a lock, which is released when this value is dropped.
pub(crate) struct Held<'a, L: RawLock>(&'a L);

impl<'a, L: RawLock> Held<'a, L> {
    /// Acquires the lock, waiting until it is free.
    pub(crate) fn wait(lock: &'a L) -> Self {
        lock.lock();
        Self(lock)
    }
}

impl<L: RawLock> Held<'_, L> {
    /// Calls `repair` if the lock is torn ([`RawLock::is_torn`]).
    pub(crate) fn repair_with(&self, repair: impl FnOnce()) {
        if self.0.is_torn() {
            repair();
            self.0.set_repaired();
        }
    }
}

impl<L: RawLock> Drop for Held<'_, L> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
