//! The smallest platform: one thread, which sets the current CPU and the clock itself.
//!
//! It is intended for the boot CPU of a kernel before the others start, for planning tools, and for tests and
//! examples.
//!
//! Related files: `platform/mod.rs` defines the contract of a platform.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::platform::cpu_local::TryLock;
use crate::platform::{Atomic, Platform, RawLock, SpinLock, ZeroedCells};
use crate::units::{CpuId, Moment};

/// The cell and lock types of a [`OneThread`] platform.
pub trait Cells: Sized + 'static {
    /// Cell of one byte.
    type U8: Atomic<u8>;
    /// Cell of four bytes.
    type U32: Atomic<u32>;
    /// Cell of eight bytes.
    type U64: Atomic<u64>;
    /// Lock type.
    type Lock: RawLock;

    /// Proof that zero bytes are valid cells, as in [`Platform::ZEROED_CELLS`].
    const ZEROED_CELLS: Option<ZeroedCells<OneThread<Self>>> = None;
}

/// The atomics of `core`, and [`SpinLock`].
#[derive(Clone, Copy, Debug)]
pub struct NativeCells;

impl Cells for NativeCells {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;

    // SAFETY: the atomics of `core` are plain integers, and `SpinLock` consists of one. A new atomic with
    // value 0 and a new `SpinLock` consist of zero bytes. None of these types needs dropping.
    #[allow(unsafe_code)]
    const ZEROED_CELLS: Option<ZeroedCells<OneThread>> = Some(unsafe { ZeroedCells::promise() });
}

/// A platform whose current CPU and clock are set by the caller; they are CPU 0 and time 0 initially.
///
/// It has no reclaimer and no access to frame contents. Any number of threads may share it. All of them act as the
/// CPU that was set last; this costs locality but not correctness.
///
/// # Examples
/// ```
/// use zonal::platform::Platform;
/// use zonal::platform::one_thread::OneThread;
/// use zonal::units::{CpuId, Moment};
///
/// let platform = OneThread::new();
/// platform.set_current_cpu(CpuId::new(3));
/// platform.set_time(Moment::from_ns(1_000_000));
/// assert_eq!(platform.current_cpu(), CpuId::new(3));
/// assert_eq!(platform.now(), Moment::from_ns(1_000_000));
/// ```
#[derive(Debug)]
pub struct OneThread<C: Cells = NativeCells> {
    cpu: AtomicU32,
    now_ns: AtomicU64,
    cells: core::marker::PhantomData<fn() -> C>,
}

impl OneThread {
    /// Creates the platform with the atomics of `core`.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_cells()
    }
}

impl<C: Cells> OneThread<C> {
    /// Creates the platform with the types of cells and locks in `C`.
    #[must_use]
    pub const fn with_cells() -> Self {
        Self { cpu: AtomicU32::new(0), now_ns: AtomicU64::new(0), cells: core::marker::PhantomData }
    }

    /// Sets the value that [`Platform::current_cpu`] returns from now on.
    pub fn set_current_cpu(&self, cpu: CpuId) {
        self.cpu.store(cpu.get(), Relaxed); // relaxed: a stale CPU costs locality only
    }

    /// Sets the clock.
    pub fn set_time(&self, now: Moment) {
        self.now_ns.store(now.ns(), Relaxed); // relaxed: no other data depends on it
    }
}

impl<C: Cells> Default for OneThread<C> {
    fn default() -> Self {
        Self::with_cells()
    }
}

impl<C: Cells> Platform for OneThread<C> {
    type U8 = C::U8;
    type U32 = C::U32;
    type U64 = C::U64;
    type Lock = C::Lock;
    type CpuLocal = TryLock;

    const ZEROED_CELLS: Option<ZeroedCells<Self>> = C::ZEROED_CELLS;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(self.cpu.load(Relaxed)) // relaxed: a stale CPU costs locality only
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.now_ns.load(Relaxed)) // relaxed: no other data depends on it
    }
}
