//! Operations of the buddy on ranges: start-up, memory that goes online or offline, and counts of free frames.
//!
//! Neighbours: `buddy/mod.rs` has the terms, the invariants and the single-block operations.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy::shape::Stretch;
use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, ones};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};

/// Frames of a chunk, which one word of level 1 represents.
const CHUNK_FRAMES: u64 = (WORD_BITS * WORD_BITS) as u64;

impl<P: Platform> Buddy<'_, P> {
    /// Frees `count` frames from `first`; returns `false` and frees nothing if one of them is free.
    ///
    /// An aligned range costs little more than one write per chunk.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    #[must_use]
    pub(crate) fn add_range(&self, held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape().frames());
        self.settle();
        if self.any_free(held, first, count) {
            return false;
        }
        let chunks = start.div_ceil(CHUNK_FRAMES)..end / CHUNK_FRAMES;
        if self.shape().top() != 1 || chunks.is_empty() {
            self.add_pieces(start, end);
        } else {
            self.add_pieces(start, chunks.start * CHUNK_FRAMES);
            self.add_whole_chunks(chunks.start as usize..chunks.end as usize);
            self.add_pieces(chunks.end * CHUNK_FRAMES, end);
        }
        self.add_free_pages(count);
        true
    }

    /// Sets the bits of `start..end`, none of which is free.
    fn add_pieces(&self, start: u64, end: u64) {
        for stretch in self.shape().stretches(start, end) {
            let bits = self.word(stretch.level, stretch.word).load(Relaxed);
            self.insert(stretch, bits);
        }
    }

    /// Allocates `count` frames from `first`; returns `false` and allocates nothing if one of them is not free.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    #[must_use]
    pub(crate) fn alloc_range(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        self.settle();
        if !self.shape().stretches(start, end).all(|stretch| self.is_stretch_free(stretch)) {
            return false;
        }
        for stretch in self.shape().stretches(start, end) {
            self.remove(stretch);
        }
        self.add_free_pages(count.wrapping_neg());
        true
    }

    /// Returns the number of free frames among `count` frames from `first`.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    pub(crate) fn count_free(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> u64 {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape().frames());
        self.settle();
        let levels = 0..=self.shape().top();
        levels.map(|level| self.count_level(level, start, end)).sum()
    }

    /// Returns the number of frames of `start..end` that the bits of `level` represent.
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
        // Free frames before `frame` in the word: whole units, and the part of the unit that contains `frame`.
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

    /// Whether one of `count` frames from `first` is free. Whole chunks in which nothing is free cost little.
    fn any_free(&self, held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        let mut chunks = start / CHUNK_FRAMES..end.div_ceil(CHUNK_FRAMES);
        chunks.any(|chunk| {
            let covered = self.is_covered(1, chunk as usize);
            let from = (chunk * CHUNK_FRAMES).max(start);
            let to = ((chunk + 1) * CHUNK_FRAMES).min(end);
            covered
                || (self.any_in_chunk(chunk as usize) && self.count_free(held, from as u32, to - from) != 0)
        })
    }

    /// Whether a stretch is entirely free. A free unit is never stored in pieces, because its pieces have merged.
    fn is_stretch_free(&self, stretch: Stretch) -> bool {
        let bits = self.word(stretch.level, stretch.word).load(Relaxed);
        bits & stretch.mask == stretch.mask || self.is_covered(stretch.level, stretch.word)
    }
}
