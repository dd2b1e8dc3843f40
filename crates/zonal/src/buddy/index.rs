//! The counts and indexes of a buddy: their updates when bits change, and the search for blocks.
//!
//! When code changes a word, the counts and indexes must be updated for the maximal blocks that the word lost and
//! gained. Splits and merges update them block by block, and all other changes compare the word before and after. A
//! loss updates only the counts, and a later search clears stale index bits.
//!
//! Related files: `buddy/mod.rs` defines the terms and the invariants.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy::shape::LINE_CELLS;
use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, count_difference, for_each_change, maximal};
use crate::platform::{Atomic, Platform};

impl<'m, P: Platform> Buddy<'m, P> {
    /// Returns the lowest maximal free block of `order`: the index of its word, the content of the word, and its
    /// lowest bit.
    ///
    /// `order` must be an order of level 0 that has a free block. The caller must allocate the block or part
    /// of it, because the function clears the word's index bit if this block is the only one of its order in the word.
    pub(super) fn lowest_in_words(&self, order: u32) -> (usize, u64, u32) {
        let last = self.shape.last(0);
        loop {
            let chunk = self.index(order).first().expect("counted blocks are indexed");
            let line = self.line(chunk, order);
            let noted = line.load(Relaxed);
            let (mut left, mut found) = (noted, None);
            while left != 0 && found.is_none() {
                let word = chunk * WORD_BITS + left.trailing_zeros() as usize;
                let bits = self.word(0, word).load(Relaxed);
                let heads = maximal(bits, order, last);
                if heads & heads.wrapping_sub(1) == 0 {
                    left &= left - 1;
                }
                if heads != 0 {
                    found = Some((word, bits, heads.trailing_zeros()));
                }
            }
            if left != noted {
                line.store(left, Relaxed);
            }
            if left == 0 {
                self.index(order).clear(chunk);
            }
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Does the same as [`Self::lowest_in_words`] for an order of level 1, and returns a chunk instead of a word.
    pub(super) fn lowest_in_chunks(&self, order: u32) -> (usize, u64, u32) {
        let last = self.shape.last(1);
        loop {
            let chunk = self.index(order).first().expect("counted blocks are indexed");
            let bits = self.word(1, chunk).load(Relaxed);
            let heads = maximal(bits, order - WORD_BITS_LOG2, last);
            if heads & heads.wrapping_sub(1) == 0 {
                self.index(order).clear(chunk);
            }
            if heads != 0 {
                return (chunk, bits, heads.trailing_zeros());
            }
        }
    }

    /// Counts that a maximal block of `order` is gone; returns the bit for `order` if the block was the last of its
    /// order, and 0 otherwise.
    pub(super) fn lose(&self, order: u32) -> u64 {
        let count = &self.counts.free_blocks[order as usize];
        let left = count.load(Relaxed).wrapping_sub(1);
        count.store(left, Relaxed);
        u64::from(left == 0) << order
    }

    /// Counts a new maximal block of `order`.
    pub(super) fn gain(&self, order: u32) {
        let count = &self.counts.free_blocks[order as usize];
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts and indexes one maximal block for each of `orders` in a level-0 word. The buddy must have had no such
    /// block.
    pub(super) fn gain_first_in_word(&self, word: usize, orders: Range<u32>) {
        for order in orders {
            self.counts.free_blocks[order as usize].store(1, Relaxed);
            self.note_word(word, order);
        }
    }

    /// Records in the index that a level-0 word has a maximal block of `order`.
    pub(super) fn note_word(&self, word: usize, order: u32) {
        let (chunk, bit) = (word / WORD_BITS, 1 << (word % WORD_BITS));
        let line = self.line(chunk, order);
        let noted = line.load(Relaxed);
        if noted & bit == 0 {
            line.store(noted | bit, Relaxed);
            self.index(order).note(chunk);
        }
    }

    /// Writes `after` to a word that contains `before`, and updates counts and indexes.
    pub(super) fn change(&self, level: usize, word: usize, before: u64, after: u64) {
        if before == after {
            // This includes a covered word that is allocated as a whole.
            return;
        }
        self.word(level, word).store(after, Relaxed);
        let mut orders = self.orders();
        for_each_change(before, after, self.shape.last(level), |order, lost, gained| {
            let order = order + WORD_BITS_LOG2 * level as u32;
            orders = self.add_free_blocks(order, count_difference(lost, gained), orders);
            if level == 2 {
                self.index(order).toggle(word, lost ^ gained);
            } else if gained != 0 && level == 1 {
                self.index(order).note(word);
            } else if gained != 0 {
                self.note_word(word, order);
            }
        });
        self.set_orders(orders);
    }

    /// Adds `change`, wrapping, to the free block count of `order`; returns the updated `orders`.
    pub(super) fn add_free_blocks(&self, order: u32, change: u64, orders: u64) -> u64 {
        let count = &self.counts.free_blocks[order as usize];
        let after = count.load(Relaxed).wrapping_add(change);
        count.store(after, Relaxed);
        orders & !(1 << order) | u64::from(after != 0) << order
    }

    /// Sets the orders of which there are maximal free blocks, and the order of a unit if there is an active block.
    pub(super) fn set_orders(&self, orders: u64) {
        let open = u64::from(self.counts.open.load(Relaxed) != 0) << WORD_BITS_LOG2;
        self.counts.orders.store(orders | open, Relaxed);
    }

    /// Whether words of level 0 or 1 represent free frames in a chunk.
    ///
    /// For most chunks without free frames, the index suffices to find this.
    pub(super) fn any_in_chunk(&self, chunk: usize) -> bool {
        let noted =
            |order| self.index(order).bits(chunk / WORD_BITS).load(Relaxed) >> (chunk % WORD_BITS) & 1;
        let last = if self.shape.top == 2 { 1 } else { self.shape.top };
        let orders = 0..=last as u32 * WORD_BITS_LOG2 + self.shape.last(last);
        if orders.fold(0, |any, order| any | noted(order)) == 0 {
            return false;
        }
        let words = chunk * WORD_BITS..((chunk + 1) * WORD_BITS).min(self.shape.words(0));
        let mut words = words.map(|word| self.word(0, word).load(Relaxed));
        self.word(1, chunk).load(Relaxed) != 0 || words.any(|bits| bits != 0)
    }

    /// Returns the cell whose bits are set for the words in a chunk that may have maximal blocks of `order`, an order
    /// of level 0.
    pub(super) fn line(&self, chunk: usize, order: u32) -> &'m P::U64 {
        &self.cells[self.shape.lines_at + chunk * LINE_CELLS + order as usize]
    }
}
