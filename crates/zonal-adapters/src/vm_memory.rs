//! Memory of virtual machines from a pool: regions for the crate `vm-memory`, on chosen nodes.
//!
//! A monitor builds a [`PoolMemory`] with [`guest_memory`] and uses it through the traits of `vm-memory`.

use std::vec::Vec;

use ::vm_memory::bitmap::{BS, Bitmap, NewBitmap};
use ::vm_memory::guest_memory::Result as AccessResult;
use ::vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use ::vm_memory::{
    FileOffset, GuestAddress, GuestMemoryRegion, GuestMemoryRegionBytes, GuestRegionCollection,
    GuestRegionCollectionError, GuestRegionMmap, GuestUsize, MemoryRegionAddress, VolatileSlice,
};
use zonal_linux::{
    AllocFailure, FrameBuffer, NodeId, NodeMask, Order, PageCount, PolicyError, Pool, PoolRequest,
};

/// Size of the huge pages to which regions are aligned if their size allows it.
const HUGE_BYTES: usize = 2 << 20;

/// The memory of a guest from one or more pools. It is the backend of `vm-memory`'s traits.
pub type PoolMemory<B = ()> = GuestRegionCollection<PoolRegion<B>>;

/// A region of a guest's memory that owns pool frames.
///
/// The frames are adjacent and zeroed at first. They are freed when the region is dropped, which is after the last
/// [`PoolMemory`] with the region. A region whose size is a multiple of 2 MiB is aligned to 2 MiB, so that huge pages can
/// back it.
///
/// ```
/// use vm_memory::{Bytes, GuestAddress, GuestMemoryRegion, MemoryRegionAddress};
/// use zonal_adapters::vm_memory::PoolRegion;
/// use zonal_linux::{Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let region = PoolRegion::<()>::new(&pool, &PoolRequest::page(), GuestAddress(0), 8 << 20)?;
/// drop(pool); // the region keeps the memory
/// region.write_obj(0x1234_u32, MemoryRegionAddress(0x1000))?;
/// assert_eq!(region.read_obj::<u32>(MemoryRegionAddress(0x1000))?, 0x1234);
/// assert_eq!(region.len(), 8 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Invariant: `region` is the memory of `frames`, which nothing else accesses.
#[derive(Debug)]
pub struct PoolRegion<B = ()> {
    region: GuestRegionMmap<B>,
    frames: FrameBuffer,
}

