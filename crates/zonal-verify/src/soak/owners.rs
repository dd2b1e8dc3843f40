//! Who has each frame, as threads see it, and the stamps that they leave in frames.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::request::Block;
use zonal::units::Pfn;
use zonal_linux::Pool;
use zonal_testing::Ledger;

/// The ledger of a pool. Invariant: a frame has an owner exactly from its block's being handed out until
/// just before it is freed, and its block contains the owner's stamps.
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

    /// Enters a block that `owner` was given.
    pub(super) fn assign(&self, block: &Block, owner: u32) {
        self.ledger.assign(block.first.get(), block.order.pages().get(), owner);
        for word in self.words(block) {
            word.store(stamp(block, owner), Relaxed); // the owner's alone
        }
    }

    /// Strikes out a block that `owner` is about to free: it must hold what the owner wrote.
    pub(super) fn release(&self, block: &Block, owner: u32) {
        for word in self.words(block) {
            let found = word.load(Relaxed); // the owner's alone
            assert_eq!(found, stamp(block, owner), "{block:?}, which owner {owner} has, was written to");
        }
        self.ledger.release(block.first.get(), block.order.pages().get(), owner);
    }

    /// Returns the first word of the first and of the last frame of a block.
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
