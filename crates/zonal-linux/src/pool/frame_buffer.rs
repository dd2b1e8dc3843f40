//! The type [`FrameBuffer`], which owns any number of adjacent frames, and the methods of [`Pool`] that allocate them.
//!
//! Related files: `pool/frames.rs` owns blocks.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use zonal::FrameRun;
use zonal::error::{AllocError, FreeError, SplitError};
use zonal::machine::FrameRange;
use zonal::request::Block;
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneId};

use super::core_ref::CoreRef;
use super::failure::AllocFailure;
use super::frames::Frames;
use super::handle::Pool;
use super::request::PoolRequest;

/// Any number of adjacent pool frames, readable and writable as bytes, which are freed when this is dropped.
///
/// The frames may contain data of a previous owner, unless the request is for zeroed frames.
///
/// ```
/// use zonal_linux::{FrameBuffer, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let mut buffer: FrameBuffer = pool.alloc_bytes(&PoolRequest::page().zeroed(), 12 << 10)?;
/// assert_eq!((buffer.len(), buffer.count().get()), (12 << 10, 3)); // three frames, not four
/// buffer[..5].copy_from_slice(b"hello");
/// assert_eq!(pool.accounting().allocated.get(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Invariant: the frames are allocated together, and only this value may use or free them.
pub struct FrameBuffer {
    pool: CoreRef,
    run: FrameRun,
    start: NonNull<u8>,
}

// SAFETY: this value exclusively owns the bytes of its frames, as a `Box` owns its contents.
unsafe impl Send for FrameBuffer {}
// SAFETY: through a shared reference, the bytes can only be read.
unsafe impl Sync for FrameBuffer {}

impl FrameBuffer {
    /// Returns the number of the first frame.
    #[must_use]
    pub const fn first(&self) -> Pfn {
        self.run.range.start
    }

    /// Returns the number of frames.
    #[must_use]
    pub const fn count(&self) -> PageCount {
        self.run.range.count
    }

    /// Returns the node that the frames belong to.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.run.node
    }

    /// Returns the address of the first byte, which is valid while this value exists.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Splits the frames into single frames, each of which is freed when it is dropped. Keeps the contents.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let mut pages = pool.alloc_bytes(&PoolRequest::page(), 5 << 12)?.into_pages();
    /// pages.truncate(2); // frees three of five frames
    /// assert_eq!(pool.accounting().allocated.get(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn into_pages(self) -> Vec<Frames> {
        let buffer = ManuallyDrop::new(self);
        // SAFETY: `buffer` is not used as a whole or dropped after this, so the reference to the pool is dropped once.
        let pool = unsafe { std::ptr::read(&buffer.pool) };
        let FrameRun { range, zone, node } = buffer.run;
        match pool.allocator().split_frames(range.start, range.count, Order::PAGE) {
            Ok(()) | Err(SplitError::NotLower { .. }) => {} // a single frame is not split
            Err(error) => panic!("frames owned by a `FrameBuffer` could not be split: {error}"),
        }
        let pages = (0..range.count.get()).map(|at| {
            let first = range.start.plus(PageCount::new(at));
            let block = Block { first, order: Order::PAGE, zone, node };
            // SAFETY: the frame is an allocated block since the split, and the buffer, which owned it, is forgotten.
            unsafe { Frames::own(pool.clone(), block) }
        });
        pages.collect()
    }

    /// Releases the frames without freeing them, and returns which they are.
    ///
    /// They stay allocated until they are passed to [`Pool::free_frames_raw`], or to [`Pool::own_frames_raw`], which returns a
    /// value that owns them again.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// let run = pool.alloc_bytes(&PoolRequest::page(), 5 << 12)?.into_raw();
    /// // SAFETY: `into_raw` released the frames just now, and no other code uses or frees them.
    /// let buffer = unsafe { pool.own_frames_raw(run.range.start, run.range.count) };
    /// assert_eq!((buffer.first(), buffer.count()), (run.range.start, run.range.count));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the frames are lost when their numbers are"]
    pub fn into_raw(self) -> FrameRun {
        let buffer = ManuallyDrop::new(self);
        // SAFETY: `buffer` is not used or dropped after this, so the reference to the pool is dropped once.
        drop(unsafe { std::ptr::read(&buffer.pool) });
        buffer.run
    }
}

impl Deref for FrameBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.pool.memory().bytes(self.count());
        // SAFETY: the frames are mapped, adjacent, and initialized by the kernel. `self` owns them and is borrowed for
        // the lifetime of the slice, so no code writes to the bytes meanwhile.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }
}

impl DerefMut for FrameBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.pool.memory().bytes(self.count());
        // SAFETY: as in `deref`; `self` is borrowed mutably, so no other code accesses the bytes meanwhile.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        if self.pool.is_of_parent() {
            return;
        }
        if let Err(error) = self.pool.allocator().free_frames(self.first(), self.count()) {
            // Freeing owned frames fails only after unsafe code has violated its safety contract, or after another process has
            // freed them.
            let is_possible = std::thread::panicking() || self.pool.members().is_some();
            assert!(is_possible, "frames owned by a `FrameBuffer` could not be freed: {error}");
        }
    }
}

