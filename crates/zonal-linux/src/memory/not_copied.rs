//! Ranges of memory that the kernel does not copy to children made by `fork`, and the pages that replace them there.
//!
//! In a child, such a range is a *gap* in the address space. If the child mapped other memory into the gap, the frames
//! that it inherited would refer to that memory. A handler of `fork` therefore fills the gap with inaccessible pages.
//! If the kernel refuses the child more addresses or mappings, the gap stays unfilled. Handlers that the program
//! registered earlier run first. If one of them maps memory into the gap, the child is aborted.
//!
//! Related files: `memory/origin.rs` registers the handler that fills gaps, and `memory/mapping.rs` enters ranges.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::origin::{Origin, around_forks, noted_parent};
use super::range_list::{Entered, RangeList};

/// The note of a range in the list, which children read.
#[derive(Default, Debug)]
struct Gap {
    /// Number of the process in which the range is mapped.
    owner: AtomicU64,
    /// Whether the gap is filled in this process. Children of this process inherit the pages that fill it.
    is_filled: AtomicBool,
}

static RANGES: RangeList<Gap> = RangeList::new();

/// Guard of a range that is in the list until the guard is dropped.
#[derive(Debug)]
pub(super) struct NotCopied {
    entered: Entered<Gap>,
    /// The process in which the range is mapped. It shows a child that the range is missing even if the child was made
    /// by the bare system call, which runs no handler.
    origin: Origin,
}

impl NotCopied {
    /// Records that the kernel does not copy `bytes` from `start` to children. The range must stay mapped until the
    /// result is dropped.
    pub(super) fn enter(start: NonNull<u8>, bytes: usize) -> Self {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // The number of this process must exist before a child is made, because the child compares it with the owner of
        // each range.
        let origin = Origin::here();
        // SAFETY: the handler only accesses atomics and makes system calls, which is async-signal-safe, and it skips
        // gaps that are already filled.
        unsafe { around_forks(None, None, fill_gaps, &IS_DONE) };
        let start = start.as_ptr().expose_provenance();
        let entered = RANGES.enter(start..start + bytes, |gap| {
            // Relaxed: `enter` publishes the range with a release store after this.
            gap.owner.store(origin.number(), Ordering::Relaxed);
            gap.is_filled.store(false, Ordering::Relaxed);
        });
        Self { entered, origin }
    }

    /// Whether this process is a child, in which the range is not mapped.
    #[inline]
    pub(super) fn is_gap(&self) -> bool {
        !self.origin.is_here()
    }

    /// Whether this process is a child whose gap is not filled, so that other code may have mapped memory there.
    ///
    /// The gap is not filled if the child was not made by `fork` of the C library, or if the kernel refused to fill it.
    pub(super) fn is_vacant(&self) -> bool {
        // Relaxed: only a handler of `fork` sets the flag, before the child has a second thread.
        self.is_gap() && !self.entered.note().is_filled.load(Ordering::Relaxed)
    }
}

/// Fills the gaps of a child, as a handler of `fork`. Aborts the child if other memory is already mapped in a gap.
///
/// Only children of the process in which a range is mapped fill the gap, because their descendants inherit the pages.
extern "C" fn fill_gaps() {
    let Some(parent) = noted_parent() else { return };
    for (range, gap) in RANGES.ranges() {
        // Relaxed, here and below: the values are stored by this thread only, or were published with the range. The gap
        // may already be filled, because two threads may have registered this handler at the same time.
        if gap.owner.load(Ordering::Relaxed) != parent.number() || gap.is_filled.load(Ordering::Relaxed) {
            continue;
        }
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(range.start);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the flags make the call fail instead of replacing an existing mapping.
        let filled = unsafe { libc::mmap(start, range.len(), libc::PROT_NONE, flags, -1, 0) };
        if filled == start {
            gap.is_filled.store(true, Ordering::Relaxed);
        } else if filled != libc::MAP_FAILED
            || io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
        {
            const WHY: &[u8] =
                b"zonal: other memory is mapped at the addresses of a pool in a child process; aborting the child\n";
            // SAFETY: the call only reads a constant.
            unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
            // SAFETY: the call ends the process. Without it, the child would treat other memory as memory of the pool.
            unsafe { libc::abort() };
        }
        // In all other cases the kernel refused more addresses or mappings. The child is not aborted, because it may
        // only execute another program.
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
        // SAFETY: the mapping belongs to this test, and the child does not access it.
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
            // The range is mapped, and the child itself has entered it. `fill_gaps`, called as the handler would be,
            // must not treat it as a gap.
            let own = NotCopied::enter(mapping.base(), mapping.bytes());
            fill_gaps();
            !own.is_gap()
        });
        assert_eq!(of_child, 0);
    }
}
