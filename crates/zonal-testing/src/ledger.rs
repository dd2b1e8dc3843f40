//! The owner ledger, which records each frame's owner from the view of an allocator's callers.
//!
//! Tests assign every block that they allocate, and release it in the ledger before they free it. If two owners have a
//! frame at the same time, the ledger panics and names both. Owners are numbers that the test chooses.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The owner of each frame in a range, for any number of threads and for signal handlers.
///
/// All accesses are relaxed. The allocator already orders one owner's accesses to a frame before those of the next
/// owner, and the ledger must not add ordering that the allocator does not provide.
#[derive(Debug)]
pub struct Ledger {
    first: u64,
    owners: Vec<AtomicU32>,
}

/// Formats an owner for messages.
struct Named(u32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ledger::FREE => f.write_str("it is free"),
            Ledger::OFFLINE => f.write_str("it is offline"),
            owner => write!(f, "owner {owner} has it"),
        }
    }
}

impl Ledger {
    /// The owner of frames that are not allocated.
    pub const FREE: u32 = 0;
    /// The owner of frames that the allocator does not manage.
    pub const OFFLINE: u32 = u32::MAX;

    /// Creates a ledger of frames that are all free.
    #[must_use]
    pub fn new(frames: Range<u64>) -> Self {
        let owners = frames.clone().map(|_| AtomicU32::new(Self::FREE)).collect();
        Self { first: frames.start, owners }
    }

    /// Assigns the `count` frames from `first` on to `owner`. The frames must be free.
    ///
    /// # Panics
    /// Panics if one of the frames has an owner or is outside the ledger.
    pub fn assign(&self, first: u64, count: u64, owner: u32) {
        for (frame, cell) in (first..).zip(self.cells(first, count)) {
            let before = cell.swap(owner, Relaxed);
            assert!(
                before == Self::FREE,
                "frame {frame} was handed to owner {owner} while {}",
                Named(before)
            );
        }
    }

    /// Frees the `count` frames from `first` on, which must belong to `owner`.
    ///
    /// # Panics
    /// Panics if one of the frames does not belong to `owner` or is outside the ledger.
    pub fn release(&self, first: u64, count: u64, owner: u32) {
        for (frame, cell) in (first..).zip(self.cells(first, count)) {
            let before = cell.swap(Self::FREE, Relaxed);
            assert!(before == owner, "frame {frame} was released by owner {owner} while {}", Named(before));
        }
    }

    /// Returns the owner of a frame. A frame outside the ledger counts as offline.
    #[must_use]
    pub fn owner(&self, frame: u64) -> u32 {
        let at = frame.checked_sub(self.first).and_then(|at| self.owners.get(usize::try_from(at).ok()?));
        at.map_or(Self::OFFLINE, |cell| cell.load(Relaxed))
    }

    /// Returns the frames of the ledger.
    #[must_use]
    pub fn frames(&self) -> Range<u64> {
        self.first..self.first + self.owners.len() as u64
    }

    /// Returns the frames that are neither free nor offline, in ascending order.
    pub fn owned(&self) -> impl Iterator<Item = u64> {
        self.frames().filter(|&frame| ![Self::FREE, Self::OFFLINE].contains(&self.owner(frame)))
    }

    fn cells(&self, first: u64, count: u64) -> &[AtomicU32] {
        let frames = self.frames();
        assert!(
            frames.start <= first && first + count <= frames.end,
            "frames {first}..{} lie outside {frames:?}",
            first + count
        );
        let at = (first - self.first) as usize;
        &self.owners[at..at + count as usize]
    }
}

impl Clone for Ledger {
    fn clone(&self) -> Self {
        let owners = self.owners.iter().map(|cell| AtomicU32::new(cell.load(Relaxed))).collect();
        Self { first: self.first, owners }
    }

    fn clone_from(&mut self, other: &Self) {
        self.first = other.first;
        self.owners.resize_with(other.owners.len(), AtomicU32::default);
        self.owners
            .iter_mut()
            .zip(&other.owners)
            .for_each(|(cell, other)| *cell.get_mut() = other.load(Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_from_one_owner_to_the_next() {
        let mut ledger = Ledger::new(100..110);
        ledger.assign(100, 4, 7);
        ledger.assign(108, 2, Ledger::OFFLINE);
        let copy = ledger.clone();
        ledger.release(100, 2, 7);
        ledger.assign(101, 1, 8);
        assert_eq!(ledger.owned().collect::<Vec<_>>(), [101, 102, 103]);
        assert_eq!(
            [99, 100, 101, 102, 109, 110].map(|frame| ledger.owner(frame)),
            [u32::MAX, 0, 8, 7, u32::MAX, u32::MAX]
        );
        ledger.clone_from(&copy);
        assert_eq!(ledger.owned().collect::<Vec<_>>(), [100, 101, 102, 103]);
    }

    #[test]
    fn two_owners_of_a_frame_are_named() {
        let says = |work: fn(&Ledger)| {
            let ledger = Ledger::new(100..110);
            ledger.assign(104, 2, 5);
            ledger.assign(109, 1, Ledger::OFFLINE);
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&ledger))).unwrap_err();
            *panic.downcast::<String>().unwrap()
        };
        for (work, what) in [
            (
                (|ledger| ledger.assign(102, 4, 3)) as fn(&Ledger),
                "frame 104 was handed to owner 3 while owner 5 has it",
            ),
            (|ledger| ledger.assign(109, 1, 3), "frame 109 was handed to owner 3 while it is offline"),
            (|ledger| ledger.release(105, 2, 5), "frame 106 was released by owner 5 while it is free"),
            (|ledger| ledger.release(104, 1, 6), "frame 104 was released by owner 6 while owner 5 has it"),
            (|ledger| ledger.assign(108, 4, 1), "frames 108..112 lie outside 100..110"),
        ] {
            assert_eq!(says(work), what);
        }
    }
}
