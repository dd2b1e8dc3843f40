//! The interface that an embedder implements: atomics, a lock, the current CPU, a clock, wake-ups and optional
//! services.
//!
//! A *cell* is one atomic integer of shared state. A *platform* is the environment that the allocator runs in, such as
//! native code, a model checker or a simulated machine. The platform defines all of the allocator's cell and lock
//! types. A model checker or a simulator can therefore observe every access to shared state.
//!
//! Related files: `metadata/arena.rs` creates cells in the caller's buffers, `platform/cells.rs` declares structures
//! of cells, and `platform/cpu_local.rs` defines how a CPU accesses its own pagesets.

pub(crate) mod cells;
pub mod cpu_local;
pub(crate) mod lock;
pub mod one_thread;
pub mod pageset_slot;
pub(crate) mod pageset_word;
pub mod pressure;
pub mod reclaimer;
pub mod recorder;
pub(crate) mod steps;
pub mod tracepoint;
pub mod whole_words;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::Config;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pressure::PressureEvent;
use crate::platform::recorder::Recorder;
use crate::platform::tracepoint::Tracepoint;
use crate::units::{CpuId, Moment, NodeId, PageCount, Pfn};
use reclaimer::{NoReclaimer, Reclaimer};
use whole_words::{Direction, WORD_FRAMES};

/// Number of frees that a CPU can [defer](Platform::is_reentered) until they are finished.
pub const DEFERRED_FREES_MAX: usize = 15; // with a flag they fill two cache lines

/// An atomic integer that holds a `T`, with the operations and orderings of `core::sync::atomic`.
pub trait Atomic<T: Copy>: Send + Sync {
    /// Creates a cell that holds `value`.
    fn new(value: T) -> Self;
    /// Returns the value of the cell.
    fn load(&self, order: Ordering) -> T;
    /// Stores `value` in the cell.
    fn store(&self, value: T, order: Ordering);
    /// Stores `value` in the cell and returns the previous value.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Stores `new` if the cell holds `current`, and returns the previous value.
    ///
    /// # Errors
    /// Returns the value of the cell if it is not `current`.
    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T>;
    /// Adds `value`, wrapping around on overflow, and returns the previous value.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Sets the bits that are set in `value` and returns the previous value.
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// Clears the bits that are not set in `value` and returns the previous value.
    fn fetch_and(&self, value: T, order: Ordering) -> T;
}

macro_rules! native_cell {
    ($($cell:ident: $value:ident),*) => {$(
        impl Atomic<$value> for $cell {
            #[inline]
            fn new(value: $value) -> Self {
                Self::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, ok, failed)
            }
            #[inline]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.fetch_or(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.fetch_and(value, order)
            }
        }
    )*};
}
native_cell!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

/// A lock that guards state in cells.
///
/// The lock does not contain the state that it guards. The allocator never holds a lock while it calls code of the
/// embedder that may call the allocator.
///
/// The allocator may hold one of its locks, the lock for run-time changes, while it [quiesces other
/// CPUs](crate::platform::cpu_local::Quiesce). If a platform uses [`Pinned`](crate::platform::cpu_local::Pinned) access
/// on several CPUs, a CPU that waits in [`RawLock::lock`] must therefore answer quiesce requests.
pub trait RawLock: Send + Sync {
    /// Creates an unlocked lock.
    fn new() -> Self;
    /// Waits until the lock is free, and acquires it. The lock is not reentrant.
    fn lock(&self);
    /// Acquires the lock if it is free and returns whether it was acquired.
    fn try_lock(&self) -> bool;
    /// Releases the lock, which the caller must hold.
    fn unlock(&self);

    /// Whether a process died while it held the lock, and what the lock guards may be half changed. Only the holder asks.
    ///
    /// A lock that processes share names its holder, and a thread that waits for it takes it over when the holder's process has
    /// died. The lock is then torn until [`RawLock::set_repaired`], also if the next holder dies before that.
    fn is_torn(&self) -> bool {
        false
    }

    /// Records that what the lock guards is whole again. Only the holder of a torn lock calls this.
    fn set_repaired(&self) {}
}

