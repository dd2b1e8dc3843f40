//! Ranges of memory that children made by `fork` do not get, and what is mapped there instead.
//!
//! In a child the missing range would be a gap. The child might map something else into it, and frames of the
//! parent would then seem to own that memory. The gap is therefore filled with inaccessible pages, unless the
//! kernel refuses the child more addresses or mappings: then it stays a gap. Handlers for children that the program
//! registered earlier run first: if one maps memory into the gap, the child is aborted. Neighbours:
//! `memory/origin.rs` runs the handler that fills gaps, `memory/mapping.rs` enters ranges.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::origin::{Origin, around_forks, noted_parent};
use super::range_list::{Entered, RangeList};

/// What a list entry records about a range, for children.
#[derive(Default, Debug)]
struct Gap {
    /// Number of the process that has the range.
    owner: AtomicU64,
    /// Whether the gap of a child is filled; its own children inherit what fills it.
    is_filled: AtomicBool,
}

static RANGES: RangeList<Gap> = RangeList::new();

/// A range that children do not get, until this is dropped.
#[derive(Debug)]
pub(super) struct NotCopied {
    entered: Entered<Gap>,
    /// The process that has the range. Children made by the bare system call fill no gap.
    origin: Origin,
}

impl NotCopied {
    /// Records that the kernel does not copy `bytes` from `start` to children; they stay mapped while this lives.
    pub(super) fn enter(start: NonNull<u8>, bytes: usize) -> Self {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // This comes first, so that the number is recorded before children whose gaps must be filled are made.
        let origin = Origin::here();
        // SAFETY: the handler reads and writes atomics, and makes system calls.
        unsafe { around_forks(None, fill_gaps, &IS_DONE) };
        let start = start.as_ptr().expose_provenance();
        let entered = RANGES.enter(start..start + bytes, |gap| {
            // Relaxed: the range is published afterwards.
            gap.owner.store(origin.number(), Ordering::Relaxed);
            gap.is_filled.store(false, Ordering::Relaxed);
        });
        Self { entered, origin }
    }

    /// Whether this process is a child, which does not have the range.
    #[inline]
    pub(super) fn is_gap(&self) -> bool {
        !self.origin.is_here()
    }

    /// Whether other code may have mapped memory there: in a child not made by the C library, whose gap is not
    /// filled, or in one that could not fill it.
    pub(super) fn is_vacant(&self) -> bool {
        // Relaxed: set, if at all, before the child does anything else.
        self.is_gap() && !self.entered.note().is_filled.load(Ordering::Relaxed)
    }
}

/// Fills the gaps of a child that was just made by the process that has the ranges; its descendants inherit what
/// fills them. Aborts the child if a range is already taken.
extern "C" fn fill_gaps() {
    let Some(parent) = noted_parent() else { return };
    for (range, gap) in RANGES.ranges() {
        // Relaxed here and below: written by this thread only, or published with the range. It may already be
        // filled, because two threads may have registered this handler at the same time.
        if gap.owner.load(Ordering::Relaxed) != parent.number() || gap.is_filled.load(Ordering::Relaxed) {
            continue;
        }
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(range.start);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let filled = unsafe { libc::mmap(start, range.len(), libc::PROT_NONE, flags, -1, 0) };
        if filled == start {
            gap.is_filled.store(true, Ordering::Relaxed);
        } else if filled != libc::MAP_FAILED
            || io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
        {
            const WHY: &[u8] = b"zonal: the place of a pool's huge pages is taken in a child; it ends\n";
            // SAFETY: writes a constant.
            unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
            // SAFETY: ends the process, which would otherwise treat other memory as the pool's.
            unsafe { libc::abort() };
        }
        // Otherwise the kernel refuses more addresses or mappings. The child may only want to execute another
        // program.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::{Backing, Mapping};
    use crate::memory::origin::tests::in_a_child;

    #[test]
    fn gaps_are_filled_once_even_if_the_handler_runs_twice() {
        let mapping = Mapping::new(4096, 4096, Backing::Ordinary).unwrap();
        // SAFETY: the mapping belongs to the test; its child has none there.
        let denied =
            unsafe { libc::madvise(mapping.base().as_ptr().cast(), mapping.bytes(), libc::MADV_DONTFORK) };
        assert_eq!(denied, 0);
        let not_copied = NotCopied::enter(mapping.base(), mapping.bytes());
        let of_child = in_a_child(false, || {
            fill_gaps();
            not_copied.is_gap() && !not_copied.is_vacant()
        });
        assert_eq!(of_child, 0);
    }

    #[test]
    fn ranges_entered_by_an_earlier_fork_handler_are_not_gaps() {
        let mapping = Mapping::new(4096, 4096, Backing::Ordinary).unwrap();
        let of_child = in_a_child(false, || {
            // Simulates the handler that fills gaps running now: the range is taken, by the child's own mapping.
            let own = NotCopied::enter(mapping.base(), mapping.bytes());
            fill_gaps();
            !own.is_gap()
        });
        assert_eq!(of_child, 0);
    }
}
