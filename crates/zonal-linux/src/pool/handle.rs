//! The `Pool` type, which is a handle to a pool, and its methods that allocate and free.
//!
//! A *raw* block is identified only by its first frame number and its order. Raw blocks are for callers that track
//! ownership themselves.
//!
//! Related files: `pool/observe.rs` reports the state of a pool, `pool/change.rs` changes a running pool,
//! `pool/builder.rs` builds pools, and `pool/frames.rs` defines the type that owns a block.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use zonal::error::{AllocError, FreeBulkError, FreeError};
use zonal::platform::reclaimer::Reclaimer;
use zonal::request::Block;
use zonal::units::{Order, PageCount, Pfn};
use zonal_model::Bytes;

use super::core::PoolCore;
use super::core_ref::CoreRef;
use super::failure::AllocFailure;
use super::frames::{Frames, Lease};
use super::registry::Registration;
use super::request::PoolRequest;
use super::workers::{Present, Workers};
use crate::error::{PoolError, node_list};

/// A handle to a pool: memory that this process maps, and a zonal allocator that manages its frames.
///
/// Clones are handles to the same pool. Dropping the last handle stops the pool's threads. The memory is unmapped once
/// the last [`Frames`] of the pool is dropped too. If the pool [uses sequences](Pool::uses_sequences) and the thread that
/// drops the last handle may call neither `membarrier` nor `sched_setaffinity`, the memory stays mapped, and populated.
///
/// Each pool has threads, one of which updates its clock every 4 ms: an idle pool takes about 0.14 % of a CPU (500 pools: 0.70
/// CPUs), and some thousands of pools keep two CPUs busy.
///
/// The [documentation of the crate](crate) lists what a pool can and cannot do. The main methods are:
///
/// - [`Pool::builder`] and [`Pool::alloc`], which suffice for most programs,
/// - [`Pool::register_reclaimer`], which makes the pool shrink a cache when memory runs short,
/// - [`Pool::preferred`], [`Pool::bind`] and [`Pool::interleave`], which choose nodes,
/// - [`Pool::accounting`] and [`Pool::verify`], which count allocated and free frames,
/// - methods with `raw` in their name, which identify blocks by frame number and order.
///
/// ```
/// use zonal_linux::{Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).build()?;
/// let worker = pool.clone(); // another handle, for another thread
/// let page = std::thread::spawn(move || worker.alloc(&PoolRequest::page())).join().unwrap()?;
/// println!("{pool:?}"); // one line: size, nodes, accounting
/// drop(pool); // `page` keeps the memory
/// assert_eq!(page.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Fork
/// A child process made by `fork` has a copy of the pool and its frames. It may read, write and drop the frames
/// in its copy. The child has no copy of [explicit huge pages](crate::HugePages::Explicit) and of [shared
/// memory](crate::PoolBuilder::shared_memory). It has nothing of a pool that processes share
/// ([`PoolBuilder::shared`](crate::PoolBuilder::shared)): it may drop what it has of it, or join it, but other calls end it by `SIGSEGV`, or
/// return [`Forked`](crate::SharedError::Forked).
///
/// The child has none of the pool's threads, so it has no background reclaim, and the pool's clock does not advance in
/// it. The child may allocate and free only if, at the time of the fork, no other thread was executing code of the
/// pool. Otherwise the locks that such a thread held stay locked in the child forever. [`Pool::with_threads_paused`]
/// stops the pool's own threads for the fork.
///
/// The child's copy is unmapped once the child drops its handles and frames. It stays mapped if, at the time of the
/// fork, other threads of the parent held handles or frames, or a thread was in a reclaimer.
///
/// # Threads
/// The pool's threads block all signals except those that report a fault of the thread itself, such as `SIGSEGV`. One
/// of these signals can still be delivered to a pool thread if it is sent to the whole process. The threads run under
/// the normal scheduling policy. They run on the CPUs allowed to the thread that built the pool, or on all CPUs if only
/// one is allowed.
///
/// Dropping the last handle waits until the pool's threads have stopped using the pool, except for a thread that is in
/// a reclaimer. That thread exits, and drops its reference to the memory, when the reclaimer returns.
#[derive(Clone)]
pub struct Pool {
    pub(super) core: Arc<PoolCore>,
    /// Stops the pool's threads when the last handle is dropped.
    _workers: Arc<Workers>,
}

