//! The free frames in a 2 MiB block that a CPU owns: eight words, and the largest run of each.
//!
//! Related files: `zone/owned_blocks.rs` has the blocks of each CPU, `buddy/words.rs` the runs of one word.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::words::{RUNS, WORD_BITS, WORD_BITS_LOG2, from_smallest, heads, largest_run};
use crate::platform::{Atomic, Platform};

/// Order of a block, which has 2 MiB if frames have 4 KiB.
pub(super) const BLOCK: u32 = 9;
/// Number of frames in a block.
pub(super) const BLOCK_FRAMES: u32 = 1 << BLOCK;
/// Number of words in a block.
pub(super) const BLOCK_WORDS: usize = BLOCK_FRAMES as usize / WORD_BITS;
/// Number of cells that hold a block.
pub(super) const BLOCK_CELLS: usize = BLOCK_WORDS + 1;
/// The runs of a block with free frames only.
const ALL_FREE: u64 = 0x0707_0707_0707_0707;

/// The words of a block, with one bit for each free frame, and then a cell with one byte for each word: one more than the
/// order of its largest run, or 0.
///
/// Accesses are relaxed, because the lock of the block's owner orders them.
pub(super) struct OwnedWords<'m, P: Platform>(pub(super) &'m [P::U64]);

impl<P: Platform> OwnedWords<'_, P> {
    /// Marks all frames as free.
    pub(super) fn fill(&self) {
        self.0[..BLOCK_WORDS].iter().for_each(|word| word.store(u64::MAX, Relaxed));
        self.0[BLOCK_WORDS].store(ALL_FREE, Relaxed);
    }

    /// Marks all frames as used; passes the number of each word that had free frames, and these frames, to `sink`.
    pub(super) fn clear(&self, mut sink: impl FnMut(usize, u64)) {
        for (number, word) in self.0[..BLOCK_WORDS].iter().enumerate() {
            let bits = word.load(Relaxed);
            if bits != 0 {
                word.store(0, Relaxed);
                sink(number, bits);
            }
        }
        self.0[BLOCK_WORDS].store(0, Relaxed);
    }

    /// Returns the order of the largest free run; `None` if no frame is free.
    #[inline(always)]
    pub(super) fn largest(&self) -> Option<u32> {
        let runs = self.runs();
        let whole = whole_words(runs);
        if whole != 0 {
            return largest_run(whole).map(|order| order + WORD_BITS_LOG2);
        }
        let mut most = 0;
        for run in runs.to_le_bytes() {
            most = if run > most { run } else { most };
        }
        u32::from(most).checked_sub(1)
    }

    /// Whether the largest run of each word is noted.
    pub(super) fn is_noted(&self) -> bool {
        let runs = self.runs().to_le_bytes();
        let mut words = self.0[..BLOCK_WORDS].iter().zip(runs);
        words.all(|(word, run)| largest_run(word.load(Relaxed)) == u32::from(run).checked_sub(1))
    }

    /// Passes each free frame to `each`.
    pub(super) fn each_free(&self, each: impl FnMut(u32)) {
        let is_free =
            |frame: &u32| self.0[*frame as usize / WORD_BITS].load(Relaxed) >> (frame % 64) & 1 != 0;
        (0..BLOCK_FRAMES).filter(is_free).for_each(each);
    }

    /// Takes the lowest run of `order` from the word with the smallest run that is large enough; returns its first frame.
    /// There must be such a run.
    #[inline(always)]
    pub(super) fn take(&self, order: u32) -> u32 {
        if order >= WORD_BITS_LOG2 {
            let first = heads(whole_words(self.runs()), order - WORD_BITS_LOG2).trailing_zeros();
            for word in first..first + (1 << (order - WORD_BITS_LOG2)) {
                self.set(word as usize, 0);
            }
            return first << WORD_BITS_LOG2;
        }
        let word = self.smallest(order);
        let bits = self.0[word].load(Relaxed);
        let bit = heads(bits, order).trailing_zeros();
        self.set(word, bits & !(RUNS[order as usize] << bit));
        (word as u32) << WORD_BITS_LOG2 | bit
    }

    /// Takes at most `most` frames of the word with the smallest runs; returns its number and the frames. A frame must be free.
    pub(super) fn take_from_word(&self, most: u32) -> (usize, u64) {
        let word = self.smallest(0);
        let bits = self.0[word].load(Relaxed);
        let taken = if bits.count_ones() <= most { bits } else { from_smallest(bits, most, WORD_BITS_LOG2) };
        self.set(word, bits & !taken);
        (word, taken)
    }

    /// Marks the run of `order` at `frame` as free; returns `false` if one of its frames is free already.
    #[inline(always)]
    pub(super) fn give(&self, frame: u32, order: u32) -> bool {
        let word = (frame >> WORD_BITS_LOG2) as usize;
        if order < WORD_BITS_LOG2 {
            return self.give_to_word(word, RUNS[order as usize] << (frame % u64::BITS));
        }
        let words = word..word + (1 << (order - WORD_BITS_LOG2));
        let is_used = self.0[words.clone()].iter().all(|word| word.load(Relaxed) == 0);
        if is_used {
            words.for_each(|word| self.set(word, u64::MAX));
        }
        is_used
    }

    /// Marks frames of a word as free; returns `false` if one of them is free already.
    #[inline(always)]
    pub(super) fn give_to_word(&self, word: usize, frames: u64) -> bool {
        let bits = self.0[word].load(Relaxed);
        let is_used = bits & frames == 0;
        if is_used {
            self.set(word, bits | frames);
        }
        is_used
    }

    /// Returns the word with the smallest largest run that has at least `order`.
    #[inline(always)]
    fn smallest(&self, order: u32) -> usize {
        let mut best = u32::MAX;
        for (word, run) in self.runs().to_le_bytes().into_iter().enumerate() {
            let rank = if u32::from(run) > order { u32::from(run) << 3 | word as u32 } else { u32::MAX };
            best = if rank < best { rank } else { best };
        }
        best as usize % BLOCK_WORDS
    }

    #[inline(always)]
    fn runs(&self) -> u64 {
        self.0[BLOCK_WORDS].load(Relaxed)
    }

    #[inline(always)]
    fn set(&self, word: usize, bits: u64) {
        self.0[word].store(bits, Relaxed);
        let largest = largest_run(bits).map_or(0, |order| u64::from(order) + 1);
        let others = self.runs() & !(0xff << (8 * word));
        self.0[BLOCK_WORDS].store(others | largest << (8 * word), Relaxed);
    }
}

/// Returns one bit for each word whose largest run is the whole word, whose order is 6.
#[inline(always)]
const fn whole_words(runs: u64) -> u64 {
    let whole = runs & (runs >> 1) & (runs >> 2) & 0x0101_0101_0101_0101;
    whole.wrapping_mul(0x0102_0408_1020_4080) >> 56
}
