//! Whose each frame is, as threads see it, and the stamps that they leave in frames.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zonal::request::Block;
use zonal::units::Pfn;
use zonal_linux::Pool;

/// Nobody's.
const NOBODY: u32 = 0;

/// A table of owners. Invariant: a frame has an owner exactly from its block's being handed out until
/// just before it is given back.
pub(super) struct Owners {
    pool: Pool,
    first: Pfn,
    cells: Vec<AtomicU32>,
}

impl Owners {
    pub(super) fn new(pool: &Pool) -> Self {
        let first = pool.ranges().map(|zone| zone.frames.start).min().unwrap_or_default();
        let end = pool.ranges().map(|zone| zone.frames.end()).max().unwrap_or_default();
        let cells = (first.get()..end.get()).map(|_| AtomicU32::new(NOBODY)).collect();
        Self { pool: pool.clone(), first, cells }
    }

    /// `owner`, not 0, has got a block, which must have been nobody's.
    pub(super) fn take(&self, block: &Block, owner: u32) {
        self.each(block, |frame, cell| {
            let before = cell.swap(owner, Ordering::AcqRel); // sees what the one before did
            assert_eq!(before, NOBODY, "frame {frame} was handed to {owner} while {before} has it");
        });
        for word in self.words(block) {
            word.store(stamp(block, owner), Ordering::Relaxed); // the owner's alone
        }
    }

    /// `owner` is about to give a block back: it must still be its own, with what it wrote.
    pub(super) fn give(&self, block: &Block, owner: u32) {
        for word in self.words(block) {
            let found = word.load(Ordering::Relaxed); // the owner's alone
            assert_eq!(found, stamp(block, owner), "somebody wrote to {block:?}, which {owner} has");
        }
        self.each(block, |frame, cell| {
            let before = cell.swap(NOBODY, Ordering::AcqRel); // as in `take`
            assert_eq!(before, owner, "frame {frame}, of {owner}, became {before}'s");
        });
    }

    /// Frames that somebody has.
    pub(super) fn owned(&self) -> usize {
        self.cells.iter().filter(|cell| cell.load(Ordering::Acquire) != NOBODY).count() // after the joins
    }

    fn each(&self, block: &Block, mut look: impl FnMut(u64, &AtomicU32)) {
        let at = (block.first.get() - self.first.get()) as usize;
        let count = block.order.pages().get() as usize;
        for (frame, cell) in (block.first.get()..).zip(&self.cells[at..at + count]) {
            look(frame, cell);
        }
    }

    /// The first word of the first and of the last frame of a block.
    fn words(&self, block: &Block) -> [&AtomicU64; 2] {
        let last = block.first.get() + block.order.pages().get() - 1;
        [block.first, Pfn::new(last)].map(|frame| {
            let address = self.pool.ptr_of(frame).expect("a block is of its pool").cast::<AtomicU64>();
            // SAFETY: frames are mapped while the pool lives, aligned, and a block's owner alone uses them.
            unsafe { address.as_ref() }
        })
    }
}

fn stamp(block: &Block, owner: u32) -> u64 {
    block.first.get() << 32 | u64::from(owner) << 8 | u64::from(block.order.get())
}
