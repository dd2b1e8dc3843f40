//! Helpers for unit tests in several folders: a platform, a small allocator, cells, a guard and random numbers.
//!
//! Tests of the public interface use the helpers in `tests/common` instead.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU64;
use std::boxed::Box;
use std::vec::Vec;

use crate::layout::BufferRequest;
use crate::machine::{FrameRange, NodeDescription, ZoneDescription};
use crate::platform::one_thread::OneThread;
use crate::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use crate::zone::counters::CpuGuard;
use crate::{Allocator, Buffer, Config, Machine};

/// The platform of unit tests.
pub(crate) type Native = OneThread;

/// Builds an allocator over two nodes, which have one CPU (0 and 2) and two zones each.
///
/// The function calls `sink` with each metadata buffer. The buffers are never freed.
pub(crate) fn small(config: &Config, mut sink: impl FnMut(&[MaybeUninit<u8>])) -> Allocator<'static, Native> {
    let ids = [0, 1].map(|id| NodeId::new(id).expect("it is small"));
    let nodes = [
        NodeDescription { id: ids[0], cpus: &[CpuId::new(0)], distances: &[10, 20] },
        NodeDescription { id: ids[1], cpus: &[CpuId::new(2)], distances: &[20, 10] },
    ];
    let spans = [(0x1000, 0x1000), (0x8000, 0x5000), (0x2000, 0x1000), (0x10000, 0x6000)];
    let spans =
        spans.map(|(start, count)| FrameRange { start: Pfn::new(start), count: PageCount::new(count) });
    let zones: [ZoneDescription<'_>; 4] = core::array::from_fn(|at| ZoneDescription {
        node: ids[at / 2],
        kind: [ZoneKind::Dma32, ZoneKind::Normal][at % 2],
        span: spans[at],
        managed: &spans[at..=at],
    });
    let machine = Machine::new(&nodes, &zones).expect("a valid machine");
    let supply = |request: BufferRequest| {
        let bytes = Box::leak(std::vec![MaybeUninit::new(0xa5_u8); request.bytes].into_boxed_slice());
        sink(bytes);
        Some(Buffer::uninit(bytes))
    };
    Allocator::new(Native::new(), &machine, config, supply).expect("a valid configuration")
}

/// Guard of state that only the test itself can access.
pub(crate) struct Unshared;

impl CpuGuard for Unshared {}

/// Creates `count` cells that hold 0.
pub(crate) fn cells(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// A small generator of pseudo-random numbers (splitmix64); a seed always produces the same numbers.
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator from `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// Returns an index below `bound`, which is not 0.
    pub(crate) const fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }
}

/// Returns the address of a value.
pub(crate) fn at<T>(value: &T) -> usize {
    core::ptr::from_ref(value).addr()
}
