//! The buddy of one region: free blocks as dense bitmaps; split, merge, bulk take and give.
//!
//! Vocabulary: frames are numbered from the region's start (the *index* of a frame); *level* 0
//! has a bit per frame, level `l` a bit per unit of `64^l` frames; a word is *covered* when the bit
//! that stands for it one level up, or any further up, is set. Linux: `free_area`, `/proc/buddyinfo`.
//! Neighbours: `buddy_shape.rs` lays out the cells, `buddy_words.rs` looks into one word,
//! `find_first.rs` finds the lowest word, `buddy_ranges.rs` has the operations on ranges,
//! `buddy_verify.rs` the full walk; `regions.rs` owns the lock.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy_shape::{BuddyShape, Stretch};
use crate::buddy_words::{
    WORD_BITS, WORD_BITS_LOG2, count_difference, for_each_change, from_smallest, maximal, ones,
};
use crate::carve::{Fresh, copy_view};
use crate::find_first::FindFirst;
use crate::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_ORDER_LIMIT, Order};

/// View of a buddy in cells that all start at 0: nothing free.
///
/// Invariants, at every moment the lock is free:
/// - a frame is free iff exactly one bit stands for it: of its unit at one level;
/// - `word = !0` only at the top level: a full word below is a bit one level up and is itself 0;
/// - `word = 0` if the word is covered, so that free memory costs no writes below its level;
/// - `free_blocks[k]` = aligned free runs of `2^k` frames that are no half of a free run of
///   `2^(k + 1)`, or `k = max_order`; and `free_pages = Σ free_blocks[k] * 2^k`;
/// - bit `k` of `orders` is set iff `free_blocks[k] > 0`;
/// - `in_large = Σ free_blocks[k] * 2^k` over the orders `k` of large blocks;
/// - bit `w` of the index of order `k` is set iff word `w` of that order's level has such a run.
///
/// Accesses are relaxed throughout: writers and readers of bits and indexes hold the region's lock
/// (the [`Held`] they are given), which orders them; the counts are also read without it, as
/// single cells that may be stale and that nothing else is inferred from.
pub(crate) struct Buddy<'m, P: Platform> {
    counts: &'m BuddyCounts<P>,
    cells: &'m [P::U64],
    shape: &'m BuddyShape,
}

copy_view!(Buddy);

/// What a buddy has, in figures. Read without its lock too.
#[repr(C)]
pub(crate) struct BuddyCounts<P: Platform> {
    /// Bit per order of which there are maximal free blocks.
    pub(crate) orders: P::U64,
    /// Free frames.
    pub(crate) free_pages: P::U64,
    /// Free frames in large blocks.
    pub(crate) in_large: P::U64,
    /// Maximal free blocks of each order.
    pub(crate) free_blocks: [P::U64; MAX_ORDER_LIMIT as usize + 1],
}

// SAFETY: every field is a cell made with `new(0)`.
#[allow(unsafe_code)]
unsafe impl<P: Platform> Fresh<P> for BuddyCounts<P> {
    fn fresh() -> Self {
        let zero = || P::U64::new(0);
        Self {
            orders: zero(),
            free_pages: zero(),
            in_large: zero(),
            free_blocks: core::array::from_fn(|_| zero()),
        }
    }
}

impl<P: Platform> BuddyCounts<P> {
    /// Whether there is a free block of `order` or larger.
    #[inline]
    pub(crate) fn has_block(&self, order: Order) -> bool {
        self.orders.load(Relaxed) >> order.get() != 0 // relaxed: as for all of a buddy
    }

    /// Order of the smallest free block that holds one of `order`; beyond every order if there is none.
    #[inline]
    pub(crate) fn fit(&self, order: Order) -> u32 {
        let order = u32::from(order.get());
        order + (self.orders.load(Relaxed) >> order).trailing_zeros() // relaxed: as for all of a buddy
    }

    /// Free frames that are not in large blocks.
    #[inline]
    pub(crate) fn scattered(&self) -> u64 {
        // Relaxed: as for all of a buddy; read in a moment of change they may not fit together.
        self.free_pages.load(Relaxed).saturating_sub(self.in_large.load(Relaxed))
    }
}

