//! `buddy_system_allocator`: free blocks in trees, all of them under one spin lock.

use buddy_system_allocator::LockedFrameAllocator;
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};

/// Number of orders: 0 to 10.
const ORDERS: usize = 11;

/// Version of the crate.
const VERSION: &str = "0.13.0";

pub(super) struct BuddySystem(LockedFrameAllocator<ORDERS>);

pub(super) struct Source<'a>(&'a BuddySystem);

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let first = self.0.0.lock().alloc(order.pages().get() as usize)?;
        Some(Pfn::new(first as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        self.0.0.lock().dealloc(page.get() as usize, order.pages().get() as usize);
    }
}

impl Contender for BuddySystem {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source(self)
    }
}

/// Returns the entry. Its pool has frame numbers from 0.
pub(super) fn entry() -> Entry {
    Entry::new("buddy_system_allocator", VERSION, |frames| Ok(make(frames)))
}

pub(super) fn make(frames: PageCount) -> BuddySystem {
    let allocator = LockedFrameAllocator::new();
    allocator.lock().add_frame(0, frames.get() as usize);
    BuddySystem(allocator)
}
