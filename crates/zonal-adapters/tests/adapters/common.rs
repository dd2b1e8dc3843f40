//! Allocators whose physical memory is a buffer of the test.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::OneThread;
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine};

pub(crate) type TestAllocator = Allocator<'static, OneThread>;

pub(crate) const FRAME_BYTES: usize = 4096;

/// Returns the range of `count` frames from `start` on.
pub(crate) fn range(start: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
}

/// Builds an allocator of one node, with all of its memory online.
pub(crate) fn allocator(memory: FrameRange, config: &Config) -> TestAllocator {
    build(memory, &[memory], &[], config)
}

/// Builds an allocator of one node, whose memory comes online later.
pub(crate) fn late_memory(memory: FrameRange) -> TestAllocator {
    build(memory, &[], &[memory], &Config::default())
}

/// Builds an allocator of one node. Its metadata is leaked, because the test process soon ends.
fn build(
    memory: FrameRange,
    managed: &[FrameRange],
    hotplug: &[FrameRange],
    config: &Config,
) -> TestAllocator {
    let id = NodeId::new(0).unwrap();
    let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed }];
    let machine = Machine::new(&nodes, &zones).unwrap().with_hotplug(hotplug).unwrap();
    Allocator::new(OneThread::new(), &machine, config, |request| {
        Some(Buffer::uninit(vec![MaybeUninit::uninit(); request.bytes].leak()))
    })
    .unwrap()
}

/// Zeroed memory in place of a machine's physical memory, aligned to 4 MiB.
pub(crate) struct Physical {
    start: NonNull<u8>,
    layout: Layout,
}

impl Physical {
    pub(crate) fn new(frames: u64) -> Self {
        let layout = Layout::from_size_align(frames as usize * FRAME_BYTES, 4 << 20).unwrap();
        // SAFETY: no test has memory of no frames.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap(), layout }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Checks that all frames are free.
pub(crate) fn check_all_free(allocator: &TestAllocator) {
    allocator.drain_pagesets();
    let accounting = allocator.verify().unwrap();
    assert_eq!((accounting.free, accounting.allocated), (accounting.managed, PageCount::ZERO));
}
