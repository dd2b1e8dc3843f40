//! What the embedder supplies: atomics, a lock, the current CPU, a clock, wake-up and optional services.
//!
//! A *cell* is one atomic integer of shared state. A *platform* is the environment that the allocator runs in:
//! native code, a model checker or a simulated machine. Every cell and lock of the allocator has one of the
//! platform's types, so a platform observes every shared access. Neighbours: `metadata/arena.rs` builds cells in
//! the caller's buffers, `platform/cells.rs` declares structures of cells, `platform/cpu_local.rs` defines per-CPU
//! access.

pub(crate) mod cells;
pub mod cpu_local;
pub(crate) mod lock;
pub mod one_thread;
pub mod pageset_slot;
pub(crate) mod pageset_word;
pub mod reclaimer;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::platform::cpu_local::CpuLocal;
use crate::units::{CpuId, Moment, NodeId, PageCount, Pfn};
use reclaimer::{NoReclaimer, Reclaimer};

/// An atomic integer holding `T`, with the operations and orderings of `core::sync::atomic`.
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
    /// Returns the value found if it was not `current`.
    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T>;
    /// Adds `value`, wrapping, and returns the previous value.
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
/// It owns no data and is never held across a callback into code that may use the allocator.
///
/// The lock for run-time changes is held while [other CPUs are quiesced](crate::platform::cpu_local::Quiesce).
/// With [`Pinned`](crate::platform::cpu_local::Pinned) access on several CPUs, a lock must answer quiesce requests
/// while it waits.
pub trait RawLock: Send + Sync {
    /// Creates an unlocked lock.
    fn new() -> Self;
    /// Acquires the lock, waiting until it is free. Not reentrant.
    fn lock(&self);
    /// Acquires the lock if it is free and returns whether it did.
    fn try_lock(&self) -> bool;
    /// Releases the lock, which the caller must hold.
    fn unlock(&self);
}

/// A test-and-test-and-set spin lock, for embedders that have no lock of their own.
///
/// Holders must not be preempted for long: under a scheduler, supply a lock that sleeps. This lock does not answer
/// quiesce requests while it waits. A kernel with several CPUs that calls the allocator with interrupts off must
/// supply a lock that does.
#[derive(Debug)]
pub struct SpinLock(AtomicU32);

impl RawLock for SpinLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        while !self.try_lock() {
            // Relaxed: this load only waits; the exchange in `try_lock` acquires.
            while self.0.load(Ordering::Relaxed) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire: pairs with the release in `unlock`.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(0, Ordering::Release); // Release: pairs with the acquire in `try_lock`.
    }
}

/// Proof of a promise about platform `P`: buffers of zero bytes hold valid cells of it. See
/// [`Platform::ZEROED_CELLS`].
///
/// The type names its platform, so the promise of one platform says nothing about another:
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
/// Nor does it hold for a platform whose type differs only in lifetimes:
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
pub struct ZeroedCells<P: ?Sized>(PhantomData<fn(*const P) -> *const P>); // invariant

impl<P: ?Sized> ZeroedCells<P> {
    /// Promises that zero bytes are equivalent to `new(0)` or `new()` for all cell and lock types of platform `P`,
    /// and that none of these types needs dropping.
    ///
    /// # Safety
    /// The promise must be true: cells are then used without being constructed.
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

/// Access to the contents of frames, which the allocator itself never touches.
///
/// Called with frames that are free or about to be allocated. Locks may be held, so implementations must not call
/// the allocator.
pub trait FrameContents: Sync {
    /// Fills `count` frames from `first` with `pattern`.
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64);
    /// Whether `count` frames from `first` contain only `pattern`.
    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool;
}

/// The environment that an allocator runs in.
pub trait Platform: Send + Sync {
    /// Cell of one byte.
    type U8: Atomic<u8>;
    /// Cell of four bytes.
    type U32: Atomic<u32>;
    /// Cell of eight bytes.
    type U64: Atomic<u64>;
    /// Lock type of free areas, of quarantines and of run-time changes.
    type Lock: RawLock;
    /// How the operations of a CPU on its own pagesets exclude each other:
    /// [`TryLock`](crate::platform::cpu_local::TryLock) for programs that may be preempted at any point,
    /// [`Pinned`](crate::platform::cpu_local::Pinned) for kernels that run with preemption off.
    type CpuLocal: CpuLocal<Self>
    where
        Self: Sized;

    /// Proof that zero bytes are valid cells. If set, zeroed metadata buffers are not written at start.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = None;

    /// Returns the CPU that runs the caller.
    ///
    /// A stale answer costs locality, never correctness, except with
    /// [`Pinned`](crate::platform::cpu_local::Pinned), where the answer must be right. A request on a CPU that the
    /// machine does not have bypasses the pagesets.
    fn current_cpu(&self) -> CpuId;

    /// Returns the access method for the pagesets of the current CPU.
    fn cpu_local(&self) -> &Self::CpuLocal
    where
        Self: Sized;

    /// Returns the time of the coarse clock, which should cost one load and advance at least every 10 ms.
    fn now(&self) -> Moment;

    /// Waits briefly for another CPU; called with 0, 1, 2, ... while the same wait continues.
    fn relax(&self, _round: u32) {
        core::hint::spin_loop();
    }

    /// Whether the caller is itself reclaiming.
    ///
    /// Its requests then act as [`Reserve`](crate::alloc::request::Urgency::Reserve) and never reclaim again.
    fn is_reclaiming(&self) -> bool {
        false
    }

    /// Whether the caller runs in a signal or interrupt handler that interrupted its own thread or CPU while that
    /// held, or waited for, one of the platform's locks.
    ///
    /// Operations that need a lock then fail with [`AllocError::Reentered`](crate::error::AllocError::Reentered)
    /// or [`FreeError::Reentered`](crate::error::FreeError::Reentered) instead of deadlocking. Platforms whose
    /// handlers never call the allocator, or never while it runs, keep the default.
    fn is_reentered(&self) -> bool {
        false
    }

    /// Records that the caller begins to reclaim. Never nested.
    fn begin_reclaiming(&self) {}

    /// Records that the caller has finished reclaiming.
    fn end_reclaiming(&self) {}

    /// Requests that [`background_reclaim`](crate::Allocator::background_reclaim) be called for `node` soon, from
    /// another context.
    ///
    /// The request must not be lost when the worker is about to sleep.
    fn wake_background_reclaim(&self, _node: NodeId) {}

    /// Returns the reclaimer that frees frames under pressure.
    fn reclaimer(&self) -> &dyn Reclaimer {
        &NoReclaimer
    }

    /// Returns access to frame contents, which zeroed requests and the poison option need.
    fn contents(&self) -> Option<&dyn FrameContents> {
        None
    }
}
