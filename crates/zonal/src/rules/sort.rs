//! A sort with little code.
//!
//! The sorts in `core` take 3 to 5 KiB for each type of value, which is a tenth of a small kernel's allocator. What is
//! sorted here is sorted seldom, when zonelists are rebuilt and when a range of frames is reclaimed.

/// Sorts values by a key, in place, with a heap.
pub(crate) fn sort_by_key<T, K: Ord>(values: &mut [T], key: impl Fn(&T) -> K) {
    let lift_largest = |heap: &mut [T], mut at: usize| {
        while let Some(children) = heap.get(2 * at + 1..).filter(|rest| !rest.is_empty()) {
            let second = children.len() > 1 && key(&children[0]) < key(&children[1]);
            let child = 2 * at + 1 + usize::from(second);
            if key(&heap[at]) >= key(&heap[child]) {
                break;
            }
            heap.swap(at, child);
            at = child;
        }
    };
    (0..values.len() / 2).rev().for_each(|at| lift_largest(values, at));
    for end in (1..values.len()).rev() {
        values.swap(0, end);
        lift_largest(&mut values[..end], 0);
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
