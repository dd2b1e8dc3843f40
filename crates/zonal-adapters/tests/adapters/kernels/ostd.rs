//! The adapter to the frame allocator of `ostd`.
use super::stand_in as ostd;
// `docs/adapters.md` shows the rest of this file.
use core::alloc::Layout;

use ostd::mm::Paddr;
use ostd::mm::frame::GlobalFrameAllocator;
use zonal::machine::FrameRange;
use zonal::platform::Platform;
use zonal::request::PageKind;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Request};

/// The frames of a kernel built on ostd. The machine describes its memory as hot-pluggable, because ostd adds it later.
pub struct Frames<'m, P: Platform>(pub Allocator<'m, P>);

const FRAME_BYTES: usize = 4096;

fn range(start: Paddr, size: usize) -> FrameRange {
    let count = PageCount::new((size / FRAME_BYTES) as u64);
    FrameRange { start: Pfn::new((start / FRAME_BYTES) as u64), count }
}

impl<P: Platform> GlobalFrameAllocator for Frames<'_, P> {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let count = range(0, layout.size()).count;
        let order = Order::holding(range(0, layout.align().next_multiple_of(FRAME_BYTES)).count)?;
        let request = Request::new(order).kind(PageKind::Kernel);
        let run = match count <= self.0.max_order().pages() {
            true => self.0.alloc_frames(&request, count),
            false => self.0.alloc_contiguous(&request, count),
        };
        let first = run.ok()?.range.start;
        if count > Order::PAGE.pages() {
            // ostd frees the frames of one allocation in parts.
            self.0.split_frames(first, count, Order::PAGE).expect("the frames were allocated just now");
        }
        Some(first.get() as Paddr * FRAME_BYTES)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let run = range(addr, size);
        for frame in run.start.get()..run.end().get() {
            // The trait reports no errors, and a refusal changes nothing.
            if let Err(error) = self.0.free(Pfn::new(frame), Order::PAGE) {
                debug_assert!(false, "{error}");
            }
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        self.0.online_memory(range(addr, size)).expect("the machine describes this memory");
    }
}
