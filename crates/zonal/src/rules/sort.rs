//! A sort with little code.
//!
//! The sorts in `core` take 3 to 5 KiB for each type of value, which is a tenth of a small kernel's allocator. What is
//! sorted here is sorted seldom, when zonelists are rebuilt and when a range of frames is reclaimed.

use core::cell::Cell;

/// Sorts values by a key, in place.
pub(crate) fn sort_by_key<T: Copy, K: Ord>(values: &mut [T], key: impl Fn(&T) -> K) {
    let cells = Cell::from_mut(values).as_slice_of_cells();
    let is_less = |one: usize, other: usize| key(&cells[one].get()) < key(&cells[other].get());
    let swap = |one: usize, other: usize| cells[one].swap(&cells[other]);
    sort(cells.len(), &is_less, &swap);
}

/// Sorts `len` values with a heap: `is_less` compares the values at two places, and `swap` exchanges them.
fn sort(len: usize, is_less: &dyn Fn(usize, usize) -> bool, swap: &dyn Fn(usize, usize)) {
    let lift_largest = |len: usize, mut at: usize| {
        while 2 * at + 1 < len {
            let first = 2 * at + 1;
            let child = first + usize::from(first + 1 < len && is_less(first, first + 1));
            if !is_less(at, child) {
                break;
            }
            swap(at, child);
            at = child;
        }
    };
    (0..len / 2).rev().for_each(|at| lift_largest(len, at));
    for end in (1..len).rev() {
        swap(0, end);
        lift_largest(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::testing::Random;

    #[test]
    fn values_are_sorted_as_the_library_sorts_them() {
        let mut random = Random::new(9);
        for len in 0..200 {
            let mut values: Vec<usize> = (0..len).map(|_| random.index(100)).collect();
            let mut expected = values.clone();
            expected.sort_unstable_by_key(|value| usize::MAX - value);
            sort_by_key(&mut values, |value| usize::MAX - value);
            assert_eq!(values, expected);
        }
    }
}
