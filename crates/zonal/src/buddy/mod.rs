//! The buddy allocator of one free area: free blocks as dense bitmaps, allocation with splits, and frees with merges.
//!
//! Frames are numbered from the start of the free area. *Level* `l` has one bit per *unit* of `64^l` frames. A word
//! is *covered* if a bit of a higher level represents all its frames and is set. A *chunk* is the 4096 frames of one
//! level-1 word. Linux: `free_area`, `/proc/buddyinfo`.
//!
//! Related files: `buddy/shape.rs` (layout), `buddy/words.rs` (one word), `buddy/find_first.rs` (search for the
//! lowest chunk), `buddy/index.rs` (counts and indexes), `buddy/active_block.rs` (the active block), `buddy/ranges.rs`
//! (ranges), `buddy/verify.rs` (check of the invariants), and `zone/free_areas.rs`, which owns the lock.

mod active_block;
mod find_first;
mod index;
pub(crate) mod ranges;
pub(crate) mod shape;
pub(crate) mod verify;
pub(crate) mod word_batch;
pub(crate) mod words;

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::active_block::Open;
use crate::buddy::find_first::FindFirst;
use crate::buddy::shape::{BuddyShape, Stretch};
use crate::buddy::word_batch::BATCH_MAX;
use crate::buddy::words::{RUNS, WORD_BITS, WORD_BITS_LOG2, count_of, from_smallest, ones};
use crate::platform::cells::{all_zero, copy_view};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_ORDER_LIMIT, Order};

/// View of a buddy. Its cells are initially 0, which means that no frame is free.
///
/// Invariants that hold while the lock is free:
/// - a frame is free iff exactly one set bit represents it: the bit of its unit at one level, or the bit of its word
///   in the active block;
/// - `word = !0` only at the top level: a full word below it is stored as 0 and a set bit one level up;
/// - `word = 0` if the word is covered, so that freeing a large block writes no words of lower levels;
/// - `free_blocks[k]` = number of *maximal* order-`k` runs: aligned free runs of `2^k` frames that are not half a
///   free run one order higher, or that have the largest order; `free_pages = Σ free_blocks[k] * 2^k` if there is no
///   active block;
/// - bit `k` of `orders` is set iff `free_blocks[k] > 0`, or `k` = 6 and there is an active block;
/// - for the orders `k` of level 0, bit `w` of cell `k` in a chunk's line (see `buddy/shape.rs`) is set if the chunk's
///   word `w` has a maximal run of order `k`; for the orders of levels 0 and 1, bit `c` of the index's column `k` is
///   set if chunk `c` has one. These bits may also be stale: a search that finds no run clears them. For the orders of
///   level 2, they are set exactly for the chunks in which a maximal run begins.
///
/// All accesses are relaxed, because readers and writers of bits and indexes hold the lock (proved by a [`Held`]),
/// which orders them. The counts are also read without the lock. Each may be stale and implies nothing about other
/// cells.
pub(crate) struct Buddy<'m, P: Platform> {
    counts: &'m BuddyCounts<P>,
    cells: &'m [P::U64],
    shape: &'m BuddyShape,
}

copy_view!(Buddy);

all_zero! {
    /// The counts of a buddy, which are also read without its lock.
    #[repr(C)]
    pub(crate) struct BuddyCounts<P> {
        /// One bit per order, set if there are maximal free blocks of the order.
        orders: u64,
        /// Free frames.
        pub(crate) free_pages: u64,
        /// The active block and its free units, encoded by [`Open`].
        pub(crate) open: u64,
        /// Number of maximal free blocks, by order.
        pub(crate) free_blocks: [u64; MAX_ORDER_LIMIT as usize + 1],
    }
}

impl<P: Platform> BuddyCounts<P> {
    /// Whether the bitmaps or the active block have a free block of `order` or larger.
    pub(crate) fn has_block(&self, order: Order) -> bool {
        // Relaxed: as all accesses to a buddy.
        self.orders.load(Relaxed) >> order.get() != 0
            || Open::largest(self.open.load(Relaxed)).is_some_and(|largest| largest >= order.get().into())
    }

    /// Returns the order of the largest free block in the bitmaps or the active block.
    pub(crate) fn largest(&self) -> Option<Order> {
        let whole = self.orders.load(Relaxed).checked_ilog2(); // relaxed: as all accesses to a buddy
        whole.max(Open::largest(self.open.load(Relaxed))).and_then(|order| Order::new(order as u8))
    }

