//! A reclaimer that gives back cached blocks, gives nothing, or says it gave what it did not.
//!
//! Neighbours: `operations.rs` decides which; `owners.rs` knows the blocks.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed; // one thread
use std::sync::{Mutex, MutexGuard, OnceLock};

use zonal::reclaim::{ReclaimRequest, Reclaimer};
use zonal::request::{PageKind, Urgency};
use zonal::units::{NodeId, PageCount, Pfn};
use zonal::{Allocator, Request};

use super::owners::Owners;
use crate::targets::desk::Desk;

/// What the reclaimer does when it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Manner {
    /// Frees cached blocks; needs a frame of its own meanwhile.
    Honest,
    /// Has nothing.
    Empty,
    /// Has cached blocks, and frees none.
    Stubborn,
    /// Says that it freed what was asked for.
    Lying,
}

pub(super) const MANNERS: [Manner; 4] = [Manner::Honest, Manner::Empty, Manner::Stubborn, Manner::Lying];

/// The blocks handed out, of which those of [`PageKind::Cache`] may be asked back.
pub(super) struct Cache<'m> {
    owners: Mutex<Owners>,
    manner: AtomicU8,
    allocator: OnceLock<&'m Allocator<'m, Desk<Self>>>,
}

impl<'m> Cache<'m> {
    pub(super) fn new(owners: Owners) -> Self {
        let (owners, manner) = (Mutex::new(owners), AtomicU8::new(Manner::Honest as u8));
        Self { owners, manner, allocator: OnceLock::new() }
    }

    /// Who has what. Never held while the allocator runs.
    pub(super) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.try_lock().expect("the table of owners is not held across calls")
    }

    pub(super) fn behave(&self, manner: Manner) {
        self.manner.store(manner as u8, Relaxed);
    }

    pub(super) fn manner(&self) -> Manner {
        MANNERS[usize::from(self.manner.load(Relaxed))]
    }

    /// Where to give frames back.
    pub(super) fn give_to(&self, allocator: &'m Allocator<'m, Desk<Self>>) {
        assert!(self.allocator.set(allocator).is_ok(), "a cache has one allocator");
    }

    fn free_some(&self, node: NodeId, target: PageCount) -> PageCount {
        let Some(allocator) = self.allocator.get() else { return PageCount::ZERO };
        let spare = allocator.alloc(&Request::page().urgency(Urgency::Reserve)).ok();
        let mut freed = PageCount::ZERO;
        let blocks = self.owners().some_of(node, PageKind::Cache, target);
        for (first, held) in blocks {
            allocator.free(Pfn::new(first), held.order).expect("a cached block can be freed");
            self.owners().give(first);
            freed = freed.plus(held.order.pages());
        }
        if let Some(block) = spare {
            allocator.free(block.first, block.order).expect("a spare frame can be freed");
        }
        freed
    }
}

impl Reclaimer for Cache<'_> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        match self.manner() {
            Manner::Empty => PageCount::ZERO,
            _ => PageCount::new(self.owners().owned_of(request.node, PageKind::Cache)),
        }
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        match self.manner() {
            Manner::Honest => self.free_some(request.node, request.target),
            Manner::Empty | Manner::Stubborn => PageCount::ZERO,
            Manner::Lying => request.target,
        }
    }
}
