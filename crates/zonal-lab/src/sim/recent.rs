//! The lines that the running CPU is known to have, so that most accesses need no look-up in its cache.
//!
//! Related files: `sim/charge.rs` checks each access here first; `sim/caches.rs` removes lines whose state changes.

use std::cell::Cell;

use super::access::{Access, LINE_SHIFT};

/// Number of lines recorded, about as many as an operation of the allocator uses. A line can only be at the place that its
/// lowest bits select.
///
/// The number affects results of machines with `list_work_ns`: while a thread works on lists, hits on these lines are charged,
/// and all other accesses are not.
const LINES: usize = 32;
/// No line. The first turn is 1, so no key has this value.
const NONE: u64 = 0;
/// Position of the turn in a key before the shift by [`LINE_SHIFT`]. Addresses of programs are smaller.
const TURN_SHIFT: u32 = 48;
const TURN: u64 = 1 << TURN_SHIFT;

/// Recent hits of the running CPU.
///
/// A line's *key* consists of its number and the current *turn*. The turn changes when another CPU runs, so that keys of
/// earlier turns match no line.
///
/// Invariant: if a line's key is in `reads`, the CPU has the line's current version, and used no other line of the set later.
/// Another hit would not change anything. If the key is in `writes`, the CPU may also write to the line without a miss.
pub(super) struct Recent {
    /// `base` minus the turn. The difference between an address and this value is the address's key and its byte in the
    /// line.
    origin: Cell<u64>,
    /// Address of the first line.
    base: u64,
    reads: [Cell<u64>; LINES],
    writes: [Cell<u64>; LINES],
}

impl Recent {
    /// Creates a record without lines. The first line is at address `base`.
    pub(super) fn new(base: usize) -> Self {
        let base = base as u64;
        Self {
            origin: Cell::new(base.wrapping_sub(TURN)),
            base,
            reads: [const { Cell::new(NONE) }; LINES],
            writes: [const { Cell::new(NONE) }; LINES],
        }
    }

    /// Whether an access to `address` is known to be a hit.
    #[inline(always)]
    pub(super) fn has(&self, address: usize, access: Access) -> bool {
        let key = (address as u64).wrapping_sub(self.origin.get()) >> LINE_SHIFT;
        let keys = if access == Access::Read { &self.reads } else { &self.writes };
        keys[key as usize % LINES].get() == key
    }

    /// Records a hit on a line, to which the CPU may write without a miss or not.
    #[inline(always)]
    pub(super) fn note(&self, line: usize, may_write: bool) {
        let turn = self.base.wrapping_sub(self.origin.get());
        let key = turn >> LINE_SHIFT | line as u64;
        self.reads[line % LINES].set(key);
        self.writes[line % LINES].set(if may_write { key } else { NONE });
    }

    /// Makes the next access to a line look it up.
    #[inline]
    pub(super) fn forget(&self, line: usize) {
        self.reads[line % LINES].set(NONE);
        self.writes[line % LINES].set(NONE);
    }

    /// Makes the next access to each line look it up.
    #[inline]
    pub(super) fn forget_all(&self) {
        let next = self.origin.get().wrapping_sub(TURN);
        self.origin.set(next);
        if next == self.base {
            self.begin_again();
        }
    }

    /// Begins with the first turn again, when all turns have passed.
    #[cold]
    fn begin_again(&self) {
        self.origin.set(self.base.wrapping_sub(TURN));
        self.reads.iter().chain(&self.writes).for_each(|key| key.set(NONE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x7f00_1234_5000;

    fn has(recent: &Recent, line: usize) -> [bool; 2] {
        [Access::Read, Access::Write].map(|access| recent.has(BASE + (line << LINE_SHIFT) + 63, access))
    }

    #[test]
    fn lines_are_known_until_they_are_forgotten() {
        let recent = Recent::new(BASE);
        assert_eq!([0, 1, 7].map(|line| has(&recent, line)), [[false; 2]; 3]);
        recent.note(7, false);
        recent.note(8, true);
        assert_eq!([7, 8].map(|line| has(&recent, line)), [[true, false], [true; 2]]);
        assert_eq!([7 + LINES, 8 + LINES].map(|line| has(&recent, line)), [[false; 2]; 2]);
        recent.forget(8);
        assert_eq!([7, 8].map(|line| has(&recent, line)), [[true, false], [false; 2]]);
    }

    #[test]
    fn no_line_is_known_in_another_turn() {
        let recent = Recent::new(BASE);
        let all = 1 << (u64::BITS - TURN_SHIFT);
        for turn in 0..2 * all + 3 {
            assert_eq!([0, 7].map(|line| has(&recent, line)), [[false; 2]; 2], "turn {turn}");
            if turn < 3 {
                [0, 7].into_iter().for_each(|line| recent.note(line, true));
                assert_eq!([0, 7].map(|line| has(&recent, line)), [[true; 2]; 2], "turn {turn}");
            }
            recent.forget_all();
        }
    }
}
