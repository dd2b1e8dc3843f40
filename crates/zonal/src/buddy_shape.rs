//! How the cells of a buddy are laid out, and which bits stand for which frames.
//!
//! Vocabulary: *level* `l` has one bit per unit of `64^l` frames; a *stretch* is some units of one
//! word of one level. Neighbours: `buddy.rs` works on these cells; `regions.rs` has several of them.

use crate::buddy_words::{WORD_BITS, WORD_BITS_LOG2, ones};
use crate::find_first::FindFirstShape;
use crate::units::Order;

/// Most levels: orders up to 6, 12 and 18.
pub(crate) const LEVELS_MAX: usize = 3;
/// Cells of a cache line: each part starts on one if the first cell does.
const LINE_CELLS: usize = 8;

/// One level: `words` cells of bits and `last + 1` indexes over them, one per order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelShape {
    /// First cell of the words.
    pub(crate) words_at: usize,
    /// Words of the level.
    pub(crate) words: usize,
    /// First cell of the indexes.
    pub(crate) index_at: usize,
    /// Largest order kept at the level, counted from one unit.
    pub(crate) last: u32,
    /// Shape of each index.
    pub(crate) index: FindFirstShape,
}

/// Layout of the cells of one buddy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuddyShape {
    frames: u64,
    max_order: Order,
    large: Order,
    top: usize,
    levels: [LevelShape; LEVELS_MAX],
    cells: usize,
}

impl BuddyShape {
    /// Layout for `frames` frames, at most `2^32`, in blocks up to `max_order`, of which those from
    /// `large` on are counted together.
    pub(crate) fn new(frames: u64, max_order: Order, large: Order) -> Self {
        assert!(frames <= 1 << 32);
        let order = u32::from(max_order.get());
        let top = (order.saturating_sub(1) / WORD_BITS_LOG2) as usize;
        let mut shape = Self { frames, max_order, large, top, levels: Default::default(), cells: 0 };
        let mut bits = frames as usize;
        for at in 0..=top {
            let words = bits.div_ceil(WORD_BITS).max(1);
            let last = if at == top { order - WORD_BITS_LOG2 * top as u32 } else { WORD_BITS_LOG2 - 1 };
            let index = FindFirstShape::new(words);
            shape.levels[at] = LevelShape { words, last, index, ..LevelShape::default() };
            bits = words;
        }
        // Upper levels and indexes are small and hot; the long bitmap of frames comes last.
        for level in shape.levels[..=top].iter_mut().rev() {
            level.index_at = shape.cells;
            level.words_at = shape.cells + level.index_cells();
            shape.cells = level.words_at + level.words.next_multiple_of(LINE_CELLS);
        }
        shape
    }

    /// Cells needed in all.
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    /// Frames the buddy spans, holes included.
    pub(crate) const fn frames(&self) -> u64 {
        self.frames
    }

    /// The largest order of a block.
    pub(crate) const fn max_order(&self) -> Order {
        self.max_order
    }

    /// The smallest order of large blocks.
    #[inline]
    pub(crate) const fn large(&self) -> Order {
        self.large
    }

    /// The highest level there is.
    pub(crate) const fn top(&self) -> usize {
        self.top
    }

    /// Level `level`, at most `top()`.
    #[inline]
    pub(crate) const fn level(&self, level: usize) -> &LevelShape {
        &self.levels[level]
    }

    /// The level that keeps blocks of `order`, and `order` counted from one unit of it.
    #[inline]
    pub(crate) fn place_of(&self, order: u32) -> (usize, u32) {
        let level = ((order / WORD_BITS_LOG2) as usize).min(self.top);
        (level, order - WORD_BITS_LOG2 * level as u32)
    }

    /// The block of `order` at `frame`, or `None` if there can be none.
    #[inline]
    pub(crate) fn block(&self, frame: u32, order: Order) -> Option<Stretch> {
        let length = order.pages().get();
        let within = u64::from(frame) + length <= self.frames;
        if order > self.max_order || !within || u64::from(frame) & (length - 1) != 0 {
            return None;
        }
        let (level, order) = self.place_of(u32::from(order.get()));
        let unit = frame as usize >> (WORD_BITS_LOG2 as usize * level);
        let mask = ones(1 << order) << (unit % WORD_BITS);
        Some(Stretch { level, word: unit / WORD_BITS, mask })
    }

    /// Frames `start..end`, which are within the span, as few stretches.
    pub(crate) fn stretches(&self, start: u64, end: u64) -> impl Iterator<Item = Stretch> + use<> {
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

impl LevelShape {
    /// Cells of the level's indexes, with padding.
    const fn index_cells(&self) -> usize {
        (self.index.cells() * (self.last as usize + 1)).next_multiple_of(LINE_CELLS)
    }
}

/// Some units of one word of one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// The level.
    pub(crate) level: usize,
    /// The word.
    pub(crate) word: usize,
    /// The units, one bit each.
    pub(crate) mask: u64,
}

impl Stretch {
    /// Number of frames.
    #[inline]
    pub(crate) const fn frames(&self) -> u64 {
        (self.mask.count_ones() as u64) << (WORD_BITS_LOG2 as usize * self.level)
    }

    /// The longest stretch from `at` up to `end`, in units as large as both allow.
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
            for frames in [1 << 16, 1 << 20, 1 << 28, 1 << 32] {
                let shape = BuddyShape::new(frames, Order::new(order).unwrap(), Order::new(9).unwrap());
                assert!(shape.cells() as u64 * 8 * 100 <= frames * 15, "{frames} {order}");
            }
        }
    }

    #[test]
    fn stretches_tile_a_range_in_large_units() {
        let shape = BuddyShape::new(1 << 20, Order::new(18).unwrap(), Order::new(9).unwrap());
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