    /// Returns the order of the smallest free block that has at least `order`; above all orders if there is none.
    pub(crate) fn fit(&self, order: Order) -> u32 {
        let order = u32::from(order.get());
        order + (self.orders.load(Relaxed) >> order).trailing_zeros() // relaxed: as all accesses to a buddy
    }

    /// Returns the free frames in blocks of order `large` or larger.
    pub(crate) fn in_large(&self, large: Order) -> u64 {
        let from = usize::from(large.get());
        let blocks = self.free_blocks[from..].iter().zip(from..);
        blocks.map(|(count, order)| count.load(Relaxed) << order).sum() // relaxed: as all accesses to a buddy
    }
}

/// A block that is being freed and grows by merges. It starts at `bit` of a word whose units have order `base`.
#[derive(Clone, Copy)]
struct Run {
    bit: u32,
    order: u32,
    base: u32,
    /// Orders of which the buddy has free blocks, one bit each.
    orders: u64,
}

impl<'m, P: Platform> Buddy<'m, P> {
    /// Allocates a block of `order` and returns its first frame. Of the smallest free blocks that are large enough, the
    /// lowest is chosen, and its lowest part is allocated.
    #[must_use]
    pub(crate) fn alloc(&self, _held: &Held<'_, P::Lock>, order: Order) -> Option<u32> {
        let order = u32::from(order.get());
        let mut orders = self.orders();
        // The units of the active block may be needed unless a block smaller than a word is large enough.
        if (orders & ones(WORD_BITS_LOG2.into())) >> order == 0 {
            self.settle();
            orders = self.orders();
        }
        if orders >> order == 0 {
            return None;
        }
        let from = order + (orders >> order).trailing_zeros();
        let frame = self.split_block(from, order, orders);
        self.add_free_pages((1_u64 << order).wrapping_neg());
        Some(frame)
    }

    /// Allocates at least `want` single frames if that many are free, but at most `most`, and returns how many.
    ///
    /// Repeatedly allocates from the first word of the lowest among the smallest free blocks. Each step allocates all
    /// free frames of that word, within `most`, so the result can exceed `want` by 63. Each step calls `sink` with
    /// the first frame of the word and the allocated frames, one bit each. There are at most [`BATCH_MAX`] steps.
    pub(crate) fn take_pages(
        &self,
        _held: &Held<'_, P::Lock>,
        want: u32,
        most: u32,
        sink: &mut impl FnMut(u32, u64),
    ) -> u32 {
        let want = want.min(most);
        let mut taken = 0;
        for _ in 0..BATCH_MAX {
            let orders = self.orders();
            if orders == 0 || taken >= want {
                break;
            }
            let (from, left) = (orders.trailing_zeros(), most - taken);
            let (word, frames) = if self.shape.level_of(from) > 0 {
                let word = self.take_unit(orders);
                if left < u64::BITS {
                    self.change(0, word, 0, !ones(left.into()));
                }
                (word, ones(left.into()))
            } else {
                let (word, bits, _) = self.lowest_in_words(from);
                let all = left >= u64::BITS || bits.count_ones() <= left;
                let frames = if all { bits } else { from_smallest(bits, left, self.shape.last(0)) };
                self.change(0, word, bits, bits & !frames);
                (word, frames)
            };
            taken += count_of(frames);
            sink((word * WORD_BITS) as u32, frames);
        }
        self.add_free_pages(u64::from(taken).wrapping_neg());
        taken
    }

    /// Frees the block of `order` at `frame` and merges it. Returns `false` and frees nothing if one of its frames is
    /// already free, or if it is not an aligned block within the span.
    #[must_use]
    pub(crate) fn free(&self, _held: &Held<'_, P::Lock>, frame: u32, order: Order) -> bool {
        if !self.shape.has_block(frame, order) {
            return false;
        }
        let of = u32::from(order.get());
        let given = match self.shape.level_of(of) {
            0 => self.merge_in_word(frame, of),
            1 => self.merge_in_chunk(frame, of),
            _ => self.merge_whole_chunks(frame, of),
        };
        if given {
            self.add_free_pages(order.pages().get());
        }
        given
    }

