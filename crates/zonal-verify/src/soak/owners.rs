//! Records the owner of each frame, and checks the stamps that owners write to frames.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::request::Block;
use zonal::units::Pfn;
use zonal_linux::Pool;
use zonal_testing::Ledger;

/// The ledger of a pool. Invariant: a frame has an owner exactly from its block's allocation until just before the
/// free, and in this time its block contains the owner's stamps.
pub(super) struct Owners {
    pool: Pool,
    pub(super) ledger: Ledger,
}

impl Owners {
    pub(super) fn new(pool: &Pool) -> Self {
        let first = pool.ranges().map(|zone| zone.frames.start).min().unwrap_or_default();
        let end = pool.ranges().map(|zone| zone.frames.end()).max().unwrap_or_default();
        Self { pool: pool.clone(), ledger: Ledger::new(first.get()..end.get()) }
    }

    /// Records `owner` as the owner of a block, and writes its stamps.
    pub(super) fn assign(&self, block: &Block, owner: u32) {
        self.ledger.assign(block.first.get(), block.order.pages().get(), owner);
        for word in self.words(block) {
            word.store(stamp(block, owner), Relaxed); // relaxed: only the owner accesses the word
        }
    }

    /// Removes the owner of a block that `owner` is about to free. The block must still contain the owner's stamps.
    pub(super) fn release(&self, block: &Block, owner: u32) {
        for word in self.words(block) {
            let found = word.load(Relaxed); // relaxed: only the owner accesses the word
            assert_eq!(found, stamp(block, owner), "{block:?}, which owner {owner} has, was written to");
        }
        self.ledger.release(block.first.get(), block.order.pages().get(), owner);
    }

    /// Returns the first word of the first and of the last frame of a block.
    fn words(&self, block: &Block) -> [&AtomicU64; 2] {
        let last = block.first.get() + block.order.pages().get() - 1;
        [block.first, Pfn::new(last)].map(|frame| {
            let address = self.pool.ptr_of(frame).expect("a block is of its pool").cast::<AtomicU64>();
            // SAFETY: frames are aligned and stay mapped while the pool exists, and only a block's owner uses them.
            unsafe { address.as_ref() }
        })
    }
}

fn stamp(block: &Block, owner: u32) -> u64 {
    block.first.get() << 32 | u64::from(owner) << 8 | u64::from(block.order.get())
}
