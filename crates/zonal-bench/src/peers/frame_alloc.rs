//! The depot of `frame-alloc`, which has a cache for each CPU and a shared cache over a lock-free buddy allocator.
//!
//! The depot stores its bitmaps in the memory that it manages. It therefore receives a real mapping, of which it
//! touches only the bitmaps.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use ::frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysRange, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};
use memmap2::{MmapMut, MmapOptions};
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::PAGE_SHIFT;
use crate::contender::{Contender, Entry, Reason};
use crate::floor::area;

/// Number of orders: 0 to 10.
const ORDERS: usize = 11;
/// CPUs with their own cache. Any other CPUs share these caches.
const SLOTS: usize = 256;
/// Size in bytes of the depot's largest block, which is also the alignment of its memory.
const BLOCK_BYTES: usize = 1 << (PAGE_SHIFT as usize + ORDERS - 1);

/// Version of the crate.
const VERSION: &str = "0.1.0";

const FRAME: PageSize = PageSize::from_log2(PAGE_SHIFT as u8);

type Depot = DepotAllocator<SummaryBuddyAllocator<ORDERS, Exposed>, Cpu, SLOTS>;

/// Provides the CPU of the calling thread.
struct Cpu;

impl CpuId for Cpu {
    #[inline]
    fn current_cpu() -> usize {
        area::current_cpu()
    }
}

/// Provides pointers into an exposed mapping.
struct Exposed;

// SAFETY: the only mapping used is exposed as a whole before the allocator receives its address.
unsafe impl Provenance for Exposed {
    unsafe fn create(phys: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(phys)).expect("no mapping begins at 0")
    }

    unsafe fn destroy<T>(ptr: NonNull<T>) -> usize {
        ptr.addr().get()
    }
}

pub(super) struct FrameAlloc {
    depot: Box<Depot>,
    /// The memory that `depot` manages.
    _memory: MmapMut,
}

pub(super) struct Source<'a>(&'a Depot);

#[inline]
fn count(order: Order) -> NonZeroUsize {
    NonZeroUsize::new(1 << order.get()).expect("a power of two is not zero")
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let address = self.0.allocate_physical(FRAME, count(order)).ok()?;
        Some(Pfn::new((address >> PAGE_SHIFT) as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let address = (page.get() as usize) << PAGE_SHIFT;
        // SAFETY: the block was allocated with this order, and is freed once.
        unsafe { self.0.deallocate_physical(FRAME, count(order), address) };
    }
}

impl Contender for FrameAlloc {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source(&self.depot)
    }
}

/// Returns the entry. Its pool has real addresses.
pub(super) fn entry() -> Entry {
    Entry::new("frame-alloc", VERSION, make)
}

pub(super) fn make(frames: PageCount) -> Result<FrameAlloc, Reason> {
    let bytes = (frames.get() as usize) << PAGE_SHIFT;
    let mapped = MmapOptions::new().len(bytes + BLOCK_BYTES).no_reserve_swap().map_anon();
    let mut memory =
        mapped.map_err(|error| format!("cannot reserve address space for its memory: {error}"))?;
    let base = memory.as_mut_ptr().expose_provenance().next_multiple_of(BLOCK_BYTES);
    let depot = Box::new(Depot::new(FRAME, SummaryBuddyAllocator::new(FRAME)));
    let usable = [PhysRange { base, len: bytes }];
    // SAFETY: the range is within the mapping, which has no other user and outlives the allocator. No other thread
    // has a reference to the allocator yet.
    unsafe { depot.try_init(base, bytes, &usable) }.map_err(|error| error.to_string())?;
    Ok(FrameAlloc { depot, _memory: memory })
}
