//! The free areas' counts of free frames and blocks, which are read without locks.
//!
//! Related files: `zone/free_areas.rs` has the areas, `buddy/mod.rs` keeps the counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::zone::free_areas::{FreeAreaCells, FreeAreas};

impl<P: Platform> FreeAreas<'_, P> {
    /// Returns the number of free frames.
    pub(crate) fn pages(&self) -> u64 {
        self.heads.iter().map(|head| head.counts.free_pages.load(Relaxed)).sum() // relaxed: see `Buddy`
    }

    /// Returns the words of active blocks (`buddy/active_block.rs`) to the buddies, so that [`Self::free_blocks`]
    /// counts them.
    pub(crate) fn settle(&self) {
        for at in 0..self.shape.count {
            // Relaxed: the function may miss a block that becomes active after this load.
            if self.counts(at).open.load(Relaxed) != 0 {
                self.enter(at).buddy.settle();
            }
        }
    }

    /// Returns the number of free `order` blocks that are not inside a larger free block, without active blocks.
    pub(crate) fn blocks(&self, order: Order) -> u64 {
        let of = |head: &FreeAreaCells<P>| head.counts.free_blocks[usize::from(order.get())].load(Relaxed);
        self.heads.iter().map(of).sum() // relaxed: see `Buddy`
    }

    /// Whether at least `frames` free frames are in large blocks.
    ///
    /// Checks the last areas first, because they are used last, and stops as soon as enough frames are found.
    pub(crate) fn has_in_large(&self, frames: u64) -> bool {
        let mut found = 0;
        frames == 0
            || self.heads.iter().rev().any(|head| {
                found += head.counts.in_large(self.shape.large);
                found >= frames
            })
    }
}
