//! A pool of this machine's memory: the handle that programs hold.
//!
//! Allocating and freeing come first. *Raw* blocks are frames by number alone, for callers that track ownership
//! themselves. Neighbours: `pool/observe.rs` reports a pool's state, `pool/change.rs` changes a running pool,
//! `pool/builder.rs` builds pools, `pool/frames.rs` owns blocks.

use std::ptr::NonNull;
use std::sync::Arc;

use zonal::Allocator;
use zonal::error::{AllocError, FreeBulkError, FreeError};
use zonal::platform::reclaimer::Reclaimer;
use zonal::request::Block;
use zonal::units::{Order, Pfn};

use super::core::PoolCore;
use super::failure::AllocFailure;
use super::frames::{Frames, Lease};
use super::platform::LinuxPlatform;
use super::reclaimers::Registration;
use super::request::PoolRequest;
use super::workers::Workers;
use crate::error::PoolError;

/// Frames of this machine's memory, managed by a zonal allocator. Clones are handles to the same pool. Dropping the
/// last handle stops the pool's threads; the memory is unmapped once the last of its [`Frames`] is dropped too.
///
/// A child made by `fork` has a copy of the pool and of its frames, which it may read, write and drop, except for
/// [explicit huge pages](crate::HugePages::Explicit), which it does not have. It has none of the pool's threads, so
/// nothing is reclaimed in the background and the clock does not advance. It may allocate and free only if no other
/// thread was in the pool at the fork, because that thread's locks stay held; [`Pool::while_still`] keeps the
/// pool's own threads out. The child's copy is unmapped when it has dropped its handles and frames, unless other
/// threads of the parent held handles or frames, or a thread was in a reclaimer.
///
/// The pool's threads block all signals except those raised by their own faults (such a signal may still reach them
/// if it is sent to the whole process). They run under the normal scheduling policy on the CPUs that the thread
/// that built the pool may use, or on all CPUs if that is a single one. Dropping the last handle waits for them,
/// except for a thread that is in a reclaimer: that thread exits, and drops its reference to the memory, when the
/// reclaimer returns.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) core: Arc<PoolCore>,
    /// Stops the pool's threads when the last handle is dropped.
    _workers: Arc<Workers>,
}

impl Pool {
    /// Allocates a block, which is freed when dropped and keeps the pool's memory alive.
    ///
    /// # Errors
    /// When no allowed zone can serve the request, with a report of each; see [`AllocError`].
    #[inline]
    pub fn alloc(&self, request: &PoolRequest<'_>) -> Result<Frames, AllocFailure> {
        let block = self.take(request)?;
        // SAFETY: just allocated, so nothing else uses or frees it.
        Ok(unsafe { Frames::own(Arc::clone(&self.core), block) })
    }

    /// Allocates a block as [`Pool::alloc`] does, but borrows the pool, so no reference count is changed.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[inline]
    pub fn lease(&self, request: &PoolRequest<'_>) -> Result<Lease<'_>, AllocFailure> {
        let block = self.take(request)?;
        // SAFETY: just allocated, so nothing else uses or frees it.
        Ok(unsafe { Frames::own(&*self.core, block) })
    }

    /// Allocates a block and returns it by number. It stays allocated until [`Pool::free_raw`] frees it or
    /// [`Pool::from_raw`] takes ownership.
    ///
    /// A signal handler may call this with a request that [does not wait](zonal::Request::no_wait), and may call
    /// [`Pool::free_raw`], [`Pool::alloc_bulk_raw`] and [`Pool::free_bulk_raw`]. It must not call any other
    /// function of a pool, because those use the heap. Calls that would have to wait for the thread that the
    /// handler interrupted fail with [`AllocError::Reentered`] and [`FreeError::Reentered`]. As always, the handler
    /// itself must preserve `errno`. In a library that is loaded while the program runs, a thread's first call to a
    /// pool must not come from a signal handler.
    ///
    /// # Errors
    /// As [`Pool::alloc`], without the report.
    #[inline]
    pub fn alloc_raw(&self, request: &PoolRequest<'_>) -> Result<Block, AllocError> {
        self.core.allocator().alloc(request)
    }

    /// Frees a raw block.
    ///
    /// # Safety
    /// No [`Frames`] owns the block or part of it; otherwise the pool would allocate its memory twice. All other
    /// mistakes are detected and refused.
    ///
    /// # Errors
    /// What is wrong with the frame; the pool's accounting is not affected.
    #[inline]
    pub unsafe fn free_raw(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        self.core.allocator().free(first, order)
    }

    /// Allocates single frames by number into `frames` and returns how many were allocated. It allocates fewer than
    /// `frames.len()` only when memory is short, or in a signal handler that would have to wait for more.
    ///
    /// # Errors
    /// When no frame can be allocated; see [`AllocError`].
    pub fn alloc_bulk_raw(&self, request: &PoolRequest<'_>, frames: &mut [Pfn]) -> Result<usize, AllocError> {
        self.core.allocator().alloc_bulk(request, frames)
    }

    /// Frees raw single frames, in order.
    ///
    /// # Safety
    /// As [`Pool::free_raw`], for each of them.
    ///
    /// # Errors
    /// What is wrong with the first invalid frame, and how many were freed before it.
    pub unsafe fn free_bulk_raw(&self, frames: &[Pfn]) -> Result<(), FreeBulkError> {
        self.core.allocator().free_bulk(frames)
    }

    /// Takes ownership of a raw block.
    ///
    /// # Safety
    /// The block was allocated raw from this pool or released by [`Frames::into_raw`], and nothing else uses or
    /// frees it.
    ///
    /// # Panics
    /// When the block does not belong to this pool.
    #[must_use]
    pub unsafe fn from_raw(&self, block: Block) -> Frames {
        // SAFETY: the caller guarantees the same.
        unsafe { Frames::own(Arc::clone(&self.core), block) }
    }

    /// Returns the address of a frame, or `None` for a frame outside this pool. The address stays mapped while the
    /// pool or any of its [`Frames`] exists; only the owner of the frame may access the memory.
    #[inline]
    #[must_use]
    pub fn ptr_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.core.memory().pointer(frame)
    }

