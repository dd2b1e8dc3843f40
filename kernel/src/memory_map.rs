//! The memory of each node: what boot code takes for itself, and the description of the rest for the allocator.
//!
//! Each node has one zone of each kind, so the memory of two nodes must not alternate. zonal itself allows several zones
//! of a kind on a node.

use core::mem::MaybeUninit;

use arrayvec::ArrayVec;
use zonal::Machine;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};

use crate::cpu::CPUS_MAX;
use crate::firmware::{FRAME_BYTES, Firmware, NODES_MAX, NodeFrames, RANGES_MAX};

/// First frame that this kernel uses. Below it are the firmware's data and the trampoline of the CPUs.
const FIRST_FRAME: u64 = 0x100;
/// First frame after the zones `Dma` and `Dma32`: 16 MiB and 4 GiB.
const ZONE_ENDS: [(ZoneKind, u64); 3] =
    [(ZoneKind::Dma, 0x1000), (ZoneKind::Dma32, 0x10_0000), (ZoneKind::Normal, u64::MAX)];
/// The largest number of zones.
const ZONES_MAX: usize = ZONE_ENDS.len() * NODES_MAX;

// SAFETY: every linker defines this symbol.
unsafe extern "C" {
    /// First byte after the kernel. The linker defines it.
    static _end: u8;
}

/// The memory that is not in use, before the allocator exists. Boot code takes memory from it, for good.
pub(crate) struct BootMemory {
    free: ArrayVec<NodeFrames, RANGES_MAX>,
}

impl BootMemory {
    /// Returns the machine's memory without the kernel itself.
    pub(crate) fn new(firmware: &Firmware) -> Self {
        let kernel_end = (&raw const _end).addr() as u64;
        let first = kernel_end.div_ceil(FRAME_BYTES).max(FIRST_FRAME);
        let usable =
            FrameRange { start: Pfn::new(first), count: PageCount::new(u64::MAX / FRAME_BYTES - first) };
        let parts = firmware.memory.iter().filter_map(|memory| {
            let frames = memory.frames.intersection(&usable)?;
            Some(NodeFrames { frames, ..*memory })
        });
        Self { free: parts.collect() }
    }

    /// Takes whole frames for `bytes` from the end of a node's memory, or of another node's if it has not enough.
    pub(crate) fn take(&mut self, node: NodeId, bytes: usize) -> Option<&'static mut [MaybeUninit<u8>]> {
        let count = PageCount::new((bytes as u64).div_ceil(FRAME_BYTES));
        let fits = |memory: &&mut NodeFrames| memory.frames.count > count;
        let own = |memory: &&mut NodeFrames| memory.node == node;
        let found = match self.free.iter_mut().rev().filter(own).find(fits) {
            Some(found) => found,
            None => self.free.iter_mut().rev().find(fits)?,
        };
        found.frames.count = found.frames.count.saturating_minus(count);
        let start = found.frames.end().get() * FRAME_BYTES;
        // SAFETY: the firmware says that this is memory. It is taken only once, and it is mapped to its own addresses.
        Some(unsafe { core::slice::from_raw_parts_mut(start as *mut MaybeUninit<u8>, bytes) })
    }

    /// Returns the memory that is not in use.
    pub(crate) fn free(&self) -> impl Iterator<Item = FrameRange> {
        self.free.iter().map(|memory| memory.frames)
    }

    /// Returns the number of the first frame after all memory.
    pub(crate) fn end(&self) -> Pfn {
        self.free.iter().map(|memory| memory.frames.end()).max().unwrap_or_default()
    }

    /// Calls `use_it` with the description of the machine, with all memory that is not in use. Each node has one zone
    /// for each kind that it has memory of.
    pub(crate) fn describe<R>(&self, firmware: &Firmware, use_it: impl FnOnce(&Machine<'_>) -> R) -> R {
        let ids = (0..firmware.nodes).map(|id| NodeId::new(id as u16).expect("a small id"));
        let ids: ArrayVec<NodeId, NODES_MAX> = ids.collect();
        let cpus_of = |id: NodeId| -> ArrayVec<CpuId, CPUS_MAX> {
            let cpus = firmware.processors.iter().enumerate().filter(|(_, processor)| processor.node == id);
            cpus.map(|(cpu, _)| CpuId::new(cpu as u32)).collect()
        };
        let cpus: ArrayVec<_, NODES_MAX> = ids.iter().map(|&id| cpus_of(id)).collect();
        let nodes = ids.iter().zip(&cpus).enumerate();
        let nodes: ArrayVec<NodeDescription<'_>, NODES_MAX> = nodes
            .map(|(place, (&id, cpus))| NodeDescription { id, cpus, distances: firmware.distances(place) })
            .collect();
        let ranges: ArrayVec<(NodeId, ZoneKind, ArrayVec<FrameRange, RANGES_MAX>), ZONES_MAX> =
            ids.iter().flat_map(|&id| self.zones_of(id)).collect();
        let zones: ArrayVec<ZoneDescription<'_>, ZONES_MAX> = ranges
            .iter()
            .map(|&(node, kind, ref managed)| ZoneDescription { node, kind, span: hull(managed), managed })
            .collect();
        let machine = Machine::new(&nodes, &zones).expect("a machine that this kernel can describe");
        use_it(&machine)
    }

    fn zones_of(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (NodeId, ZoneKind, ArrayVec<FrameRange, RANGES_MAX>)> {
        let mut start = 0;
        ZONE_ENDS.into_iter().filter_map(move |(kind, end)| {
            let zone = FrameRange { start: Pfn::new(start), count: PageCount::new(end - start) };
            start = end;
            let own = self.free.iter().filter(|memory| memory.node == node);
            let managed: ArrayVec<_, RANGES_MAX> =
                own.filter_map(|memory| memory.frames.intersection(&zone)).collect();
            (!managed.is_empty()).then_some((node, kind, managed))
        })
    }
}

/// Returns the range from the first to the last of some ranges, which are in ascending order.
fn hull(ranges: &[FrameRange]) -> FrameRange {
    let start = ranges.first().map_or(Pfn::default(), |range| range.start);
    let end = ranges.last().map_or(start, |range| range.end());
    FrameRange { start, count: PageCount::new(end.get() - start.get()) }
}
