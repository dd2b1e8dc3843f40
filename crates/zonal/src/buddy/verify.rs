//! The full check of a buddy, which recomputes counts and indexes from the bits and compares them with the stored
//! values.
//!
//! Related files: `buddy/mod.rs` states the invariants, and `admin/verify.rs` calls this check through
//! `zone/free_areas.rs`.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, maximal, ones};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::MAX_ORDER_LIMIT;

/// An invariant that a buddy violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BuddyFault {
    /// A word below the top level is full, and not one bit of the next level.
    Unmerged,
    /// A covered word is not 0, so at least one frame is represented twice.
    FreeTwice,
    /// Bits beyond the last frame are set.
    BeyondEnd,
    /// A word with maximal blocks of an order is missing in that order's index.
    Index,
    /// The summaries of an index disagree with its bits.
    IndexSummary,
    /// The stored free block count of an order is wrong.
    FreeBlocks,
    /// The stored number of free frames is wrong.
    FreePages,
    /// The stored set of orders that have free blocks is wrong.
    Orders,
}

impl<P: Platform> Buddy<'_, P> {
    /// Checks all invariants.
    ///
    /// # Errors
    /// Returns the first violation found.
    pub(crate) fn verify(&self, _held: &Held<'_, P::Lock>) -> Result<(), BuddyFault> {
        self.settle();
        let mut counts = [0; MAX_ORDER_LIMIT as usize + 1];
        let mut bits_of_level = self.shape.frames as usize;
        for level in 0..=self.shape.top {
            self.verify_level(level, bits_of_level, &mut counts)?;
            // A partial unit is never free as a whole, so it has no bit at the next level.
            bits_of_level /= WORD_BITS;
        }
        let (mut free_pages, mut orders) = (0, 0);
        for (order, (&counted, kept)) in counts.iter().zip(&self.counts.free_blocks).enumerate() {
            if counted != kept.load(Relaxed) {
                return Err(BuddyFault::FreeBlocks);
            }
            free_pages += counted << order;
            orders |= u64::from(counted > 0) << order;
        }
        if free_pages != self.pages() {
            return Err(BuddyFault::FreePages);
        }
        if orders != self.orders() {
            return Err(BuddyFault::Orders);
        }
        Ok(())
    }

    /// Checks the words and the indexes of a level with so many bits, and adds its maximal blocks to `counts`.
    fn verify_level(&self, level: usize, bits: usize, counts: &mut [u64]) -> Result<(), BuddyFault> {
        let last = self.shape.last(level);
        let base = WORD_BITS_LOG2 * level as u32;
        let bit = |cell: &P::U64, at: usize| cell.load(Relaxed) >> (at % WORD_BITS) & 1 == 1;
        for word in 0..self.shape.words(level) {
            let held = self.word(level, word).load(Relaxed);
            if held == 0 && level < 2 {
                // No bit is set, and stale index bits are allowed.
                continue;
            }
            if held == !0 && level < self.shape.top {
                return Err(BuddyFault::Unmerged);
            }
            if held != 0 && self.is_covered(level, word) {
                return Err(BuddyFault::FreeTwice);
            }
            if held & !ones(bits.saturating_sub(word * WORD_BITS) as u64) != 0 {
                return Err(BuddyFault::BeyondEnd);
            }
            for order in 0..=last {
                let heads = maximal(held, order, last);
                let order = base + order;
                counts[order as usize] += u64::from(heads.count_ones());
                let is_indexed = match level {
                    0 => heads == 0 || bit(self.line(word / WORD_BITS, order), word),
                    1 => heads == 0 || bit(self.index(order).bits(word / WORD_BITS), word),
                    _ => self.index(order).bits(word).load(Relaxed) == heads,
                };
                if !is_indexed {
                    return Err(BuddyFault::Index);
                }
            }
        }
        for order in base..=base + last {
            let index = self.index(order);
            let is_summed_up = |chunk: usize| {
                self.line(chunk, order).load(Relaxed) == 0 || bit(index.bits(chunk / WORD_BITS), chunk)
            };
            if level == 0 && !(0..self.shape.words(1)).all(is_summed_up) || !index.is_consistent() {
                return Err(BuddyFault::IndexSummary);
            }
        }
        Ok(())
    }
}
