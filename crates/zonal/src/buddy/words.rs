//! Aligned blocks inside one 64-bit word, by bit manipulation.
//!
//! A word has one bit per *unit*, which is set if the unit is free. An order's *run* is an aligned sequence of
//! `2^order` set bits. Its lowest bit is its *head*. A run is *maximal* if it is not half of a run one order higher.
//!
//! Related files: `buddy/mod.rs` stores such words.

/// Binary logarithm of a word's bit count.
pub(crate) const WORD_BITS_LOG2: u32 = 6;
/// Number of bits in a word.
pub(crate) const WORD_BITS: usize = 64;

/// The lowest run of each order.
pub(crate) const RUNS: [u64; WORD_BITS_LOG2 as usize + 1] = [1, 0b11, 0xf, 0xff, 0xffff, 0xffff_ffff, !0];

/// Positions that heads of each order can have.
const HEADS: [u64; WORD_BITS_LOG2 as usize + 1] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Returns the run heads of the next order, given the run heads of `order`, which is at most 5.
#[inline]
pub(super) const fn paired(heads: u64, order: u32) -> u64 {
    heads & (heads >> (1 << order)) & HEADS[order as usize + 1]
}

/// Returns the heads of the maximal `order` runs, given the `heads` of all its runs and, in `above`, the run heads
/// of the next order.
#[inline]
pub(super) const fn unpaired(heads: u64, above: u64, order: u32) -> u64 {
    heads & !(above | above << (1 << order))
}

/// Returns the heads of the maximal `order` runs in `word`, if no run has an order above `last`.
pub(super) const fn maximal(word: u64, order: u32, last: u32) -> u64 {
    let heads = heads(word, order);
    if order == last { heads } else { unpaired(heads, paired(heads, order), order) }
}

/// Returns the heads of all `order` runs in `word`.
#[inline]
pub(crate) const fn heads(word: u64, order: u32) -> u64 {
    // The match makes all shift counts constant, as in `for_each_change`.
    match order {
        0 => word,
        1 => heads_of::<1>(word),
        2 => heads_of::<2>(word),
        3 => heads_of::<3>(word),
        4 => heads_of::<4>(word),
        5 => heads_of::<5>(word),
        _ => heads_of::<WORD_BITS_LOG2>(word),
    }
}

/// Returns the order of the largest run in `word`; `None` if it has none.
#[inline]
pub(crate) const fn largest_run(word: u64) -> Option<u32> {
    if word == 0 {
        return None;
    }
    let (mut heads, mut order) = (word, 0);
    while order < WORD_BITS_LOG2 {
        heads = paired(heads, order);
        if heads == 0 {
            return Some(order);
        }
        order += 1;
    }
    Some(WORD_BITS_LOG2)
}

/// Returns the heads of the `ORDER` runs in `word`.
#[inline(always)]
const fn heads_of<const ORDER: u32>(word: u64) -> u64 {
    // First compute the heads of all sequences with that length, whether aligned or not.
    let mut heads = word;
    let mut below = 0;
    while below < ORDER {
        heads &= heads >> (1 << below);
        below += 1;
    }
    heads & HEADS[ORDER as usize]
}

/// Calls `changed(order, lost, gained)` for each order up to `last` whose maximal runs differ between two words.
/// `lost` are the heads of the maximal runs in `before`, and `gained` are those in `after`.
#[inline]
pub(super) fn for_each_change(before: u64, after: u64, last: u32, mut changed: impl FnMut(u32, u64, u64)) {
    // This is the hottest code of the buddy. It is unrolled to make all shift counts constant.
    let heads = &mut (before, after);
    let changed = &mut changed;
    let _ = compare::<0>(heads, last, changed)
        && compare::<1>(heads, last, changed)
        && compare::<2>(heads, last, changed)
        && compare::<3>(heads, last, changed)
        && compare::<4>(heads, last, changed)
        && compare::<5>(heads, last, changed)
        && compare::<6>(heads, last, changed);
}

/// Processes one order of [`for_each_change`], and returns whether larger orders can differ.
///
/// `heads` are the heads of the `ORDER` runs in both words, and the function replaces them with those of the next
/// order. Heads depend only on the heads one order below, so equal heads mean that no larger order differs.
#[inline(always)]
fn compare<const ORDER: u32>(
    heads: &mut (u64, u64),
    last: u32,
    changed: &mut impl FnMut(u32, u64, u64),
) -> bool {
    let (old, new) = *heads;
    if ORDER == WORD_BITS_LOG2 || ORDER == last {
        changed(ORDER, old, new);
        return false;
    }
    *heads = (paired(old, ORDER), paired(new, ORDER));
    let (lost, gained) = (unpaired(old, heads.0, ORDER), unpaired(new, heads.1, ORDER));
    if lost != gained {
        changed(ORDER, lost, gained);
    }
    heads.0 != heads.1
}

/// Returns a word with the `count` lowest bits set, or all bits if `count` is 64 or more.
#[inline]
pub(super) const fn ones(count: u64) -> u64 {
    if count >= WORD_BITS as u64 { !0 } else { (1 << count) - 1 }
}

/// Returns the units of the `order` runs with the given heads.
pub(super) const fn spread(heads: u64, order: u32) -> u64 {
    heads.wrapping_mul(ones(1 << order)) // runs are disjoint, so no bit carries
}

/// Returns the number of set bits, and is fast for words with all bits, no bit or one bit set, which are common.
#[inline]
pub(super) const fn count_of(word: u64) -> u32 {
    match word {
        u64::MAX => u64::BITS,
        0 => 0,
        _ if word & (word - 1) == 0 => 1,
        _ => word.count_ones(),
    }
}

/// Returns how many more bits are set in `after` than in `before`, wrapping.
///
/// The words usually differ in one bit. That case is handled without counting bits, because some target processors
/// have no instruction for it.
#[inline]
pub(super) const fn count_difference(before: u64, after: u64) -> u64 {
    let different = before ^ after;
    if different & different.wrapping_sub(1) == 0 {
        return if different & after != 0 { 1 } else { 0_u64.wrapping_sub((different != 0) as u64) };
    }
    (after.count_ones() as u64).wrapping_sub(before.count_ones() as u64)
}

/// Returns `count` set bits of `word`, or all if there are fewer. Bits in smaller maximal runs are chosen first, and
/// among runs of one order the lowest bits.
pub(crate) fn from_smallest(word: u64, count: u32, last: u32) -> u64 {
    let (mut chosen, mut left) = (0, count);
    for order in 0..=last {
        let mut units = spread(maximal(word, order, last), order);
        while left > 0 && units != 0 {
            chosen |= units & units.wrapping_neg();
            units &= units - 1;
            left -= 1;
        }
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
    fn differences_of_counts() {
        let pairs = [(5, 5), (5, 4), (4, 5), (0, !0), (!0, 0), (0xF0, 0x0F), (0xF0, 1)];
        for (before, after) in pairs {
            let expected = i64::from(u64::count_ones(after)) - i64::from(u64::count_ones(before));
            assert_eq!(count_difference(before, after) as i64, expected);
        }
    }

    #[test]
    fn partial_choice_prefers_small_runs() {
        assert_eq!(from_smallest(0b1111_0100, 1, 6), 0b100);
        assert_eq!(from_smallest(0b1111_0100, 3, 6), 0b0011_0100);
        assert_eq!(from_smallest(!0, 63, 6), !0 >> 1);
        assert_eq!(from_smallest(0b101, 9, 6), 0b101);
    }
}
