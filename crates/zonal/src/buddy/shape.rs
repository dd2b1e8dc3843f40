//! The cell layout of a buddy, and the mapping from frames to bits.
//!
//! *Level* `l` has one bit per unit of `64^l` frames. A *stretch* is a set of units in one level's word. A
//! *chunk* is 4096 frames, which are 64 level-0 words or one level-1 word.
//!
//! Related files: `buddy/mod.rs` operates on these cells, and `zone/free_areas.rs` has one or more buddies per zone.

use crate::buddy::find_first::FindFirstShape;
use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, ones};
use crate::machine::ZONE_FRAMES_MAX;
use crate::units::Order;

/// Number of cells in a cache line. Each part of the layout starts on a cache line if the first cell does.
pub(super) const LINE_CELLS: usize = 8;

/// Cell layout of one buddy, in this order:
/// - an index over chunks, with one column per order; if there is a level 2, the next column contains its words,
///   because a word of level 2 represents 64 chunks;
/// - the words of level 1, which have cells even if that level is not used;
/// - a line for each chunk, with one cell for each order of level 0, whose bits show which words in the chunk have a
///   free block of that order;
/// - the words of level 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuddyShape {
    pub(super) frames: u64,
    pub(super) max_order: Order,
    pub(super) top: usize,
    pub(super) index: FindFirstShape,
    /// These three fields are the cell indexes of the first level-1 word, of the first line, and of the first
    /// level-0 word.
    pub(super) middle_at: usize,
    pub(super) lines_at: usize,
    pub(super) words_at: usize,
    cells: usize,
}

impl BuddyShape {
    /// Computes the layout for `frames` frames, at most [`ZONE_FRAMES_MAX`], in blocks up to `max_order`.
    pub(crate) fn new(frames: u64, max_order: Order) -> Self {
        assert!(frames <= ZONE_FRAMES_MAX);
        let order = u32::from(max_order.get());
        let top = (order.saturating_sub(1) / WORD_BITS_LOG2) as usize;
        assert!(top < 3); // orders up to 6 need one level, up to 12 two, and up to 18 three
        let words = (frames as usize).div_ceil(WORD_BITS).max(1);
        let chunks = words.div_ceil(WORD_BITS);
        let columns = (order as usize + 2).next_multiple_of(LINE_CELLS);
        let index = FindFirstShape::new(chunks, columns);
        // The index comes first because it is small and frequently used, and the large bitmap of frames comes last.
        let middle_at = index.cells();
        let lines_at = middle_at + chunks.next_multiple_of(LINE_CELLS);
        let words_at = lines_at + chunks * LINE_CELLS;
        let cells = words_at + words.next_multiple_of(LINE_CELLS);
        Self { frames, max_order, top, index, middle_at, lines_at, words_at, cells }
    }

    /// Returns the total number of cells.
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the number of words in a level, including partial words.
    pub(super) const fn words(&self, level: usize) -> usize {
        let frames_log2 = WORD_BITS_LOG2 as usize * (level + 1);
        let words = (self.frames as usize).div_ceil(1 << frames_log2);
        if words == 0 { 1 } else { words }
    }

    /// Returns the largest order stored at a level, relative to one unit of the level.
    #[inline]
    pub(super) const fn last(&self, level: usize) -> u32 {
        if level == self.top {
            self.max_order.get() as u32 - WORD_BITS_LOG2 * level as u32
        } else {
            WORD_BITS_LOG2 - 1
        }
    }

    /// Returns the level that stores blocks of `order`.
    #[inline]
    pub(super) fn level_of(&self, order: u32) -> usize {
        ((order / WORD_BITS_LOG2) as usize).min(self.top)
    }

    /// Whether `frame` is a valid first frame for a block of `order`.
    #[inline]
    pub(super) fn has_block(&self, frame: u32, order: Order) -> bool {
        let length = order.pages().get();
        let within = u64::from(frame) + length <= self.frames;
        order <= self.max_order && within && u64::from(frame) & (length - 1) == 0
    }

    /// Returns the frames `start..end`, which must be within the span, as a minimal sequence of stretches.
    pub(super) fn stretches(&self, start: u64, end: u64) -> impl Iterator<Item = Stretch> + use<> {
        let mut at = start;
        assert!(end <= self.frames, "frames {at}..{end} of {}", self.frames);
        let top = self.top;
        core::iter::from_fn(move || {
            (at < end).then(|| {
                let stretch = Stretch::longest(at, end, top);
                at += stretch.frames();
                stretch
            })
        })
    }
}

/// A set of units in one level's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Level of the units.
    pub(super) level: usize,
    /// Word of the level.
    pub(super) word: usize,
    /// Units, one bit each.
    pub(super) mask: u64,
}

impl Stretch {
    /// Returns the number of frames.
    #[inline]
    pub(super) const fn frames(&self) -> u64 {
        (self.mask.count_ones() as u64) << (WORD_BITS_LOG2 as usize * self.level)
    }

    /// Returns the longest stretch that starts at frame `at` and ends at or before `end`, in the largest possible
    /// units.
    fn longest(at: u64, end: u64, top: usize) -> Self {
        let (mut level, mut shift) = (0, 0);
        while level < top {
            let above = shift + WORD_BITS_LOG2;
            if at & ones(u64::from(above)) != 0 || end - at < 1 << above {
                break;
            }
            (level, shift) = (level + 1, above);
        }
        let unit = at >> shift;
        let bit = unit % WORD_BITS as u64;
        let units = ((end - at) >> shift).min(WORD_BITS as u64 - bit);
        Self { level, word: unit as usize / WORD_BITS, mask: ones(units) << bit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MAX_ORDER_LIMIT;

    #[test]
    fn metadata_stays_below_the_budget() {
        for order in 10..=MAX_ORDER_LIMIT {
            for frames in [1 << 16, 1 << 20, 1 << 28, ZONE_FRAMES_MAX] {
                let shape = BuddyShape::new(frames, Order::new(order).unwrap());
                assert!(shape.cells() as u64 * 8 * 100 <= frames * 15, "{frames} {order}");
            }
        }
    }

    #[test]
    fn stretches_tile_a_range_in_large_units() {
        let shape = BuddyShape::new(1 << 20, Order::new(18).unwrap());
        let mut at = 63;
        let mut count = 0;
        for stretch in shape.stretches(63, (1 << 20) - 1) {
            let unit = stretch.word * WORD_BITS + stretch.mask.trailing_zeros() as usize;
            assert_eq!(unit << (6 * stretch.level), at);
            at += stretch.frames() as usize;
            count += 1;
        }
        assert_eq!(at, (1 << 20) - 1);
        assert!(count <= 4 + 5, "{count}");
    }
}
