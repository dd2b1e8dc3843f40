//! Deferred frees: blocks that a handler freed while the thread that it interrupted was inside the allocator.
//!
//! Such a free must not wait for a lock, because its own thread may hold the lock. It marks its block as cached, as every
//! free does, so that a second free of the block is refused at once. Only the push is left to an operation that may wait.
//! Related files: `alloc/freed.rs` defers and finishes frees, `platform/mod.rs` says when a handler is reentered.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, DEFERRED_FREES_MAX, Platform};
use crate::units::{Order, PageKind, ZoneId};

const ORDER_SHIFT: u32 = 32;
const KIND_SHIFT: u32 = 40;
const ZONE_SHIFT: u32 = 42;
/// Makes a block's word differ from an empty cell's word.
const IN_USE: u64 = 1 << 63;

/// A block that a free has claimed. It is marked as cached, is in no pageset, and still counts as allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreedBlock {
    pub(crate) zone: ZoneId,
    pub(crate) frame: u32,
    pub(crate) order: Order,
    pub(crate) kind: PageKind,
}

all_zero! {
    /// The deferred frees of one CPU.
    ///
    /// Invariant: if no call of [`Self::add`] or [`Self::take_all`] is in progress and `has_blocks` is 0, all cells are 0.
    #[repr(C, align(64))]
    pub(crate) struct DeferredFrees<P> {
        has_blocks: u64,
        /// Words of blocks; 0 is an empty cell.
        cells: [u64; DEFERRED_FREES_MAX],
    }
}

impl FreedBlock {
    fn word(self) -> u64 {
        let (order, kind) = (u64::from(self.order.get()), self.kind as u64);
        let zone = self.zone.index() as u64;
        IN_USE | zone << ZONE_SHIFT | kind << KIND_SHIFT | order << ORDER_SHIFT | u64::from(self.frame)
    }

    fn from_word(word: u64) -> Option<Self> {
        let field = |from: u32, to: u32| word >> from & ((1 << (to - from)) - 1);
        (word != 0).then(|| Self {
            zone: ZoneId::from_index(field(ZONE_SHIFT, IN_USE.trailing_zeros()) as usize),
            frame: word as u32, // the low 32 bits
            order: Order::new(field(ORDER_SHIFT, KIND_SHIFT) as u8).expect("only valid orders are stored"),
            kind: PageKind::ALL[field(KIND_SHIFT, ZONE_SHIFT) as usize],
        })
    }
}

impl<P: Platform> DeferredFrees<P> {
    /// Adds a block; returns `false` if all cells are in use.
    pub(crate) fn add(&self, block: FreedBlock) -> bool {
        // Relaxed: a cell in use is skipped.
        // Release: publishes the writes of the block's last owner; pairs with `DeferredFrees::take_all`.
        let put = |cell: &P::U64| cell.compare_exchange(0, block.word(), Release, Relaxed).is_ok();
        let added = self.cells.iter().any(put);
        if added {
            // A swap and not a store, so that the acquire also pairs with all earlier calls.
            // Release: publishes the cell of the block; pairs with `DeferredFrees::take_all`.
            self.has_blocks.swap(1, Release);
        }
        added
    }

    /// Whether there may be blocks. Blocks whose frees happened before the call are missed only while another thread removes
    /// them.
    #[inline(always)]
    pub(crate) fn has_blocks(&self) -> bool {
        self.has_blocks.load(Relaxed) != 0 // relaxed: `take_all` orders the cells
    }

    /// Removes all blocks. A handler may add further blocks at any time, also to cells that are empty already.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = FreedBlock> + '_ {
        // The flag is cleared before the cells are read, so that a block that is added too late to be found sets it again.
        // Acquire: takes the cells of the blocks; pairs with `DeferredFrees::add`.
        self.has_blocks.swap(0, Acquire);
        let in_use = self.cells.iter().filter(|cell| cell.load(Relaxed) != 0); // relaxed: the swap acquires
        // Acquire: takes the writes of the blocks' last owners; pairs with `DeferredFrees::add`.
        in_use.filter_map(|cell| FreedBlock::from_word(cell.swap(0, Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::platform::cells::AllZero;
    use crate::testing::Native;
    use crate::units::MAX_ORDER_LIMIT;

    #[test]
    fn every_block_survives_its_word() {
        for zone in [0, 1, ZoneId::COUNT - 1] {
            for (frame, kind) in [0, 1, u32::MAX].into_iter().zip(PageKind::ALL) {
                for order in [0, 9, MAX_ORDER_LIMIT] {
                    let order = Order::new(order).unwrap();
                    let block = FreedBlock { zone: ZoneId::from_index(zone), frame, order, kind };
                    assert_eq!(FreedBlock::from_word(block.word()), Some(block));
                }
            }
        }
        assert_eq!(FreedBlock::from_word(0), None);
    }

    #[test]
    fn a_full_list_accepts_no_block_until_it_is_emptied() {
        let block = |frame| FreedBlock {
            zone: ZoneId::from_index(0),
            frame,
            order: Order::PAGE,
            kind: PageKind::User,
        };
        let list = DeferredFrees::<Native>::all_zero();
        for _ in 0..2 {
            assert!(!list.has_blocks());
            let added: Vec<u32> = (0..100).filter(|&frame| list.add(block(frame))).collect();
            assert_eq!(added.len(), DEFERRED_FREES_MAX);
            assert!(list.has_blocks());
            assert!(list.take_all().map(|block| block.frame).eq(added));
        }
        assert_eq!(list.take_all().count(), 0);
    }
}
