//! Access to an array in restartable sequences. The kernel restarts a sequence if it interrupts the thread between
//! the load of the CPU number and the one store that commits.
//!
//! A sequence stores the address of its descriptor in the thread's area, loads the CPU number, computes the address
//! of the CPU's line, and loads the line's count. All its stores before the last one are to slots beyond the count,
//! which no code reads. Related files: `floor/sequences/x86_64.rs` and `floor/sequences/aarch64.rs` contain the
//! sequences, and `floor/locked.rs` is the other way to access an array.

#[cfg(target_arch = "aarch64")]
#[path = "sequences/aarch64.rs"]
mod sequence;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "sequences/none.rs"]
mod sequence;
#[cfg(target_arch = "x86_64")]
#[path = "sequences/x86_64.rs"]
mod sequence;

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::area::{self, Area};
use super::lines::{Line, Lines};
use super::stock::Access;

/// A count that no array can have. It means that the sequence changed nothing.
const NOTHING_DONE: u64 = u64::MAX;

/// One thread's access to all arrays of a pool. The raw pointers prevent it from being sent to another thread.
pub(super) struct Sequences<'a> {
    area: NonNull<Area>,
    lines: *const Line,
    _lines: PhantomData<&'a Lines>,
}

impl<'a> Sequences<'a> {
    /// Creates an access that only the calling thread may use.
    ///
    /// # Errors
    /// Returns the reason why this thread has no area.
    pub(super) fn for_this_thread(lines: &'a Lines) -> Result<Self, String> {
        Ok(Self { area: area::of_this_thread()?, lines: lines.first(), _lines: PhantomData })
    }
}

impl Access for Sequences<'_> {
    #[inline]
    fn pop(&self) -> Option<u32> {
        // SAFETY: the area belongs to this thread, and there is a line for every CPU on which the thread can run.
        let (frame, count) = unsafe { sequence::pop(self.area, self.lines) };
        (count != NOTHING_DONE).then_some(frame)
    }

    #[inline]
    fn push(&self, frame: u32) -> bool {
        // SAFETY: the area and the lines are valid, as in `pop`.
        let count = unsafe { sequence::push(self.area, self.lines, frame) };
        count != NOTHING_DONE
    }

    fn pop_many(&self, into: &mut [u32]) -> bool {
        // SAFETY: the area and the lines are valid, as in `pop`, and `into` has the given number of elements.
        let count = unsafe { sequence::pop_many(self.area, self.lines, into.as_mut_ptr(), into.len()) };
        count != NOTHING_DONE
    }

    fn push_many(&self, frames: &[u32]) -> bool {
        // SAFETY: the area and the lines are valid, as in `pop`, and `frames` has the given number of elements.
        let count = unsafe { sequence::push_many(self.area, self.lines, frames.as_ptr(), frames.len()) };
        count != NOTHING_DONE
    }
}
