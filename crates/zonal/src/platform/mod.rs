//! The whole contract with the embedder: atomics, a lock, the current CPU, a clock, wake-up.
//!
//! Vocabulary: a *cell* is one atomic integer of shared state, a *platform* is the world the
//! allocator runs in: native code, a model checker, a simulated machine. Every cell and lock of
//! the allocator is of the platform's types, so a platform sees each shared access there is.
//! Neighbours: `layout.rs` builds cells in the caller's buffers; all other rooms use them.

pub(crate) mod cells;
pub mod cpu_local;
pub(crate) mod lock;
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
    /// A cell holding `value`.
    fn new(value: T) -> Self;
    /// Reads the cell.
    fn load(&self, order: Ordering) -> T;
    /// Writes the cell.
    fn store(&self, value: T, order: Ordering);
    /// Writes the cell and gives what it held.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Writes `new` if the cell holds `current`; gives what it held, as `Err` when it differed.
    ///
    /// # Errors
    /// The value found, when it was not `current`.
    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T>;
    /// Adds `value`, wrapping, and gives what the cell held.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Sets the bits of `value` and gives what the cell held.
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// Keeps only the bits of `value` and gives what the cell held.
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

/// A lock that guards state in cells; it owns no data and is never held across a callback into code that
/// may use the allocator.
///
/// The lock of changes at run time is held while [other CPUs are quiesced](crate::platform::cpu_local::Quiesce): with
/// [`Pinned`](crate::platform::cpu_local::Pinned) access on several CPUs, a lock must answer them while it waits.
pub trait RawLock: Send + Sync {
    /// A free lock.
    fn new() -> Self;
    /// Waits until the lock is held. Not reentrant.
    fn lock(&self);
    /// Takes the lock if it is free and says whether it did.
    fn try_lock(&self) -> bool;
    /// Frees the lock, which the caller holds.
    fn unlock(&self);
}

/// A test-and-test-and-set spin lock, for embedders that bring no lock of their own. Holders must
/// not be preempted for long: with a scheduler underneath, bring a lock that sleeps. It answers nobody while
/// it waits: kernels of several CPUs that call the allocator with interrupts off bring one that does.
#[derive(Debug)]
pub struct SpinLock(AtomicU32);

impl RawLock for SpinLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        while !self.try_lock() {
            // Relaxed: only waiting; the exchange in `try_lock` acquires.
            while self.0.load(Ordering::Relaxed) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire pairs with the release in `unlock`.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(0, Ordering::Release); // pairs with the acquire in `try_lock`
    }
}

/// Proof of a promise about platform `P`: buffers of zero bytes hold valid cells of it. See
/// [`Platform::ZEROED_CELLS`].
///
/// It names its platform, so that the promise of one platform says nothing about another:
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
/// Neither does that of a platform whose type differs in lifetimes alone:
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
    /// Promises that for all cell and lock types of platform `P`, zero bytes are the same as
    /// `new(0)` or `new()`, and that none of them needs dropping.
    ///
    /// # Safety
    /// The promise must be true: cells are then used without having been constructed.
    #[must_use]
    #[allow(unsafe_code)] // an unsafe function without unsafe code in it
    pub const unsafe fn promise() -> Self {
        Self(PhantomData)
    }
}

impl<P: ?Sized> fmt::Debug for ZeroedCells<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ZeroedCells")
    }
}

/// Access to what is in frames, which the allocator itself never touches. Called with frames that
/// are nobody's, or about to be somebody's; locks may be held, so it must not call the allocator.
pub trait FrameContents: Sync {
    /// Writes `pattern` over `count` frames from `first`.
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64);
    /// Whether `count` frames from `first` hold nothing but `pattern`.
    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool;
}

/// The world an allocator runs in.
pub trait Platform: Send + Sync {
    /// Cell of one byte.
    type U8: Atomic<u8>;
    /// Cell of four bytes.
    type U32: Atomic<u32>;
    /// Cell of eight bytes.
    type U64: Atomic<u64>;
    /// Lock of one zone, and of changes at run time.
    type Lock: RawLock;
    /// How a CPU's operations on its own pagesets exclude each other:
    /// [`TryLock`](crate::platform::cpu_local::TryLock) for programs that may be preempted anywhere,
    /// [`Pinned`](crate::platform::cpu_local::Pinned) for kernels that may not.
    type CpuLocal: CpuLocal<Self>
    where
        Self: Sized;

    /// Set when zero bytes are valid cells: zeroed metadata buffers are then not written at start.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = None;

    /// The CPU that runs the caller. A stale answer costs locality, never correctness, except with
    /// [`Pinned`](crate::platform::cpu_local::Pinned), where the answer must be right; one that the machine
    /// does not have sends requests past the pagesets.
    fn current_cpu(&self) -> CpuId;

    /// The way to the pagesets of the current CPU.
    fn cpu_local(&self) -> &Self::CpuLocal
    where
        Self: Sized;

    /// The coarse clock; it should be one load and move at least every 10 ms.
    fn now(&self) -> Moment;

    /// Waits a little for another CPU; called with 0, 1, 2, ... while the same wait goes on.
    fn relax(&self, _round: u32) {
        core::hint::spin_loop();
    }

    /// Whether the caller is itself reclaiming: its requests then act as
    /// [`Reserve`](crate::alloc::request::Urgency::Reserve) and never reclaim again.
    fn is_reclaiming(&self) -> bool {
        false
    }

    /// Whether the caller runs within a signal or interrupt handler that has interrupted its own thread, or CPU,
    /// while that held one of the platform's locks or waited for one. What cannot be done without a lock
    /// then fails, as [`AllocError::Reentered`](crate::error::AllocError::Reentered) and
    /// [`FreeError::Reentered`](crate::error::FreeError::Reentered), instead of waiting for ever. Platforms whose
    /// handlers never call the allocator, or not while it is at work, leave it.
    fn is_reentered(&self) -> bool {
        false
    }

    /// The caller begins (`true`) or ends (`false`) reclaiming. Never nested.
    fn set_reclaiming(&self, _reclaiming: bool) {}

    /// Asks that [`background_reclaim`](crate::Allocator::background_reclaim) be called for `node`
    /// soon, from another context. Must not be lost when the worker is just going to sleep.
    fn wake_background_reclaim(&self, _node: NodeId) {}

    /// Who can give frames back under pressure.
    fn reclaimer(&self) -> &dyn Reclaimer {
        &NoReclaimer
    }

    /// Access to frame contents; needed for zeroed requests and for the poison option.
    fn contents(&self) -> Option<&dyn FrameContents> {
        None
    }
}
