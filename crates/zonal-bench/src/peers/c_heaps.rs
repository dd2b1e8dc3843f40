//! `mimalloc` and `jemalloc`: general-purpose heaps, which are used here for objects of whole pages.
//!
//! This file calls the heaps directly; neither becomes the global heap of this process. A block is an object of the
//! block's size, aligned to a page. Its frame number is its address divided by the page size. The heaps choose the
//! size of their own memory, so the number of frames only determines how much the workload allocates.

use std::alloc::{GlobalAlloc, Layout};

use mimalloc::MiMalloc;
use tikv_jemallocator::Jemalloc;
use zonal::units::{Order, Pfn};
use zonal_workload::PageSource;

use crate::PAGE_SHIFT;
use crate::contender::{Contender, Entry};

/// Versions of the crates.
const MIMALLOC: &str = "0.1.52";
const JEMALLOC: &str = "0.7.0";

struct Heap<A>(A);

struct Source<'a, A>(&'a A);

#[inline]
fn layout(order: Order) -> Layout {
    const PAGE: usize = 1 << PAGE_SHIFT;
    // The size is a page times a power of two up to 2^18, which is far from overflow.
    Layout::from_size_align(PAGE << order.get(), PAGE).expect("small sizes are valid")
}

impl<A: GlobalAlloc> PageSource for Source<'_, A> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        // SAFETY: the size of the layout is not zero.
        let object = unsafe { self.0.alloc(layout(order)) };
        (!object.is_null()).then(|| Pfn::new((object.expose_provenance() >> PAGE_SHIFT) as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let object = std::ptr::with_exposed_provenance_mut((page.get() as usize) << PAGE_SHIFT);
        // SAFETY: the object was allocated with this layout, and is freed once.
        unsafe { self.0.dealloc(object, layout(order)) };
    }
}

impl<A: GlobalAlloc + Send + Sync + 'static> Contender for Heap<A> {
    type Source<'a> = Source<'a, A>;

    fn source(&self) -> Source<'_, A> {
        Source(&self.0)
    }
}

/// Returns the entry of `mimalloc`.
pub(super) fn mimalloc() -> Entry {
    Entry::new("mimalloc", MIMALLOC, |_| Ok(Heap(MiMalloc))).without_pool()
}

/// Returns the entry of `jemalloc`.
pub(super) fn jemalloc() -> Entry {
    Entry::new("jemalloc", JEMALLOC, |_| Ok(Heap(Jemalloc))).without_pool()
}
