//! Allocators over described machines: only the core, without memory behind its frames.
//!
//! Metadata is in fresh mappings, as in a pool. The platform is minimal: one CPU number, a spin lock, and a
//! clock that the measurement advances.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::TryLock;
use zonal::platform::{SpinLock, ZeroedCells};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform};

/// The platform of a described machine.
#[derive(Default)]
pub(super) struct Described {
    now_ns: AtomicU64,
}

impl Described {
    /// Sets the clock.
    pub(super) fn set_clock(&self, ns: u64) {
        self.now_ns.store(ns, Ordering::Relaxed); // Relaxed: one thread
    }
}

impl Platform for Described {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = TryLock;

    // SAFETY: these atomics and the lock made of one are plain integers, zero when new.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.now_ns.load(Ordering::Relaxed)) // Relaxed: one thread
    }
}

/// A machine: the frames of each node, equal distances, and CPUs on the first node.
#[derive(Default)]
pub(super) struct Description {
    pub(super) frames: Vec<u64>,
    pub(super) cpus: u32,
    /// Absent frames that each zone spans after its managed frames.
    pub(super) absent: u64,
}

/// An allocator and the memory of its state.
pub(super) struct World {
    /// Declared first, because fields are dropped in this order.
    pub(super) allocator: Allocator<'static, Described>,
    _metadata: Vec<MmapMut>,
}

impl Description {
    /// Starts an allocator.
    ///
    /// # Panics
    /// Panics if the configuration does not suit the machine, or there is no address space for its state.
    pub(super) fn start(&self, config: &Config) -> World {
        let ids = (0..).map_while(NodeId::new).zip(&self.frames);
        let cpus: Vec<CpuId> = (0..self.cpus).map(CpuId::new).collect();
        let count = self.frames.len();
        let rows: Vec<Vec<u8>> =
            (0..count).map(|row| (0..count).map(|to| if row == to { 10 } else { 20 }).collect()).collect();
        let nodes = ids.clone().zip(&rows);
        let nodes: Vec<_> = nodes
            .map(|((id, _), distances)| NodeDescription {
                id,
                cpus: if id.index() == 0 { &cpus } else { &[] },
                distances,
            })
            .collect();
        let ranges: Vec<FrameRange> = ranges(&self.frames, self.absent);
        let zones: Vec<_> = ids
            .zip(&ranges)
            .map(|((node, _), range)| ZoneDescription {
                node,
                kind: ZoneKind::Normal,
                span: FrameRange { count: range.count.plus(PageCount::new(self.absent)), ..*range },
                managed: std::slice::from_ref(range),
            })
            .collect();
        let machine = Machine::new(&nodes, &zones).expect("the description is lawful");
        let mut metadata = Vec::new();
        let allocator = Allocator::new(Described::default(), &machine, config, |request| {
            let mapped = MmapOptions::new().len(request.bytes.max(1)).no_reserve_swap().map_anon();
            metadata.push(mapped.ok()?);
            let fresh: &mut MmapMut = metadata.last_mut()?;
            let first = fresh.as_mut_ptr().cast::<MaybeUninit<u8>>();
            // SAFETY: a fresh mapping that has no other user and that outlives the allocator.
            let bytes = unsafe { std::slice::from_raw_parts_mut(first, request.bytes) };
            // SAFETY: the kernel zeroes fresh mappings.
            Some(unsafe { Buffer::zeroed(bytes) })
        });
        World { allocator: allocator.expect("the configuration is lawful"), _metadata: metadata }
    }
}

/// Returns each node's frames, one range after another with `absent` frames between them. Each range begins
/// at an alignment that allows large blocks.
fn ranges(frames: &[u64], absent: u64) -> Vec<FrameRange> {
    const ALIGN: u64 = 4096;
    let mut start = ALIGN;
    let range = |&count: &u64| {
        let range = FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
        start += (count + absent).next_multiple_of(ALIGN);
        range
    };
    frames.iter().map(range).collect()
}
