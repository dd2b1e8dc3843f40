//! Operations on the 64 cells that belong to a word of frames, with one access for each cell.
//!
//! Refills and drains move most frames as whole words of 64 frames. The functions here are the defaults for the methods
//! of [`Platform`](super::Platform) for such words. A platform whose cells are plain integers can replace them by code
//! that accesses several cells with one instruction; a model checker uses the defaults. Related files:
//! `zone/frame_states.rs` and `pageset/stacks.rs` call the methods.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::platform::Atomic;

/// Number of frames in a word, and of the cells that belong to it.
pub const WORD_FRAMES: usize = 64;

/// The direction in which the numbers in consecutive cells change by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Each cell holds one more than the cell before it.
    Ascending,
    /// Each cell holds one less than the cell before it.
    Descending,
}

/// Implements [`Platform::are_all`](super::Platform::are_all).
#[must_use]
pub fn are_all<A: Atomic<u8>>(cells: &[A; WORD_FRAMES], value: u8) -> bool {
    // Eight cells per iteration, so that the compiler can unroll the inner loop; likewise below. No branch depends on
    // a single cell.
    // Acquire: takes the writes; pairs with `mark_freed`, `mark_popped`, `step_byte`, `replace_all`, `exchange_leading`.
    let differs = |eight: &[A; 8]| eight.iter().fold(0, |all, cell| all | (cell.load(Acquire) ^ value)) != 0;
    !cells.as_chunks::<8>().0.iter().any(differs)
}

/// Implements [`Platform::replace_all`](super::Platform::replace_all).
pub fn replace_all<A: Atomic<u8>>(cells: &[A; WORD_FRAMES], from: u8, to: u8) -> bool {
    if !are_all(cells, from) {
        return false;
    }
    for eight in cells.as_chunks::<8>().0 {
        // Release: publishes the writes; pairs with `mark_freed`, `mark_popped`, `step_byte`, `exchange_leading`, `are_all`.
        eight.iter().for_each(|cell| cell.store(to, Release));
    }
    true
}

/// Implements [`Platform::exchange_leading`](super::Platform::exchange_leading).
pub fn exchange_leading<A: Atomic<u8>>(cells: &[A], from: u8, to: u8) -> usize {
    // Relaxed: a cell with another value is only reported.
    // AcqRel: takes the marks, publishes the writes; pairs with `mark_popped`, `step_byte`, `replace_all`, `are_all`.
    cells.iter().take_while(|cell| cell.compare_exchange(from, to, AcqRel, Relaxed).is_ok()).count()
}

/// Implements [`Platform::store_ascending`](super::Platform::store_ascending).
pub fn store_ascending<A: Atomic<u32>>(cells: &[A; WORD_FRAMES], first: u32) {
    for (at, eight) in cells.as_chunks::<8>().0.iter().enumerate() {
        for (step, cell) in eight.iter().enumerate() {
            cell.store(first + (8 * at + step) as u32, Relaxed);
        }
    }
}

/// Implements [`Platform::holds_run`](super::Platform::holds_run).
#[must_use]
pub fn holds_run<A: Atomic<u32>>(cells: &[A; WORD_FRAMES], direction: Direction) -> bool {
    let first = cells[0].load(Relaxed);
    let step = match direction {
        Direction::Ascending => 1,
        Direction::Descending => u32::MAX,
    };
    let mut expected = first;
    cells.as_chunks::<8>().0.iter().all(|eight| {
        let differs = eight.iter().fold(0, |all, cell| {
            let differs = cell.load(Relaxed) ^ expected;
            expected = expected.wrapping_add(step);
            all | differs
        });
        differs == 0
    })
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, AtomicU32};

    use super::*;

    #[test]
    fn all_cells_are_replaced_or_none() {
        let cells: [AtomicU8; WORD_FRAMES] = core::array::from_fn(|_| AtomicU8::new(3));
        let bytes = || cells.each_ref().map(|cell| cell.load(Relaxed));
        assert!(replace_all(&cells, 3, 5));
        assert_eq!(bytes(), [5; WORD_FRAMES]);
        for at in 0..WORD_FRAMES {
            cells[at].store(9, Relaxed);
            assert!(!are_all(&cells, 5) && !replace_all(&cells, 5, 7), "{at}");
            cells[at].store(5, Relaxed);
            assert_eq!(bytes(), [5; WORD_FRAMES]);
            cells[at].store(9, Relaxed);
            assert_eq!(exchange_leading(&cells, 5, 7), at);
            assert_eq!(cells[at].load(Relaxed), 9);
            assert!(cells[at + 1..].iter().all(|cell| cell.load(Relaxed) == 5), "{at}");
            assert_eq!(exchange_leading(&cells, 7, 5), at);
            assert_eq!(exchange_leading(&cells[at..], 9, 5), 1);
        }
    }

    #[test]
    fn runs_are_known_in_their_direction_only() {
        let cells: [AtomicU32; WORD_FRAMES] = core::array::from_fn(|_| AtomicU32::new(0));
        store_ascending(&cells, 640);
        assert_eq!(
            cells.each_ref().map(|cell| cell.load(Relaxed)),
            core::array::from_fn(|at| 640 + at as u32)
        );
        assert!(holds_run(&cells, Direction::Ascending) && !holds_run(&cells, Direction::Descending));
        for (at, cell) in cells.iter().enumerate() {
            cell.store(703 - at as u32, Relaxed);
        }
        assert!(holds_run(&cells, Direction::Descending) && !holds_run(&cells, Direction::Ascending));
        for at in 1..WORD_FRAMES {
            let kept = cells[at].swap(1, Relaxed);
            assert!(!holds_run(&cells, Direction::Descending), "{at}");
            cells[at].store(kept, Relaxed);
        }
    }
}