/// Formats the pool as one line: its size in bytes, its nodes with memory, and its current accounting.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.frames().get() * self.page_bytes() as u64);
        let nodes = node_list(self.memory_nodes().iter());
        write!(f, "Pool({bytes}, {nodes}, {:#})", self.accounting())
    }
}

impl Pool {
    /// Allocates a block, which is freed when the returned value is dropped.
    ///
    /// The pool's memory stays mapped at least as long as the returned value exists.
    ///
    /// The block is naturally aligned: a 16 KiB block begins at a multiple of 16 KiB.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// // One frame, zeroed. Without `zeroed` it may contain data of an earlier owner.
    /// let mut page = pool.alloc(&PoolRequest::page().zeroed())?;
    /// page[..5].copy_from_slice(b"hello");
    ///
    /// // A block of 16 KiB. `Pool::alloc_bytes` allocates sizes that are not a power of two.
    /// let order = pool.order_holding(12 << 10).expect("at most the largest block");
    /// let buffer = pool.alloc(&PoolRequest::new(order))?;
    /// assert_eq!(buffer.len(), 16 << 10);
    /// assert_eq!(buffer.as_ptr().addr() % (16 << 10), 0);
    ///
    /// drop((page, buffer)); // frees both
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When no allowed zone can serve the request. The error reports each such zone's state; see [`AllocError`] for the
    /// reasons.
    #[inline(always)]
    pub fn alloc(&self, request: &PoolRequest<'_>) -> Result<Frames, AllocFailure> {
        let block = self.alloc_block(request)?;
        // SAFETY: the block was allocated just now, so no other code uses or frees it.
        Ok(unsafe { Frames::own(self.core_ref(), block) })
    }

    /// Allocates a block as [`Pool::alloc`] does, but borrows the pool instead of changing its reference count.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// fn checksum(pool: &Pool, data: &[u8]) -> Result<u32, Box<dyn std::error::Error>> {
    ///     let mut scratch = pool.lease(&PoolRequest::page())?; // freed at the end of the function
    ///     let length = data.len().min(scratch.len());
    ///     scratch[..length].copy_from_slice(&data[..length]);
    ///     Ok(scratch[..length].iter().map(|&byte| u32::from(byte)).sum())
    /// }
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// assert_eq!(checksum(&pool, &[1, 2, 3])?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`].
    #[inline(always)]
    pub fn lease(&self, request: &PoolRequest<'_>) -> Result<Lease<'_>, AllocFailure> {
        let block = self.alloc_block(request)?;
        // SAFETY: the block was allocated just now, so no other code uses or frees it.
        Ok(unsafe { Frames::own(&*self.core, block) })
    }

    /// Returns the smallest order whose blocks hold `bytes`, or `None` if that exceeds the largest order.
    ///
    /// A block's frame count is a power of two, so 12 KiB needs a block of 16 KiB. [`Pool::alloc_bytes`] allocates any
    /// number of adjacent frames, and [`Pool::alloc_bulk_raw`] single frames, which need not be adjacent.
    ///
    /// ```
    /// # let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// let order = pool.order_holding(12 << 10).expect("up to 4 MiB by default");
    /// assert_eq!(order.pages().get() * 4096, 16 << 10);
    /// assert_eq!(pool.order_holding(5 << 20), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn order_holding(&self, bytes: usize) -> Option<Order> {
        let frames = bytes.div_ceil(self.page_bytes());
        let order = Order::holding(PageCount::new(frames as u64));
        order.filter(|order| *order <= self.core.allocator().max_order())
    }