    /// Frees frames of the word that starts at frame `first`, one for each set bit of `frames`, and merges them.
    /// Returns `false` and frees nothing if one of these frames is already free or outside the span.
    #[must_use]
    pub(crate) fn merge_word(&self, _held: &Held<'_, P::Lock>, first: u32, frames: u64) -> bool {
        let last = u64::from(first) + u64::from(u64::BITS - frames.leading_zeros());
        if !(first as usize).is_multiple_of(WORD_BITS) || last > self.shape.frames || frames == 0 {
            return frames == 0;
        }
        let given = if frames & (frames - 1) == 0 {
            self.merge_in_word(first + frames.trailing_zeros(), 0)
        } else if frames == !0 && self.shape.top > 0 {
            self.merge_whole_word(first as usize / WORD_BITS)
        } else {
            self.merge_some(first as usize / WORD_BITS, frames)
        };
        if given {
            self.add_free_pages(u64::from(count_of(frames)));
        }
        given
    }

    /// Creates the view of a buddy with `shape` in `cells`.
    pub(crate) fn new(counts: &'m BuddyCounts<P>, cells: &'m [P::U64], shape: &'m BuddyShape) -> Self {
        Self { counts, cells: &cells[..shape.cells()], shape }
    }

    /// Returns the number of free frames.
    fn pages(&self) -> u64 {
        self.counts.free_pages.load(Relaxed)
    }

    /// Returns one bit per order, set if there are maximal free blocks of the order.
    fn orders(&self) -> u64 {
        self.counts.orders.load(Relaxed)
    }

    /// Splits the lowest maximal free block of order `from`, allocates its lowest part of order `order`, and returns
    /// the first frame. `from` must be the smallest of `orders` that is large enough.
    fn split_block(&self, from: u32, order: u32, orders: u64) -> u32 {
        let ended = self.lose(from);
        // There was no free block of the orders `order..from`, so the split leaves exactly one of each.
        let gained = ones(from.into()) & !ones(order.into());
        self.set_orders((orders | gained) & !ended);
        match self.shape.level_of(from) {
            0 => {
                let (word, bits, bit) = self.lowest_in_words(from);
                self.word(0, word).store(bits & !(RUNS[order as usize] << bit), Relaxed);
                self.gain_first_in_word(word, order..from);
                (word * WORD_BITS) as u32 + bit
            }
            1 => {
                let (chunk, bits, bit) = self.lowest_in_chunks(from);
                self.split_in_chunk(chunk, bits, bit, order..from)
            }
            _ => self.split_chunks(order..from),
        }
    }

    /// Splits a block of order `orders.end` in a chunk whose word is `bits`, and allocates its lowest part of order
    /// `orders.start`.
    fn split_in_chunk(&self, chunk: usize, bits: u64, bit: u32, orders: Range<u32>) -> u32 {
        let start = orders.start.max(WORD_BITS_LOG2);
        let gone = RUNS[(start - WORD_BITS_LOG2) as usize] << bit;
        self.word(1, chunk).store(bits & !gone, Relaxed);
        for order in start..orders.end {
            self.counts.free_blocks[order as usize].store(1, Relaxed);
            self.index(order).note(chunk);
        }
        let word = chunk * WORD_BITS + bit as usize;
        if orders.start < WORD_BITS_LOG2 {
            self.word(0, word).store(!RUNS[orders.start as usize], Relaxed);
            self.gain_first_in_word(word, orders.start..WORD_BITS_LOG2);
        }
        (word * WORD_BITS) as u32 // this fits because frame numbers are below 2^32
    }

    /// Splits the lowest block of order `orders.end`, which consists of whole chunks, as in [`Self::split_in_chunk`].
    #[cold]
    fn split_chunks(&self, orders: Range<u32>) -> u32 {
        const BASE: u32 = 2 * WORD_BITS_LOG2;
        let chunk = self.index(orders.end).first().expect("counted blocks are indexed");
        self.index(orders.end).clear(chunk);
        let start = orders.start.max(BASE);
        let word = self.word(2, chunk / WORD_BITS);
        let gone = RUNS[(start - BASE) as usize] << (chunk % WORD_BITS);
        word.store(word.load(Relaxed) & !gone, Relaxed);
        for order in start..orders.end {
            self.counts.free_blocks[order as usize].store(1, Relaxed);
            self.index(order).set(chunk + (1 << (order - BASE)));
        }
        if orders.start < BASE {
            self.split_in_chunk(chunk, !0, 0, orders.start..BASE);
        }
        (chunk << BASE) as u32
    }

