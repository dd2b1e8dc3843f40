//! What unit tests of several rooms share: a bare platform, cells, a guard, random numbers.
//!
//! Tests of the public interface have a world of their own, in `tests/common`.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::vec::Vec;

use crate::counters::CpuGuard;
use crate::cpu_local::TryLock;
use crate::platform::{Platform, SpinLock};
use crate::units::{CpuId, Moment};

/// The bare machine: native cells, one CPU, a clock that stands still.
pub(crate) struct Native;

impl Platform for Native {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::default()
    }
}

/// Guard of state that only the test itself can reach.
pub(crate) struct Unshared;

impl CpuGuard for Unshared {}

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

    /// An index into something of length `bound`, which is not 0.
    pub(crate) const fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }
}
