//! The buddy's operations on ranges of frames, for start-up, for memory that goes online or offline, and for
//! counting free frames.
//!
//! Related files: `buddy/mod.rs` defines the terms, the invariants and the single-block operations.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::buddy::shape::Stretch;
use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, heads, ones};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::Order;

/// Frames of a chunk, which one word of level 1 represents.
const CHUNK_FRAMES: u64 = (WORD_BITS * WORD_BITS) as u64;

/// What a search follows: free frames, or frames that are not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sought {
    Free,
    Used,
}

impl<P: Platform> Buddy<'_, P> {
    /// Returns the number of frames.
    pub(crate) fn frames(&self) -> u64 {
        self.shape.frames
    }

    /// Makes exactly these runs of frames free, whatever the cells contain; the runs ascend and do not touch.
    ///
    /// Until the end, `free_pages` stays as it is and blocks of all orders seem to be free: another thread skips a buddy without
    /// waiting if it has too few frames, or no block.
    pub(crate) fn rebuild(&self, _held: &Held<'_, P::Lock>, runs: impl Iterator<Item = Range<u64>>) {
        let counts = self.counts;
        counts.orders.store(ones(u64::from(self.shape.max_order.get()) + 1), Relaxed);
        let cells = core::iter::once(&counts.open).chain(&counts.free_blocks).chain(self.cells);
        cells.for_each(|cell| cell.store(0, Relaxed));
        let mut free_pages = 0;
        for run in runs {
            free_pages += run.end - run.start;
            self.add(run.start, run.end);
        }
        let has_block = |order: &usize| counts.free_blocks[*order].load(Relaxed) > 0;
        let orders =
            (0..counts.free_blocks.len()).filter(has_block).fold(0, |orders, order| orders | 1 << order);
        counts.orders.store(orders, Relaxed);
        counts.free_pages.store(free_pages, Relaxed);
    }

    /// Frees `count` frames, starting at `first`; returns `false` and frees nothing if one of them is already free.
    ///
    /// The cost for an aligned range is little more than one write per chunk.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    #[must_use]
    pub(crate) fn add_range(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape.frames);
        self.settle();
        let mut chunks = start / CHUNK_FRAMES..end.div_ceil(CHUNK_FRAMES);
        let any_free = chunks.any(|chunk| {
            let (from, to) = ((chunk * CHUNK_FRAMES).max(start), ((chunk + 1) * CHUNK_FRAMES).min(end));
            const BITS: u64 = WORD_BITS as u64;
            let any_in_word = |word: u64| {
                let within = ones(to - word * BITS) & !ones(from.saturating_sub(word * BITS));
                self.is_covered(0, word as usize) || self.word(0, word as usize).load(Relaxed) & within != 0
            };
            self.is_covered(1, chunk as usize)
                || (self.any_in_chunk(chunk as usize) && (from / BITS..to.div_ceil(BITS)).any(any_in_word))
        });
        if any_free {
            return false;
        }
        self.add(start, end);
        self.add_free_pages(count);
        true
    }

    /// Sets the bits of the frames `start..end`, none of which may be free, but does not add them to `free_pages`.
    fn add(&self, start: u64, end: u64) {
        let chunks = start.div_ceil(CHUNK_FRAMES)..end / CHUNK_FRAMES;
        if self.shape.top != 1 || chunks.is_empty() {
            self.add_pieces(start, end);
        } else {
            self.add_pieces(start, chunks.start * CHUNK_FRAMES);
            let chunks = chunks.start as usize..chunks.end as usize;
            for chunk in chunks.clone() {
                self.word(1, chunk).store(!0, Relaxed);
            }
            let last = self.shape.last(1);
            let order = last + WORD_BITS_LOG2;
            self.index(order).set_run(chunks.start, chunks.end);
            let blocks = (chunks.len() * (WORD_BITS >> last)) as u64;
            self.set_orders(self.add_free_blocks(order, blocks, self.orders()));
            self.add_pieces(chunks.end as u64 * CHUNK_FRAMES, end);
        }
    }

    /// Does the work of [`Self::add`] one stretch at a time.
    fn add_pieces(&self, start: u64, end: u64) {
        for stretch in self.shape.stretches(start, end) {
            let bits = self.word(stretch.level, stretch.word).load(Relaxed);
            self.insert(stretch, bits);
        }
    }

    /// Allocates `count` frames, starting at `first`; returns `false` and allocates nothing if one of them is not
    /// free.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    #[must_use]
    pub(crate) fn take_range(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> bool {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        self.settle();
        if !self.shape.stretches(start, end).all(|stretch| self.is_stretch_free(stretch)) {
            return false;
        }
        for stretch in self.shape.stretches(start, end) {
            self.remove(stretch);
        }
        self.add_free_pages(count.wrapping_neg());
        true
    }

    /// Returns the first frame of the lowest free `order` block within `range`, which may be part of a larger block.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    pub(crate) fn find_block(
        &self,
        _held: &Held<'_, P::Lock>,
        order: Order,
        range: Range<u64>,
    ) -> Option<u32> {
        assert!(range.end <= self.shape.frames);
        self.settle();
        if u32::from(order.get()) >= WORD_BITS_LOG2 {
            let count = order.pages().get();
            let is_free = |&at: &u64| {
                at + count <= range.end
                    && self.shape.stretches(at, at + count).all(|stretch| self.is_stretch_free(stretch))
            };
            let mut places = (range.start.next_multiple_of(count)..range.end).step_by(count as usize);
            return places.find(is_free).map(|at| at as u32);
        }
        const BITS: u64 = WORD_BITS as u64;
        let mut word = range.start / BITS;
        while word * BITS < range.end {
            let chunk = word as usize / WORD_BITS;
            if word.is_multiple_of(BITS) && !self.is_covered(1, chunk) && !self.any_in_chunk(chunk) {
                word += BITS;
                continue;
            }
            let (first, at) = (word * BITS, word as usize);
            let free = if self.is_covered(0, at) { !0 } else { self.word(0, at).load(Relaxed) };
            let within = ones(range.end - first) & !ones(range.start.saturating_sub(first));
            let heads = heads(free & within, order.get().into());
            if heads != 0 {
                return Some((first + u64::from(heads.trailing_zeros())) as u32);
            }
            word += 1;
        }
        None
    }

    /// Returns the end of the frames from `from` on that are all free, or all used.
    ///
    /// The result is at most `end`, and `from` itself if that frame is not as sought.
    ///
    /// # Panics
    /// Panics if the frames `from..end` are not within the span.
    pub(crate) fn same_until(&self, _held: &Held<'_, P::Lock>, from: u64, end: u64, sought: Sought) -> u64 {
        assert!(from <= end && end <= self.shape.frames);
        self.settle();
        let mut at = from;
        while at < end {
            let (found, until) = self.stretch_at(at);
            if found != sought {
                break;
            }
            at = until;
        }
        at.min(end)
    }

    /// Returns whether `frame` is free, and the end of a frame stretch from it on for which the same is true.
    fn stretch_at(&self, frame: u64) -> (Sought, u64) {
        let (chunk, word) = (frame / CHUNK_FRAMES, frame / WORD_BITS as u64);
        let (chunk_end, word_end) = ((chunk + 1) * CHUNK_FRAMES, (word + 1) * WORD_BITS as u64);
        if self.shape.top > 0 {
            if self.shape.top > 1 && self.is_covered(1, chunk as usize) {
                return (Sought::Free, chunk_end);
            }
            if frame.is_multiple_of(CHUNK_FRAMES) && !self.any_in_chunk(chunk as usize) {
                return (Sought::Used, chunk_end);
            }
        }
        if self.is_covered(0, word as usize) {
            return (Sought::Free, word_end);
        }
        let bits = self.word(0, word as usize).load(Relaxed) >> (frame % WORD_BITS as u64);
        let (found, same) = match bits & 1 {
            0 => (Sought::Used, bits.trailing_zeros()),
            _ => (Sought::Free, bits.trailing_ones()),
        };
        (found, (frame + u64::from(same)).min(word_end))
    }

    /// Returns the number of free frames among `count` frames, starting at `first`.
    ///
    /// # Panics
    /// Panics if the range is not within the span.
    pub(crate) fn count_free(&self, _held: &Held<'_, P::Lock>, first: u32, count: u64) -> u64 {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        assert!(end <= self.shape.frames);
        self.settle();
        let mut free = 0;
        for level in 0..=self.shape.top {
            let shift = WORD_BITS_LOG2 * level as u32;
            let word_frames_log2 = shift + WORD_BITS_LOG2;
            for word in (start >> word_frames_log2)..end.div_ceil(1 << word_frames_log2) {
                let base = word << word_frames_log2;
                let (from, to) =
                    (start.max(base) - base, end.saturating_sub(base).min(1 << word_frames_log2));
                let bits = self.word(level, word as usize).load(Relaxed);
                // Counts the free frames before `frame` in the word: the whole units before it, and part of the unit that
                // contains it.
                let before = |frame: u64| {
                    let unit = frame >> shift;
                    let whole = u64::from((bits & ones(unit)).count_ones()) << shift;
                    let is_in_part = unit < WORD_BITS as u64 && bits >> unit & 1 != 0;
                    whole + if is_in_part { frame & ones(u64::from(shift)) } else { 0 }
                };
                free += before(to) - before(from);
            }
        }
        free
    }

    /// Whether a stretch is entirely free.
    ///
    /// Because free pieces of a unit merge, an entirely free unit is always stored as one bit of its level or a
    /// higher one.
    fn is_stretch_free(&self, stretch: Stretch) -> bool {
        let bits = self.word(stretch.level, stretch.word).load(Relaxed);
        bits & stretch.mask == stretch.mask || self.is_covered(stretch.level, stretch.word)
    }
}
