//! The platform of unit tests: native atomics, and a CPU, a clock and a reclaimer that tests set.
//!
//! The current CPU and the reclaiming mark belong to the thread; the rest to the platform value.
//! Neighbours: every room's tests.

use core::cell::Cell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};
use std::vec::Vec;

use crate::platform::{Platform, SpinLock};
use crate::reclaim::{NoReclaimer, Reclaimer};
use crate::units::{CpuId, Moment, NodeId};

std::thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

/// A world that tests steer.
pub(crate) struct TestPlatform {
    clock_ns: AtomicU64,
    reclaimer: RwLock<&'static dyn Reclaimer>,
    woken: Mutex<Vec<NodeId>>,
}

impl TestPlatform {
    /// CPU 0 at moment 0, without a reclaimer.
    pub(crate) fn new() -> Self {
        Self {
            clock_ns: AtomicU64::new(0),
            reclaimer: RwLock::new(&NoReclaimer),
            woken: Mutex::new(Vec::new()),
        }
    }

    /// Moves the calling thread to `cpu`, on every platform.
    pub(crate) fn run_on(cpu: CpuId) {
        CPU.set(cpu.get());
    }

    /// Sets the clock.
    pub(crate) fn set_now(&self, now: Moment) {
        self.clock_ns.store(now.ns(), Relaxed); // relaxed: the clock orders nothing
    }

    /// Moves the clock on.
    pub(crate) fn advance_ns(&self, ns: u64) {
        self.clock_ns.fetch_add(ns, Relaxed); // relaxed: the clock orders nothing
    }

    /// Installs a reclaimer.
    pub(crate) fn set_reclaimer(&self, reclaimer: &'static dyn Reclaimer) {
        *self.reclaimer.write().unwrap() = reclaimer;
    }

    /// Nodes whose background reclaim was woken since the last call, in order.
    pub(crate) fn take_woken(&self) -> Vec<NodeId> {
        core::mem::take(&mut self.woken.lock().unwrap())
    }
}

impl Platform for TestPlatform {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.clock_ns.load(Relaxed)) // relaxed: the clock orders nothing
    }

    fn relax(&self, _round: u32) {
        std::thread::yield_now();
    }

    fn is_reclaiming(&self) -> bool {
        RECLAIMING.get()
    }

    fn set_reclaiming(&self, reclaiming: bool) {
        RECLAIMING.set(reclaiming);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.woken.lock().unwrap().push(node);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        *self.reclaimer.read().unwrap()
    }
}

/// `count` cells that hold 0.
pub(crate) fn cells(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// A small generator of pseudo-random numbers (splitmix64): the same seed, the same history.
pub(crate) struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageCount;

    struct OnePage;
    impl Reclaimer for OnePage {
        fn count(&self, _node: NodeId) -> PageCount {
            PageCount::new(1)
        }
        fn reclaim(&self, _node: NodeId, _target: PageCount) -> PageCount {
            PageCount::new(1)
        }
    }

    #[test]
    fn tests_steer_the_world() {
        let (world, node) = (TestPlatform::new(), NodeId::new(3).unwrap());
        TestPlatform::run_on(CpuId::new(5));
        world.set_now(Moment::from_ns(7));
        world.advance_ns(2);
        world.wake_background_reclaim(node);
        world.set_reclaiming(true);
        assert_eq!(world.reclaimer().count(node), PageCount::ZERO);
        world.set_reclaimer(&OnePage);
        assert_eq!(world.reclaimer().count(node), PageCount::new(1));
        assert_eq!((world.current_cpu(), world.now()), (CpuId::new(5), Moment::from_ns(9)));
        assert_eq!(world.take_woken(), [node]);
        assert!(world.is_reclaiming());
        assert!(!std::thread::spawn(move || world.is_reclaiming()).join().unwrap());
    }
}
