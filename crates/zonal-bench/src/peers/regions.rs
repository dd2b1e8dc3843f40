//! `buddy-slab-allocator` and `talc`: allocators that keep their data in the memory that they manage.
//!
//! Each gets a mapping of its own. The mapping reserves no swap space, and pages that an allocator does not touch take
//! no memory. Neither allocator has a lock of its own, so both are under a spin lock.

use std::alloc::Layout;
use std::ptr::NonNull;

use buddy_slab_allocator::BuddyAllocator;
use memmap2::{MmapMut, MmapOptions};
use spin::mutex::SpinMutex;
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::PAGE_SHIFT;
use crate::contender::{Contender, Entry, Reason};

/// Versions of the crates.
const BUDDY_SLAB: &str = "0.6.1";
const TALC: &str = "5.1.1";

/// Bytes of a page.
const PAGE: usize = 1 << PAGE_SHIFT;

/// Bytes for data whose size does not depend on the number of frames.
const SLACK: usize = 2 << 20;

/// An allocator of addresses within a mapping.
trait Blocks: Send + 'static {
    /// Allocates an aligned block and returns its address.
    fn take(&mut self, order: Order) -> Option<usize>;

    /// Frees the block at `address`, which was allocated with this order.
    fn give(&mut self, address: usize, order: Order);
}

/// The page allocator of `buddy-slab-allocator`.
struct Buddy(BuddyAllocator<PAGE>);

impl Blocks for Buddy {
    #[inline]
    fn take(&mut self, order: Order) -> Option<usize> {
        self.0.alloc_pages(order.pages().get() as usize, PAGE).ok()
    }

    #[inline]
    fn give(&mut self, address: usize, order: Order) {
        self.0.dealloc_pages(address, order.pages().get() as usize);
    }
}

/// A heap of `talc`. It stores a tag behind each object.
struct Heap(Talc<Manual, DefaultBinning>);

#[inline]
fn layout(order: Order) -> Layout {
    // The size is a page times a power of two up to 2^18, which is far from overflow.
    Layout::from_size_align(PAGE << order.get(), PAGE).expect("small sizes are valid")
}

impl Blocks for Heap {
    #[inline]
    fn take(&mut self, order: Order) -> Option<usize> {
        // SAFETY: the size of the layout is not zero.
        let object = unsafe { self.0.allocate(layout(order)) };
        object.map(|object| object.as_ptr().expose_provenance())
    }

    #[inline]
    fn give(&mut self, address: usize, order: Order) {
        // SAFETY: the object was allocated with this layout, and is freed once.
        unsafe { self.0.deallocate(std::ptr::with_exposed_provenance_mut(address), layout(order)) };
    }
}

struct Region<B> {
    blocks: SpinMutex<B>,
    /// Address of frame 0.
    base: usize,
    /// The memory behind the addresses. It is dropped last.
    _memory: MmapMut,
}

struct Source<'a, B>(&'a Region<B>);

impl<B: Blocks> PageSource for Source<'_, B> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let address = self.0.blocks.lock().take(order)?;
        Some(Pfn::new(((address - self.0.base) >> PAGE_SHIFT) as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        self.0.blocks.lock().give(self.0.base + ((page.get() as usize) << PAGE_SHIFT), order);
    }
}

impl<B: Blocks> Contender for Region<B> {
    type Source<'a> = Source<'a, B>;

    fn source(&self) -> Source<'_, B> {
        Source(self)
    }
}

fn map(bytes: usize) -> Result<MmapMut, Reason> {
    let memory = MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
    memory.map_err(|error| format!("cannot map {bytes} bytes for it: {error}"))
}

/// Returns the entry for the page allocator in `buddy-slab-allocator`.
pub(super) fn buddy_slab() -> Entry {
    Entry::new("buddy-slab-allocator", BUDDY_SLAB, |frames: PageCount| {
        let heap = frames.get() as usize * PAGE;
        let mut memory = map(heap + BuddyAllocator::<PAGE>::required_meta_size(heap) + PAGE)?;
        let mut buddy = BuddyAllocator::new();
        // SAFETY: the mapping is writable, is used for nothing else, and lives as long as the allocator.
        unsafe { buddy.init(&mut memory) }.map_err(|error| format!("cannot manage the memory: {error}"))?;
        let section = buddy.section(0).ok_or("it manages no memory")?;
        memory.as_mut_ptr().expose_provenance();
        Ok(Region { blocks: SpinMutex::new(Buddy(buddy)), base: section.start, _memory: memory })
    })
}

/// Returns the entry of `talc`. With its tag, an aligned page occupies two pages of its heap.
pub(super) fn talc() -> Entry {
    Entry::new("talc", TALC, |frames: PageCount| {
        let mut memory = map(2 * frames.get() as usize * PAGE + SLACK)?;
        let (start, length) = (memory.as_mut_ptr(), memory.len());
        let mut heap = Talc::new(Manual);
        // SAFETY: the mapping is writable, is used for nothing else, and lives as long as the heap.
        let _end: NonNull<u8> = unsafe { heap.claim(start, length) }.ok_or("cannot manage the memory")?;
        Ok(Region { blocks: SpinMutex::new(Heap(heap)), base: start.expose_provenance(), _memory: memory })
    })
    .without_pool()
}
