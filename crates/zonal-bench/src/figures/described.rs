//! Creates allocators for machines that are only described: the core alone, without memory behind its frames.
//!
//! The metadata is in fresh mappings, as it is in a real pool.

use std::mem::MaybeUninit;

use memmap2::{MmapMut, MmapOptions};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine};

use crate::described::Described;

/// A described machine: the frames of each node, with equal distances and all CPUs on the first node.
#[derive(Default)]
pub(super) struct Description {
    pub(super) frames: Vec<u64>,
    pub(super) cpus: u32,
    /// Number of absent frames that each zone spans after its managed frames.
    pub(super) absent: u64,
}

/// An allocator and the memory of its metadata.
pub(super) struct World {
    /// This field is declared first, because fields are dropped in order of declaration.
    pub(super) allocator: Allocator<'static, Described>,
    _metadata: Vec<MmapMut>,
}

impl Description {
    /// Starts an allocator.
    ///
    /// # Panics
    /// Panics if the configuration does not suit the machine, or if there is not enough address space for the
    /// metadata.
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
        let machine = Machine::new(&nodes, &zones).expect("the description is valid");
        let mut metadata = Vec::new();
        let allocator = Allocator::new(Described::default(), &machine, config, |request| {
            let mapped = MmapOptions::new().len(request.bytes.max(1)).no_reserve_swap().map_anon();
            metadata.push(mapped.ok()?);
            let fresh: &mut MmapMut = metadata.last_mut()?;
            let first = fresh.as_mut_ptr().cast::<MaybeUninit<u8>>();
            // SAFETY: the mapping is fresh, has no other user, and outlives the allocator.
            let bytes = unsafe { std::slice::from_raw_parts_mut(first, request.bytes) };
            // SAFETY: the kernel zeroes fresh mappings.
            Some(unsafe { Buffer::zeroed(bytes) })
        });
        World { allocator: allocator.expect("the configuration is valid"), _metadata: metadata }
    }
}

/// Returns the frames of each node. The ranges are in ascending order, with `absent` frames after each range, and
/// each range begins at an alignment that allows large blocks.
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
