//! The platform of histories: a single thread, on a CPU and at a time that the history sets.
//!
//! No lock is ever contended. An attempt to lock a held lock is a defect, because the only thread would wait for
//! itself.
//!
//! Related files: `recording.rs` has cells whose values can be restored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use zonal::Platform;
use zonal::platform::cpu_local::TryLock;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::platform::{Atomic, RawLock};
use zonal::units::{CpuId, Moment, PageCount};

use super::reclaimer::TestReclaimer;

/// The types of the cells that contain an allocator's state.
pub trait Cells: Send + Sync + 'static {
    /// A cell of one byte.
    type U8: Atomic<u8>;
    /// A cell of four bytes.
    type U32: Atomic<u32>;
    /// A cell of eight bytes.
    type U64: Atomic<u64>;
}

/// The atomic integers of the standard library, as in production.
pub struct Plain;

impl Cells for Plain {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
}

/// The state that a history controls. All accesses are relaxed, because there is only one thread.
#[derive(Default)]
pub struct Controls {
    cpu: AtomicU32,
    clock_ns: AtomicU64,
    is_reclaiming: AtomicBool,
}

const NS_PER_MS: u64 = 1_000_000;

impl Controls {
    /// Returns the current CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu.load(Relaxed)
    }

    /// Sets the current CPU.
    pub fn run_on(&self, cpu: u32) {
        self.cpu.store(cpu, Relaxed);
    }

    /// Returns the clock, in milliseconds.
    pub fn ms(&self) -> u64 {
        self.clock_ns.load(Relaxed) / NS_PER_MS
    }

    /// Sets the clock, possibly backwards.
    pub fn set_ms(&self, ms: u64) {
        self.clock_ns.store(ms * NS_PER_MS, Relaxed);
    }
}

/// A lock for which no thread ever waits.
pub struct NeverWaits(AtomicBool);

impl RawLock for NeverWaits {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn lock(&self) {
        assert!(self.try_lock(), "the only thread there is waits for itself");
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Relaxed) // relaxed, here and below: one thread
    }

    fn unlock(&self) {
        assert!(self.0.swap(false, Relaxed), "a lock was released that was not held");
    }
}

/// The platform.
pub struct ControlledPlatform<'m, C: Cells> {
    controls: Arc<Controls>,
    pub(super) reclaimer: TestReclaimer<'m, C>,
}

impl<C: Cells> ControlledPlatform<'_, C> {
    pub(super) fn new(controls: Arc<Controls>) -> Self {
        Self { controls, reclaimer: TestReclaimer::new() }
    }
}

impl<C: Cells> Platform for ControlledPlatform<'_, C> {
    type U8 = C::U8;
    type U32 = C::U32;
    type U64 = C::U64;
    type Lock = NeverWaits;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(self.controls.cpu())
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.controls.clock_ns.load(Relaxed))
    }

    fn is_reclaiming(&self) -> bool {
        self.controls.is_reclaiming.load(Relaxed)
    }

    fn begin_reclaiming(&self) {
        assert!(!self.controls.is_reclaiming.swap(true, Relaxed), "reclaim is never nested");
    }

    fn end_reclaiming(&self) {
        assert!(self.controls.is_reclaiming.swap(false, Relaxed), "reclaim ends once");
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        self
    }
}

impl<C: Cells> Reclaimer for ControlledPlatform<'_, C> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        assert!(self.is_reclaiming(), "the caller of a reclaimer is reclaiming");
        self.reclaimer.count(request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        assert!(self.is_reclaiming(), "the caller of a reclaimer is reclaiming");
        self.reclaimer.reclaim(request)
    }
}
