//! Sources of frames that this program can access: an allocator whose memory is mapped, or a pool.
//!
//! Related files: `allocator_api2.rs` allocates bytes from a source.

use core::fmt;
use core::ptr::NonNull;

use zonal::error::{AllocError, FreeError};
use zonal::machine::FrameRange;
use zonal::platform::Platform;
use zonal::units::{PageCount, Pfn};
use zonal::{Allocator, FrameRun, Request};

/// A source of frames whose contents this program can access.
///
/// # Safety
/// The frames that [`FrameSource::alloc`] returns must not be allocated already. As long as they are allocated and the
/// source or a clone of it exists, no other code may free them or access their contents.
///
/// All addresses that [`FrameSource::address_of`] returns must be valid for reads and writes of one frame, be aligned to
/// the size of a frame, and stay the same. The addresses of adjacent frames in one run must be adjacent.
pub unsafe trait FrameSource {
    /// Returns the size of a frame in bytes, which is a power of two.
    fn page_bytes(&self) -> usize;

    /// Allocates `count` adjacent frames, which may be more than the largest block, aligned to the order of `request`.
    ///
    /// # Errors
    /// When no allowed zone can serve the request; see [`Allocator::alloc_frames`] and
    /// [`Allocator::alloc_contiguous`].
    fn alloc(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError>;

    /// Frees frames that were allocated together.
    ///
    /// # Safety
    /// [`FrameSource::alloc`] must have returned exactly these frames, and nothing may use them any more.
    ///
    /// # Errors
    /// When the frames are not allocated together. Nothing is freed then.
    unsafe fn free(&self, first: Pfn, count: PageCount) -> Result<(), FreeError>;

    /// Returns the address of a frame, or `None` if the frame is not mapped.
    fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>>;

    /// Returns the frame that contains an address, or `None` for an address that belongs to no frame.
    fn frame_at(&self, address: NonNull<u8>) -> Option<Pfn>;
}

// SAFETY: the reference has the same frames as the source.
unsafe impl<S: FrameSource + ?Sized> FrameSource for &S {
    fn page_bytes(&self) -> usize {
        (**self).page_bytes()
    }

    fn alloc(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
        (**self).alloc(request, count)
    }

    unsafe fn free(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { (**self).free(first, count) }
    }

    fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        (**self).address_of(frame)
    }

    fn frame_at(&self, address: NonNull<u8>) -> Option<Pfn> {
        (**self).frame_at(address)
    }
}

fn alloc<P: Platform>(
    allocator: &Allocator<'_, P>,
    request: &Request<'_>,
    count: PageCount,
) -> Result<FrameRun, AllocError> {
    if count <= allocator.max_order().pages() {
        allocator.alloc_frames(request, count)
    } else {
        allocator.alloc_contiguous(request, count)
    }
}

/// An embedder's allocator together with the addresses at which its frames are mapped.
///
/// Most kernels map all physical memory at a constant offset, so that one value covers all frames. Frames outside the
/// mapped range are freed at once, and the request fails.
///
/// [`PageAlloc`](crate::allocator_api2::PageAlloc) has an example.
///
/// Invariant: `mapped.count` frames are mapped from `start`, in the order of their numbers.
pub struct DirectMap<'a, 'm, P: Platform> {
    allocator: &'a Allocator<'m, P>,
    mapped: FrameRange,
    start: NonNull<u8>,
}

impl<'a, 'm, P: Platform> DirectMap<'a, 'm, P> {
    /// Describes the frames of `allocator` that are mapped: those of `mapped`, from the address `start` on.
    ///
    /// # Safety
    /// - The memory of `mapped` must be mapped at `start` for reads and writes, in the order of the frames, for as long as
    ///   `'a`. `start` must be aligned to the size of a frame.
    /// - All users of `allocator` must free, and access the contents of, only frames that they have allocated themselves.
    ///   [`Allocator::free`] itself is safe to call, because the core never accesses the contents of frames.
    pub const unsafe fn new(allocator: &'a Allocator<'m, P>, mapped: FrameRange, start: NonNull<u8>) -> Self {
        Self { allocator, mapped, start }
    }
}

impl<P: Platform> Clone for DirectMap<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for DirectMap<'_, '_, P> {}

// SAFETY: the address belongs to no thread, and an allocator can be shared between threads.
unsafe impl<P: Platform> Send for DirectMap<'_, '_, P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Sync for DirectMap<'_, '_, P> {}

// SAFETY: the allocator never returns a frame that is allocated. `DirectMap::new` requires the rest.
unsafe impl<P: Platform> FrameSource for DirectMap<'_, '_, P> {
    fn page_bytes(&self) -> usize {
        self.allocator.page_bytes() as usize
    }

    fn alloc(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
        alloc(self.allocator, request, count)
    }

    unsafe fn free(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        self.allocator.free_frames(first, count)
    }

    fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        let offset = frame.offset_from(self.mapped.start).filter(|&offset| offset < self.mapped.count)?;
        let bytes = offset.get() as usize * self.page_bytes();
        NonNull::new(self.start.as_ptr().wrapping_add(bytes))
    }

    fn frame_at(&self, address: NonNull<u8>) -> Option<Pfn> {
        let bytes = address.addr().get().checked_sub(self.start.addr().get())?;
        let offset = PageCount::new((bytes / self.page_bytes()) as u64);
        (offset < self.mapped.count).then(|| self.mapped.start.plus(offset))
    }
}

impl<P: Platform> fmt::Debug for DirectMap<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DirectMap");
        shown.field("mapped", &self.mapped).field("start", &self.start).finish_non_exhaustive()
    }
}

#[cfg(feature = "linux")]
mod pool {
    use super::*;
    use zonal_linux::{LinuxPlatform, Pool};

    /// Returns the allocator of a pool.
    fn allocator(pool: &Pool) -> &Allocator<'static, LinuxPlatform> {
        // SAFETY: the functions below free only what the caller of `FrameSource::free` owns, and take no memory offline.
        unsafe { pool.allocator() }
    }

    /// In a child that `fork` made of a process in a shared pool, requests fail, and frames are not freed: they stay the parent's.
    // SAFETY: a pool never returns frames that are allocated, and its methods that free frames of others are unsafe. Its
    // memory stays mapped, readable and writable while the handle exists, and each zone is one mapping.
    unsafe impl FrameSource for Pool {
        fn page_bytes(&self) -> usize {
            self.page_bytes()
        }

        fn alloc(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
            if self.is_of_parent() {
                return Err(AllocError::NoNodeInPolicy);
            }
            alloc(allocator(self), request, count)
        }

        unsafe fn free(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
            if self.is_of_parent() {
                return Ok(());
            }
            match allocator(self).free_frames(first, count) {
                Err(error @ FreeError::Reentered(_)) => Err(error),
                // Another process may have freed the frames, as every process of a shared pool may.
                Err(_) if self.shared_file().is_some() => Ok(()),
                freed => freed,
            }
        }

        fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
            self.ptr_of(frame)
        }

        fn frame_at(&self, address: NonNull<u8>) -> Option<Pfn> {
            self.pfn_of(address.as_ptr())
        }
    }
}
