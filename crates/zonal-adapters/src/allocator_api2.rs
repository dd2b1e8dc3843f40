//! Whole frames as memory for containers: the trait `Allocator` of the crate `allocator-api2`.
//!
//! Related files: `source.rs` defines where the frames come from.

use core::alloc::Layout;
use core::fmt;
use core::ptr::{self, NonNull};

use ::allocator_api2::alloc::{AllocError, Allocator};
use zonal::units::{Order, PageCount};
use zonal::{FrameRun, Request};

use crate::source::FrameSource;

/// Memory of whole frames for containers with an allocator parameter.
///
/// Each allocation is a run of adjacent frames, so that 12 KiB and a byte cost four frames of 4 KiB. This suits few and large
/// allocations, such as hash tables and long vectors. A container can use what is left of the last frame.
///
/// Each run is allocated as the request says: with its policy, allowed nodes, zone limit, urgency and address limit. The
/// order of the request is ignored. Layouts may have any size, and any alignment up to the largest block. Runs larger
/// than the largest block are searched for in all free frames, which is slower. A container whose frames number the
/// same after it grew or shrank stays where it is.
///
/// Unless the request is [`no_wait`](Request::no_wait), an allocation may call reclaimers.
///
/// ```
/// use hashbrown::{DefaultHashBuilder, HashMap};
/// use zonal_adapters::allocator_api2::PageAlloc;
/// use zonal_linux::{Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let mut map = HashMap::new_in(PageAlloc::new(&pool, PoolRequest::page()));
/// map.extend((0..10_000_u64).map(|number| (number, number * number)));
/// assert_eq!(map[&99], 9801);
/// assert!(pool.accounting().allocated.get() > 0);
/// drop(map);
/// assert_eq!(pool.accounting().allocated.get(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a kernel, the frames are those of its allocator, at the addresses where it maps physical memory:
///
/// ```
/// # use std::mem::MaybeUninit;
/// # use std::ptr::NonNull;
/// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
/// # use zonal::platform::one_thread::OneThread;
/// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
/// # use zonal::{Allocator, Buffer, Config, Machine, Request};
/// use allocator_api2::vec::Vec;
/// use zonal_adapters::{allocator_api2::PageAlloc, source::DirectMap};
///
/// # let id = NodeId::new(0).unwrap();
/// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x800) };
/// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
/// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
/// # let machine = Machine::new(&nodes, &zones)?;
/// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
/// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
/// # #[repr(align(4096))]
/// # struct Frame(#[allow(dead_code)] [u8; 4096]);
/// # let physical = Box::leak((0..0x800).map(|_| Frame([0; 4096])).collect::<Box<[Frame]>>());
/// # let direct_map = NonNull::from(physical).cast::<u8>();
/// // SAFETY: `direct_map` maps the frames of `memory`, and all code frees only frames that it has allocated.
/// let frames = unsafe { DirectMap::new(&allocator, memory, direct_map) };
/// let mut list = Vec::new_in(PageAlloc::new(frames, Request::page()));
/// list.extend(0..5000_u32); // 20 000 bytes
/// assert_eq!(allocator.accounting().allocated.get(), 5);
/// # drop(list);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Panics
/// Deallocation panics if the source refuses to free the frames. This happens after unsafe code has violated its safety
/// contract, and in handlers that interrupted the allocator on the same CPU. Such handlers must not use containers. A shared
/// pool does not refuse, because another process may have freed the frames.
#[derive(Clone, Copy)]
pub struct PageAlloc<'r, S> {
    source: S,
    request: Request<'r>,
}

impl<'r, S: FrameSource> PageAlloc<'r, S> {
    /// Creates an allocator for containers that allocates frames from `source` as `request` says.
    pub const fn new(source: S, request: Request<'r>) -> Self {
        Self { source, request }
    }

    /// Returns the source of the frames.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the number of frames that hold `bytes`.
    fn frames(&self, bytes: usize) -> PageCount {
        PageCount::new(bytes.div_ceil(self.source.page_bytes()) as u64)
    }

