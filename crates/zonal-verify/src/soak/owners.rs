//! Records the owner of each frame, and checks the stamps that owners write to frames.

use std::io;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

use zonal::request::Block;
use zonal::units::Pfn;
use zonal_linux::Pool;
use zonal_testing::Ledger;

use super::second_mapping::SecondMapping;

/// The ledger of a pool. Invariant: a frame has an owner exactly from its block's allocation until just before the
/// free, and in this time its block contains the owner's stamps.
pub(super) struct Owners {
    /// The second mapping of a pool with shared memory. Dropped before the pool.
    shared: Option<SecondMapping>,
    pool: Pool,
    pub(super) ledger: Ledger,
}

impl Owners {
    /// Creates a ledger without owners. Stamps of a pool with shared memory are written and checked through a second
    /// mapping, too.
    pub(super) fn new(pool: &Pool, is_shared: bool) -> io::Result<Self> {
        let first = pool.ranges().map(|zone| zone.frames.start).min().unwrap_or_default();
        let end = pool.ranges().map(|zone| zone.frames.end()).max().unwrap_or_default();
        let shared = is_shared.then(|| SecondMapping::new(pool)).transpose()?;
        Ok(Self { shared, pool: pool.clone(), ledger: Ledger::new(first.get()..end.get()) })
    }

    /// Records `owner` as the owner of a block, and writes its stamps.
    pub(super) fn assign(&self, block: &Block, owner: u32) {
        self.ledger.assign(block.first.get(), block.order.pages().get(), owner);
        // The two frames of a pool with shared memory are written through different mappings.
        let words = self.words(block);
        let others = self.shared_words(block).unwrap_or(words);
        for word in [words[0], others[1]] {
            word.store(stamp(block, owner), Relaxed); // relaxed: only the owner accesses the word
        }
        // SeqCst: orders stores before loads through another address; pairs with `Owners::release`.
        fence(SeqCst);
    }

    /// Removes the owner of a block that `owner` is about to free. The block must still contain the owner's stamps.
    pub(super) fn release(&self, block: &Block, owner: u32) {
        // SeqCst: orders stores before loads through another address; pairs with `Owners::assign`.
        fence(SeqCst);
        let words = self.words(block).into_iter().chain(self.shared_words(block).into_iter().flatten());
        for word in words {
            let found = word.load(Relaxed); // relaxed: only the owner accesses the word
            assert_eq!(found, stamp(block, owner), "{block:?}, which owner {owner} has, was written to");
        }
        self.ledger.release(block.first.get(), block.order.pages().get(), owner);
    }

    /// Returns the first word of a block's first and last frames.
    fn words(&self, block: &Block) -> [&AtomicU64; 2] {
        ends(block).map(|frame| {
            let address = self.pool.ptr_of(frame).expect("a block is of its pool").cast::<AtomicU64>();
            // SAFETY: frames are aligned and stay mapped while the pool exists, and only a block's owner uses them.
            unsafe { address.as_ref() }
        })
    }

    /// Returns the same words in the second mapping.
    fn shared_words(&self, block: &Block) -> Option<[&AtomicU64; 2]> {
        let shared = self.shared.as_ref()?;
        Some(ends(block).map(|frame| {
            let address = shared.address_of(frame).expect("all files are mapped").cast::<AtomicU64>();
            // SAFETY: as above; the memory stays mapped here while `shared` exists.
            unsafe { address.as_ref() }
        }))
    }
}

/// Returns the first and the last frame of a block.
fn ends(block: &Block) -> [Pfn; 2] {
    [block.first, Pfn::new(block.first.get() + block.order.pages().get() - 1)]
}

fn stamp(block: &Block, owner: u32) -> u64 {
    block.first.get() << 32 | u64::from(owner) << 8 | u64::from(block.order.get())
}
