//! A pool of this machine's memory: the handle that programs hold.
//!
//! Methods that allocate and free come first in this file. A *raw* block is identified only by frame number and
//! order, for callers that track ownership themselves. Neighbours: `pool/observe.rs` reports a pool's state,
//! `pool/change.rs` changes a running pool, `pool/builder.rs` builds pools, `pool/frames.rs` owns blocks.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use zonal::error::{AllocError, FreeBulkError, FreeError};
use zonal::platform::reclaimer::Reclaimer;
use zonal::request::Block;
use zonal::units::{Order, PageCount, Pfn};

use super::core::PoolCore;
use super::failure::AllocFailure;
use super::frames::{Frames, Lease};
use super::reclaimers::Registration;
use super::request::PoolRequest;
use super::workers::Workers;
use crate::error::{Bytes, PoolError, node_list};

/// Frames of this machine's memory, managed by a zonal allocator. Clones are handles to the same pool. Dropping the
/// last handle stops the pool's threads; the memory is unmapped once the last of its [`Frames`] is dropped too.
///
/// The [crate's page](crate) says what a pool can and cannot do. The main methods: [`Pool::builder`] and
/// [`Pool::alloc`] suffice for most programs; [`Pool::register_reclaimer`] connects a cache; [`Pool::preferred`],
/// [`Pool::bind`] and [`Pool::interleave`] choose nodes; [`Pool::accounting`] and [`Pool::verify`] show where frames
/// are; methods with `raw` in their name manage blocks by number.
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
/// A child made by `fork` has a copy of the pool and of its frames, which it may read, write and drop, except for
/// [explicit huge pages](crate::HugePages::Explicit), which it does not have. It has none of the pool's threads, so
/// nothing is reclaimed in the background and the clock does not advance. It may allocate and free only if no other
/// thread was in the pool at the fork, because that thread's locks stay held; [`Pool::with_threads_paused`] keeps the
/// pool's own threads out. The child's copy is unmapped once the child drops its handles and frames, unless other
/// threads of the parent held handles or frames at the fork, or a thread was in a reclaimer.
///
/// # Threads
/// The pool's threads block all signals except those raised by their own faults (such a signal may still reach them
/// if it is sent to the whole process). They run under the normal scheduling policy on the CPUs allowed to
/// the thread that built the pool, or on all CPUs if only one is allowed. Dropping the last handle waits for them,
/// except for a thread that is in a reclaimer: that thread exits, and drops its reference to the memory, when the
/// reclaimer returns.
#[derive(Clone)]
pub struct Pool {
    pub(super) core: Arc<PoolCore>,
    /// Stops the pool's threads when the last handle is dropped.
    _workers: Arc<Workers>,
}

/// Formats one line: bytes, nodes with memory, and the current accounting.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.frames().get() * self.page_bytes() as u64);
        let nodes = node_list(self.memory_nodes().iter());
        write!(f, "Pool({bytes}, {nodes}, {:#})", self.accounting())
    }
}

impl Pool {
    /// Allocates a block, which is freed when dropped and keeps the pool's memory alive.
    ///
    /// The block is naturally aligned: a block of 16 KiB begins at a multiple of 16 KiB.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// // One frame, zeroed. Without `zeroed` it may contain data of an earlier owner.
    /// let mut page = pool.alloc(&PoolRequest::page().zeroed())?;
    /// page[..5].copy_from_slice(b"hello");
    ///
    /// // A buffer of 12 KiB: rounded up to a block of 16 KiB.
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
    /// When no allowed zone can serve the request, with a report of each; see [`AllocError`].
    #[inline]
    pub fn alloc(&self, request: &PoolRequest<'_>) -> Result<Frames, AllocFailure> {
        let block = self.alloc_block(request)?;
        // SAFETY: just allocated, so nothing else uses or frees it.
        Ok(unsafe { Frames::own(Arc::clone(&self.core), block) })
    }

