//! Page tables of the crate `x86_64`, whose frames the allocator supplies through its adapter.

use x86_64::VirtAddr;
use x86_64::registers::control::Cr3;
use x86_64::structures::paging::mapper::{CleanUp, MapToError, Mapper};
use x86_64::structures::paging::page::PageRangeInclusive;
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, OffsetPageTable, Page, PageSize, PageTable, PageTableFlags, Size2MiB,
    Size4KiB,
};
use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};
use zonal::{Allocator, Request};
use zonal_adapters::x86_64::TableFrames;

use crate::firmware::FRAME_BYTES;
use crate::owners;
use crate::platform::Kernel;

/// First address of the area: the first of the upper half, which nothing else maps.
const START: u64 = 0xFFFF_8000_0000_0000;
/// Bytes of address space that one use needs, and the number of uses.
const STEP: u64 = 4 << 20;
const STEPS: u64 = (1 << 46) / STEP;

/// A range of virtual addresses. Each use maps pages at new addresses, so no CPU has an old translation of them. A kernel
/// that uses addresses again must flush the translation buffers of all CPUs before it frees a page table.
pub(crate) struct Area {
    used: u64,
}

impl Area {
    /// Creates the area, of which there must be only one.
    pub(crate) fn new() -> Self {
        Self { used: 0 }
    }

    /// Maps a 4 KiB page and a 2 MiB page, checks that both are the memory of their frames, and removes them and their
    /// page tables. Returns the number of pages, or `None` if there was no frame.
    pub(crate) fn use_pages(&mut self, allocator: &Allocator<'static, Kernel>) -> Option<u64> {
        assert!(self.used < STEPS, "the area has no addresses left");
        let start = VirtAddr::new(START + self.used * STEP);
        self.used += 1;
        // SAFETY: only this function frees the frames that it allocates.
        let mut frames =
            unsafe { TableFrames::new(allocator, Request::page().no_wait()) }.expect("frames of 4 KiB");
        let root = Cr3::read().0.start_address().as_u64() as *mut PageTable;
        // SAFETY: physical memory is mapped to the same addresses. Interrupts are off, and no other code changes the
        // tables of the area.
        let mut table = unsafe { OffsetPageTable::new(&mut *root, VirtAddr::zero()) };
        let large = Page::<Size2MiB>::containing_address(start);
        let small = Page::<Size4KiB>::containing_address(start + STEP / 2);
        let done = check_page(&mut table, &mut frames, large)
            .and_then(|()| check_page(&mut table, &mut frames, small));
        let last = Page::containing_address(start + (STEP - 1));
        let range = PageRangeInclusive { start: Page::containing_address(start), end: last };
        // SAFETY: the tables of the area belong to it alone, and nothing in the range is mapped any more.
        unsafe { table.clean_up_addr_range(range, &mut frames) };
        assert!(frames.refused().is_none(), "a frame of a page table was refused: {:?}", frames.refused());
        done.map(|()| 2)
    }
}

/// Maps a page, checks it, and unmaps it again. Returns `None` if there was no frame.
fn check_page<'t, S: PageSize + core::fmt::Debug>(
    table: &mut OffsetPageTable<'t>,
    frames: &mut TableFrames<'_, 'static, Kernel>,
    page: Page<S>,
) -> Option<()>
where
    OffsetPageTable<'t>: Mapper<S>,
{
    let frame = FrameAllocator::<S>::allocate_frame(frames)?;
    let range = FrameRange {
        start: Pfn::new(frame.start_address().as_u64() / FRAME_BYTES),
        count: PageCount::new(S::SIZE / FRAME_BYTES),
    };
    owners::claim_unstamped(range, None, owners::MAPPED);
    let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::NO_EXECUTE;
    // SAFETY: the frame was just allocated, so nothing else uses it.
    let mapped = match unsafe { table.map_to(page, frame, flags, frames) } {
        Ok(flush) => {
            flush.flush();
            true
        }
        Err(MapToError::FrameAllocationFailed) => false,
        Err(error) => panic!("{page:?} cannot be mapped: {error:?}"),
    };
    if mapped {
        for at in [0, S::SIZE - 8] {
            let stamp = page.start_address().as_u64() + at;
            let physical = (frame.start_address().as_u64() + at) as *const u64;
            // SAFETY: both addresses are of the same memory, which belongs to this function.
            let seen = unsafe {
                (stamp as *mut u64).write_volatile(stamp);
                physical.read_volatile()
            };
            assert!(seen == stamp, "the page {page:?} is not the memory of {frame:?}");
        }
        let (unmapped, flush) = table.unmap(page).expect("the page is mapped");
        flush.flush();
        assert!(unmapped == frame, "the page {page:?} had another frame");
    }
    owners::release_unstamped(range, owners::MAPPED);
    // SAFETY: nothing maps the frame any more.
    unsafe { frames.deallocate_frame(frame) };
    mapped.then_some(())
}
