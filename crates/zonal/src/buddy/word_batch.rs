//! A batch of frames that moves to or from a zone's free areas: a few words of 64 with one bit per frame.
//!
//! Callers fill and empty a batch without holding a lock.
//!
//! Related files: `pageset/refill.rs` and `pageset/drain.rs` use batches, and `zone/free_areas.rs` moves their
//! frames.

/// Maximum number of frames or blocks that move under one lock acquisition, and therefore of words in a batch.
pub(crate) const BATCH_MAX: usize = 64;

/// A list of 64-frame words, with one bit for each frame that is in the batch.
pub(crate) struct WordBatch {
    words: [(u32, u64); BATCH_MAX],
    len: usize,
    /// Hint for finding a word in `words`: the index at which it may be, by the low bits of the word's number.
    places: [u8; 2 * BATCH_MAX],
}

impl WordBatch {
    /// Creates an empty batch: a copy of a constant, because arrays that are made here would be on the stack twice.
    pub(crate) const fn new() -> Self {
        const EMPTY: WordBatch = WordBatch { words: [(0, 0); BATCH_MAX], len: 0, places: [0; 2 * BATCH_MAX] };
        EMPTY
    }

    /// Adds frames of the 64-frame word that starts at `first`.
    #[inline]
    pub(crate) fn push(&mut self, first: u32, frames: u64) {
        self.words[self.len] = (first, frames);
        self.len += 1;
    }

    /// Adds frames one by one, and returns how many of them were already in the batch.
    #[inline]
    pub(crate) fn add(&mut self, frames: impl Iterator<Item = u32>) -> u32 {
        let (mut first, mut run, mut twice) = (0, 0, 0);
        // Consecutive frames often belong to one word, so combine them before the search for the word.
        for frame in frames {
            let (of, bit) = (frame & !63, 1_u64 << (frame & 63));
            if of != first {
                twice += self.merge(first, run);
                (first, run) = (of, 0);
            }
            twice += u32::from(run & bit != 0);
            run |= bit;
        }
        twice + self.merge(first, run)
    }

    /// Adds frames of a word, and returns how many of them the batch's word already had. If the hint does
    /// not find the word, it is added again.
    #[inline]
    fn merge(&mut self, first: u32, run: u64) -> u32 {
        if run == 0 {
            return 0;
        }
        let place = &mut self.places[(first >> 6) as usize % (2 * BATCH_MAX)];
        match self.words[..self.len].get_mut(usize::from(*place)) {
            Some((known, frames)) if *known == first => {
                let twice = *frames & run;
                *frames |= run;
                twice.count_ones()
            }
            _ => {
                *place = self.len as u8;
                self.push(first, run);
                0
            }
        }
    }

    /// Returns all words in the order in which they were added.
    pub(crate) fn words(&mut self) -> &mut [(u32, u64)] {
        &mut self.words[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_word_are_merged_again() {
        let mut batch = WordBatch::new();
        assert_eq!(batch.add([70, 700, 65].into_iter()), 0);
        assert_eq!(batch.add([70, 71, 71].into_iter()), 2, "they are there");
        assert_eq!(batch.add([64 * 128 + 64].into_iter()), 0, "another word in the same place");
        assert_eq!(batch.add([66].into_iter()), 0);
        let words = batch.words();
        assert_eq!(words[..2], [(64, 1 << 7 | 1 << 6 | 1 << 1), (640, 1 << 60)]);
        assert_eq!(words.iter().map(|word| word.1.count_ones()).sum::<u32>(), 6);
        assert_eq!(words[1], (640, 1 << 60));
    }
}
