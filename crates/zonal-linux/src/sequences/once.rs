//! Answers that are found once, without a lock: a child made by `fork` would find it held by a thread that it does
//! not have, and wait for ever.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const NO: u8 = 1;
const YES: u8 = 2;

/// A question with a lasting answer. Invariant: 0 while unknown, else `NO` or `YES`.
pub(super) struct Once(AtomicU8);

impl Once {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The answer; `find` is called until there is one, perhaps by several threads at once, whose answers are alike.
    pub(super) fn is(&self, find: impl FnOnce() -> bool) -> bool {
        // Relaxed: the answer is all there is.
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
