//! Facts that are determined once, without a lock: a child made by `fork` could find a lock held by a thread that
//! it does not have, and wait forever.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const NO: u8 = 1;
const YES: u8 = 2;

/// A fact that never changes. Invariant: 0 while unknown, else `NO` or `YES`.
pub(super) struct Once(AtomicU8);

impl Once {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns the fact. `find` is called until it is known, perhaps by several threads at once, which find the
    /// same.
    pub(super) fn is(&self, find: impl FnOnce() -> bool) -> bool {
        // Relaxed: no other data depends on it.
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