    /// Frees a block within the span that level 0 stores, unless one of its frames is already free; returns whether it was freed.
    fn merge_in_word(&self, frame: u32, order: u32) -> bool {
        let (word, bit) = (frame as usize / WORD_BITS, frame % WORD_BITS as u32);
        let (bits, given) = (self.word(0, word).load(Relaxed), RUNS[order as usize] << bit);
        if bits & given != 0 || (bits == 0 && self.is_covered(0, word)) {
            return false;
        }
        let run = self.absorb(bits, Run { bit, order, base: 0, orders: self.orders() });
        if run.order == WORD_BITS_LOG2 && self.shape.top > 0 {
            self.word(0, word).store(0, Relaxed);
            self.set_orders(run.orders);
            self.put_unit(word);
        } else {
            self.word(0, word).store(bits | given, Relaxed);
            self.set_orders(run.orders | 1 << run.order);
            self.gain(run.order);
            self.note_word(word, run.order);
        }
        true
    }

    /// Does the same as [`Self::merge_in_word`] for a whole word.
    fn merge_whole_word(&self, word: usize) -> bool {
        let used = self.word(0, word).load(Relaxed) == 0 && !self.is_covered(0, word);
        if used {
            self.put_unit(word);
        }
        used
    }

    /// Does the same as [`Self::merge_in_word`] for a block that level 1 stores.
    fn merge_in_chunk(&self, frame: u32, order: u32) -> bool {
        let first = frame as usize / WORD_BITS;
        if order == WORD_BITS_LOG2 {
            return self.merge_whole_word(first);
        }
        self.settle_around(first, order);
        let (chunk, bit) = (first / WORD_BITS, first as u32 % WORD_BITS as u32);
        let (bits, given) =
            (self.word(1, chunk).load(Relaxed), RUNS[(order - WORD_BITS_LOG2) as usize] << bit);
        if bits & given != 0 || self.is_covered(1, chunk) {
            return false;
        }
        let words = self.shape.words_at + first;
        let words = &self.cells[words..words + (1 << (order - WORD_BITS_LOG2))];
        if words.iter().fold(0, |all, word| all | word.load(Relaxed)) != 0 {
            return false;
        }
        self.merge_units(first, order);
        true
    }

    /// Frees the block of `order`, an order of level 1, that begins with word `first`, and merges it within its chunk
    /// and with other chunks.
    fn merge_units(&self, first: usize, order: u32) {
        let (chunk, bit) = (first / WORD_BITS, (first % WORD_BITS) as u32);
        let bits = self.word(1, chunk).load(Relaxed);
        let given = RUNS[(order - WORD_BITS_LOG2) as usize] << bit;
        let run = Run { bit, order, base: WORD_BITS_LOG2, orders: self.orders() };
        let run = self.absorb(bits, run);
        if run.order == 2 * WORD_BITS_LOG2 && self.shape.top > 1 {
            self.word(1, chunk).store(0, Relaxed);
            self.merge_chunks(chunk, run);
        } else {
            self.word(1, chunk).store(bits | given, Relaxed);
            self.set_orders(run.orders | 1 << run.order);
            self.gain(run.order);
            self.index(run.order).note(chunk);
        }
    }

    /// Merges a run with its buddies in a word that contains `bits`, as far as possible. `run.base` is the order of the
    /// word's units.
    fn absorb(&self, bits: u64, run: Run) -> Run {
        let mut run = run;
        let end = (run.base + WORD_BITS_LOG2).min(u32::from(self.shape.max_order.get()));
        while run.order < end {
            let order = (run.order - run.base) as usize;
            let buddy = run.bit ^ 1 << order;
            if bits >> buddy & RUNS[order] != RUNS[order] {
                break;
            }
            run.orders &= !self.lose(run.order);
            run.bit &= !(1 << order);
            run.order += 1;
        }
        run
    }

    /// Does the same as [`Self::merge_in_word`] for a block that level 2 stores.
    #[cold]
    fn merge_whole_chunks(&self, frame: u32, order: u32) -> bool {
        let chunk = frame as usize >> (2 * WORD_BITS_LOG2);
        let chunks = chunk..chunk + (1 << (order - 2 * WORD_BITS_LOG2));
        self.settle();
        let used =
            |chunk: usize| self.word(2, chunk / WORD_BITS).load(Relaxed) >> (chunk % WORD_BITS) & 1 == 0;
        if !chunks.clone().all(|chunk| used(chunk) && !self.any_in_chunk(chunk)) {
            return false;
        }
        self.merge_chunks(chunk, Run { bit: 0, order, base: 0, orders: self.orders() });
        true
    }

