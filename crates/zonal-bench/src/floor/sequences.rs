//! Access to an array in restartable sequences: the kernel restarts a thread that it interrupted between
//! reading its CPU and the one store that commits.
//!
//! A sequence registers itself in the thread's area, reads the CPU, finds the CPU's line and reads its count.
//! What it writes before the last store is beyond the count, where no code reads. Neighbours:
//! `floor/sequences/x86_64.rs` and `floor/sequences/aarch64.rs` are the sequences, `floor/locked.rs` is the
//! other way of access.

#[cfg_attr(target_arch = "x86_64", path = "sequences/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "sequences/aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "sequences/none.rs")]
mod sequence;

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::area::{self, Area};
use super::lines::{Line, Lines};
use super::stock::Access;

/// A count that no array has: the sequence did nothing.
const NOTHING_DONE: u64 = u64::MAX;

/// One thread's access to all arrays of a pool. The raw pointers keep it on its thread.
pub(super) struct Sequences<'a> {
    area: NonNull<Area>,
    lines: *const Line,
    _lines: PhantomData<&'a Lines>,
}

impl<'a> Sequences<'a> {
    /// Creates the access for the calling thread only.
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
        // SAFETY: the area is this thread's, and there is a line for every CPU it can run on.
        let (frame, count) = unsafe { sequence::pop(self.area, self.lines) };
        (count != NOTHING_DONE).then_some(frame)
    }

    #[inline]
    fn push(&self, frame: u32) -> bool {
        // SAFETY: as in `pop`.
        let count = unsafe { sequence::push(self.area, self.lines, frame) };
        count != NOTHING_DONE
    }

    fn pop_many(&self, into: &mut [u32]) -> bool {
        // SAFETY: as in `pop`; `into` has the given number of elements.
        let count = unsafe { sequence::pop_many(self.area, self.lines, into.as_mut_ptr(), into.len()) };
        count != NOTHING_DONE
    }

    fn push_many(&self, frames: &[u32]) -> bool {
        // SAFETY: as in `pop`; `frames` has the given number of elements.
        let count = unsafe { sequence::push_many(self.area, self.lines, frames.as_ptr(), frames.len()) };
        count != NOTHING_DONE
    }
}
