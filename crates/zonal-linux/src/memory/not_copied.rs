//! Ranges of memory that children made by `fork` do not get, and what stands in their place.
//!
//! A child that lacked the range would have a gap there, and might map something else into it, which frames of
//! its parent would then seem to own. So the gap is filled with pages that nobody may touch, unless the child
//! may have no more addresses: then it stays a gap. Handlers of the program for its children that were there
//! earlier come first: should one map memory into the gap, the child is ended. Neighbours: `origin.rs` has gaps
//! filled, `mapping.rs` enters ranges.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::origin::{Origin, around_forks, noted_parent};
use super::range_list::{Entered, RangeList};

/// What children know of a range.
#[derive(Default, Debug)]
struct Gap {
    /// Number of the process that has the range.
    owner: AtomicU64,
    /// Whether the gap of a child is filled: its own children have what fills it.
    is_filled: AtomicBool,
}

static RANGES: RangeList<Gap> = RangeList::new();

/// A range that children do not get, until this is dropped.
#[derive(Debug)]
pub(super) struct NotCopied {
    entered: Entered<Gap>,
    /// The process that has the range: children made by the system call alone fill no gap.
    origin: Origin,
}

impl NotCopied {
    /// Notes that the kernel was told not to copy `bytes` from `start`, which stay mapped while this lives.
    pub(super) fn enter(start: NonNull<u8>, bytes: usize) -> Self {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // First, so that the number is noted for children whose gaps are to be filled.
        let origin = Origin::here();
        // SAFETY: it reads and writes atomics, and makes system calls.
        unsafe { around_forks(None, fill_gaps, &IS_DONE) };
        let start = start.as_ptr().expose_provenance();
        let entered = RANGES.enter(start..start + bytes, |gap| {
            // Relaxed: the range is shown to others afterwards.
            gap.owner.store(origin.number(), Ordering::Relaxed);
            gap.is_filled.store(false, Ordering::Relaxed);
        });
        Self { entered, origin }
    }

    /// Whether this process is a child, which has nothing there.
    #[inline]
    pub(super) fn is_gap(&self) -> bool {
        !self.origin.is_here()
    }

    /// Whether the place may be another's: of a child past the C library, which has no gap filled, or of one that
    /// could not fill it.
    pub(super) fn is_vacant(&self) -> bool {
        // Relaxed: set, if at all, before the child does anything else.
        self.is_gap() && !self.entered.note().is_filled.load(Ordering::Relaxed)
    }
}

/// Fills the gaps of a child that was made just now by the process that has the ranges: later ones have what their
/// parents have there. Ends the child if a place is taken.
extern "C" fn fill_gaps() {
    let Some(parent) = noted_parent() else { return };
    for (range, gap) in RANGES.ranges() {
        // Relaxed here and below: of this thread alone, or shown with the range.
        // Filled already: two threads may have registered this handler at once.
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
            // SAFETY: ends the process, which would take other memory for the pool's.
            unsafe { libc::abort() };
        }
        // Otherwise the kernel refuses more addresses or mappings. The child may only want to run another program.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::{Backing, Mapping};
    use crate::memory::origin::tests::in_a_child;

    #[test]
    fn gaps_are_filled_once_however_often_the_handler_runs() {
        let mapping = Mapping::new(4096, 4096, Backing::Ordinary).unwrap();
        // SAFETY: the mapping is the test's; its child has none there.
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
    fn what_an_earlier_handler_of_a_child_enters_is_no_gap() {
        let mapping = Mapping::new(4096, 4096, Backing::Ordinary).unwrap();
        let of_child = in_a_child(false, || {
            // As if the handler that fills gaps came now: the place is taken, by the child's own.
            let own = NotCopied::enter(mapping.base(), mapping.bytes());
            fill_gaps();
            !own.is_gap()
        });
        assert_eq!(of_child, 0);
    }
}