/// A test-and-test-and-set spin lock, for embedders without a lock of their own.
///
/// All waiters spin while the holder is preempted. Embedders that run under a scheduler should therefore supply a lock
/// that sleeps. A CPU that waits for this lock does not answer quiesce requests. A kernel with several CPUs that calls
/// the allocator with interrupts off must therefore supply a lock that answers them.
#[derive(Debug)]
pub struct SpinLock(AtomicU32);

impl RawLock for SpinLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        while !self.try_lock() {
            // Relaxed: this load only detects that the lock may be free. The exchange in `try_lock` acquires the lock.
            while self.0.load(Ordering::Relaxed) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire: takes the last holder's writes; pairs with `SpinLock::unlock`.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(0, Ordering::Release); // Release: publishes the holder's writes; pairs with `SpinLock::try_lock`.
    }
}

/// Proof that zero bytes are valid cells and locks of platform `P`. See [`Platform::ZEROED_CELLS`].
///
/// The platform is part of the type, so a proof for one platform is not accepted for another:
///
/// ```compile_fail,E0308
/// use zonal::platform::cpu_local::TryLock;
/// use zonal::platform::{Platform, SpinLock, ZeroedCells};
///
/// /// Takes its promise from `P` instead of making it.
/// struct Wrapper<P>(P);
///
/// impl<P: Platform> Platform for Wrapper<P> {
///     type U8 = P::U8;
///     type U32 = P::U32;
///     type U64 = P::U64;
///     type Lock = SpinLock;
///     type CpuLocal = TryLock;
///     const ZEROED_CELLS: Option<ZeroedCells<Self>> = P::ZEROED_CELLS;
///     fn current_cpu(&self) -> zonal::units::CpuId {
///         self.0.current_cpu()
///     }
///     fn cpu_local(&self) -> &TryLock {
///         &TryLock
///     }
///     fn now(&self) -> zonal::units::Moment {
///         self.0.now()
///     }
/// }
/// ```
///
/// A type that differs from the platform's type only in lifetimes counts as another platform:
///
/// ```compile_fail,E0308
/// use zonal::platform::ZeroedCells;
///
/// struct Of<F>(F);
///
/// fn of_another(promise: ZeroedCells<Of<fn(&'static ())>>) -> ZeroedCells<Of<for<'a> fn(&'a ())>> {
///     promise
/// }
/// ```
// The type is invariant in `P`, so a proof cannot be converted to a platform type with other lifetimes.
pub struct ZeroedCells<P: ?Sized>(PhantomData<fn(*const P) -> *const P>);

impl<P: ?Sized> ZeroedCells<P> {
    /// Promises that zero bytes are equivalent to `new(0)` or `new()` for all cell and lock types of platform `P`,
    /// and that no value of these types needs to be dropped.
    ///
    /// # Safety
    /// The promise must be true, because the allocator relies on it to use cells in zeroed buffers without constructing
    /// them.
    #[must_use]
    #[allow(unsafe_code)] // the function is unsafe to call but contains no unsafe code
    pub const unsafe fn promise() -> Self {
        Self(PhantomData)
    }
}

impl<P: ?Sized> fmt::Debug for ZeroedCells<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ZeroedCells")
    }
}

/// Access to the contents of frames. The allocator accesses these contents only through this trait.
///
/// The allocator calls these methods for frames that are free or about to be allocated. It may hold locks during the
/// call, so implementations must not call the allocator.
pub trait FrameContents: Sync {
    /// Fills `count` frames, starting at `first`, with `pattern`.
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64);
    /// Whether `count` frames, starting at `first`, contain only `pattern`.
    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool;
}

/// The environment in which an allocator runs.
pub trait Platform: Send + Sync {
    /// Cell of one byte.
    type U8: Atomic<u8>;
    /// Cell of four bytes.
    type U32: Atomic<u32>;
    /// Cell of eight bytes.
    type U64: Atomic<u64>;
    /// Type of the locks for free areas, for quarantines and for run-time changes.
    type Lock: RawLock;
    /// Method that makes the operations of a CPU on its own pagesets mutually exclusive.
    ///
    /// [`TryLock`](crate::platform::cpu_local::TryLock) is for programs that may be preempted at any point.
    /// [`Pinned`](crate::platform::cpu_local::Pinned) is for kernels that call the allocator with preemption and
    /// interrupts off.
    type CpuLocal: CpuLocal<Self>
    where
        Self: Sized;

