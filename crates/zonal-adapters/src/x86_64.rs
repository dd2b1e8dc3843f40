//! Frames for the page tables of the crate `x86_64`.
//!
//! [`TableFrames`] allocates the frames of page tables and the frames that they map, of 4 KiB, 2 MiB and 1 GiB.

use core::fmt;

use ::x86_64::PhysAddr;
use ::x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame};
use zonal::error::FreeError;
use zonal::platform::Platform;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Request};

/// Size of a frame in bytes: that of the smallest page.
const FRAME_BYTES: u64 = 4096;

/// Frames of an allocator for the crate `x86_64`, of all its page sizes.
///
/// Frame `n` of the allocator is the physical memory from address `n * 4096`. Each frame is allocated as the request
/// says: with its policy, zone limit, address limit and zeroing. The order of the request is ignored, because the page
/// size determines it. Frames of 1 GiB need a [`max_order`](zonal::Config::max_order) of 18.
///
/// Values are cheap to create. A kernel can use one for page tables and another one, with another request, for what the
/// tables map.
///
/// ```
/// # use std::mem::MaybeUninit;
/// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
/// # use zonal::platform::one_thread::OneThread;
/// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
/// # use zonal::{Allocator, Buffer, Config, Machine, Request};
/// use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PhysFrame, Size2MiB, Size4KiB};
/// use zonal_adapters::x86_64::TableFrames;
///
/// # let id = NodeId::new(0).unwrap();
/// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
/// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
/// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
/// # let machine = Machine::new(&nodes, &zones)?;
/// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
/// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
/// // SAFETY: all other code frees only frames that it has allocated itself.
/// let mut frames = unsafe { TableFrames::new(&allocator, Request::page().no_wait()) }?;
/// let table: PhysFrame<Size4KiB> = frames.allocate_frame().ok_or("no frame of 4 KiB")?;
/// let huge: PhysFrame<Size2MiB> = frames.allocate_frame().ok_or("no frame of 2 MiB")?;
/// assert!(huge.start_address().is_aligned(2_u64 << 20));
/// // SAFETY: nothing maps the frames.
/// unsafe { frames.deallocate_frame(table) };
/// // SAFETY: as above.
/// unsafe { frames.deallocate_frame(huge) };
/// assert_eq!((allocator.accounting().allocated.get(), frames.refused()), (0, None));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct TableFrames<'a, 'm, P: Platform> {
    allocator: &'a Allocator<'m, P>,
    request: Request<'a>,
    refused: Option<FreeError>,
}

impl<'a, 'm, P: Platform> TableFrames<'a, 'm, P> {
    /// Creates a value that allocates frames from `allocator` as `request` says.
    ///
    /// # Safety
    /// While this value or a page table uses a frame of this value, no other code may free that frame.
    /// [`Allocator::free`] itself is safe to call, because the core never accesses the contents of frames.
    ///
    /// # Errors
    /// Returns an error if the frames of the allocator do not have 4096 bytes.
    pub unsafe fn new(allocator: &'a Allocator<'m, P>, request: Request<'a>) -> Result<Self, FrameSizeError> {
        match allocator.page_bytes() {
            bytes if u64::from(bytes) == FRAME_BYTES => Ok(Self { allocator, request, refused: None }),
            page_bytes => Err(FrameSizeError { page_bytes }),
        }
    }

    /// Returns the error of the first frame whose deallocation the allocator refused, if there is one.
    ///
    /// [`FrameDeallocator`] has no way to report errors. A refusal means that a frame was deallocated twice, or was not
    /// allocated from this allocator in this size. The allocator has not changed then.
    #[must_use]
    pub const fn refused(&self) -> Option<FreeError> {
        self.refused
    }
}

/// Returns the order of the blocks that have a page's size.
const fn order_of<S: PageSize>() -> Option<Order> {
    Order::holding(PageCount::new(S::SIZE / FRAME_BYTES))
}

// SAFETY: the allocator never returns a frame that is allocated, and `TableFrames::new` requires that no other code frees
// the frames that this value returns.
unsafe impl<S: PageSize, P: Platform> FrameAllocator<S> for TableFrames<'_, '_, P> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<S>> {
        let request = self.request.with_order(order_of::<S>()?);
        let block = self.allocator.alloc(&request).ok()?;
        let address = block.first.get().checked_mul(FRAME_BYTES).and_then(|at| PhysAddr::try_new(at).ok());
        let frame = address.and_then(|address| PhysFrame::from_start_address(address).ok());
        if frame.is_none() {
            // No page table can map a frame at such an address.
            self.refused = self.refused.or(self.allocator.free(block.first, block.order).err());
        }
        frame
    }
}

impl<S: PageSize, P: Platform> FrameDeallocator<S> for TableFrames<'_, '_, P> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<S>) {
        let first = Pfn::new(frame.start_address().as_u64() / FRAME_BYTES);
        let Some(order) = order_of::<S>() else { return };
        self.refused = self.refused.or(self.allocator.free(first, order).err());
    }
}

impl<P: Platform> fmt::Debug for TableFrames<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableFrames").field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// The allocator's frames do not have the size that page tables of x86-64 need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameSizeError {
    /// Size of the allocator's frames in bytes.
    pub page_bytes: u32,
}

impl fmt::Display for FrameSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frames have {} bytes; page tables of x86-64 need frames of 4096 bytes", self.page_bytes)
    }
}

impl core::error::Error for FrameSizeError {}