    /// Allocates a block as [`Pool::alloc`] does, but borrows the pool, so no reference count is changed.
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
    /// As [`Pool::alloc`].
    #[inline]
    pub fn lease(&self, request: &PoolRequest<'_>) -> Result<Lease<'_>, AllocFailure> {
        let block = self.alloc_block(request)?;
        // SAFETY: just allocated, so nothing else uses or frees it.
        Ok(unsafe { Frames::own(&*self.core, block) })
    }

    /// Returns the smallest order whose blocks hold `bytes`, or `None` if that exceeds the largest order.
    ///
    /// A block's number of frames is a power of two, so 12 KiB needs a block of 16 KiB. Memory of any other length
    /// can be had as single frames ([`Pool::alloc_bulk_raw`]), which are not contiguous.
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

    /// Registers `reclaimer`. The pool calls it to free frames when memory runs short, until the returned
    /// registration is dropped.
    ///
    /// The registration keeps the reclaimer alive; the pool holds only a weak reference, so a cache may own the
    /// pool and its frames.
    ///
    /// Reclaimers are called by the pool's own threads, and by threads that allocate with a request that may wait,
    /// shrink caches or take memory offline. No lock of the pool is held meanwhile.
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
    /// // The cache may hold the whole pool: requests are served from its oldest blocks.
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
    /// A thread that makes a request that may wait while it holds a lock that the reclaimer takes can deadlock with
    /// itself. The program then hangs without a message, and only at the first shortage, so tests with enough memory
    /// do not find it. A reclaimer may take a lock only if no thread holds it
    ///
    /// - during a request that may wait, [`Pool::shrink_caches`] or [`Pool::offline_memory`],
    /// - during [`Pool::verify`], which waits for running reclaimers.
    ///
    /// Under such a lock a thread may drop the pool, free, call [`Pool::with_threads_paused`], and make
    /// requests that [do not wait](zonal::Request::no_wait). Alternatively the reclaimer uses `try_lock` and frees
    /// nothing if the lock is held. A reclaimer may use the pool, except for `verify`; its own requests are served
    /// from the reserve and never reclaim.
    ///
    /// A panic in a reclaimer, in its destructor, or in the destructor of a panic payload is treated as
    /// freeing no frames; [`Pool::reclaimer_panics`] counts it.
    ///
    /// # The registration
    /// Bind the result to a name. `let _ = ...` drops it at once. So does ignoring the result, but then the compiler
    /// prints a warning:
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

    /// Allocates a block and returns its first frame number and its order. It stays allocated until
    /// [`Pool::free_raw`] frees it or [`Pool::from_raw`] takes ownership.
    ///
    /// A signal handler may call this with a request that [does not wait](zonal::Request::no_wait), and may call
    /// [`Pool::free_raw`], [`Pool::alloc_bulk_raw`] and [`Pool::free_bulk_raw`]. It must not call any other
    /// function of a pool, because those use the heap. Calls that would have to wait for the thread that the
    /// handler interrupted fail with [`AllocError::Reentered`] and [`FreeError::Reentered`]. As always, the handler
    /// itself must preserve `errno`. In a library that is loaded while the program runs, a thread's first call to a
    /// pool must not come from a signal handler.
    ///
    /// ```
    /// use zonal_linux::{FreeError, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let block = pool.alloc_raw(&PoolRequest::page().no_wait())?;
    /// let address = pool.ptr_of(block.first).expect("a frame of this pool");
    /// // SAFETY: the block was allocated just now, so only this code uses it.
    /// unsafe { address.write(7) };
    /// // SAFETY: no `Frames` owns the block.
    /// unsafe { pool.free_raw(block.first, block.order)? };
    /// // Freeing it again is refused and harmless.
    /// // SAFETY: as above.
    /// let again = unsafe { pool.free_raw(block.first, block.order) };
    /// assert_eq!(again, Err(FreeError::NotAllocated(block.first)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Writes the numbers of allocated single frames to `frames` and returns how many were allocated. That is less
    /// than `frames.len()` only when memory is short, or in a signal handler, if getting more would mean waiting.
    ///
    /// ```
    /// use zonal_linux::{Pfn, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let mut frames = [Pfn::default(); 100];
    /// let count = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames)?;
    /// // SAFETY: these frames were allocated just now, and no `Frames` owns them.
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

    /// Calls `then` while the pool's own threads do no work in the pool, for a `fork` whose child continues to use
    /// the pool. Meanwhile nothing is reclaimed in the background and the clock does not advance; `then` may use
    /// the pool in every other way.
    ///
    /// This does not wait for threads that are in a reclaimer, so the caller may hold the lock that the reclaimer
    /// takes; `then` receives the number of such threads. A child may continue to use the pool if that number is
    /// zero, or if the caller holds a lock that the reclaimer always takes before it accesses the pool.
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

    /// Starts the pool's threads.
    pub(super) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        let workers = Arc::new(Workers::start(Arc::clone(&core))?);
        Ok(Self { core, _workers: workers })
    }

    #[inline]
    fn alloc_block(&self, request: &PoolRequest<'_>) -> Result<Block, AllocFailure> {
        let allocator = self.core.allocator();
        allocator.alloc(request).map_err(|error| AllocFailure::new(allocator, request, error))
    }
}