    /// Returns the bytes of `count` frames from an address.
    fn bytes(&self, start: NonNull<u8>, count: PageCount) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(start, count.get() as usize * self.source.page_bytes())
    }

    /// Returns the address of a new run, if all of it is mapped and aligned as `layout` says.
    fn start_of(&self, run: &FrameRun, layout: Layout) -> Option<NonNull<u8>> {
        let last = run.range.start.plus(run.range.count.saturating_minus(PageCount::new(1)));
        self.source.address_of(last)?;
        self.source.address_of(run.range.start).filter(|&start| is_aligned(start, layout))
    }

    /// Returns the bytes of a block if it can stay where it is when its layout changes.
    fn in_place(&self, start: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<[u8]>> {
        let count = self.frames(new.size());
        let stays = count == self.frames(old.size()) && count != PageCount::ZERO && is_aligned(start, new);
        stays.then(|| self.bytes(start, count))
    }

    /// Moves the first `bytes` bytes of a block to a new block, and frees the old one.
    ///
    /// # Safety
    /// The block must be allocated with `old`, and have at least `bytes` bytes. So must `new`, which must not overlap it.
    unsafe fn move_to(&self, start: NonNull<u8>, old: Layout, new: NonNull<[u8]>, bytes: usize) {
        // SAFETY: the caller guarantees that both blocks have so many bytes and do not overlap.
        unsafe { start.copy_to_nonoverlapping(new.cast(), bytes) };
        // SAFETY: the caller guarantees that the block is allocated with this layout. It is not used after this.
        unsafe { self.deallocate(start, old) };
    }
}

fn is_aligned(start: NonNull<u8>, layout: Layout) -> bool {
    start.addr().get().is_multiple_of(layout.align())
}

/// Returns the block of zero bytes for a layout.
fn no_bytes(layout: Layout) -> NonNull<[u8]> {
    let start = NonNull::new(ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling());
    NonNull::slice_from_raw_parts(start, 0)
}

/// Fills the bytes of a block from `from` on with zeroes.
///
/// # Safety
/// The block must be valid for writes, and have at least `from` bytes.
unsafe fn zero_from(block: NonNull<[u8]>, from: usize) {
    // SAFETY: the caller guarantees that the block has so many bytes.
    let start = unsafe { block.cast::<u8>().add(from) };
    // SAFETY: the caller guarantees that the rest of the block is valid for writes.
    unsafe { start.write_bytes(0, block.len() - from) };
}

// SAFETY: a source returns frames that no other code uses until they are freed, at addresses that stay valid while the
// source or a clone of it exists. Clones of this value clone the source. The number of frames follows from every size
// that fits a block, so `deallocate` frees exactly what was allocated.
unsafe impl<S: FrameSource> Allocator for PageAlloc<'_, S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(no_bytes(layout));
        }
        let count = self.frames(layout.size());
        let order = Order::holding(self.frames(layout.align())).ok_or(AllocError)?;
        let request = self.request.with_order(order);
        let run = self.source.alloc(&request, count).map_err(|_| AllocError)?;
        if let Some(start) = self.start_of(&run, layout) {
            return Ok(self.bytes(start, count));
        }
        // SAFETY: the run was allocated just now, and no code has seen it.
        let freed = unsafe { self.source.free(run.range.start, run.range.count) };
        debug_assert!(freed.is_ok(), "a new run could not be freed: {freed:?}");
        Err(AllocError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = self.allocate(layout)?;
        // SAFETY: the block was allocated just now, and this writes all of it.
        unsafe { zero_from(block, 0) };
        Ok(block)
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        let first = self.source.frame_at(ptr).expect("the address is of a frame of this source");
        // SAFETY: the caller guarantees that the block is allocated with a layout that fits `layout`. These layouts have
        // the same number of frames.
        let freed = unsafe { self.source.free(first, self.frames(layout.size())) };
        if let Err(error) = freed {
            panic!("the frames of a container could not be freed: {error}");
        }
    }

    unsafe fn grow(&self, ptr: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if let Some(block) = self.in_place(ptr, old, new) {
            return Ok(block);
        }
        let block = self.allocate(new)?;
        // SAFETY: the caller guarantees that the old block is allocated with `old`, which is not larger than `new`.
        unsafe { self.move_to(ptr, old, block, old.size()) };
        Ok(block)
    }

    unsafe fn grow_zeroed(
        &self,
        ptr: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller keeps the contract of `grow`, which is the same.
        let block = unsafe { self.grow(ptr, old, new) }?;
        // SAFETY: the block has at least as many bytes as `old`, and its owner has no references to it.
        unsafe { zero_from(block, old.size()) };
        Ok(block)
    }

    unsafe fn shrink(&self, ptr: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if let Some(block) = self.in_place(ptr, old, new) {
            return Ok(block);
        }
        let block = self.allocate(new)?;
        // SAFETY: the caller guarantees that the old block is allocated with `old`, which is not smaller than `new`.
        unsafe { self.move_to(ptr, old, block, new.size()) };
        Ok(block)
    }
}

impl<S: fmt::Debug> fmt::Debug for PageAlloc<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageAlloc").field("source", &self.source).finish_non_exhaustive()
    }
}
