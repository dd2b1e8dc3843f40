//! Lists of address ranges that a child made by `fork` can walk, whatever other threads of its parent were doing.
//!
//! Entries are acquired and released by single stores and are never freed to the heap, so a child cannot find a
//! held lock. Neighbours: `memory/not_copied.rs` and `memory/committed.rs` have one list each.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Ranges in use, each with a note.
#[derive(Debug)]
pub(super) struct RangeList<T: 'static> {
    first: AtomicPtr<Entry<T>>,
}

/// An entry of a list. Invariant: free when `start` is zero, and in use only when `bytes` is not.
#[derive(Debug)]
struct Entry<T: 'static> {
    start: AtomicUsize,
    bytes: AtomicUsize,
    note: T,
    next: *const Self,
}

/// A range in a list, until this is dropped.
#[derive(Debug)]
pub(super) struct Entered<T: 'static>(&'static Entry<T>);

// SAFETY: `next` never changes once the entry is published, and what it points to is never freed.
unsafe impl<T: Sync> Sync for Entry<T> {}

impl<T: Default + Sync> RangeList<T> {
    /// Makes an empty list.
    pub(super) const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()) }
    }

    /// Enters a range that does not begin at address zero; `prepare` sets its note.
    pub(super) fn enter(&self, range: Range<usize>, prepare: impl FnOnce(&T)) -> Entered<T> {
        assert!(range.start != 0 && !range.is_empty(), "no range to note");
        // Acquire: pairs with the release in `drop`, so the stores of the previous user come before ours.
        let claim = |entry: &Entry<T>| {
            entry.start.compare_exchange(0, range.start, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let entry = self.entries().find(|entry| claim(entry)).unwrap_or_else(|| self.push(range.start));
        prepare(&entry.note);
        entry.bytes.store(range.len(), Ordering::Release); // pairs with the acquire in `ranges`
        Entered(entry)
    }

    /// Returns the ranges in use. A range that is entered or dropped meanwhile may appear with the start of
    /// another.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (Range<usize>, &'static T)> {
        self.entries().filter_map(|entry| {
            let bytes = entry.bytes.load(Ordering::Acquire);
            let start = entry.start.load(Ordering::Relaxed); // stored before the bytes
            (bytes != 0).then(|| (start..start.wrapping_add(bytes), &entry.note))
        })
    }

    fn entries(&self) -> impl Iterator<Item = &'static Entry<T>> + use<T> {
        // Acquire: pairs with the exchange in `push`. SAFETY: entries are never freed.
        let first = unsafe { self.first.load(Ordering::Acquire).as_ref() };
        // SAFETY: as above.
        std::iter::successors(first, |entry| unsafe { entry.next.as_ref() })
    }

    /// Adds a new entry, already in use for the range from `start`.
    fn push(&self, start: usize) -> &'static Entry<T> {
        let entry = Box::into_raw(Box::new(Entry {
            start: AtomicUsize::new(start),
            bytes: AtomicUsize::new(0),
            note: T::default(),
            next: self.first.load(Ordering::Acquire),
        }));
        // SAFETY: just made, never freed, and not published yet.
        let next = |first| unsafe { (*entry).next = first };
        loop {
            // SAFETY: as above.
            let first = unsafe { (*entry).next }.cast_mut();
            match self.first.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: never freed.
                Ok(_) => return unsafe { &*entry },
                Err(others) => next(others.cast_const()),
            }
        }
    }
}

impl<T> Entered<T> {
    /// Returns the note of the range.
    pub(super) const fn note(&self) -> &'static T {
        &self.0.note
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        self.0.bytes.store(0, Ordering::Relaxed); // relaxed: published by the release store below
        self.0.start.store(0, Ordering::Release);
    }
}