/// A maximal free block, with the word it was found in.
struct Found {
    level: usize,
    word: usize,
    bits: u64,
    /// The block's first unit.
    bit: u32,
}

impl Found {
    const fn frame(&self) -> u32 {
        // Fits: frames are below 2^32.
        ((self.word * WORD_BITS + self.bit as usize) << (WORD_BITS_LOG2 as usize * self.level)) as u32
    }
}

impl<'m, P: Platform> Buddy<'m, P> {
    /// Takes a block of `order`: out of the smallest free block that is large enough, of these the
    /// lowest, and of that the lowest part. Gives its first frame.
    #[inline]
    #[must_use]
    pub(crate) fn take(&self, _held: &Held<'_, P::Lock>, order: Order) -> Option<u32> {
        let order = u32::from(order.get());
        let large_enough = self.orders() >> order;
        if large_enough == 0 {
            return None;
        }
        let found = self.lowest_block(order + large_enough.trailing_zeros());
        let frame = found.frame();
        let (level, order_in_level) = self.shape.place_of(order);
        if level == found.level {
            let block = ones(1 << order_in_level) << found.bit;
            self.change(level, found.word, found.bits, found.bits & !block);
        } else {
            let unit = frame as usize >> (WORD_BITS_LOG2 as usize * level);
            self.remove(Stretch { level, word: unit / WORD_BITS, mask: ones(1 << order_in_level) });
        }
        self.add_free_pages((1_u64 << order).wrapping_neg());
        Some(frame)
    }

    /// Takes single frames in bulk until `want` are taken, never more than `most`; gives how many.
    ///
    /// Goes word by word, the word of the smallest, then lowest free block first, and takes all of
    /// a word that `most` leaves room for: up to 63 frames more than wanted. `sink` gets the first
    /// frame of each word and the frames taken from it, one bit each.
    #[inline]
    pub(crate) fn take_pages(
        &self,
        _held: &Held<'_, P::Lock>,
        want: u32,
        most: u32,
        sink: &mut impl FnMut(u32, u64),
    ) -> u32 {
        let want = want.min(most);
        let mut taken = 0;
        while taken < want {
            let orders = self.orders();
            if orders == 0 {
                break;
            }
            let found = self.lowest_block(orders.trailing_zeros());
            let (word, frames) = self.take_word(&found, most - taken);
            taken += frames.count_ones();
            sink((word * WORD_BITS) as u32, frames);
        }
        self.add_free_pages(u64::from(taken).wrapping_neg());
        taken
    }

    /// Frees the block of `order` at `frame` and merges it. Refused, with `false` and no change,
    /// when one of its frames is free or it is no aligned block within the span.
    #[inline]
    #[must_use]
    pub(crate) fn give(&self, _held: &Held<'_, P::Lock>, frame: u32, order: Order) -> bool {
        self.shape.block(frame, order).is_some_and(|block| self.give_stretch(block))
    }

    /// Frees frames of the word of 64 that starts at `first`, one per bit of `frames`, and merges
    /// them. Refused, with `false` and no change, when one of them is free or outside the span.
    #[inline]
    #[must_use]
    pub(crate) fn give_word(&self, _held: &Held<'_, P::Lock>, first: u32, frames: u64) -> bool {
        let last = u64::from(first) + u64::from(u64::BITS - frames.leading_zeros());
        if !(first as usize).is_multiple_of(WORD_BITS) || last > self.shape.frames() {
            return false;
        }
        if frames == !0 && self.shape.top() > 0 {
            let unit = first as usize / WORD_BITS;
            let mask = 1 << (unit % WORD_BITS);
            return self.give_stretch(Stretch { level: 1, word: unit / WORD_BITS, mask });
        }
        self.give_stretch(Stretch { level: 0, word: first as usize / WORD_BITS, mask: frames })
    }

