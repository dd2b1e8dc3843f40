//! Frames as memory: a block that is a byte slice while it is held, and freed when dropped.
//!
//! Neighbours: `handle.rs` hands these out; `core.rs` is what they keep alive.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use zonal::request::Block;
use zonal::units::{NodeId, Order, PageCount, Pfn};

use super::core::PoolCore;

/// A block of frames of a pool, readable and writable as bytes. New frames hold what was last in
/// them, unless the request asked for zeroed ones.
///
/// Invariant: the block is allocated, and this value alone may use or free it.
pub struct Frames<K: Deref<Target = PoolCore> = Arc<PoolCore>> {
    keeper: K,
    block: Block,
    start: NonNull<u8>,
}

/// [`Frames`] that borrow their pool: cheaper to take and to give back by the count of references.
pub type Lease<'p> = Frames<&'p PoolCore>;

// SAFETY: the block belongs to this value alone, as the bytes of a box do.
unsafe impl<K: Deref<Target = PoolCore> + Send> Send for Frames<K> {}
// SAFETY: shared access only reads the bytes.
unsafe impl<K: Deref<Target = PoolCore> + Sync> Sync for Frames<K> {}

impl<K: Deref<Target = PoolCore>> Frames<K> {
    /// Takes over an allocated block.
    ///
    /// # Safety
    /// `block` was allocated from the keeper's pool, and nobody else uses or frees it.
    pub(super) unsafe fn own(keeper: K, block: Block) -> Self {
        let Some(start) = keeper.memory().pointer(block.first) else {
            keeper.allocator().free(block.first, block.order).ok();
            no_memory(block)
        };
        Self { keeper, block, start }
    }

    /// First frame.
    #[must_use]
    pub const fn first(&self) -> Pfn {
        self.block.first
    }

    /// Order of the block.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.block.order
    }

    /// Number of frames.
    #[must_use]
    pub const fn count(&self) -> PageCount {
        self.block.order.pages()
    }

    /// Node whose memory this is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.block.node
    }

    /// The block as the allocator knows it.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }

    /// Address of the first byte, valid while this is held.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Address of the first byte for writing, valid while this is held.
    #[must_use]
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Gives up ownership: the block stays allocated until it is freed by
    /// [`Pool::free_raw`](crate::Pool::free_raw) or taken over again.
    #[must_use = "the block is lost when its number is"]
    pub fn into_raw(self) -> Block {
        let frames = ManuallyDrop::new(self);
        // SAFETY: `frames` is not used or dropped after this, so the keeper is dropped once.
        drop(unsafe { std::ptr::read(&frames.keeper) });
        frames.block
    }
}

#[cold]
fn no_memory(block: Block) -> ! {
    panic!(
        "frame {} of node {} is not memory of this process: a child made by fork has no copy of explicit huge \
         pages; build a pool in the child, or use another kind of pages",
        block.first, block.node
    )
}

impl<K: Deref<Target = PoolCore>> Deref for Frames<K> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.keeper.memory().bytes(self.count());
        // SAFETY: the block is mapped and initialised by the kernel, and `self` is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }
}

impl<K: Deref<Target = PoolCore>> DerefMut for Frames<K> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.keeper.memory().bytes(self.count());
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl<K: Deref<Target = PoolCore>> Drop for Frames<K> {
    fn drop(&mut self) {
        let freed = self.keeper.allocator().free(self.block.first, self.block.order);
        if let Err(error) = freed {
            // Only a broken promise of somebody's unsafe code leads here.
            assert!(std::thread::panicking(), "freeing frames that were held: {error}");
        }
    }
}

impl<K: Deref<Target = PoolCore>> fmt::Debug for Frames<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("block", &self.block).finish_non_exhaustive()
    }
}
