//! Aligned blocks inside one 64-bit word, by bit tricks.
//!
//! Vocabulary: a word has one bit per *unit*, set when the unit is free; an aligned run of `2^order`
//! set bits is a *run* of that order, named by its lowest bit, the *head*; a run is *maximal* when
//! it is not half of a run of the next order. Neighbours: `buddy.rs` keeps such words.

/// Binary logarithm of the bits in a word.
pub(crate) const WORD_BITS_LOG2: u32 = 6;
/// Bits in a word.
pub(crate) const WORD_BITS: usize = 64;

/// Where heads of each order can be.
const HEADS: [u64; WORD_BITS_LOG2 as usize + 1] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Heads of the runs one order above `order`, from the heads of the runs of `order` (at most 5).
#[inline]
pub(crate) const fn paired(heads: u64, order: u32) -> u64 {
    heads & (heads >> (1 << order)) & HEADS[order as usize + 1]
}

/// Those of `heads`, runs of `order`, that are in no run of `above`, heads of the next order.
#[inline]
pub(crate) const fn unpaired(heads: u64, above: u64, order: u32) -> u64 {
    heads & !(above | above << (1 << order))
}

/// Heads of the maximal runs of `order` in `word`, where runs end at order `last`.
#[inline]
pub(crate) const fn maximal(word: u64, order: u32, last: u32) -> u64 {
    let mut heads = word;
    let mut below = 0;
    while below < order {
        heads = paired(heads, below);
        below += 1;
    }
    if order == last { heads } else { unpaired(heads, paired(heads, order), order) }
}

/// The `count` lowest bits, all of them from 64 on.
#[inline]
pub(crate) const fn ones(count: u64) -> u64 {
    if count >= WORD_BITS as u64 { !0 } else { (1 << count) - 1 }
}

/// The units of the runs of `order` that have these heads.
pub(crate) const fn spread(heads: u64, order: u32) -> u64 {
    heads.wrapping_mul(ones(1 << order)) // runs are disjoint: nothing carries
}

/// The `count` lowest set bits of `word`, or all if there are fewer.
pub(crate) const fn lowest_set(word: u64, count: u32) -> u64 {
    let mut rest = word;
    let mut left = count;
    while left > 0 && rest != 0 {
        rest &= rest - 1;
        left -= 1;
    }
    word & !rest
}

/// `count` set bits of `word`, out of the smallest maximal runs, lowest first; all if fewer.
pub(crate) fn from_smallest(word: u64, count: u32, last: u32) -> u64 {
    let mut chosen = 0_u64;
    for order in 0..=last {
        let units = spread(maximal(word, order, last), order);
        chosen |= lowest_set(units, count - chosen.count_ones());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximal_runs_cover_the_word_once() {
        let words = [0, 1, !0, 0x8000_0000_0000_0000, 0xFFFF_0000_00FF_0F33, 0x7FFF_FFFF_FFFF_FFFF, 0xF0F6];
        for word in words {
            for last in 0..=WORD_BITS_LOG2 {
                let mut covered = 0_u64;
                for order in 0..=last {
                    let units = spread(maximal(word, order, last), order);
                    assert_eq!(covered & units, 0, "{word:#x} {order} {last}");
                    covered |= units;
                }
                assert_eq!(covered, word);
            }
        }
        assert_eq!(maximal(0xF0F6, 0, 6), 0b110, "1 and 2 are no buddies");
        assert_eq!(maximal(0xF0F6, 2, 6), 0x1010);
        assert_eq!(maximal(0xFF, 2, 2), 0x11, "runs end at the last order");
    }

    #[test]
    fn partial_choice_prefers_small_runs() {
        assert_eq!(from_smallest(0b1111_0100, 1, 6), 0b100);
        assert_eq!(from_smallest(0b1111_0100, 3, 6), 0b0011_0100);
        assert_eq!(from_smallest(!0, 63, 6), !0 >> 1);
        assert_eq!(from_smallest(0b101, 9, 6), 0b101);
    }
}
