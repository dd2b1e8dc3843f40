//! Lists of address ranges that a child made by `fork` can always read, even if other threads of its parent were
//! changing the list during the fork.
//!
//! The lists use no lock, because a child could find it held by a thread that the child does not have. Entries are
//! acquired and released by single atomic accesses, and are reused but never freed.
//!
//! Related files: `memory/not_copied.rs`, `memory/committed.rs` and `publish/socket.rs` have one list each.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A list of address ranges, each with a note of type `T`.
#[derive(Debug)]
pub(crate) struct RangeList<T: 'static> {
    first: AtomicPtr<Entry<T>>,
}

/// An entry of a list.
///
/// Invariant: the entry is free if `start` is zero. It contains a published range if `bytes` is not zero.
#[derive(Debug)]
struct Entry<T: 'static> {
    start: AtomicUsize,
    bytes: AtomicUsize,
    note: T,
    next: *const Self,
}

/// Guard of a range that is in a list until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Entered<T: 'static>(&'static Entry<T>);

// SAFETY: `next` does not change after the entry is published, and the entry that it points to is never freed. The
// other fields are atomics, and `T` is `Sync`.
unsafe impl<T: Sync> Sync for Entry<T> {}

impl<T: Default + Sync> RangeList<T> {
    /// Creates an empty list.
    pub(crate) const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()) }
    }

    /// Enters `range`, which must not begin at address zero. `prepare` sets the note before the range is published.
    pub(crate) fn enter(&self, range: Range<usize>, prepare: impl FnOnce(&T)) -> Entered<T> {
        assert!(range.start != 0 && !range.is_empty(), "no range to note");
        let claim = |entry: &Entry<T>| {
            // Acquire: takes the stores by the entry's previous user; pairs with `Entered::drop`.
            entry.start.compare_exchange(0, range.start, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let entry = self.entries().find(|entry| claim(entry)).unwrap_or_else(|| self.push(range.start));
        prepare(&entry.note);
        // Release: publishes the start and the note; pairs with `RangeList::ranges`.
        entry.bytes.store(range.len(), Ordering::Release);
        Entered(entry)
    }

    /// Returns the ranges in the list.
    ///
    /// If an entry is dropped and reused during the call, the result may combine one range's length with the other's
    /// start.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<usize>, &'static T)> {
        self.entries().filter_map(|entry| {
            // Acquire: takes the start and the note; pairs with `RangeList::enter`.
            let bytes = entry.bytes.load(Ordering::Acquire);
            let start = entry.start.load(Ordering::Relaxed); // relaxed: stored before the bytes, loaded with acquire
            (bytes != 0).then(|| (start..start.wrapping_add(bytes), &entry.note))
        })
    }

    fn entries(&self) -> impl Iterator<Item = &'static Entry<T>> + use<T> {
        // SAFETY: entries are never freed.
        // Acquire: takes the entries of the list; pairs with `RangeList::push`.
        let first = unsafe { self.first.load(Ordering::Acquire).as_ref() };
        // SAFETY: `next` is null or points to an entry, and entries are never freed.
        std::iter::successors(first, |entry| unsafe { entry.next.as_ref() })
    }

    /// Adds a new entry to the list, already acquired for the range that begins at `start`.
    fn push(&self, start: usize) -> &'static Entry<T> {
        let entry = Box::into_raw(Box::new(Entry {
            start: AtomicUsize::new(start),
            bytes: AtomicUsize::new(0),
            note: T::default(),
            // Acquire: takes the entries of the list; pairs with `RangeList::push`.
            next: self.first.load(Ordering::Acquire),
        }));
        // SAFETY: the entry was created above, is never freed, and is not published yet, so only this thread uses it.
        let next = |first| unsafe { (*entry).next = first };
        loop {
            // SAFETY: as for `next`: only this thread uses the entry.
            let first = unsafe { (*entry).next }.cast_mut();
            // AcqRel: takes the list, publishes the entry; pairs with `RangeList::entries`, `RangeList::push`.
            match self.first.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the entry is published now, and is never freed.
                Ok(_) => return unsafe { &*entry },
                Err(others) => next(others.cast_const()),
            }
        }
    }
}

impl<T> Entered<T> {
    /// Returns the note of the range.
    pub(crate) const fn note(&self) -> &'static T {
        &self.0.note
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        self.0.bytes.store(0, Ordering::Relaxed); // relaxed: published by the release store below
        self.0.start.store(0, Ordering::Release); // Release: publishes the empty entry; pairs with `RangeList::enter`.
    }
}
