//! The type [`Frames`], which owns a block of frames, is a byte slice, and frees the block when it is dropped.
//!
//! Related files: `pool/handle.rs` creates values of this type. Each value holds a reference to the pool
//! (`pool/core_ref.rs`), so that the memory stays mapped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use zonal::request::Block;
use zonal::units::{NodeId, Order, PageCount, Pfn};

use super::core::PoolCore;
use super::core_ref::CoreRef;

/// A block of pool frames, readable and writable as bytes.
///
/// A new block may contain data of its previous owner, unless the request is for zeroed frames.
///
/// ```
/// use zonal_linux::{Frames, Order, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let mut frames: Frames = pool.alloc(&PoolRequest::new(Order::new(2).unwrap()))?;
/// frames.fill(7); // a `[u8]` of 16 KiB
/// println!("{} frames from {} on node {}", frames.count(), frames.first(), frames.node());
/// // Frames may be sent to other threads and outlive the pool's handles.
/// drop(pool);
/// std::thread::spawn(move || assert!(frames.iter().all(|&byte| byte == 7))).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Invariant: the block is allocated, and only this value may use or free it.
pub struct Frames<K: Deref<Target = PoolCore> = CoreRef> {
    pool: K,
    block: Block,
    start: NonNull<u8>,
}

/// [`Frames`] that borrow their pool.
///
/// They are a little cheaper to allocate and free than frames that share ownership of the pool, because no count of
/// references changes.
///
/// ```
/// use zonal_linux::{Lease, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let pages: Vec<Lease> = (0..8).map(|_| pool.lease(&PoolRequest::page())).collect::<Result<_, _>>()?;
/// assert_eq!(pool.accounting().allocated.get(), 8);
/// drop(pages); // before the pool
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Lease<'p> = Frames<&'p PoolCore>;

// SAFETY: this value exclusively owns the bytes of the block, as a `Box` owns its contents.
unsafe impl<K: Deref<Target = PoolCore> + Send> Send for Frames<K> {}
// SAFETY: through a shared reference, the bytes can only be read.
unsafe impl<K: Deref<Target = PoolCore> + Sync> Sync for Frames<K> {}

impl<K: Deref<Target = PoolCore>> Frames<K> {
    /// Takes ownership of an allocated block.
    ///
    /// # Safety
    /// `block` must be allocated from `pool`, and no other code may use or free it.
    #[inline(always)]
    pub(super) unsafe fn own(pool: K, block: Block) -> Self {
        let Some(start) = pool.memory().pointer_in(block.zone, block.first) else {
            pool.allocator().free(block.first, block.order).ok();
            no_memory(block.first, block.node)
        };
        Self { pool, block, start }
    }

    /// Returns the number of the first frame.
    #[must_use]
    pub const fn first(&self) -> Pfn {
        self.block.first
    }

    /// Returns the order of the block.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.block.order
    }

    /// Returns the number of frames.
    #[must_use]
    pub const fn count(&self) -> PageCount {
        self.block.order.pages()
    }

    /// Returns the node that the frames belong to.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.block.node
    }

    /// Returns the description of the block that the allocator returned.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }

    /// Returns the address of the first byte, for [`SharedFrames`](super::shared_frames::SharedFrames).
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.pool.memory().bytes(self.count())
    }

    /// Returns the address of the first byte, which is valid while this value exists.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the address of the first byte for writing, which is valid while this value exists.
    #[must_use]
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Releases ownership of the block without freeing it.
    ///
    /// The block stays allocated until it is passed to [`Pool::free_raw`](crate::Pool::free_raw), or to
    /// [`Pool::from_raw`](crate::Pool::from_raw), which returns a value that owns it again.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// let block = pool.alloc(&PoolRequest::page())?.into_raw(); // for a table that stores frame numbers
    /// // SAFETY: `into_raw` released the block just now, and no other code uses or frees it.
    /// let frames = unsafe { pool.from_raw(block) };
    /// assert_eq!(frames.first(), block.first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the block is lost when its number is"]
    pub fn into_raw(self) -> Block {
        let frames = ManuallyDrop::new(self);
        // SAFETY: `frames` is not used or dropped after this, so the reference to the pool is dropped once.
        drop(unsafe { std::ptr::read(&frames.pool) });
        frames.block
    }
}

#[cold]
pub(super) fn no_memory(first: Pfn, node: NodeId) -> ! {
    panic!(
        "frame {first} of node {node} is not mapped in this process: a child made by fork has no copy of this \
         pool's memory; build a pool in the child, or build the parent's pool of private memory without explicit huge \
         pages"
    )
}

impl<K: Deref<Target = PoolCore>> Deref for Frames<K> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.pool.memory().bytes(self.count());
        // SAFETY: the block is mapped, and the kernel initialized its bytes. `self` owns the block and is borrowed for
        // the lifetime of the slice, so no code writes to the bytes meanwhile.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }
}

impl<K: Deref<Target = PoolCore>> DerefMut for Frames<K> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.pool.memory().bytes(self.count());
        // SAFETY: the block is mapped, and the kernel initialized its bytes. `self` owns the block and is borrowed
        // mutably for the lifetime of the slice, so no other code accesses the bytes meanwhile.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl<K: Deref<Target = PoolCore>> Drop for Frames<K> {
    #[inline]
    fn drop(&mut self) {
        if self.pool.is_of_parent() {
            return;
        }
        let freed = self.pool.allocator().free(self.block.first, self.block.order);
        if let Err(error) = freed {
            // Freeing an owned block fails only after unsafe code, such as a call of `Pool::free_raw`, has violated its
            // safety contract, or after another process has freed the block.
            let is_possible = std::thread::panicking() || self.pool.members().is_some();
            assert!(is_possible, "a block owned by `Frames` could not be freed: {error}");
        }
    }
}

impl<K: Deref<Target = PoolCore>> fmt::Debug for Frames<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("block", &self.block).finish_non_exhaustive()
    }
}