impl fmt::Debug for FrameBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameBuffer").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Pool {
    /// Allocates `count` adjacent frames, which need not be a power of two; see [`FrameBuffer`].
    ///
    /// The first frame is aligned to the order of the request. Other properties of the request apply as for
    /// [`Pool::alloc`]. At most a block of the largest order can be allocated (4 MiB by default).
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`], and [`AllocError::Count`] for no frames or too many.
    pub fn alloc_frames(
        &self,
        request: &PoolRequest<'_>,
        count: PageCount,
    ) -> Result<FrameBuffer, AllocFailure> {
        self.own_run(request, self.core.allocator().alloc_frames(request, count))
    }

    /// Allocates the adjacent frames that hold `bytes`; see [`Pool::alloc_frames`].
    ///
    /// # Errors
    /// The errors of [`Pool::alloc_frames`].
    pub fn alloc_bytes(&self, request: &PoolRequest<'_>, bytes: usize) -> Result<FrameBuffer, AllocFailure> {
        self.alloc_frames(request, PageCount::new(bytes.div_ceil(self.page_bytes()) as u64))
    }

    /// Allocates `count` adjacent frames that may be more than the largest block.
    ///
    /// Searches the zones of the pool for free frames, drains pagesets, and calls the reclaimers for ranges with few
    /// used frames. Slower than [`Pool::alloc_frames`].
    ///
    /// ```
    /// use zonal_linux::{PageCount, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(256 << 20).build()?;
    /// let ring = pool.alloc_contiguous(&PoolRequest::page(), PageCount::new((48 << 20) / 4096))?;
    /// assert_eq!(ring.len(), 48 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`], and [`AllocError::Count`] for no frames.
    pub fn alloc_contiguous(
        &self,
        request: &PoolRequest<'_>,
        count: PageCount,
    ) -> Result<FrameBuffer, AllocFailure> {
        self.own_run(request, self.core.allocator().alloc_contiguous(request, count))
    }

    /// Allocates `count` adjacent frames as [`Pool::alloc_frames`], without an owner; see [`Pool::alloc_raw`].
    ///
    /// # Errors
    /// The errors of [`Pool::alloc_frames`], without the state of each zone.
    pub fn alloc_frames_raw(
        &self,
        request: &PoolRequest<'_>,
        count: PageCount,
    ) -> Result<FrameRun, AllocError> {
        self.core.allocator().alloc_frames(request, count)
    }

    /// Frees raw frames that were allocated together.
    ///
    /// # Safety
    /// No [`FrameBuffer`] or [`Frames`] may own any of the frames, as for [`Pool::free_raw`].
    ///
    /// # Errors
    /// When exactly these frames are not allocated together; see [`FreeError`]. Nothing is freed then.
    pub unsafe fn free_frames_raw(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        self.core.allocator().free_frames(first, count)
    }

    /// Splits raw frames that were allocated together into blocks of at most `order`, each of which is then freed on its
    /// own.
    ///
    /// # Safety
    /// As for [`Pool::free_frames_raw`].
    ///
    /// # Errors
    /// When exactly these frames are not allocated together, or are a block of at most `order`; see [`SplitError`].
    /// Nothing has changed then.
    pub unsafe fn split_frames_raw(
        &self,
        first: Pfn,
        count: PageCount,
        order: Order,
    ) -> Result<(), SplitError> {
        self.core.allocator().split_frames(first, count, order)
    }

    /// Takes ownership of raw frames that were allocated together.
    ///
    /// # Safety
    /// Exactly these frames must be allocated together in this pool, and no other code may use or free them. In a shared pool,
    /// another process may have allocated them ([`Pool::take_over`]).
    ///
    /// # Panics
    /// When the frames do not belong to this pool.
    #[must_use]
    pub unsafe fn own_frames_raw(&self, first: Pfn, count: PageCount) -> FrameBuffer {
        let has_it =
            |range: &FrameRange| first.offset_from(range.start).is_some_and(|offset| offset < range.count);
        let zones = self.core.memory().zones();
        let index = zones.iter().position(|zone| has_it(&zone.range)).expect("the pool has the frames");
        let (zone, node) = (ZoneId::new(index).expect("it is a zone"), zones[index].node);
        let run = FrameRun { range: FrameRange { start: first, count }, zone, node };
        let start =
            self.core.memory().pointer(first).unwrap_or_else(|| super::frames::no_memory(first, node));
        FrameBuffer { pool: self.core_ref(), run, start }
    }

    /// Takes ownership of a new run.
    fn own_run(
        &self,
        request: &PoolRequest<'_>,
        run: Result<FrameRun, AllocError>,
    ) -> Result<FrameBuffer, AllocFailure> {
        let allocator = self.core.allocator();
        let run = run.map_err(|error| {
            let order =
                if let AllocError::OutOfMemory(shortage) = error { shortage.order } else { Order::PAGE };
            let failure = AllocFailure::new(allocator, &request.with_order(order), error);
            self.report_refused(request, &failure);
            failure
        })?;
        let Some(start) = self.core.memory().pointer(run.range.start) else {
            allocator.free_frames(run.range.start, run.range.count).ok();
            super::frames::no_memory(run.range.start, run.node)
        };
        Ok(FrameBuffer { pool: self.core_ref(), run, start })
    }
}
