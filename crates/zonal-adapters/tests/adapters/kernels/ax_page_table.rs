//! The adapter to the page tables of `ax-page-table-multiarch`.
// `docs/adapters.md` shows the rest of this file.
use core::marker::PhantomData;

use ax_memory_addr::{PhysAddr, VirtAddr};
use ax_page_table_multiarch::PagingHandler;
use zonal::platform::Platform;
use zonal::request::PageKind;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Request};

/// The kernel: `PagingHandler` has no `self`, so its allocator is static.
pub trait Kernel: 'static {
    type Platform: Platform;
    /// Returns the allocator of 4 KiB frames.
    fn frames() -> &'static Allocator<'static, Self::Platform>;
    /// Returns the address at which the kernel maps a physical address.
    fn address_of(physical: usize) -> usize;
}

/// Frames for page tables of the kernel `K`.
pub struct TableFrames<K>(PhantomData<K>);

const FRAME_BYTES: usize = 4096;

impl<K: Kernel> PagingHandler for TableFrames<K> {
    fn alloc_frames(num: usize, align: usize) -> Option<PhysAddr> {
        let order = Order::holding(PageCount::new(align.div_ceil(FRAME_BYTES) as u64))?;
        // A page table can be needed while locks are held that a reclaimer takes.
        let request = Request::new(order).kind(PageKind::Kernel).no_wait();
        let run = K::frames().alloc_frames(&request, PageCount::new(num as u64)).ok()?;
        Some(PhysAddr::from(run.range.start.get() as usize * FRAME_BYTES))
    }

    fn dealloc_frames(paddr: PhysAddr, num: usize) {
        let first = Pfn::new((paddr.as_usize() / FRAME_BYTES) as u64);
        // The trait reports no errors, and a refusal changes nothing.
        if let Err(error) = K::frames().free_frames(first, PageCount::new(num as u64)) {
            debug_assert!(false, "{error}");
        }
    }

    fn phys_to_virt(paddr: PhysAddr) -> VirtAddr {
        VirtAddr::from(K::address_of(paddr.as_usize()))
    }
}