impl<B: NewBitmap> PoolRegion<B> {
    /// Allocates a region of `bytes` bytes at the guest's address `base`, as `request` says.
    ///
    /// The order of the request is ignored. The frames are zeroed whether or not the request says so.
    ///
    /// # Errors
    /// Returns an error if `bytes` is zero or not a multiple of the pool's frames, if the region would end beyond the last
    /// address, or if the pool has no such frames.
    pub fn new(
        pool: &Pool,
        request: &PoolRequest<'_>,
        base: GuestAddress,
        bytes: usize,
    ) -> Result<Self, RegionError> {
        let page_bytes = pool.page_bytes();
        if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            return Err(RegionError::Size { bytes, page_bytes });
        }
        if base.0.checked_add(bytes as u64).is_none() {
            return Err(RegionError::End { base: base.0, bytes });
        }
        Self::over(allocate(pool, request, bytes)?, base, None)
    }

    /// Allocates a region like [`new`](Self::new) in a pool with
    /// [`shared_memory`](zonal_linux::PoolBuilder::shared_memory), which other processes can map.
    ///
    /// [`file_offset`](GuestMemoryRegion::file_offset) returns the region's file and the offset of its first byte, for
    /// the processes of devices (vhost-user).
    ///
    /// ```
    /// use vm_memory::{GuestAddress, GuestMemoryRegion};
    /// use zonal_adapters::vm_memory::PoolRegion;
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).shared_memory().build()?;
    /// // SAFETY: the processes that get the file access only this region.
    /// let region = unsafe { PoolRegion::<()>::shared(&pool, &PoolRequest::page(), GuestAddress(0), 8 << 20) }?;
    /// let file = region.file_offset().expect("the pool has files");
    /// println!("map {:?} at {}", file.file(), file.start());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The obligations of [`Pool::memory_files`] apply to all users of the file.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new). Also returns an error if the pool has no files, or the kernel refuses a
    /// duplicate of the descriptor.
    pub unsafe fn shared(
        pool: &Pool,
        request: &PoolRequest<'_>,
        base: GuestAddress,
        bytes: usize,
    ) -> Result<Self, RegionError> {
        let Self { frames, .. } = Self::new(pool, request, base, bytes)?;
        // SAFETY: the caller guarantees that users of the file access only frames that they may.
        let files = unsafe { pool.memory_files() };
        let mut places = files.filter_map(|file| Some((file.offset_of(frames.first())?, file)));
        let (offset, file) = places.next().ok_or(RegionError::NoFile)?;
        let file = file.descriptor().try_clone_to_owned().map_err(RegionError::File)?;
        Self::over(frames, base, Some(FileOffset::new(file.into(), offset)))
    }

    /// Makes a region of frames, which `file` holds if it is given.
    fn over(frames: FrameBuffer, base: GuestAddress, file: Option<FileOffset>) -> Result<Self, RegionError> {
        let (start, bytes) = (frames.as_ptr().cast_mut(), frames.len());
        let kind = match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        let mut region = MmapRegionBuilder::new_with_bitmap(bytes, B::with_len(bytes))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(kind | libc::MAP_NORESERVE);
        if let Some(file) = file {
            region = region.with_file_offset(file);
        }
        // SAFETY: the frames are `bytes` bytes of a mapping that is readable and writable. `PoolRegion` keeps them at least
        // as long as the region: only unsafe methods and `into_permanent` separate the two.
        let region = unsafe { region.with_raw_mmap_pointer(start) }.build()?;
        match GuestRegionMmap::new(region, base) {
            Some(region) => Ok(Self { region, frames }),
            None => Err(RegionError::End { base: base.0, bytes }),
        }
    }
}

/// Allocates zeroed frames that hold `bytes` bytes.
fn allocate(pool: &Pool, request: &PoolRequest<'_>, bytes: usize) -> Result<FrameBuffer, AllocFailure> {
    let count = PageCount::new((bytes / pool.page_bytes()) as u64);
    let huge = pool.order_holding(HUGE_BYTES).filter(|_| bytes.is_multiple_of(HUGE_BYTES));
    let request = request.with_order(huge.unwrap_or(Order::PAGE)).zeroed();
    match pool.order_holding(bytes) {
        Some(_) => pool.alloc_frames(&request, count),
        None => pool.alloc_contiguous(&request, count),
    }
}

impl<B> PoolRegion<B> {
    /// Returns the node that the frames of the region belong to.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.frames.node()
    }

    /// Returns the region as the type that `vm-memory` itself maps, for interfaces that require it.
    ///
    /// # Safety
    /// A clone of the mapping ([`GuestRegionMmap::get_mmap`]) must not be used after this region is dropped.
    #[must_use]
    pub const unsafe fn as_mmap(&self) -> &GuestRegionMmap<B> {
        &self.region
    }

    /// Makes the region permanent and returns it as the type that `vm-memory` itself maps.
    ///
    /// The pool then never gets the frames back, and its memory stays mapped until the process ends. For monitors of one
    /// guest that end with it, and whose interfaces require a [`GuestRegionMmap`].
    #[must_use]
    pub fn into_permanent(self) -> GuestRegionMmap<B> {
        let Self { region, frames } = self;
        std::mem::forget(frames);
        region
    }
}

impl<B: Bitmap> GuestMemoryRegion for PoolRegion<B> {
    type B = B;

    fn len(&self) -> GuestUsize {
        GuestMemoryRegion::len(&self.region)
    }

    fn start_addr(&self) -> GuestAddress {
        self.region.start_addr()
    }

