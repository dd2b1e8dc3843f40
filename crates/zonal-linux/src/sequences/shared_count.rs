//! A count that many threads change without atomic instructions, until it is closed.
//!
//! Each CPU has a cell. A restartable sequence changes the cell of the current CPU, and the sum of all cells and one
//! common cell is the count. The common cell also serves threads whose sequence does not complete. Closing the count
//! stops the sequences for good and moves their sum to the common cell, whose atomic changes from then on show when the
//! count reaches zero. Related files: `sequences/mod.rs` explains sequences, and `pool/core_ref.rs` counts references.
//! Source: Linux `percpu_ref`.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use zonal::units::CpuId;

use super::{Sequences, instructions, restart_all_sequences};

/// The value by which a sequence changes a cell for one reference. The lower bits of the word stay zero: they are the index of
/// the slot that a sequence reads.
const ONE: u64 = 1 << ONE_SHIFT;
const ONE_SHIFT: u32 = 28;
/// Excess of the common cell while the count is open. It exceeds every number of references, so that the cell reaches zero
/// only after the count is closed.
const BIAS: i64 = 1 << 48;
/// Lock word of an open cell: no limit applies.
const OPEN: u64 = 0;
/// Lock word of a closed cell: every sequence fails, because its sum with `limit` is odd and therefore not zero.
const CLOSED: u64 = u64::MAX;

/// The cell of one CPU, with the layout of a pageset's head as far as [`instructions::pop_from`] uses it.
#[repr(C, align(64))]
#[derive(Debug)]
struct Cell {
    lock_word: AtomicU64,
    /// [`ONE`] times the changes made on this CPU; wraps below zero.
    word: AtomicU64,
    limit: AtomicU64,
    slot: AtomicU32,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Cell, lock_word) == 0 && offset_of!(Cell, word) == 8 && offset_of!(Cell, limit) == 16);
};

impl Cell {
    const fn new() -> Self {
        Self {
            lock_word: AtomicU64::new(OPEN),
            word: AtomicU64::new(0),
            limit: AtomicU64::new(1),
            slot: AtomicU32::new(0),
        }
    }
}

/// A count of references.
///
/// Invariant: while open, references = Σ cells / [`ONE`] + `common` - [`BIAS`], modulo 2^36; once closed, references =
/// `common`.
#[derive(Debug)]
pub(crate) struct SharedCount {
    sequences: Sequences,
    /// Cells by CPU.
    cells: Box<[Cell]>,
    common: AtomicI64,
}

/// Whether a change left references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// There may be references.
    Some,
    /// The count is closed, and this change removed the last reference.
    None,
}

impl SharedCount {
    /// Returns an open count of zero, with cells for `cpus` CPUs.
    pub(crate) fn new(sequences: Sequences, cpus: usize) -> Self {
        let cpus = if sequences.are_used() { cpus } else { 0 };
        Self { sequences, cells: (0..cpus).map(|_| Cell::new()).collect(), common: AtomicI64::new(BIAS) }
    }

    /// Adds a reference. The count must be open, or the caller must hold another reference.
    #[inline(always)]
    pub(crate) fn add(&self) {
        if !self.change_cell(ONE) {
            self.add_to_common();
        }
    }

    /// Removes a reference.
    ///
    /// If the result is [`Left::Some`], another thread may remove the last reference and free the count at once, so the
    /// caller must not access it again.
    #[inline(always)]
    pub(crate) fn remove(&self) -> Left {
        if self.change_cell(ONE.wrapping_neg()) { Left::Some } else { self.remove_from_common() }
    }

    /// Changes the cell of the current CPU and returns `true`, or changes nothing.
    #[inline(always)]
    fn change_cell(&self, change: u64) -> bool {
        let Some(area) = self.sequences.area else { return false };
        // SAFETY: `area` is valid for all threads.
        let cpu = unsafe { instructions::current_cpu(area) };
        let Some(cell) = self.cells.get(cpu as usize) else { return false };
        let (head, slots) = (std::ptr::from_ref(cell).cast(), cell.slot.as_ptr().expose_provenance());
        // SAFETY: `area` is valid for all threads. The cell begins like a head, and the index into its slots is always 0,
        // because the lower bits of the word are.
        (unsafe { instructions::pop_from(area, cpu, head, slots, change) }) != u64::MAX
    }

    // A thread takes these paths if it has no area, if a sequence was restarted, or after the count was closed.

    #[cold]
    fn add_to_common(&self) {
        self.common.fetch_add(1, Relaxed); // relaxed: as in `Arc`, the caller has access already
    }

