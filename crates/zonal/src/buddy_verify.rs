//! The full walk over a buddy: everything recomputed from the bits and compared.
//!
//! Neighbours: `buddy.rs` states the invariants that are checked here; `verify.rs` calls it.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy_words::{WORD_BITS, WORD_BITS_LOG2, maximal, ones};
use crate::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_ORDER_LIMIT, Order};

/// What is wrong with a buddy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BuddyFault {
    /// A word below the top level is full and has not become a bit one level up.
    Unmerged {
        /// Its level.
        level: usize,
        /// The word.
        word: usize,
    },
    /// A covered word is not 0: some frame is free twice.
    FreeTwice {
        /// Its level.
        level: usize,
        /// The word.
        word: usize,
    },
    /// Bits beyond the last frame are set.
    BeyondEnd {
        /// Their level.
        level: usize,
    },
    /// An index misses a word, or holds one without such a block.
    Index {
        /// Order of the index.
        order: u32,
        /// The word.
        word: usize,
    },
    /// The summaries of an index disagree with it.
    IndexSummary {
        /// Order of the index.
        order: u32,
    },
    /// The number of free blocks of an order is wrong.
    FreeBlocks {
        /// The order.
        order: Order,
        /// As the bits say.
        counted: u64,
        /// As kept.
        kept: u64,
    },
    /// The number of free frames is wrong.
    FreePages {
        /// As the bits say.
        counted: u64,
        /// As kept.
        kept: u64,
    },
    /// The number of frames in large blocks is wrong.
    InLarge {
        /// As kept.
        kept: u64,
    },
    /// The bit per order with free blocks is wrong for an order.
    Orders {
        /// The bits.
        kept: u64,
    },
}

type Counts = [u64; MAX_ORDER_LIMIT as usize + 1];

impl<P: Platform> Buddy<'_, P> {
    /// Checks all invariants.
    ///
    /// # Errors
    /// The first that does not hold.
    pub(crate) fn verify(&self, _held: &Held<'_, P::Lock>) -> Result<(), BuddyFault> {
        let mut counts: Counts = Counts::default();
        let mut bits_of_level = self.shape().frames() as usize;
        for level in 0..=self.shape().top() {
            self.verify_level(level, bits_of_level, &mut counts)?;
            bits_of_level /= WORD_BITS; // units that are not whole are never free
        }
        self.verify_counts(&counts)
    }

    fn verify_level(&self, level: usize, bits: usize, counts: &mut Counts) -> Result<(), BuddyFault> {
        let shape = self.shape().level(level);
        let base = WORD_BITS_LOG2 * level as u32;
        for word in 0..shape.words {
            let held = self.word(level, word).load(Relaxed);
            if held == !0 && level < self.shape().top() {
                return Err(BuddyFault::Unmerged { level, word });
            }
            if held != 0 && self.is_covered(level, word) {
                return Err(BuddyFault::FreeTwice { level, word });
            }
            if held & !ones(bits.saturating_sub(word * WORD_BITS) as u64) != 0 {
                return Err(BuddyFault::BeyondEnd { level });
            }
            for order in 0..=shape.last {
                let heads = maximal(held, order, shape.last);
                counts[(base + order) as usize] += u64::from(heads.count_ones());
                if self.index(level, order).contains(word) != (heads != 0) {
                    return Err(BuddyFault::Index { order: base + order, word });
                }
            }
        }
        match (0..=shape.last).find(|&order| !self.index(level, order).is_consistent()) {
            Some(order) => Err(BuddyFault::IndexSummary { order: base + order }),
            None => Ok(()),
        }
    }

    fn verify_counts(&self, counts: &Counts) -> Result<(), BuddyFault> {
        let (mut free_pages, mut in_large, mut orders) = (0, 0, 0);
        for (order, &counted) in (0..=MAX_ORDER_LIMIT).filter_map(Order::new).zip(counts) {
            let kept = self.free_blocks(order);
            if counted != kept {
                return Err(BuddyFault::FreeBlocks { order, counted, kept });
            }
            free_pages += counted << order.get();
            in_large += if order >= self.shape().large() { counted << order.get() } else { 0 };
            orders |= u64::from(counted > 0) << order.get();
        }
        if free_pages != self.free_pages() {
            return Err(BuddyFault::FreePages { counted: free_pages, kept: self.free_pages() });
        }
        let kept = self.in_large();
        if in_large != kept {
            return Err(BuddyFault::InLarge { kept });
        }
        if orders != self.orders() {
            return Err(BuddyFault::Orders { kept: self.orders() });
        }
        Ok(())
    }
}