    fn bitmap(&self) -> BS<'_, B> {
        GuestMemoryRegion::bitmap(&self.region)
    }

    fn get_host_address(&self, addr: MemoryRegionAddress) -> AccessResult<*mut u8> {
        self.region.get_host_address(addr)
    }

    fn file_offset(&self) -> Option<&FileOffset> {
        GuestMemoryRegion::file_offset(&self.region)
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> AccessResult<VolatileSlice<'_, BS<'_, B>>> {
        self.region.get_slice(offset, count)
    }
}

impl<B: Bitmap> GuestMemoryRegionBytes for PoolRegion<B> {}

/// Where a region of a guest's memory begins, how large it is, and which node its frames come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionPlan {
    /// First address of the region in the guest.
    pub base: GuestAddress,
    /// Size in bytes, a multiple of the pool's frames.
    pub bytes: usize,
    /// The only node that may serve the region, or `None` for the node of the calling CPU and its fallback order.
    pub node: Option<NodeId>,
}

/// Allocates the memory of a guest from a pool, with regions on chosen nodes.
///
/// The regions must ascend and must not overlap. If one of them cannot be allocated, none is.
///
/// ```
/// use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};
/// use zonal_adapters::vm_memory::{PoolMemory, RegionPlan, guest_memory};
/// use zonal_linux::{NodeId, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(128 << 20).fake_nodes(2).build()?;
/// let plan = |base, node| RegionPlan { base: GuestAddress(base), bytes: 16 << 20, node: NodeId::new(node) };
/// let guest: PoolMemory = guest_memory(&pool, &PoolRequest::page(), &[plan(0, 0), plan(4 << 30, 1)])?;
/// assert_eq!(guest.iter().map(|region| region.node().get()).collect::<Vec<_>>(), [0, 1]);
/// guest.write_slice(b"kernel", GuestAddress((4 << 30) + 0x1000))?;
/// drop(guest); // frees the frames
/// assert_eq!(pool.accounting().allocated.get(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`PoolRegion::new`]. Also returns an error if a node has no memory in the pool, and if regions are
/// missing, overlap or do not ascend.
pub fn guest_memory<B: NewBitmap>(
    pool: &Pool,
    request: &PoolRequest<'_>,
    plans: &[RegionPlan],
) -> Result<PoolMemory<B>, RegionError> {
    let regions = plans.iter().map(|plan| match plan.node {
        Some(node) => {
            let policy = pool.bind(NodeMask::from_iter([node]))?;
            PoolRegion::new(pool, &request.policy(&policy), plan.base, plan.bytes)
        }
        None => PoolRegion::new(pool, request, plan.base, plan.bytes),
    });
    Ok(PoolMemory::from_regions(regions.collect::<Result<Vec<_>, _>>()?)?)
}

/// Why the memory of a guest could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The size is zero or not a multiple of the pool's frames.
    #[error("a region of {bytes} bytes; the size must be a multiple of {page_bytes} bytes, and not zero")]
    Size {
        /// The size of the region.
        bytes: usize,
        /// The size of the pool's frames.
        page_bytes: usize,
    },
    /// The region would end beyond the last address.
    #[error("a region of {bytes} bytes at {base:#x} ends beyond the last address, {:#x}", u64::MAX)]
    End {
        /// First address of the region in the guest.
        base: u64,
        /// The size of the region.
        bytes: usize,
    },
    /// The pool has no such frames.
    #[error(transparent)]
    Frames(#[from] AllocFailure),
    /// A plan names a node without memory.
    #[error(transparent)]
    Node(#[from] PolicyError),
    /// The kernel's pages are larger than the pool's frames.
    #[error("the frames of the pool are not aligned to the pages of the kernel: {0}")]
    Alignment(#[from] MmapRegionError),
    /// The memory of the pool is in no files.
    #[error("the pool has no files that processes can share; build it with `shared_memory`")]
    NoFile,
    /// The descriptor of the pool's file could not be duplicated.
    #[error("the descriptor of the pool's file could not be duplicated: {0}")]
    File(std::io::Error),
    /// Regions are missing, overlap or do not ascend.
    #[error("{0}")]
    Regions(#[from] GuestRegionCollectionError),
}