    #[cold]
    fn remove_from_common(&self) -> Left {
        // The last reference is removed after all accesses that others made.
        // AcqRel: takes and publishes accesses of holders; pairs with `remove_from_common`, `close`.
        Self::left(self.common.fetch_sub(1, AcqRel) - 1)
    }

    const fn left(common: i64) -> Left {
        if common == 0 { Left::None } else { Left::Some }
    }

    /// Closes the count; returns whether references are left. Must be called once.
    ///
    /// If the kernel refuses to stop the sequences, the count stays open, and its references count as left forever.
    pub(crate) fn close(&self) -> Left {
        // SeqCst: orders the stores before the barrier on all CPUs; pairs with membarrier(2).
        self.cells.iter().for_each(|cell| cell.lock_word.store(CLOSED, SeqCst));
        let cpus = (0..self.cells.len()).map(|cpu| CpuId::new(cpu as u32));
        if !self.cells.is_empty() && !restart_all_sequences(cpus) {
            return Left::Some;
        }
        // After the barrier no sequence changes a cell, and all changes are visible here.
        // Acquire: takes the changes by sequences; pairs with membarrier(2).
        let sum = self.cells.iter().fold(0_u64, |sum, cell| sum.wrapping_add(cell.word.load(Acquire)));
        let of_cells = sum >> ONE_SHIFT;
        // The cells count modulo 2^36, as they wrap. References that are added on some CPUs and removed in the common cell
        // make both sums grow without bound, so only their sum modulo 2^36 is the number of references.
        let references =
            |common: i64| of_cells.wrapping_add((common - BIAS).cast_unsigned()) & (u64::MAX >> ONE_SHIFT);
        // AcqRel: takes and publishes accesses of holders; pairs with `remove_from_common`.
        let common =
            self.common.fetch_update(AcqRel, Acquire, |common| Some(references(common).cast_signed()));
        Self::left(common.map_or(0, |common| references(common).cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    const THREADS: usize = 4;
    const ROUNDS: usize = 50;

    fn count(sequences: Sequences) -> SharedCount {
        SharedCount::new(sequences, 4096)
    }

    #[test]
    fn references_that_are_added_and_removed_in_different_cells_do_not_accumulate() {
        for changes in [0, 1_i64 << 35, (1 << 35) + 7, 1 << 40] {
            let count = count(Sequences::detect());
            let Some(cell) = count.cells.first() else { return }; // without sequences, there is only the common cell
            cell.word.store((changes + 1).cast_unsigned().wrapping_mul(ONE), Relaxed);
            count.common.store(BIAS - changes, Relaxed);
            assert_eq!(count.close(), Left::Some, "one reference is left of {changes}");
            assert_eq!(count.remove(), Left::None);
        }
    }

    #[test]
    fn zero_is_seen_once_and_only_after_the_close() {
        for sequences in [Sequences::detect(), Sequences::none()] {
            assert_eq!(count(sequences).close(), Left::None);
            let open = count(sequences);
            for _ in 0..3 {
                open.add();
                assert_eq!(open.remove(), Left::Some);
            }
            open.add();
            open.add();
            assert_eq!(open.close(), Left::Some);
            assert_eq!(open.remove(), Left::Some);
            open.add(); // while a reference exists
            assert_eq!(open.remove(), Left::Some);
            assert_eq!(open.remove(), Left::None);
        }
    }

    /// Moves references between threads, some of which remove them while another thread closes the count.
    #[test]
    fn threads_that_race_with_the_close_lose_no_reference() {
        for sequences in [Sequences::detect(), Sequences::none()] {
            for round in 0..ROUNDS {
                let (count, start) = (count(sequences), Barrier::new(THREADS + 1));
                (0..THREADS * 1000).for_each(|_| count.add());
                let removes = |thread: usize| {
                    let (count, start) = (&count, &start);
                    move || {
                        start.wait();
                        let mut zeros = 0;
                        for _ in 0..1000 {
                            if thread.is_multiple_of(2) {
                                count.add(); // this thread holds a reference
                                zeros += usize::from(count.remove() == Left::None);
                            }
                            zeros += usize::from(count.remove() == Left::None);
                        }
                        zeros
                    }
                };
                let zeros: usize = thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(removes(thread))).collect();
                    start.wait();
                    (0..round * 20).for_each(|_| std::hint::spin_loop());
                    let closed = usize::from(count.close() == Left::None);
                    closed + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
                });
                assert_eq!(zeros, 1, "round {round}, {sequences:?}");
            }
        }
    }
}
