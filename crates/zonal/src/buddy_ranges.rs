//! Operations of the buddy on ranges: start-up, memory coming and going, looking at free blocks.
//!
//! Neighbours: `buddy.rs` has the vocabulary, the invariants and the single-block operations.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy_shape::Stretch;
use crate::buddy_words::{WORD_BITS, WORD_BITS_LOG2, maximal, ones};
use crate::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_ORDER_LIMIT, Order};

impl<P: Platform> Buddy<'_, P> {
    /// Frees `count` frames from `first`. Refused, with `false` and no change, when one of them is
    /// free. An aligned range costs little more than one write per word of the top level.
    ///
    /// # Panics
    /// When the range is not within the span.
    #[must_use]
    pub(crate) fn add_range(&self, held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape().frames());
        if self.any_free(held, first, count) {
            return false;
        }
        let word_frames = 1_u64 << (WORD_BITS_LOG2 as usize * (self.shape().top() + 1));
        let words = start.div_ceil(word_frames)..end / word_frames;
        if words.is_empty() {
            self.add_pieces(start, end);
        } else {
            self.add_pieces(start, words.start * word_frames);
            self.add_whole_words(words.start as usize, words.end as usize);
            self.add_pieces(words.end * word_frames, end);
        }
        self.add_free_pages(count);
        true
    }

    /// Sets the bits of `start..end`, of which nothing is free.
    fn add_pieces(&self, start: u64, end: u64) {
        for stretch in self.shape().stretches(start, end) {
            let bits = self.word(stretch.level, stretch.word).load(Relaxed);
            self.insert(stretch, bits);
        }
    }

    /// Sets all bits of some words of the top level, of which nothing is free.
    fn add_whole_words(&self, from: usize, to: usize) {
        let (top, max_order) = (self.shape().top(), u32::from(self.shape().max_order().get()));
        let last = self.shape().level(top).last;
        for word in from..to {
            self.word(top, word).store(!0, Relaxed);
        }
        self.index(top, last).set_run(from, to);
        let blocks = (to - from) as u64 * (WORD_BITS as u64 >> last);
        self.toggle_orders(u64::from(self.add_free_blocks(max_order, blocks)) << max_order);
    }

    /// Takes all of `count` frames from `first`, or, with `false`, nothing when one is not free.
    ///
    /// # Panics
    /// When the range is not within the span.
    #[must_use]
    pub(crate) fn take_range(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        if !self.shape().stretches(start, end).all(|stretch| self.is_stretch_free(stretch)) {
            return false;
        }
        for stretch in self.shape().stretches(start, end) {
            self.remove(stretch);
        }
        self.add_free_pages(count.wrapping_neg());
        true
    }

    /// Free frames among `count` frames from `first`.
    ///
    /// # Panics
    /// When the range is not within the span.
    pub(crate) fn count_free(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> u64 {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape().frames());
        let levels = 0..=self.shape().top();
        levels.map(|level| self.count_level(level, start, end)).sum()
    }

    /// Frames of `start..end` that the bits of `level` stand for.
    fn count_level(&self, level: usize, start: u64, end: u64) -> u64 {
        let shift = WORD_BITS_LOG2 * level as u32;
        let word_frames_log2 = shift + WORD_BITS_LOG2;
        let words = (start >> word_frames_log2)..end.div_ceil(1 << word_frames_log2);
        words.map(|word| self.count_word(level, word as usize, start, end)).sum()
    }

    fn count_word(&self, level: usize, word: usize, start: u64, end: u64) -> u64 {
        let shift = WORD_BITS_LOG2 * level as u32;
        let base = (word as u64 * WORD_BITS as u64) << shift;
        let (from, to) =
            (start.max(base) - base, end.saturating_sub(base).min(1 << (shift + WORD_BITS_LOG2)));
        let bits = self.word(level, word).load(Relaxed);
        // Frames before `frame` of the word: whole units, and a part of the unit `frame` is in.
        let before = |frame: u64| {
            let unit = frame >> shift;
            let whole = u64::from((bits & ones(unit)).count_ones()) << shift;
            let part = if unit < WORD_BITS as u64 {
                (bits >> unit & 1) * (frame & ones(u64::from(shift)))
            } else {
                0
            };
            whole + part
        };
        before(to) - before(from)
    }

    /// The lowest maximal free block of `order` whose first frame is not below `from`: a way through
    /// all free blocks of an order that may let go of the lock between steps.
    pub(crate) fn next_block(&self, _held: &Held<'_, P::Lock>, order: Order, from: u32) -> Option<u32> {
        if order > self.shape().max_order() {
            return None;
        }
        let (level, order) = self.shape().place_of(u32::from(order.get()));
        let (shift, last) = (WORD_BITS_LOG2 as usize * level, self.shape().level(level).last);
        let unit = (from as usize).div_ceil(1 << shift);
        let mut word = unit / WORD_BITS;
        let mut allowed = !0 << (unit % WORD_BITS);
        loop {
            word = self.index(level, order).next(word)?;
            if word != unit / WORD_BITS {
                allowed = !0;
            }
            let heads = maximal(self.word(level, word).load(Relaxed), order, last) & allowed;
            if heads != 0 {
                return Some(((word * WORD_BITS + heads.trailing_zeros() as usize) << shift) as u32);
            }
            word += 1;
        }
    }

    /// Calls `sink` for every maximal free block, the smallest order first, lowest block first.
    #[cfg(test)]
    pub(crate) fn for_each_block(&self, held: &Held<'_, P::Lock>, sink: &mut impl FnMut(u32, Order)) {
        for order in (0..=MAX_ORDER_LIMIT).filter_map(Order::new) {
            let mut next = self.next_block(held, order, 0);
            while let Some(frame) = next {
                sink(frame, order);
                let after = frame.checked_add(order.pages().get() as u32);
                next = after.and_then(|after| self.next_block(held, order, after));
            }
        }
    }

    /// Whether one of `count` frames from `first` is free.
    fn any_free(&self, held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let end = u64::from(first) + count;
        (0..=MAX_ORDER_LIMIT).filter_map(Order::new).any(|order| {
            // A block that begins before the range reaches into it only if it holds its first frame.
            let from = first & !(order.pages().get() as u32 - 1);
            let block = self.next_block(held, order, from);
            count > 0 && block.is_some_and(|frame| u64::from(frame) < end)
        })
    }

    /// Whether all of a stretch is free. Free units are never in pieces: they have merged.
    fn is_stretch_free(&self, stretch: Stretch) -> bool {
        let bits = self.word(stretch.level, stretch.word).load(Relaxed);
        bits & stretch.mask == stretch.mask || self.is_covered(stretch.level, stretch.word)
    }
}