    /// The view of the buddy of `shape` in `cells`.
    #[inline]
    pub(crate) fn new(counts: &'m BuddyCounts<P>, cells: &'m [P::U64], shape: &'m BuddyShape) -> Self {
        Self { counts, cells: &cells[..shape.cells()], shape }
    }

    /// The layout.
    pub(crate) const fn shape(&self) -> &'m BuddyShape {
        self.shape
    }

    /// Free frames. Needs no lock.
    #[inline]
    pub(crate) fn free_pages(&self) -> u64 {
        self.counts.free_pages.load(Relaxed)
    }

    /// Free frames in large blocks. Needs no lock.
    pub(crate) fn in_large(&self) -> u64 {
        self.counts.in_large.load(Relaxed)
    }

    /// Free blocks of `order` that are no half of a larger one. Needs no lock.
    #[inline]
    pub(crate) fn free_blocks(&self, order: Order) -> u64 {
        self.counts.free_blocks[order.get() as usize].load(Relaxed)
    }

    /// Bit per order of which there are maximal free blocks.
    #[inline]
    pub(crate) fn orders(&self) -> u64 {
        self.counts.orders.load(Relaxed)
    }

    /// The lowest maximal free block of `order`, of which there is one.
    #[inline]
    fn lowest_block(&self, order: u32) -> Found {
        let (level, order) = self.shape.place_of(order);
        let word = self.index(level, order).first().expect("counted blocks are indexed");
        let bits = self.word(level, word).load(Relaxed);
        let bit = maximal(bits, order, self.shape.level(level).last).trailing_zeros();
        Found { level, word, bits, bit }
    }

    /// Takes at most `room` frames, at least one, of the first word of the block found.
    #[inline]
    fn take_word(&self, found: &Found, room: u32) -> (usize, u64) {
        let (level, bits) = (found.level, found.bits);
        if level == 0 {
            let last = self.shape.level(0).last;
            let frames = if bits.count_ones() <= room { bits } else { from_smallest(bits, room, last) };
            self.change(0, found.word, bits, bits & !frames);
            return (found.word, frames);
        }
        let (word, frames) = (found.frame() as usize / WORD_BITS, ones(u64::from(room)));
        if level == 1 && frames == !0 {
            self.change(1, found.word, bits, bits & !(1 << found.bit));
        } else {
            self.remove(Stretch { level: 0, word, mask: frames });
        }
        (word, frames)
    }

    /// Frees a stretch, of which nothing may be free.
    #[inline]
    pub(crate) fn give_stretch(&self, stretch: Stretch) -> bool {
        let Stretch { level, word, mask } = stretch;
        let bits = self.word(level, word).load(Relaxed);
        if bits & mask != 0 || self.is_covered(level, word) || (level > 0 && self.any_below(stretch)) {
            return false;
        }
        self.insert(stretch, bits);
        self.add_free_pages(stretch.frames());
        true
    }

    /// Sets the bits of a stretch, of which nothing is free, in a word that holds `bits`.
    #[inline]
    pub(crate) fn insert(&self, stretch: Stretch, bits: u64) {
        let Stretch { mut level, mut word, mask } = stretch;
        let (mut before, mut after) = (bits, bits | mask);
        while after == !0 && level < self.shape.top() {
            self.change(level, word, before, 0);
            level += 1;
            before = self.word(level, word / WORD_BITS).load(Relaxed);
            after = before | 1 << (word % WORD_BITS);
            word /= WORD_BITS;
        }
        self.change(level, word, before, after);
    }

    /// Clears the bits of a stretch that is all free, splitting the block that covers it, if any.
    pub(crate) fn remove(&self, stretch: Stretch) {
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

    /// Whether the word is free as part of a unit of a higher level.
    #[inline]
    pub(crate) fn is_covered(&self, level: usize, word: usize) -> bool {
        let (mut above, mut unit) = (level + 1, word);
        while above <= self.shape.top() {
            let bits = self.word(above, unit / WORD_BITS).load(Relaxed);
            if bits >> (unit % WORD_BITS) & 1 != 0 {
                return true;
            }
            (above, unit) = (above + 1, unit / WORD_BITS);
        }
        false
    }

    /// Whether any bit of the levels below stands for a part of the block, a stretch of a power of
    /// two of units.
    fn any_below(&self, block: Stretch) -> bool {
        let mut first = block.word * WORD_BITS + block.mask.trailing_zeros() as usize;
        let mut words_log2 = block.mask.count_ones().trailing_zeros();
        for below in (0..block.level).rev() {
            let any = if words_log2 < WORD_BITS_LOG2 {
                let start = self.shape.level(below).words_at + first;
                let words = &self.cells[start..start + (1 << words_log2)];
                words.iter().fold(0, |all, word| all | word.load(Relaxed)) != 0
            } else {
                let last = self.shape.level(below).last;
                (0..=last).any(|order| self.index(below, order).any(first, words_log2))
            };
            if any {
                return true;
            }
            first *= WORD_BITS;
            words_log2 += WORD_BITS_LOG2;
        }
        false
    }

    /// Writes `after` to a word that holds `before`, and counts and indexes what that changes.
    #[inline]
    pub(crate) fn change(&self, level: usize, word: usize, before: u64, after: u64) {
        if before == after {
            return; // also a covered word of which all is taken at once
        }
        self.word(level, word).store(after, Relaxed);
        let mut toggled = 0;
        for_each_change(before, after, self.shape.level(level).last, |order, lost, gained| {
            toggled |= self.count_change(level, order, word, lost, gained);
        });
        self.toggle_orders(toggled << (WORD_BITS_LOG2 as usize * level));
    }

    /// The maximal runs of `order` in `word` were those with heads `lost` and are now `gained`.
    /// Gives the bit of `order` if the buddy had none of them or has none now.
    #[inline(never)] // called at seven places of `change`
    fn count_change(&self, level: usize, order: u32, word: usize, lost: u64, gained: u64) -> u64 {
        let order_in_zone = order + WORD_BITS_LOG2 * level as u32;
        let toggled = self.add_free_blocks(order_in_zone, count_difference(lost, gained));
        if lost == 0 {
            self.index(level, order).set(word);
        } else if gained == 0 {
            self.index(level, order).clear(word);
        }
        u64::from(toggled) << order
    }

    /// Adds `change`, wrapping, to the number of free blocks of `order`; whether their bit in
    /// `orders` must change for that.
    #[inline]
    pub(crate) fn add_free_blocks(&self, order: u32, change: u64) -> bool {
        let cell = &self.counts.free_blocks[order as usize];
        let before = cell.load(Relaxed);
        let after = before.wrapping_add(change);
        cell.store(after, Relaxed);
        if order >= u32::from(self.shape.large().get()) {
            let in_large = self.counts.in_large.load(Relaxed);
            self.counts.in_large.store(in_large.wrapping_add(change << order), Relaxed);
        }
        (before == 0) != (after == 0)
    }

    /// Changes the bits of `orders` that are set in `toggled`.
    #[inline]
    pub(crate) fn toggle_orders(&self, toggled: u64) {
        if toggled != 0 {
            self.counts.orders.store(self.orders() ^ toggled, Relaxed);
        }
    }

    /// Adds `change`, wrapping, to the number of free frames.
    #[inline]
    pub(crate) fn add_free_pages(&self, change: u64) {
        self.counts.free_pages.store(self.free_pages().wrapping_add(change), Relaxed);
    }

    /// Cell of word `word` of level `level`.
    #[inline]
    pub(crate) fn word(&self, level: usize, word: usize) -> &'m P::U64 {
        &self.cells[self.shape.level(level).words_at + word]
    }

    /// Index of the words of `level` with maximal free blocks of `order`, counted from its unit.
    #[inline]
    pub(crate) fn index(&self, level: usize, order: u32) -> FindFirst<'m, P> {
        let level = self.shape.level(level);
        let start = level.index_at + level.index.cells() * order as usize;
        FindFirst::new(&self.cells[start..start + level.index.cells()], &level.index)
    }
}
