//! A bitmap with summaries of fan-out 64: the lowest set bit is found in a few loads.
//!
//! Vocabulary: *layer* 0 holds the bits themselves, each layer above one bit per cell of the layer
//! below, the topmost layer is one cell. Invariant: a summary bit is set iff its cell is not 0.
//! Neighbours: `buddy.rs` has one such index per order.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy_words::{WORD_BITS, WORD_BITS_LOG2, ones};
use crate::platform::{Atomic, Platform};

/// Most layers of an index: enough for `2^30` bits.
const LAYERS_MAX: usize = 5;

/// Where the layers of an index lie among its cells; the topmost is the first cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FindFirstShape {
    bits: usize,
    layers: usize,
    starts: [usize; LAYERS_MAX],
    cells: usize,
}

impl FindFirstShape {
    /// An index of `bits` bits, at least one.
    pub(crate) fn new(bits: usize) -> Self {
        assert!(bits >= 1);
        let mut shape = Self { bits, layers: 1, ..Self::default() };
        while shape.cells_in(shape.layers - 1) > 1 {
            shape.layers += 1;
        }
        for layer in (0..shape.layers).rev() {
            shape.starts[layer] = shape.cells;
            shape.cells += shape.cells_in(layer);
        }
        shape
    }

    /// Cells an index takes.
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    const fn cells_in(&self, layer: usize) -> usize {
        ((self.bits - 1) >> (WORD_BITS_LOG2 as usize * (layer + 1))) + 1
    }
}

/// View of one index. Only the holder of the lock of what is indexed may use it, so that all
/// accesses are relaxed: the lock orders them.
pub(crate) struct FindFirst<'a, P: Platform> {
    cells: &'a [P::U64],
    shape: &'a FindFirstShape,
}

impl<'a, P: Platform> FindFirst<'a, P> {
    /// The index in `cells`.
    #[inline]
    pub(crate) const fn new(cells: &'a [P::U64], shape: &'a FindFirstShape) -> Self {
        Self { cells, shape }
    }

