//! Ranges of memory that children made by `fork` do not get, and what stands in their place.
//!
//! A child that lacked the range would have a gap there, and might map something else into it, which frames of
//! its parent would then seem to own. So the gap is filled with pages that nobody may touch. The list is
//! made of entries that are never freed, so that a child can walk it whatever other threads did.
//! Handlers of the program for its children that were there earlier come first: should one map memory into the
//! gap, the child is ended. Neighbours: `origin.rs` has gaps filled, `mapping.rs` enters ranges.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::origin::{Origin, around_forks};

/// An entry of the list. Invariant: free when `start` is zero, and in use only when `bytes` is not.
#[derive(Debug)]
struct Entry {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether the gap of a child is filled: its own children have what fills it.
    is_filled: AtomicBool,
    next: *const Self,
}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// A range that children do not get, until this is dropped.
#[derive(Debug)]
pub(crate) struct NotCopied {
    entry: &'static Entry,
    /// The process that has the range: children made by the system call alone fill no gap.
    origin: Origin,
}

// SAFETY: an entry is made of atomics, and of a pointer that never changes, to another that is never freed.
unsafe impl Send for NotCopied {}
// SAFETY: as above.
unsafe impl Sync for NotCopied {}

impl NotCopied {
    /// Notes that the kernel was told not to copy `bytes` from `start`, which stay mapped while this lives.
    pub(crate) fn enter(start: NonNull<u8>, bytes: usize) -> Self {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // SAFETY: it reads and writes atomics, and makes system calls.
        unsafe { around_forks(None, fill_gaps, &IS_DONE) };
        let start = start.as_ptr().expose_provenance();
        // Relaxed: the exchange only makes the entry ours.
        let claim = |entry: &Entry| {
            entry.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let entry = entries().find(|entry| claim(entry)).unwrap_or_else(|| push(start));
        entry.is_filled.store(false, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Release); // pairs with the acquire in `fill_gaps`
        Self { entry, origin: Origin::here() }
    }

    /// Whether this process is a child, which has nothing there.
    #[inline]
    pub(crate) fn is_gap(&self) -> bool {
        !self.origin.is_here()
    }
}

impl NotCopied {
    /// Whether the place may be another's: of a child past the C library, which has no gap filled.
    pub(crate) fn is_vacant(&self) -> bool {
        // Relaxed: set, if at all, before the child does anything else.
        self.is_gap() && !self.entry.is_filled.load(Ordering::Relaxed)
    }
}

impl Drop for NotCopied {
    fn drop(&mut self) {
        self.entry.bytes.store(0, Ordering::Relaxed);
        self.entry.start.store(0, Ordering::Release); // whoever claims it next stores its own length later
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // Acquire pairs with the exchange in `push`. SAFETY: entries are never freed.
    let first = unsafe { FIRST.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |entry| unsafe { entry.next.as_ref() })
}

/// A new entry, claimed for the range from `start`.
fn push(start: usize) -> &'static Entry {
    let entry = Box::into_raw(Box::new(Entry {
        start: AtomicUsize::new(start),
        bytes: AtomicUsize::new(0),
        is_filled: AtomicBool::new(false),
        next: FIRST.load(Ordering::Acquire),
    }));
    // SAFETY: just made, never freed, and nobody else knows of it yet.
    let next = |first| unsafe { (*entry).next = first };
    loop {
        // SAFETY: as above.
        let first = unsafe { (*entry).next }.cast_mut();
        match FIRST.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: never freed.
            Ok(_) => return unsafe { &*entry },
            Err(others) => next(others.cast_const()),
        }
    }
}

/// Fills the gaps of a child that was made just now. Ends the child if it cannot.
extern "C" fn fill_gaps() {
    for entry in entries() {
        let bytes = entry.bytes.load(Ordering::Acquire);
        if bytes == 0 || entry.is_filled.swap(true, Ordering::Relaxed) {
            continue;
        }
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(entry.start.load(Ordering::Relaxed));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let filled = unsafe { libc::mmap(start, bytes, libc::PROT_NONE, flags, -1, 0) };
        if filled != start {
            const WHY: &[u8] =
                b"zonal: the place of a pool's huge pages cannot be kept in a child; it ends\n";
            // SAFETY: writes a constant.
            unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
            // SAFETY: ends the process, which would take other memory for the pool's.
            unsafe { libc::abort() };
        }
    }
}
