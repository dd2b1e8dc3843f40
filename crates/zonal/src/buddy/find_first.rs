//! An index of several bitmaps with 64-way summaries, which finds the lowest set bit of a bitmap in a few loads.
//!
//! A *column* is one of the bitmaps. *Layer* 0 holds the bits themselves. Each higher layer is a *summary* with one
//! bit per cell of the layer below, and the topmost layer is one cell. The cells of all columns at one position are
//! adjacent, so that an operation on several columns touches only one or two cache lines. Invariant: a summary bit is
//! set iff its cell is not 0.
//!
//! Related files: `buddy/mod.rs` uses one column per order.

use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::words::{WORD_BITS, WORD_BITS_LOG2, ones};
use crate::platform::{Atomic, Platform};

/// Largest number of layers in an index, which is enough for `2^30` bits.
const LAYERS_MAX: usize = 5;

/// Positions of an index's layers among its cells. The topmost layer begins at the first cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FindFirstShape {
    bits: usize,
    columns: usize,
    layers: usize,
    starts: [usize; LAYERS_MAX],
    cells: usize,
}

impl FindFirstShape {
    /// Computes the layout of an index with `bits` bits, at least one, in each of `columns` columns.
    pub(super) fn new(bits: usize, columns: usize) -> Self {
        assert!(bits >= 1);
        let mut shape = Self { bits, columns, layers: 1, ..Self::default() };
        while shape.places_in(shape.layers - 1) > 1 {
            shape.layers += 1;
        }
        for layer in (0..shape.layers).rev() {
            shape.starts[layer] = shape.cells;
            shape.cells += shape.places_in(layer) * columns;
        }
        shape
    }

    /// Returns the number of cells in the index.
    pub(super) const fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the number of cells that one column has in a layer.
    const fn places_in(&self, layer: usize) -> usize {
        ((self.bits - 1) >> (WORD_BITS_LOG2 as usize * (layer + 1))) + 1
    }
}

/// View of one column.
///
/// Callers must hold the lock of the indexed data. All accesses are relaxed, because the lock orders them.
pub(super) struct FindFirst<'a, P: Platform> {
    cells: &'a [P::U64],
    shape: &'a FindFirstShape,
    column: usize,
}

impl<'a, P: Platform> FindFirst<'a, P> {
    /// Creates the view of one index column in `cells`.
    pub(super) const fn new(cells: &'a [P::U64], shape: &'a FindFirstShape, column: usize) -> Self {
        Self { cells, shape, column }
    }

    /// Returns the cell of layer 0 that holds bit `64 * at`.
    pub(super) fn bits(&self, at: usize) -> &'a P::U64 {
        self.cell(0, at)
    }

    fn cell(&self, layer: usize, at: usize) -> &'a P::U64 {
        &self.cells[self.shape.starts[layer] + at * self.shape.columns + self.column]
    }

    /// Returns the lowest set bit.
    pub(super) fn first(&self) -> Option<usize> {
        if self.shape.layers > 1 {
            return first_of_many::<P>(self.cells, self.shape, self.column);
        }
        let bits = self.cells[self.column].load(Relaxed);
        (bits != 0).then(|| bits.trailing_zeros() as usize)
    }

    /// Sets bit `bit`, with a check that avoids the write in the common case that the bit is already set.
    pub(super) fn note(&self, bit: usize) {
        if self.bits(bit / WORD_BITS).load(Relaxed) >> (bit % WORD_BITS) & 1 == 0 {
            self.set(bit);
        }
    }

    /// Sets bit `bit`.
    pub(super) fn set(&self, bit: usize) {
        self.write(bit / WORD_BITS, |bits| bits | 1 << (bit % WORD_BITS));
    }

    /// Clears bit `bit`.
    pub(super) fn clear(&self, bit: usize) {
        self.write(bit / WORD_BITS, |bits| bits & !(1 << (bit % WORD_BITS)));
    }

    /// Inverts the bits that are set in `toggled` in the cell that begins with bit `64 * at`.
    pub(super) fn toggle(&self, at: usize, toggled: u64) {
        self.write(at, |bits| bits ^ toggled);
    }

    fn write(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        let cell = self.cell(0, at);
        let before = cell.load(Relaxed);
        let after = change(before);
        cell.store(after, Relaxed);
        if self.shape.layers > 1 && (before == 0) != (after == 0) {
            sum_up::<P>(self.cells, self.shape, self.column, at);
        }
    }

    /// Sets all bits of `from..to`, which must not be empty.
    pub(super) fn set_run(&self, from: usize, to: usize) {
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

    /// Whether all summaries agree with the cells that they summarise, and no bit beyond the last is set.
    pub(super) fn is_consistent(&self) -> bool {
        let mut bits = self.shape.bits;
        for layer in 0..self.shape.layers {
            for at in 0..self.shape.places_in(layer) {
                let word = self.cell(layer, at).load(Relaxed);
                let within = ones((bits - at * WORD_BITS) as u64);
                let summary = layer + 1 == self.shape.layers
                    || (word != 0)
                        == (self.cell(layer + 1, at / WORD_BITS).load(Relaxed) >> (at % WORD_BITS) & 1 == 1);
                if word & !within != 0 || !summary {
                    return false;
                }
            }
            bits = self.shape.places_in(layer);
        }
        true
    }
}