    /// Returns the frame that contains an address, or `None` for an address outside this pool.
    #[must_use]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        self.core.memory().frame(address)
    }

    /// Returns the allocator itself, for callers that do not use [`Frames`].
    ///
    /// # Safety
    /// A block owned by a [`Frames`] must not be freed through it, and memory must be taken offline only through
    /// the pool.
    #[inline]
    #[must_use]
    pub unsafe fn allocator(&self) -> &Allocator<'static, LinuxPlatform> {
        self.core.allocator()
    }

    /// Registers `reclaimer`, which is called for frames when they run short, until the returned registration is
    /// dropped.
    ///
    /// The registration keeps the reclaimer alive; the pool holds only a weak reference, so a cache may own the
    /// pool and its frames.
    ///
    /// Reclaimers are called by the pool's own threads, and by threads that allocate with a request that may wait,
    /// shrink caches or take memory offline. A reclaimer may therefore take a lock only if no thread holds it
    /// during those calls, or during [`Pool::verify`], which waits for running reclaimers. Dropping the pool,
    /// [`Pool::while_still`], freeing, and requests that do not wait are allowed while holding such a lock. A
    /// reclaimer may use the pool, except for `verify`. A panic in a reclaimer, in its destructor, or in the
    /// destructor of a panic payload counts as no frames freed, and is counted in [`Pool::reclaimer_panics`].
    ///
    /// Bind the result to a name: `let _ = ...` drops it at once, and so does a plain statement, for which the
    /// compiler prints a warning.
    ///
    /// ```
    /// #![deny(unused_must_use)]
    /// # use std::sync::Arc;
    /// # use zonal_linux::Pool;
    /// # use zonal::platform::reclaimer::Reclaimer;
    /// fn serve<C: Reclaimer + Send + 'static>(pool: &Pool, cache: C) {
    ///     let registration = pool.register_reclaimer(&Arc::new(cache));
    ///     // The cache is asked for frames while requests are served here.
    ///     drop(registration);
    /// }
    /// ```
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use std::sync::Arc;
    /// # use zonal_linux::Pool;
    /// # use zonal::platform::reclaimer::Reclaimer;
    /// fn serve<C: Reclaimer + Send + 'static>(pool: &Pool, cache: C) {
    ///     pool.register_reclaimer(&Arc::new(cache));
    /// }
    /// ```
    pub fn register_reclaimer<R>(&self, reclaimer: &Arc<R>) -> Registration
    where
        R: Reclaimer + Send + 'static,
    {
        let reclaimer: Arc<R> = Arc::clone(reclaimer);
        self.core.platform().reclaimers.register(reclaimer)
    }

    /// Calls `then` while the pool's own threads do no work in the pool, for a `fork` whose child continues to use
    /// the pool. Meanwhile nothing is reclaimed in the background and the clock does not advance; `then` may use
    /// the pool in every other way.
    ///
    /// This does not wait for threads that are in a reclaimer, so the caller may hold the lock that the reclaimer
    /// takes; `then` receives the number of such threads. A child may continue to use the pool if that number is
    /// zero, or if the caller holds a lock without which the reclaimer does not access the pool.
    pub fn while_still<R>(&self, then: impl FnOnce(usize) -> R) -> R {
        let rest = self.core.platform().presence.rest();
        then(rest.in_reclaimers)
    }

    /// Starts the pool's threads.
    pub(super) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        let workers = Arc::new(Workers::start(Arc::clone(&core))?);
        Ok(Self { core, _workers: workers })
    }

    #[inline]
    fn take(&self, request: &PoolRequest<'_>) -> Result<Block, AllocFailure> {
        let allocator = self.core.allocator();
        allocator.alloc(request).map_err(|error| AllocFailure::new(allocator, request, error))
    }
}
