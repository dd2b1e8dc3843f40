//! Facts that are determined once per process, without a lock. With a lock, a child made by `fork` could wait forever
//! for a thread that exists only in its parent.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const NO: u8 = 1;
const YES: u8 = 2;

/// A fact that never changes. Invariant: 0 while unknown, afterwards `NO` or `YES`.
pub(super) struct Once(AtomicU8);

impl Once {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns the fact. Calls `find` until the fact is known. Several threads may call `find` concurrently, but all
    /// must obtain the same result.
    pub(super) fn is(&self, find: impl FnOnce() -> bool) -> bool {
        // Relaxed: no other data depends on the value.
        match self.0.load(Relaxed) {
            0 => {
                let found = find();
                self.0.store(if found { YES } else { NO }, Relaxed);
                found
            }
            known => known == YES,
        }
    }
}