    /// Registers `reclaimer`, which the pool calls to free frames when memory runs short.
    ///
    /// The reclaimer stays registered until the returned registration is dropped. The registration holds a strong
    /// reference to the reclaimer, and the pool holds a weak one. A cache that is a reclaimer may therefore own a
    /// handle to the pool and frames of it without a reference cycle.
    ///
    /// The pool's own threads call reclaimers. So do threads that allocate with a request that may wait, that call
    /// [`Pool::shrink_caches`], or that take memory offline. The pool holds none of its locks during the call.
    ///
    /// ```
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex};
    /// use zonal_linux::{Frames, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest, Reclaimer};
    ///
    /// /// Blocks that may be dropped at any time, the oldest first.
    /// #[derive(Default)]
    /// struct Cache(Mutex<VecDeque<Frames>>);
    ///
    /// impl Reclaimer for Cache {
    ///     fn count(&self, _: &ReclaimRequest) -> PageCount {
    ///         PageCount::new(self.0.lock().unwrap().len() as u64)
    ///     }
    ///     fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
    ///         let mut blocks = self.0.lock().unwrap();
    ///         let count = blocks.len().min(request.target.get() as usize);
    ///         blocks.drain(..count); // dropping frames frees them
    ///         PageCount::new(count as u64)
    ///     }
    /// }
    ///
    /// let pool = Pool::builder().size(16 << 20).build()?;
    /// let cache = Arc::new(Cache::default());
    /// let registration = pool.register_reclaimer(&cache);
    /// // The cache may fill the whole pool: reclaim then frees its oldest blocks to serve new requests.
    /// for _ in 0..2 * pool.frames().get() {
    ///     // Allocate first, lock afterwards: the request may call `reclaim`, which takes the same lock.
    ///     let block = pool.alloc(&PoolRequest::page().kind(PageKind::Cache))?;
    ///     cache.0.lock().unwrap().push_back(block);
    /// }
    /// drop(registration); // the pool no longer calls the cache
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Locks
    /// A thread can deadlock with itself if it holds a lock that the reclaimer acquires and makes a request that may
    /// wait. The program then hangs without a message. It hangs only when memory first runs short, so tests with
    /// enough memory do not find the error. A reclaimer may acquire a lock only if no thread holds that lock
    ///
    /// - during a request that may wait, [`Pool::shrink_caches`] or [`Pool::offline_memory`],
    /// - during [`Pool::verify`], which waits for running reclaimers.
    ///
    /// A thread that holds such a lock may drop the pool, free frames, call [`Pool::with_threads_paused`], and make
    /// requests that [do not wait](zonal::Request::no_wait). Alternatively, the reclaimer can use `try_lock` and free
    /// no frames if the lock is held. A reclaimer may call the methods of the pool except [`Pool::verify`] and
    /// [`Pool::stat_refresh`]. Its own requests may use the reserve and never call reclaimers.
    ///
    /// If a reclaimer panics, or its destructor or the destructor of a panic payload does, the pool treats the call
    /// as one that freed no frames. [`Pool::reclaimer_panics`] counts these panics.
    ///
    /// # The registration
    /// Bind the returned registration to a name. Both `let _ = ...` and a call whose result is ignored drop the
    /// registration at once. The compiler prints a warning only for the ignored result:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use std::sync::Arc;
    /// # use zonal_linux::{Pool, Reclaimer};
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

    /// Allocates a block that the caller identifies by its first frame number and its order.
    ///
    /// The block stays allocated until it is passed to [`Pool::free_raw`], or to [`Pool::from_raw`], which makes a
    /// [`Frames`] own it.
    ///
    /// A signal handler may call this method and [`Pool::alloc_bulk_raw`] with requests that
    /// [do not wait](zonal::Request::no_wait), and may call [`Pool::free_raw`] and [`Pool::free_bulk_raw`]. It must not
    /// call any other method of a pool, because the other methods use the heap. A request from the handler fails with
    /// [`AllocError::Reentered`] if it would have to wait for the thread that the handler interrupted. A free is then
    /// finished by a later call outside the handler, or fails with [`FreeError::Reentered`] if the CPU has too many such
    /// frees ([`Platform::is_reentered`](zonal::Platform::is_reentered)). As always, the handler itself must preserve
    /// `errno`. The calls need up to 10 KiB of the handler's stack in an optimised build for x86-64, so an alternate stack of
    /// `SIGSTKSZ` bytes, such as that of the standard library, is too small. If this crate is part of a library that the program loads at run time (`dlopen`), a thread's first call to
    /// a pool must not come from a signal handler.
    ///
    /// ```
    /// use zonal_linux::{FreeError, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let block = pool.alloc_raw(&PoolRequest::page().no_wait())?;
    /// let address = pool.ptr_of(block.first).expect("a frame of this pool");
    /// // SAFETY: the block was allocated just now, so no other code uses it.
    /// unsafe { address.write(7) };
    /// // SAFETY: no `Frames` owns the block.
    /// unsafe { pool.free_raw(block.first, block.order)? };
    /// // The pool refuses to free the block a second time, without any damage.
    /// // SAFETY: no `Frames` owns the block.
    /// let again = unsafe { pool.free_raw(block.first, block.order) };
    /// assert_eq!(again, Err(FreeError::NotAllocated(block.first)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`], without the state of each zone.
    #[inline]
    pub fn alloc_raw(&self, request: &PoolRequest<'_>) -> Result<Block, AllocError> {
        self.core.allocator().alloc(request)
    }

    /// Frees a raw block.
    ///
    /// # Safety
    /// No [`Frames`] may own the block or part of it; otherwise the pool could allocate memory that the `Frames` still
    /// uses. The pool detects all other mistakes and returns an error.
    ///
    /// # Errors
    /// When the frames are not an allocated block of this order; see [`FreeError`]. A refused free does not affect the
    /// pool's accounting.
    #[inline]
    pub unsafe fn free_raw(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        self.core.allocator().free(first, order)
    }

    /// Allocates single frames, writes their numbers to `frames`, and returns how many were allocated.
    ///
    /// The result is less than `frames.len()` only if memory is short, or if a signal handler makes the call and would
    /// have to wait for more frames.
    ///
    /// ```
    /// use zonal_linux::{Pfn, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let mut frames = [Pfn::default(); 100];
    /// let count = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames)?;
    /// // SAFETY: these frames were allocated just now, so no `Frames` owns them.
    /// unsafe { pool.free_bulk_raw(&frames[..count])? };
    /// assert_eq!(pool.verify()?.allocated.get(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When no frame can be allocated; see [`AllocError`].
    pub fn alloc_bulk_raw(&self, request: &PoolRequest<'_>, frames: &mut [Pfn]) -> Result<usize, AllocError> {
        self.core.allocator().alloc_bulk(request, frames)
    }

    /// Frees raw single frames, in slice order.
    ///
    /// # Safety
    /// No [`Frames`] may own any of the frames; otherwise the pool could allocate memory that the `Frames` still uses.
    ///
    /// # Errors
    /// When a frame cannot be freed. The error contains the reason for the first such frame, and the number of frames
    /// that were freed before it.
    pub unsafe fn free_bulk_raw(&self, frames: &[Pfn]) -> Result<(), FreeBulkError> {
        self.core.allocator().free_bulk(frames)
    }

    /// Takes ownership of a raw block.
    ///
    /// # Safety
    /// The block must come from [`Pool::alloc_raw`] or [`Pool::alloc_bulk_raw`] of this pool, or from
    /// [`Frames::into_raw`] on a block of this pool. No other code may use or free the block.
    ///
    /// # Panics
    /// When the block does not belong to this pool.
    #[must_use]
    pub unsafe fn from_raw(&self, block: Block) -> Frames {
        // SAFETY: the caller guarantees that the block is allocated from this pool and that no other code uses or
        // frees it.
        unsafe { Frames::own(self.core_ref(), block) }
    }

    /// Whether this process is a child, made by `fork`, of one that shares the pool. It has neither the frames nor the allocator.
    #[doc(hidden)]
    #[must_use]
    pub fn is_of_parent(&self) -> bool {
        self.core.is_of_parent()
    }

    /// Returns the address of a frame, or `None` for a frame outside this pool.
    ///
    /// The address stays mapped as long as a handle to the pool or one of its [`Frames`] exists. Only the owner of the
    /// frame may access the memory.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// let page = pool.alloc(&PoolRequest::page())?;
    /// assert_eq!(pool.ptr_of(page.first()).unwrap().as_ptr().cast_const(), page.as_ptr());
    /// assert_eq!(pool.pfn_of(page.as_ptr()), Some(page.first()));
    /// assert_eq!(pool.pfn_of(&0_u8), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Pauses the pool's own threads while `then` runs, so that `then` can `fork` a child that uses the pool.
    ///
    /// During the pause the pool starts no background reclaim, and its once-a-second tick, which folds counters and
    /// tunes pagesets, does not run. `then` may call every method of the pool.
    ///
    /// The method does not wait for the pool's threads that are in a reclaimer, so the caller may hold a lock that a
    /// reclaimer acquires. It passes the number of these threads to `then`. A child may use the pool if that number is
    /// zero, or if the caller holds a lock that the reclaimer always acquires before it accesses the pool.
    ///
    /// ```
    /// # use zonal_linux::{Pool, PoolRequest};
    /// # let pool = Pool::builder().size(64 << 20).build()?;
    /// let page = pool.with_threads_paused(|in_reclaimers| {
    ///     assert_eq!(in_reclaimers, 0);
    ///     // `fork` here; this thread may use the pool.
    ///     pool.alloc(&PoolRequest::page())
    /// })?;
    /// # drop(page);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_threads_paused<R>(&self, then: impl FnOnce(usize) -> R) -> R {
        let pause = self.core.platform().presence.pause();
        then(pause.in_reclaimers)
    }

    /// Counts the calling thread as one of the pool's threads until the result is dropped.
    pub(crate) fn count_thread(&self) -> Present {
        Present::count(&self.core.platform().presence)
    }

    /// Runs `work` on a thread that is counted, when the pool's threads are not paused. Returns `None` if `is_stopped`
    /// returns true before that; [`recheck_stopped`](Self::recheck_stopped) makes a waiting thread call it again.
    pub(crate) fn at_work<R>(&self, is_stopped: impl Fn() -> bool, work: impl FnOnce() -> R) -> Option<R> {
        let _at_work = self.core.platform().presence.work_unless(is_stopped)?;
        Some(work())
    }

    /// Makes threads that wait in [`at_work`](Self::at_work) check whether they are stopped.
    pub(crate) fn recheck_stopped(&self) {
        self.core.platform().presence.notify();
    }

    /// Starts the pool's threads.
    pub(super) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        let workers = Arc::new(Workers::start(Arc::clone(&core))?);
        Ok(Self { core, _workers: workers })
    }

    /// Returns a reference with which a block keeps the memory mapped.
    #[inline(always)]
    pub(super) fn core_ref(&self) -> CoreRef {
        // SAFETY: this is a handle of the pool.
        unsafe { CoreRef::of(&self.core) }
    }

    #[inline(always)]
    fn alloc_block(&self, request: &PoolRequest<'_>) -> Result<Block, AllocFailure> {
        match self.core.allocator().alloc(request) {
            Ok(block) => Ok(block),
            // Passes a copy, so that a request built for this call is stored in memory only if the call fails.
            Err(error) => Err(self.failure(*request, error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn failure(&self, request: PoolRequest<'_>, error: AllocError) -> AllocFailure {
        let failure = AllocFailure::new(self.core.allocator(), &request, error);
        self.report_refused(&request, &failure);
        failure
    }
}
