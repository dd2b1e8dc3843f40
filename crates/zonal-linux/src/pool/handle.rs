//! A pool of this machine's memory: the handle that programs hold.
//!
//! Taking and giving back stand first; what a pool tells of itself is in `observe.rs`, what can be
//! changed while it runs in `change.rs`. Vocabulary: *raw* blocks are frames by number alone, for
//! those who keep their own books. Neighbours: `builder.rs` makes pools, `frames.rs` owns blocks.

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

/// Frames of this machine's memory under a zonal allocator. Clones are handles of the same pool; the
/// last one stops its threads, and its memory goes when the last of its [`Frames`] is gone too.
///
/// A child made by `fork` has a copy of the pool and of its frames, which it may read, write and let go
/// of, except for [explicit huge pages](crate::HugePages::Explicit), of which it has none. It has none of the
/// pool's threads, so that nothing is reclaimed in the background and the clock stands. It may take and
/// give back only if no other thread was in the pool at the fork, because that thread's locks stay held;
/// [`Pool::while_still`] keeps the pool's own threads out. Its copy goes when it has dropped its handles
/// and frames, unless other threads of its parent had some of their own, or one was in a reclaimer.
///
/// The pool's threads block all signals but those of their own faults (which, sent to the whole process from
/// outside, may reach them), run by the ordinary scheduling policy, and
/// wherever the thread that built the pool may run; anywhere if that is a single CPU. Dropping the last handle
/// waits for them, but not for one that is in a reclaimer: that one ends, and lets go of the memory, when
/// it comes back.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) core: Arc<PoolCore>,
    /// Dropped with the last handle.
    _workers: Arc<Workers>,
}

impl Pool {
    /// Takes a block, which is given back when dropped and keeps the pool's memory alive.
    ///
    /// # Errors
    /// When no zone in reach can serve, with a report of each; see [`AllocError`].
    #[inline]
    pub fn alloc(&self, request: &PoolRequest<'_>) -> Result<Frames, AllocFailure> {
        let block = self.take(request)?;
        // SAFETY: just allocated, and known to nobody else.
        Ok(unsafe { Frames::own(Arc::clone(&self.core), block) })
    }

    /// As [`Pool::alloc`], borrowing the pool: no count of references is touched.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[inline]
    pub fn lease(&self, request: &PoolRequest<'_>) -> Result<Lease<'_>, AllocFailure> {
        let block = self.take(request)?;
        // SAFETY: just allocated, and known to nobody else.
        Ok(unsafe { Frames::own(&*self.core, block) })
    }

    /// Takes a block by number. It stays allocated until [`Pool::free_raw`] or
    /// [`Pool::from_raw`].
    ///
    /// Signal handlers may call this with a request that [does not wait](zonal::Request::no_wait), and
    /// [`Pool::free_raw`], [`Pool::alloc_bulk_raw`] and [`Pool::free_bulk_raw`]; nothing else of a pool, which
    /// uses the heap. What would have to wait for the thread that the handler interrupted is refused as
    /// [`AllocError::Reentered`] and [`FreeError::Reentered`]. Handlers keep `errno` themselves, as always. In
    /// a library that is loaded while the program runs, a thread's first call of a pool must not come from a handler.
    ///
    /// # Errors
    /// As [`Pool::alloc`], without the report.
    #[inline]
    pub fn alloc_raw(&self, request: &PoolRequest<'_>) -> Result<Block, AllocError> {
        self.core.allocator().alloc(request)
    }

    /// Gives a raw block back.
    ///
    /// # Safety
    /// If a [`Frames`] owns the block or part of it, the pool will hand it out twice. Every other
    /// mistake is found and refused.
    ///
    /// # Errors
    /// What is wrong with the frame; the pool is as exact as before.
    #[inline]
    pub unsafe fn free_raw(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        self.core.allocator().free(first, order)
    }

    /// Takes single frames by number into `frames`; gives how many came. Fewer come only when memory
    /// is short, or to a signal handler that would have to wait for more.
    ///
    /// # Errors
    /// When not one can be had; see [`AllocError`].
    pub fn alloc_bulk_raw(&self, request: &PoolRequest<'_>, frames: &mut [Pfn]) -> Result<usize, AllocError> {
        self.core.allocator().alloc_bulk(request, frames)
    }

    /// Gives raw single frames back, from the first on.
    ///
    /// # Safety
    /// As of [`Pool::free_raw`], for each of them.
    ///
    /// # Errors
    /// What is wrong with the first wrong frame, and how many were freed before it.
    pub unsafe fn free_bulk_raw(&self, frames: &[Pfn]) -> Result<(), FreeBulkError> {
        self.core.allocator().free_bulk(frames)
    }

    /// Owns a raw block from here on.
    ///
    /// # Safety
    /// The block was allocated raw from this pool or given up by [`Frames::into_raw`], and nobody
    /// else uses or frees it.
    ///
    /// # Panics
    /// When the block is not of this pool.
    #[must_use]
    pub unsafe fn from_raw(&self, block: Block) -> Frames {
        // SAFETY: the caller's promise is the same.
        unsafe { Frames::own(Arc::clone(&self.core), block) }
    }

    /// Address of a frame, or `None` for one that is not of this pool. It stays mapped while the
    /// pool or any of its [`Frames`] live; whether it may be used is up to who holds the frame.
    #[inline]
    #[must_use]
    pub fn ptr_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.core.memory().pointer(frame)
    }

    /// The frame that holds an address, or `None` for an address outside this pool.
    #[must_use]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        self.core.memory().frame(address)
    }

    /// The allocator itself, for those who do without [`Frames`].
    ///
    /// # Safety
    /// What a [`Frames`] owns must not be freed through it, and no memory taken offline but through
    /// the pool.
    #[inline]
    #[must_use]
    pub unsafe fn allocator(&self) -> &Allocator<'static, LinuxPlatform> {
        self.core.allocator()
    }

    /// Asks `reclaimer` for frames when they run short, until the result is dropped.
    ///
    /// The result keeps the reclaimer; the pool holds it weakly, so that a cache may hold the pool and its
    /// frames.
    ///
    /// Reclaimers are called by the pool's own threads, and by whoever requests memory and may wait, shrinks
    /// caches or takes memory offline. So a reclaimer may take a lock that is not held during those calls,
    /// or during [`Pool::verify`], which waits for reclaimers under way. Dropping the pool, letting it
    /// [rest](Pool::while_still), giving back, and requests that do not wait are fine under that lock. A
    /// reclaimer may use the pool, but for `verify`. A panic of a reclaimer, of its end, or of what a panic carried
    /// counts as nothing freed, and in [`Pool::reclaimer_panics`].
    ///
    /// Bind the result to a name: `let _ = ...` drops it at once, and so does a plain statement,
    /// which the compiler warns of.
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

    /// Calls `then` while the pool's own threads do not work in the pool: for a `fork` whose child goes on with
    /// it. Nothing is reclaimed in the background meanwhile, and the clock stands; otherwise `then` may use the
    /// pool.
    ///
    /// Threads that are in a reclaimer are not waited for, so that the caller may hold the lock that the reclaimer
    /// takes; `then` is told how many there are. A child may go on with the pool if there is none, or if
    /// the caller holds a lock without which the reclaimer does not touch the pool.
    pub fn while_still<R>(&self, then: impl FnOnce(usize) -> R) -> R {
        let rest = self.core.platform().presence.rest();
        then(rest.in_reclaimers)
    }

    /// Sets the pool's threads going.
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
