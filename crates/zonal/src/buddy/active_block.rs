//! The active block of a buddy, from which whole words are allocated and freed one by one, without a split or merge
//! for each word.
//!
//! Refills and drains move whole words of 64 frames. The first allocation of a word from a block removes the whole
//! block from the bitmaps and makes it the active block, which stores the remaining words. The first free of a word
//! in a block that is entirely in use also makes that block active. When all words of the active block are free, they
//! return to the bitmaps as one block. The block's *units* are words of 64 frames. To *settle* means to return
//! the free units of the active block to the bitmaps. Every operation that depends on these units settles first,
//! except bulk allocation and freeing of words.
//!
//! Related files: `buddy/mod.rs` calls these functions.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy::shape::Stretch;
use crate::buddy::words::{RUNS, WORD_BITS, WORD_BITS_LOG2};
use crate::platform::{Atomic, Platform};

/// Binary logarithm of an active block's maximum unit count. With 4 KiB frames, such a block has 4 MiB.
const UNITS_LOG2_MAX: u32 = 4;

/// The active block: the free `units`, one bit each, of the `2^log2` units in an aligned block that starts at unit
/// `first`.
///
/// Invariant: if there is an active block, some but not all of its units are in `units`. No bit of any level
/// represents a unit in `units`, and no bit of level 1 or above represents the block's other units.
#[derive(Clone, Copy)]
pub(super) struct Open {
    first: usize,
    log2: u32,
    units: u64,
}

impl Open {
    /// Returns the block encoded as a word, which is 0 if there is no active block.
    const fn encode(self) -> u64 {
        if self.units == 0 { 0 } else { (self.first as u64) << 24 | (self.log2 as u64) << 16 | self.units }
    }

    const fn decode(word: u64) -> Self {
        Self { first: (word >> 24) as usize, log2: (word >> 16 & 0xff) as u32, units: word & 0xffff }
    }

    /// Returns the largest order of which the active block encoded in `word` has a free block, or `None` if there
    /// is no active block.
    pub(super) fn largest(word: u64) -> Option<u32> {
        let (mut runs, mut order) = (Self::decode(word).units, WORD_BITS_LOG2);
        if runs == 0 {
            return None;
        }
        // Start with the 1-unit runs and compute the aligned runs with 2, 4 and 8 units.
        for (log2, even) in [0x5555, 0x1111, 0x0101].into_iter().enumerate() {
            runs &= (runs >> (1 << log2)) & even;
            order += u32::from(runs != 0);
        }
        Some(order)
    }

    /// Whether unit `unit` belongs to the block.
    const fn holds(self, unit: usize) -> bool {
        self.units != 0 && (unit ^ self.first) >> self.log2 == 0
    }

    const fn all(self) -> u64 {
        RUNS[self.log2 as usize]
    }
}

// Every access is relaxed, because the lock orders them, as for all accesses to a buddy.
impl<P: Platform> Buddy<'_, P> {
    fn open(&self) -> Open {
        Open::decode(self.counts.open.load(Relaxed))
    }

    /// Stores the active block; `was` is the previous one.
    fn set_open(&self, was: Open, is: Open) {
        self.counts.open.store(is.encode(), Relaxed);
        if (was.units == 0) != (is.units == 0) {
            let counted = self.counts.free_blocks[WORD_BITS_LOG2 as usize].load(Relaxed) != 0;
            let units = u64::from(counted) << WORD_BITS_LOG2;
            self.set_orders(self.orders() & !(1 << WORD_BITS_LOG2) | units);
        }
    }

    /// Whether a word of 64 frames is free in the active block.
    pub(super) fn is_open(&self, unit: usize) -> bool {
        let open = self.open();
        open.holds(unit) && open.units >> (unit - open.first) & 1 == 1
    }

    /// Allocates a whole word from the active block. If there is none, a block of the smallest order in `orders`, or
    /// its lowest part if it is too large, becomes the active block. All orders in `orders` must be at least one
    /// word.
    pub(super) fn take_unit(&self, orders: u64) -> usize {
        let open = self.open();
        if open.units == 0 {
            return self.take_unit_of_new(open, orders);
        }
        let at = open.units.trailing_zeros();
        self.set_open(open, Open { units: open.units & (open.units - 1), ..open });
        open.first + at as usize
    }

    #[inline(never)]
    fn take_unit_of_new(&self, none: Open, orders: u64) -> usize {
        let from = orders.trailing_zeros();
        let order = from.min(WORD_BITS_LOG2 + UNITS_LOG2_MAX);
        let (first, log2) =
            (self.split_block(from, order, orders) as usize / WORD_BITS, order - WORD_BITS_LOG2);
        self.set_open(none, Open { first, log2, units: RUNS[log2 as usize] & !1 });
        first
    }

    /// Frees a word of 64 frames, none of which may be free.
    pub(super) fn put_unit(&self, unit: usize) {
        let open = self.open();
        if !open.holds(unit) {
            return self.put_unit_elsewhere(unit);
        }
        let units = open.units | 1 << (unit - open.first);
        if units == open.all() {
            self.set_open(open, Open { units: 0, ..open });
            self.merge_units(open.first, WORD_BITS_LOG2 + open.log2);
        } else {
            self.set_open(open, Open { units, ..open });
        }
    }

    /// Makes the block that contains a unit the active block if it is entirely in use; otherwise frees only the unit.
    #[inline(never)]
    fn put_unit_elsewhere(&self, unit: usize) {
        self.settle();
        let log2 = UNITS_LOG2_MAX.min(u32::from(self.shape.max_order.get()) - WORD_BITS_LOG2);
        let first = unit >> log2 << log2;
        let free = self.word(1, first / WORD_BITS).load(Relaxed) >> (first % WORD_BITS);
        if free & RUNS[log2 as usize] != 0 {
            return self.merge_units(unit, WORD_BITS_LOG2);
        }
        let none = Open { first, log2, units: 0 };
        self.set_open(none, Open { units: 1 << (unit - first), ..none });
    }

    /// Settles if a block of `order` overlaps the active block.
    pub(super) fn settle_around(&self, first: usize, order: u32) {
        let open = self.open();
        let log2 = open.log2.max(order - WORD_BITS_LOG2);
        if open.units != 0 && (first ^ open.first) >> log2 == 0 {
            self.settle();
        }
    }

    /// Returns the units of the active block to the bitmaps.
    pub(crate) fn settle(&self) {
        let open = self.open();
        if open.units != 0 {
            self.settle_units(open);
        }
    }

    #[inline(never)]
    fn settle_units(&self, open: Open) {
        self.set_open(open, Open { units: 0, ..open });
        let (word, mask) = (open.first / WORD_BITS, open.units << (open.first % WORD_BITS));
        self.insert(Stretch { level: 1, word, mask }, self.word(1, word).load(Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_orders() {
        let largest = |units| Open::largest(Open { first: 1 << 26, log2: 4, units }.encode());
        assert_eq!(largest(0), None);
        assert_eq!([0b1, 0b110, 0b1100, 0xf00f, 0x0ff0, 0x7fff].map(largest), [6, 6, 7, 8, 8, 9].map(Some));
        let open = Open { first: (1 << 26) - 4, log2: 2, units: 0b101 };
        let same = Open::decode(open.encode());
        assert_eq!((same.first, same.log2, same.units), (open.first, 2, 0b101));
        assert!(same.holds((1 << 26) - 1) && !same.holds((1 << 26) - 5));
    }
}
