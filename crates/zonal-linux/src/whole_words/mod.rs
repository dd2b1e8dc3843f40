//! Vector instructions for the cells of a whole frame word, in place of one access for each cell.
//!
//! Refills and drains spend most time on the states and slots of whole words. Only x86-64 has such instructions here;
//! on other processors the defaults of [`Platform`](zonal::Platform) are used, and in Miri too, which does not execute
//! assembly. Related files: `pool/platform.rs` uses the functions.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86_64::{exchange_leading, holds_run, replace_all, store_ascending};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use zonal::platform::whole_words::{exchange_leading, holds_run, replace_all, store_ascending};

#[cfg(test)]
mod tests {
    use std::array::from_fn;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::atomic::{AtomicU8, AtomicU32};

    use zonal::platform::whole_words::{self, Direction, WORD_FRAMES};

    use super::*;

    /// Compares the functions with the defaults at every alignment of the states, and checks that nothing outside the
    /// word changes.
    #[test]
    fn states_change_together_or_not_at_all() {
        const SPACE: usize = WORD_FRAMES + 32;
        let fill = |cells: &[AtomicU8; SPACE]| cells.iter().for_each(|cell| cell.store(3, Relaxed));
        let cells: [[AtomicU8; SPACE]; 2] = from_fn(|_| from_fn(|_| AtomicU8::new(3)));
        for start in 0..32 {
            for other in [None].into_iter().chain((0..WORD_FRAMES).map(Some)) {
                cells.iter().for_each(fill);
                let [ours, plain] = cells.each_ref().map(|cells| {
                    let word: &[AtomicU8; WORD_FRAMES] = cells[start..].first_chunk().unwrap();
                    other.iter().for_each(|&at| word[at].store(0x83, Relaxed));
                    word
                });
                assert_eq!(replace_all(ours, 3, 0x84), other.is_none(), "{start} {other:?}");
                assert_eq!(whole_words::replace_all(plain, 3, 0x84), other.is_none());
                let from = if other.is_none() { 0x84 } else { 3 };
                let expected = other.unwrap_or(WORD_FRAMES);
                assert_eq!(exchange_leading(ours, from, 0x61), expected, "{start} {other:?}");
                assert_eq!(whole_words::exchange_leading(plain, from, 0x61), expected);
                let [ours, plain] =
                    cells.each_ref().map(|cells| cells.each_ref().map(|cell| cell.load(Relaxed)));
                assert_eq!(ours, plain);
            }
        }
    }

    #[test]
    fn runs_of_numbers_are_stored_and_known() {
        let cells: [AtomicU32; WORD_FRAMES + 2] = from_fn(|_| AtomicU32::new(7));
        let word: &[AtomicU32; WORD_FRAMES] = cells[1..].first_chunk().unwrap();
        for first in [0, 64, 0x7fff_ffe0, 0xffff_ffc0] {
            store_ascending(word, first);
            let expected: [u32; WORD_FRAMES] = from_fn(|at| first + at as u32);
            assert_eq!(word.each_ref().map(|cell| cell.load(Relaxed)), expected);
            assert_eq!([cells[0].load(Relaxed), cells[WORD_FRAMES + 1].load(Relaxed)], [7, 7]);
            for (direction, other) in
                [(Direction::Ascending, Direction::Descending), (Direction::Descending, Direction::Ascending)]
            {
                assert!(holds_run(word, direction) && !holds_run(word, other), "{first} {direction:?}");
                for cell in word {
                    let number = cell.load(Relaxed);
                    cell.store(number ^ 0x8000_0000, Relaxed);
                    assert!(!holds_run(word, direction), "{number}");
                    cell.store(number, Relaxed);
                }
                let reversed: Vec<u32> = word.iter().rev().map(|cell| cell.load(Relaxed)).collect();
                word.iter().zip(reversed).for_each(|(cell, number)| cell.store(number, Relaxed));
            }
        }
    }
}