    #[inline]
    fn cell(&self, layer: usize, at: usize) -> &'a P::U64 {
        &self.cells[self.shape.starts[layer] + at]
    }

    /// The lowest set bit.
    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        let mut at = 0;
        for &start in self.shape.starts[..self.shape.layers].iter().rev() {
            let bits = self.cells[start + at].load(Relaxed);
            if bits == 0 {
                return None;
            }
            at = at * WORD_BITS + bits.trailing_zeros() as usize;
        }
        Some(at)
    }

    /// Sets bit `bit`.
    #[inline]
    pub(crate) fn set(&self, bit: usize) {
        let cell = self.cell(0, bit / WORD_BITS);
        let bits = cell.load(Relaxed);
        cell.store(bits | 1 << (bit % WORD_BITS), Relaxed);
        if bits == 0 {
            self.set_above(bit / WORD_BITS);
        }
    }

    #[inline(never)] // seldom needed: keeps the callers small
    fn set_above(&self, cell: usize) {
        let mut at = cell;
        for &start in &self.shape.starts[1..self.shape.layers] {
            let cell = &self.cells[start + at / WORD_BITS];
            let bits = cell.load(Relaxed);
            cell.store(bits | 1 << (at % WORD_BITS), Relaxed);
            if bits != 0 {
                return;
            }
            at /= WORD_BITS;
        }
    }

    /// Clears bit `bit`.
    #[inline]
    pub(crate) fn clear(&self, bit: usize) {
        let cell = self.cell(0, bit / WORD_BITS);
        let bits = cell.load(Relaxed) & !(1 << (bit % WORD_BITS));
        cell.store(bits, Relaxed);
        if bits == 0 {
            self.clear_above(bit / WORD_BITS);
        }
    }

    #[inline(never)] // seldom needed: keeps the callers small
    fn clear_above(&self, cell: usize) {
        let mut at = cell;
        for &start in &self.shape.starts[1..self.shape.layers] {
            let cell = &self.cells[start + at / WORD_BITS];
            let bits = cell.load(Relaxed) & !(1 << (at % WORD_BITS));
            cell.store(bits, Relaxed);
            if bits != 0 {
                return;
            }
            at /= WORD_BITS;
        }
    }

    /// Sets all bits of `from..to`, which is not empty.
    pub(crate) fn set_run(&self, from: usize, to: usize) {
        let (mut from, mut to) = (from, to);
        for layer in 0..self.shape.layers {
            let (first, last) = (from / WORD_BITS, (to - 1) / WORD_BITS);
            for at in first..=last {
                let base = at * WORD_BITS;
                let below = ones(from.saturating_sub(base) as u64);
                let cell = self.cell(layer, at);
                cell.store(cell.load(Relaxed) | (ones((to - base) as u64) & !below), Relaxed);
            }
            (from, to) = (first, last + 1);
        }
    }

    /// The lowest set bit that is not below `from`.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let (mut layer, mut at) = (0, from);
        loop {
            if layer == self.shape.layers || at / WORD_BITS >= self.shape.cells_in(layer) {
                return None;
            }
            let bits = self.cell(layer, at / WORD_BITS).load(Relaxed) & (!0 << (at % WORD_BITS));
            if bits != 0 {
                at = at / WORD_BITS * WORD_BITS + bits.trailing_zeros() as usize;
                break;
            }
            (layer, at) = (layer + 1, at / WORD_BITS + 1);
        }
        while layer > 0 {
            layer -= 1;
            at = at * WORD_BITS + self.cell(layer, at).load(Relaxed).trailing_zeros() as usize;
        }
        Some(at)
    }

    /// Whether any of the `2^count_log2` bits from `first`, a multiple of that count, is set.
    pub(crate) fn any(&self, first: usize, count_log2: u32) -> bool {
        let layer = (count_log2 / WORD_BITS_LOG2) as usize;
        if layer >= self.shape.layers {
            return self.cells[0].load(Relaxed) != 0; // the range holds all there is
        }
        let at = first >> (WORD_BITS_LOG2 as usize * layer);
        let mask = ones(1 << (count_log2 % WORD_BITS_LOG2)) << (at % WORD_BITS);
        self.cell(layer, at / WORD_BITS).load(Relaxed) & mask != 0
    }

    /// Whether bit `bit` is set.
    pub(crate) fn contains(&self, bit: usize) -> bool {
        self.cell(0, bit / WORD_BITS).load(Relaxed) >> (bit % WORD_BITS) & 1 == 1
    }

    /// Whether all summaries agree with what they summarise, and no bit beyond the last is set.
    pub(crate) fn is_consistent(&self) -> bool {
        let mut bits = self.shape.bits;
        for layer in 0..self.shape.layers {
            for at in 0..self.shape.cells_in(layer) {
                let word = self.cell(layer, at).load(Relaxed);
                let within = ones((bits - at * WORD_BITS) as u64);
                let summary = layer + 1 == self.shape.layers
                    || (word != 0)
                        == (self.cell(layer + 1, at / WORD_BITS).load(Relaxed) >> (at % WORD_BITS) & 1 == 1);
                if word & !within != 0 || !summary {
                    return false;
                }
            }
            bits = self.shape.cells_in(layer);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Native, Random, cells};
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set() {
        let mut random = Random::new(7);
        for bits in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let shape = FindFirstShape::new(bits);
            let cells = cells(shape.cells());
            let index = FindFirst::<Native>::new(&cells, &shape);
            let mut model = BTreeSet::new();
            for _ in 0..2000 {
                let bit = random.below(bits as u64) as usize;
                if model.remove(&bit) {
                    index.clear(bit);
                } else {
                    model.insert(bit);
                    index.set(bit);
                }
                let from = random.below(bits as u64 + 70) as usize;
                let log2 = random.below(20) as u32;
                let start = bit >> log2 << log2;
                assert_eq!(index.first(), model.first().copied());
                assert_eq!(index.next(from), model.range(from..).next().copied());
                assert_eq!(index.any(start, log2), model.range(start..start + (1 << log2)).next().is_some());
                assert_eq!(index.contains(bit), model.contains(&bit));
            }
            let to = bits - random.below(bits as u64) as usize;
            let from = random.below(to as u64) as usize;
            index.set_run(from, to);
            model.extend(from..to);
            assert!((0..bits).all(|bit| index.contains(bit) == model.contains(&bit)));
            assert!(index.is_consistent());
        }
    }

    #[test]
    fn inconsistency_is_seen() {
        let shape = FindFirstShape::new(100);
        let cells = cells(shape.cells());
        let index = FindFirst::<Native>::new(&cells, &shape);
        index.set(70);
        assert!(index.is_consistent());
        cells[1].store(1, Relaxed); // a bit without its summary
        assert!(!index.is_consistent());
        cells[1].store(0, Relaxed);
        cells[2].store(1 << 40, Relaxed); // bit 104 of 100
        assert!(!index.is_consistent());
    }
}
