//! The adapter to the page allocator of `ax-allocator`.
// `docs/adapters.md` shows the rest of this file.
use ax_allocator::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use zonal::error::OnlineError;
use zonal::machine::FrameRange;
use zonal::platform::Platform;
use zonal::request::PageKind;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Request};

/// Pages of 4 KiB by their addresses. The machine describes its memory as hot-pluggable, and `add_memory` brings it online.
pub struct Pages<'a, 'm, P: Platform>(pub &'a Allocator<'m, P>);

const PAGE_BYTES: usize = 4096;

fn range(start: usize, pages: usize) -> FrameRange {
    FrameRange { start: Pfn::new((start / PAGE_BYTES) as u64), count: PageCount::new(pages as u64) }
}

impl<P: Platform> BaseAllocator for Pages<'_, '_, P> {
    fn init(&mut self, start: usize, size: usize) {
        self.add_memory(start, size).expect("the machine describes its first memory");
    }

    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult {
        // Parts of pages at both ends are not used.
        let (first, end) = (start.next_multiple_of(PAGE_BYTES), (start + size) / PAGE_BYTES * PAGE_BYTES);
        let added = self.0.online_memory(range(first, end.saturating_sub(first) / PAGE_BYTES));
        added.map_err(|error| match error {
            OnlineError::AlreadyOnline(_) => AllocError::MemoryOverlap,
            _ => AllocError::InvalidParam,
        })
    }
}

impl<P: Platform> PageAllocator for Pages<'_, '_, P> {
    const PAGE_SIZE: usize = PAGE_BYTES;

    fn alloc_pages(&mut self, num_pages: usize, align: usize) -> AllocResult<usize> {
        let aligned = align.is_power_of_two() && align >= PAGE_BYTES;
        let order = Order::holding(PageCount::new((align / PAGE_BYTES) as u64)).filter(|_| aligned);
        let request = Request::new(order.ok_or(AllocError::InvalidParam)?).kind(PageKind::Kernel);
        let count = PageCount::new(num_pages as u64);
        let run = match count <= self.0.max_order().pages() {
            true => self.0.alloc_frames(&request, count),
            false => self.0.alloc_contiguous(&request, count),
        };
        run.map(|run| run.range.start.get() as usize * PAGE_BYTES).map_err(|_| AllocError::NoMemory)
    }

    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        let run = range(pos, num_pages);
        // The trait reports no errors, and a refusal changes nothing.
        if let Err(error) = self.0.free_frames(run.start, run.count) {
            debug_assert!(false, "{error}");
        }
    }

    fn alloc_pages_at(&mut self, base: usize, num_pages: usize, align: usize) -> AllocResult<usize> {
        if !align.is_power_of_two() || align < PAGE_BYTES || !base.is_multiple_of(align) {
            return Err(AllocError::InvalidParam);
        }
        let run = self.0.alloc_range(range(base, num_pages), PageKind::Kernel);
        run.map(|_| base).map_err(|_| AllocError::NoMemory)
    }

    fn total_pages(&self) -> usize {
        self.0.accounting().managed.get() as usize
    }

    fn used_pages(&self) -> usize {
        self.0.accounting().allocated.get() as usize
    }

    fn available_pages(&self) -> usize {
        self.total_pages() - self.used_pages()
    }
}
