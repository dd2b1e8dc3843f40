//! A machine whose description was found valid, in the allocator's units.
//!
//! Possible but offline nodes stand among the others, so that places in [`MachineModel::nodes`]
//! are the places of the fallback order. Neighbours: `resolve.rs` makes it, `export.rs` writes it.

use std::collections::BTreeMap;

use zonal::rules::fallback_order::{CpuPenalty, FallbackNodes};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};

use crate::kernel::KernelVersion;

/// The distance between two nodes that nothing is known about, as in kernels without a SLIT.
pub const NUMA_DEFAULT_DISTANCE: u8 = 20;

/// A machine. Invariant: as checked on reading, and both lists ascend without repetition.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineModel {
    /// Its name, for people.
    pub name: String,
    /// Bytes of a frame: a power of two.
    pub page_bytes: u32,
    /// The nodes, ascending by id, possible but offline ones included.
    pub nodes: Vec<NodeModel>,
    /// The zones, ascending by node and kind.
    pub zones: Vec<ZoneModel>,
    /// What its administrator set.
    pub settings: Settings,
    /// What its kernel reported.
    pub observed: Option<Observed>,
}

/// Whether a node is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It is.
    Online,
    /// It may come. Kernels from 6.1 have a fallback list for it already.
    PossibleOffline,
}

/// A node. Invariant: offline nodes have neither CPUs nor zones.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeModel {
    /// Its id.
    pub id: NodeId,
    /// Whether it is there.
    pub presence: Presence,
    /// Its CPUs, ascending.
    pub cpus: Vec<CpuId>,
    /// Distance to each node of the machine, in the order of [`MachineModel::nodes`].
    pub distances: Vec<u8>,
}

/// A zone. Invariant: `spanned >= present >= managed`, and it spans a frame at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneModel {
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// Its first frame.
    pub start: Pfn,
    /// Frames from first to last, holes included.
    pub spanned: PageCount,
    /// Frames that are memory.
    pub present: PageCount,
    /// Frames the allocator has.
    pub managed: PageCount,
}

/// What the administrator set; absent settings have their defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `vm.min_free_kbytes`, in KiB; `None` follows from the machine's size.
    pub min_free_kib: Option<u64>,
    /// `vm.watermark_scale_factor`, in 1/10000.
    pub watermark_scale_factor: u32,
    /// `vm.lowmem_reserve_ratio` of DMA, DMA32, Normal, Movable, Device.
    pub lowmem_reserve_ratio: [u32; 5],
    /// `vm.zone_reclaim_mode`: bits; 0 = no node reclaim.
    pub zone_reclaim_mode: u32,
    /// `vm.percpu_pagelist_high_fraction`; 0 = not set.
    pub high_fraction: u32,
    /// `vm.min_unmapped_ratio`, in percent.
    pub min_unmapped_percent: u8,
}

impl Default for Settings {
    fn default() -> Self {
        let core = WatermarkSettings::default();
        let [dma, dma32, normal, movable] = core.lowmem_reserve_ratio;
        Self {
            min_free_kib: None,
            watermark_scale_factor: core.scale_factor,
            lowmem_reserve_ratio: [dma, dma32, normal, movable, 0],
            zone_reclaim_mode: 0,
            high_fraction: 0,
            min_unmapped_percent: 1,
        }
    }
}

/// What a kernel reported of itself; any part may be unknown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed {
    /// Its version.
    pub kernel: Option<KernelVersion>,
    /// Whether its lists were built with the CPU penalty.
    pub cpu_penalty: Option<CpuPenalty>,
    /// The fallback order of each node.
    pub fallback_order: BTreeMap<NodeId, Vec<NodeId>>,
    /// What it reported of zones.
    pub zones: Vec<ObservedZone>,
}

/// What a kernel reported of one zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedZone {
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// Watermark `min`.
    pub min: Option<PageCount>,
    /// Watermark `low`.
    pub low: Option<PageCount>,
    /// Watermark `high`.
    pub high: Option<PageCount>,
    /// Lowmem reserve for each limit: DMA, DMA32, Normal, Movable, Device.
    pub protection: Option<[PageCount; 5]>,
    /// Batch of its pagesets.
    pub batch: Option<PageCount>,
    /// Fixed `high` of its pagesets.
    pub pageset_high: Option<PageCount>,
    /// Least tuned `high`.
    pub pageset_high_min: Option<PageCount>,
    /// Largest tuned `high`.
    pub pageset_high_max: Option<PageCount>,
    /// Threshold of its counters.
    pub stat_threshold: Option<u8>,
}

impl MachineModel {
    /// Place of node `id` among [`MachineModel::nodes`].
    #[must_use]
    pub fn place(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// The nodes that are there.
    pub fn online_nodes(&self) -> impl Iterator<Item = &NodeModel> {
        self.nodes.iter().filter(|node| node.presence == Presence::Online)
    }

    /// The zones of node `id`, most constrained first.
    pub fn zones_of(&self, id: NodeId) -> impl Iterator<Item = &ZoneModel> {
        let from = self.zones.partition_point(|zone| zone.node < id);
        self.zones[from..].iter().take_while(move |zone| zone.node == id)
    }

    /// Frames the allocator has on node `id`.
    #[must_use]
    pub fn managed_of(&self, id: NodeId) -> PageCount {
        self.zones_of(id).map(|zone| zone.managed).sum()
    }

    /// Number of CPUs online.
    #[must_use]
    pub fn online_cpus(&self) -> u32 {
        self.online_nodes().map(|node| node.cpus.len() as u32).sum()
    }

    /// Distance between the nodes at two places.
    #[must_use]
    pub fn distance_between(&self, from: usize, to: usize) -> u8 {
        self.nodes[from].distances[to]
    }

    /// The CPU penalty to assume: a kernel's own orders were built at boot unless it says otherwise.
    #[must_use]
    pub fn cpu_penalty(&self) -> CpuPenalty {
        match &self.observed {
            None => CpuPenalty::On,
            Some(observed) => observed.cpu_penalty.unwrap_or(CpuPenalty::Off),
        }
    }
}

impl FallbackNodes for MachineModel {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        self.distance_between(from, to)
    }

    fn has_memory(&self, node: usize) -> bool {
        // Present frames, not managed ones: that is what makes a node N_MEMORY in Linux.
        self.zones_of(self.nodes[node].id).any(|zone| zone.present > PageCount::ZERO)
    }

    fn has_cpus(&self, node: usize) -> bool {
        !self.nodes[node].cpus.is_empty()
    }

    fn is_online(&self, node: usize) -> bool {
        self.nodes[node].presence == Presence::Online
    }
}