// The next two functions are not inlined and take the fields of the view as arguments. The common case can then hold
// the view in registers.

#[inline(never)]
fn first_of_many<P: Platform>(cells: &[P::U64], shape: &FindFirstShape, column: usize) -> Option<usize> {
    let mut at = 0;
    for &start in shape.starts[..shape.layers].iter().rev() {
        let bits = cells[start + at * shape.columns + column].load(Relaxed);
        if bits == 0 {
            return None;
        }
        at = at * WORD_BITS + bits.trailing_zeros() as usize;
    }
    Some(at)
}

/// Updates the summaries after the cell of layer 0 at `place` changed to or from 0.
#[inline(never)]
fn sum_up<P: Platform>(cells: &[P::U64], shape: &FindFirstShape, column: usize, place: usize) {
    let mut at = place;
    for layer in 1..shape.layers {
        let below = cells[shape.starts[layer - 1] + at * shape.columns + column].load(Relaxed);
        let cell = &cells[shape.starts[layer] + at / WORD_BITS * shape.columns + column];
        let (before, bit) = (cell.load(Relaxed), 1 << (at % WORD_BITS));
        let after = if below == 0 { before & !bit } else { before | bit };
        cell.store(after, Relaxed);
        if (before == 0) == (after == 0) {
            return;
        }
        at /= WORD_BITS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Native, Random, cells};
    use std::collections::BTreeSet;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn agrees_with_a_set() {
        let mut random = Random::new(7);
        for (bits, column) in [1, 63, 64, 65, 4096, 4097, 300_000].into_iter().zip([0, 1, 2].iter().cycle()) {
            let shape = FindFirstShape::new(bits, 3);
            let cells = cells(shape.cells());
            let index = FindFirst::<Native>::new(&cells, &shape, *column);
            let mut model = BTreeSet::new();
            for _ in 0..2000 {
                let bit = random.below(bits as u64) as usize;
                if model.remove(&bit) {
                    index.clear(bit);
                } else {
                    model.insert(bit);
                    index.set(bit);
                }
                let at = random.index(bits.div_ceil(64));
                let toggled = random.bits() & random.bits() & ones((bits - at * 64) as u64);
                index.toggle(at, toggled);
                for bit in (0..64).filter(|bit| toggled >> bit & 1 == 1).map(|bit| at * 64 + bit) {
                    let had = model.remove(&bit);
                    assert!(had || model.insert(bit));
                }
                assert_eq!(index.first(), model.first().copied());
                let here = |bit: &usize| index.bits(bit / 64).load(Relaxed) >> (bit % 64) & 1 == 1;
                assert_eq!(here(&bit), model.contains(&bit));
            }
            let to = bits - random.below(bits as u64) as usize;
            let from = random.below(to as u64) as usize;
            index.set_run(from, to);
            model.extend(from..to);
            let is_set = |bit: usize| index.bits(bit / 64).load(Relaxed) >> (bit % 64) & 1 == 1;
            assert!((0..bits).all(|bit| is_set(bit) == model.contains(&bit)));
            assert!(index.is_consistent());
            let others = (0..3).filter(|other| other != column);
            assert!(
                others
                    .map(|other| FindFirst::<Native>::new(&cells, &shape, other))
                    .all(|o| o.first().is_none())
            );
        }
    }

    #[test]
    fn inconsistency_is_seen() {
        let shape = FindFirstShape::new(100, 1);
        let cells = cells(shape.cells());
        let index = FindFirst::<Native>::new(&cells, &shape, 0);
        index.set(70);
        assert!(index.is_consistent());
        cells[1].store(1, Relaxed); // a bit without its summary
        assert!(!index.is_consistent());
        cells[1].store(0, Relaxed);
        cells[2].store(1 << 40, Relaxed); // bit 104 of 100
        assert!(!index.is_consistent());
    }
}