    /// Proof that zero bytes are valid cells. If it is present, the allocator does not initialize metadata buffers that
    /// are already zeroed.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = None;
    // The constants below say what an embedder does not use, so that its program links no code for it.

    /// The configuration of every allocator on this platform, in place of the one that is passed to
    /// [`Allocator::new`](crate::Allocator::new). Calls that change a setting do not compile then.
    const CONFIG: Option<&'static Config> = None;
    /// Whether CPUs can own blocks ([`OwnedBlocks`](crate::config::OwnedBlocks)). With `false`, the setting has no effect.
    const OWNS_BLOCKS: bool = true;
    /// Whether processes can share an allocator ([`Config::processes`](crate::Config::processes)). With `false`, an allocator for
    /// several processes is refused.
    const IS_SHARED: bool = true;
    /// Whether requests have a policy, allowed nodes or an address limit. With `false`, [`Request::policy`] does not compile.
    /// A request with allowed nodes or an address limit panics, unless a pageset serves it.
    ///
    /// [`Request::policy`]: crate::Request::policy
    const RESTRICTS: bool = true;
    /// Whether requests that find too few free frames call [`Platform::reclaimer`], [`Platform::wake_background_reclaim`] and
    /// [`Platform::pressure`]. With `false`, they only drain the pagesets before they fail.
    const RECLAIMS: bool = true;
    /// Whether the embedder only allocates and frees blocks. With `true`, calls that allocate runs or ranges, and calls that
    /// split, fence, retire or explain, do not compile, and [`Platform::recorder`] is not called.
    const ONLY_BLOCKS: bool = false;

    /// Returns the process of this platform, from 1, if several share the allocator ([`Config::processes`]); 0 otherwise.
    ///
    /// Its machine then has the CPUs of all processes: with ids below `n` in each process, CPU `c` of
    /// process `p` has the id `(p - 1) * n + c`.
    ///
    /// [`Config::processes`]: crate::Config::processes
    fn process(&self) -> u8 {
        0
    }

    /// Asks the other processes that share the allocator to drain their pagesets
    /// ([`Allocator::drain_pagesets`](crate::Allocator::drain_pagesets)), and waits a moment for those that do.
    fn drain_others(&self) {}

    /// Returns the CPU that runs the caller.
    ///
    /// The result may be stale, because the thread may migrate to another CPU. A stale result reduces locality but is
    /// otherwise harmless, except with [`Pinned`](crate::platform::cpu_local::Pinned) access, which requires the
    /// correct CPU. If the machine does not have the CPU that is returned, requests bypass the pagesets.
    fn current_cpu(&self) -> CpuId;

    /// Returns the access method for the pagesets of the current CPU.
    fn cpu_local(&self) -> &Self::CpuLocal
    where
        Self: Sized;

    /// Returns the time of a coarse clock. A call should cost about one load, and the clock should advance at least
    /// every 10 ms. It must not go back or wrap. If it does, requests still succeed, but what is due after a second may be
    /// late.
    fn now(&self) -> Moment;

    /// Pauses briefly while the caller waits for another CPU. The argument is the number of earlier calls during the
    /// same wait.
    fn relax(&self, _round: u32) {
        core::hint::spin_loop();
    }

    /// Whether the calling thread or CPU is reclaiming: it has called [`Platform::begin_reclaiming`], but not yet
    /// [`Platform::end_reclaiming`].
    ///
    /// If so, the allocator treats the caller's requests as [`Reserve`](crate::request::Urgency::Reserve)
    /// requests, and does not start another reclaim for them.
    fn is_reclaiming(&self) -> bool {
        false
    }

    /// Whether the caller runs in a signal or interrupt handler, and the handler interrupted a thread or CPU that held
    /// one of the platform's locks or waited for one.
    ///
    /// If so, operations that need a lock fail with [`AllocError::Reentered`](crate::error::AllocError::Reentered) or
    /// [`FreeError::Reentered`](crate::error::FreeError::Reentered) instead of deadlocking. The default, `false`, is
    /// correct for platforms whose handlers never call the allocator, or never interrupt it while it runs.
    ///
    /// The free of a block is then *deferred*, unless one step without waiting suffices: the block is marked as freed, and counts as allocated until a later request
    /// or free of the same CPU that needs locks, a drain, or the tick finishes its free. A free still fails if the CPU has
    /// deferred [`DEFERRED_FREES_MAX`] frees that are not finished, or if it frees a run or a block with a frame to
    /// retire.
    fn is_reentered(&self) -> bool {
        false
    }