    /// Frees a run of whole chunks that starts at `chunk`.
    #[cold]
    fn merge_chunks(&self, chunk: usize, run: Run) {
        const BASE: u32 = 2 * WORD_BITS_LOG2;
        let (word, bit) = (chunk / WORD_BITS, (chunk % WORD_BITS) as u32);
        let bits = self.word(2, word).load(Relaxed);
        let merged = self.absorb(bits, Run { bit, base: BASE, ..run });
        for order in run.order..merged.order {
            // Remove the buddy that was merged at this order from the index.
            let start = bit as usize >> (order - BASE) << (order - BASE);
            self.index(order).clear(word * WORD_BITS + (start ^ 1 << (order - BASE)));
        }
        self.word(2, word).store(bits | RUNS[(run.order - BASE) as usize] << bit, Relaxed);
        self.set_orders(merged.orders | 1 << merged.order);
        self.gain(merged.order);
        self.index(merged.order).set(word * WORD_BITS + merged.bit as usize);
    }

    /// Frees some frames in a word unless one of them is already free, and returns whether the frames were freed.
    fn merge_some(&self, word: usize, frames: u64) -> bool {
        let bits = self.word(0, word).load(Relaxed);
        if bits & frames != 0 || (bits == 0 && self.is_covered(0, word)) {
            return false;
        }
        if bits | frames == !0 && self.shape.top > 0 {
            self.change(0, word, bits, 0);
            self.put_unit(word);
        } else {
            self.change(0, word, bits, bits | frames);
        }
        true
    }

    /// Sets the bits of a stretch in a word that contains `bits`. None of the stretch may be free.
    fn insert(&self, stretch: Stretch, bits: u64) {
        let Stretch { mut level, mut word, mask } = stretch;
        let (mut before, mut after) = (bits, bits | mask);
        while after == !0 && level < self.shape.top {
            self.change(level, word, before, 0);
            level += 1;
            before = self.word(level, word / WORD_BITS).load(Relaxed);
            after = before | 1 << (word % WORD_BITS);
            word /= WORD_BITS;
        }
        self.change(level, word, before, after);
    }

    /// Clears the bits of an entirely free stretch, and splits the block that covers the stretch, if any.
    fn remove(&self, stretch: Stretch) {
        let Stretch { level, word, mask } = stretch;
        if self.is_covered(level, word) {
            let parent = 1 << (word % WORD_BITS);
            self.remove(Stretch { level: level + 1, word: word / WORD_BITS, mask: parent });
            self.change(level, word, 0, !mask);
        } else {
            let bits = self.word(level, word).load(Relaxed);
            self.change(level, word, bits, bits & !mask);
        }
    }

    /// Whether the word's frames are free as part of a higher level's unit or the active block.
    fn is_covered(&self, level: usize, word: usize) -> bool {
        let (mut above, mut unit) = (level + 1, word);
        while above <= self.shape.top {
            let bits = self.word(above, unit / WORD_BITS).load(Relaxed);
            if bits >> (unit % WORD_BITS) & 1 != 0 {
                return true;
            }
            (above, unit) = (above + 1, unit / WORD_BITS);
        }
        level == 0 && self.is_open(word)
    }

    /// Adds `change`, wrapping, to the number of free frames.
    fn add_free_pages(&self, change: u64) {
        self.counts.free_pages.store(self.pages().wrapping_add(change), Relaxed);
    }

    /// Returns the cell for word `word` of level `level`.
    fn word(&self, level: usize, word: usize) -> &'m P::U64 {
        match level {
            0 => &self.cells[self.shape.words_at + word],
            1 => &self.cells[self.shape.middle_at + word],
            _ => self.index(u32::from(self.shape.max_order.get()) + 1).bits(word),
        }
    }

    /// Returns the index of chunks with maximal free `order` blocks.
    fn index(&self, order: u32) -> FindFirst<'m, P> {
        FindFirst::new(self.cells, &self.shape.index, order as usize)
    }
}

#[cfg(test)]
mod tests;