    /// Records that the calling thread or CPU begins to reclaim. The allocator never nests these calls.
    fn begin_reclaiming(&self) {}

    /// Records that the calling thread or CPU has finished reclaiming.
    fn end_reclaiming(&self) {}

    /// Wakes a background worker, which must then call
    /// [`background_reclaim`](crate::Allocator::background_reclaim) for `node` in its own context.
    ///
    /// The wake-up must not be lost if the worker is just about to sleep.
    fn wake_background_reclaim(&self, _node: NodeId) {}

    /// Receives an event of memory pressure, at most one of each kind per second and node.
    ///
    /// The allocator holds no lock during the call. The caller is a thread that allocates, reclaims or ticks; the method
    /// may allocate and free, and should be short, because a request waits for it.
    fn pressure(&self, _event: &PressureEvent) {}

    /// Receives what the allocator does on cold paths: refills, drains, reclaim, failed requests and retired frames.
    ///
    /// The allocator may hold locks during the call, and the caller may be a signal or interrupt handler. The method must
    /// therefore not call the allocator, wait, or use a heap. It is never called for a request or free that the fast path
    /// serves. The default does nothing, and compiles to nothing.
    #[inline(always)]
    fn trace(&self, _point: Tracepoint) {}

    /// Returns the recorder of requests, if one is to receive the next request that needs the slow path.
    ///
    /// The default, `None`, compiles to nothing. With a recorder, such a request costs what
    /// [`Allocator::alloc_explained`](crate::Allocator::alloc_explained) costs; no other request calls this method.
    #[inline(always)]
    fn recorder(&self) -> Option<&dyn Recorder> {
        None
    }

    /// Returns the reclaimer, which the allocator calls when free frames run short.
    fn reclaimer(&self) -> &dyn Reclaimer {
        &NoReclaimer
    }

    /// Returns access to the contents of frames, or `None` if the platform has no access. The allocator needs access to
    /// zero frames and to fill them with a poison pattern.
    fn contents(&self) -> Option<&dyn FrameContents> {
        None
    }

    /// Whether each of 64 adjacent cells holds `value` (acquire).
    ///
    /// An implementation may access several cells with one instruction.
    #[inline]
    fn are_all(cells: &[Self::U8; WORD_FRAMES], value: u8) -> bool {
        whole_words::are_all(cells, value)
    }

    /// Replaces the value of 64 adjacent cells by `to` if each holds `from`, and returns whether it did.
    ///
    /// An implementation loads each cell (acquire) and, if all hold `from`, stores `to` to each cell (release). It may
    /// access several cells with one instruction and in any order, but it must not store to any cell unless all cells
    /// held `from`. The operation as a whole is not atomic, and need not be: while a cell holds `from`, only the caller
    /// changes the cell.
    #[inline]
    fn replace_all(cells: &[Self::U8; WORD_FRAMES], from: u8, to: u8) -> bool {
        whole_words::replace_all(cells, from, to)
    }

    /// Exchanges `from` for `to` in 64 adjacent cells, one after another, up to the first that does not hold `from` (acquire
    /// and release, as one exchange for each cell); returns how many cells it exchanged.
    ///
    /// An implementation may exchange several cells with one instruction. It must not change a cell after the first that
    /// does not hold `from`.
    #[inline]
    fn exchange_leading(cells: &[Self::U8; WORD_FRAMES], from: u8, to: u8) -> usize {
        whole_words::exchange_leading(cells, from, to)
    }

    /// Stores `first`, `first + 1` and so on in adjacent cells (relaxed).
    ///
    /// The caller holds the lock of the cells. An implementation may access several cells with one instruction.
    #[inline]
    fn store_ascending(cells: &[Self::U32; WORD_FRAMES], first: u32) {
        whole_words::store_ascending(cells, first);
    }

    /// Whether adjacent cells hold consecutive numbers in this direction, wrapping (relaxed).
    ///
    /// The caller holds the lock of the cells. An implementation may access several cells with one instruction.
    #[inline]
    fn holds_run(cells: &[Self::U32; WORD_FRAMES], direction: Direction) -> bool {
        whole_words::holds_run(cells, direction)
    }
}
