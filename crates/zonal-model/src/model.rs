//! A checked machine, in the allocator's units.
//!
//! Offline nodes that may come online are listed among the others, so that indexes into [`MachineModel::nodes`] are the
//! node indexes of the fallback order.
//!
//! Related files: `resolve.rs` creates a model, and `export.rs` formats it.

use std::collections::BTreeMap;

use zonal::Config;
use zonal::config::NodeReclaim;
use zonal::rules::fallback_order::{CpuPenalty, FallbackNodes};
use zonal::rules::watermarks::{MovableMin, WatermarkSettings};
use zonal::settings::Setting;
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};

use crate::error::Problem;
use crate::kernel::KernelVersion;

/// Largest setting or count. It is more than any machine has, and small enough to add without overflow checks.
pub(crate) const MOST: u64 = 1 << 52;

/// The assumed distance between two nodes whose distance is unknown, as in kernels without a SLIT (the firmware's
/// distance table).
pub const NUMA_DEFAULT_DISTANCE: u8 = 20;

/// A machine. Invariant: the machine passes all checks of `resolve.rs`, and `nodes` and `zones` are strictly ascending.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineModel {
    /// The machine's name, for display.
    pub name: String,
    /// Bytes per frame: a power of two.
    pub page_bytes: u32,
    /// The nodes, ascending by id, including offline nodes that may come online.
    pub nodes: Vec<NodeModel>,
    /// The zones, ascending by node and kind.
    pub zones: Vec<ZoneModel>,
    /// The administrator's settings.
    pub settings: Settings,
    /// The values that the kernel reported.
    pub observed: Option<Observed>,
}

/// Whether a node is online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// An online node.
    Online,
    /// An offline node that may come online. Kernels from 6.1 already have a fallback list for it.
    PossibleOffline,
}

/// A node. Invariant: offline nodes have neither CPUs nor zones.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeModel {
    /// The node's id.
    pub id: NodeId,
    /// Whether the node is online.
    pub presence: Presence,
    /// The node's CPUs, ascending.
    pub cpus: Vec<CpuId>,
    /// Distance to each node of the machine, in the order of [`MachineModel::nodes`].
    pub distances: Vec<u8>,
}

/// A zone. Invariant: `spanned >= present >= managed`, and `spanned >= 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneModel {
    /// The zone's node.
    pub node: NodeId,
    /// The zone's kind.
    pub kind: ZoneKind,
    /// The zone's first frame.
    pub start: Pfn,
    /// Frames from the first to the last one, including holes.
    pub spanned: PageCount,
    /// Frames that are memory.
    pub present: PageCount,
    /// Frames that the allocator manages.
    pub managed: PageCount,
}

/// The administrator's settings; absent settings have their defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `vm.min_free_kbytes`, in KiB; `None` if computed from the machine's size.
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
        let default = Config::default();
        let [dma, dma32, normal, movable] = default.watermarks.lowmem_reserve_ratio;
        Self {
            min_free_kib: None,
            watermark_scale_factor: default.watermarks.scale_factor,
            lowmem_reserve_ratio: [dma, dma32, normal, movable, 0],
            zone_reclaim_mode: default.node_reclaim.mode(),
            high_fraction: default.high_fraction,
            min_unmapped_percent: default.min_unmapped_percent,
        }
    }
}

impl Settings {
    /// The settings of [the table](zonal::settings) that a machine has.
    pub const ALL: [Setting; 6] = [
        Setting::MinFreeKbytes,
        Setting::WatermarkScaleFactor,
        Setting::LowmemReserveRatio,
        Setting::ZoneReclaimMode,
        Setting::PercpuPagelistHighFraction,
        Setting::MinUnmappedRatio,
    ];

    /// Returns the numbers of a setting. There are none if the machine does not have the setting, or if the value is
    /// computed from the machine's size.
    #[must_use]
    pub fn numbers(&self, setting: Setting) -> Vec<u64> {
        let number: u64 = match setting {
            Setting::MinFreeKbytes => return self.min_free_kib.into_iter().collect(),
            Setting::LowmemReserveRatio => return self.lowmem_reserve_ratio.map(u64::from).to_vec(),
            Setting::WatermarkScaleFactor => self.watermark_scale_factor.into(),
            Setting::ZoneReclaimMode => self.zone_reclaim_mode.into(),
            Setting::PercpuPagelistHighFraction => self.high_fraction.into(),
            Setting::MinUnmappedRatio => self.min_unmapped_percent.into(),
            _ => return Vec::new(),
        };
        vec![number]
    }

    /// Returns the watermark settings of a machine whose frames have `page_bytes` bytes.
    #[must_use]
    pub fn watermarks(&self, page_bytes: u32, movable_min: MovableMin) -> WatermarkSettings {
        let [dma, dma32, normal, movable, _] = self.lowmem_reserve_ratio;
        let in_pages = |kib: u64| PageCount::new(kib / (u64::from(page_bytes) / 1024));
        WatermarkSettings {
            min_free: self.min_free_kib.map(in_pages),
            scale_factor: self.watermark_scale_factor,
            lowmem_reserve_ratio: [dma, dma32, normal, movable],
            movable_min,
        }
    }

    /// Sets the numbers of a setting that is in [`ALL`](Self::ALL).
    ///
    /// Unlike the table of settings, a machine may have a ratio for device memory.
    ///
    /// # Errors
    /// Names the numbers that are possible.
    pub fn set(&mut self, setting: Setting, numbers: &[u64]) -> Result<(), Problem> {
        let number = numbers.first().copied().unwrap_or_default();
        let range = setting.info().values.range().unwrap_or(0..=u32::MAX.into());
        let (least, most) =
            (*range.start(), if setting == Setting::MinFreeKbytes { MOST } else { *range.end() });
        for &value in numbers {
            if value < least {
                return Err(Problem::TooSmall { value, least });
            }
            if value > most {
                return Err(Problem::TooLarge { value, most });
            }
        }
        match setting {
            Setting::MinFreeKbytes => self.min_free_kib = Some(number),
            Setting::LowmemReserveRatio => {
                if !(4..=5).contains(&numbers.len()) {
                    return Err(Problem::Ratios(numbers.len()));
                }
                let ratios = self.lowmem_reserve_ratio.iter_mut().zip(numbers);
                ratios.for_each(|(ratio, &number)| *ratio = number as u32);
            }
            Setting::WatermarkScaleFactor => self.watermark_scale_factor = number as u32,
            Setting::ZoneReclaimMode => self.zone_reclaim_mode = number as u32,
            Setting::PercpuPagelistHighFraction => self.high_fraction = number as u32,
            Setting::MinUnmappedRatio => self.min_unmapped_percent = number as u8,
            _ => {}
        }
        Ok(())
    }
}

/// The values that a kernel reported. Each of them may be unknown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed {
    /// The kernel's version.
    pub kernel: Option<KernelVersion>,
    /// Whether the kernel's lists were built with the CPU penalty.
    pub cpu_penalty: Option<CpuPenalty>,
    /// The fallback order of each node.
    pub fallback_order: BTreeMap<NodeId, Vec<NodeId>>,
    /// The values reported for zones.
    pub zones: Vec<ObservedZone>,
}

/// The values that a kernel reported for one zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedZone {
    /// The zone's node.
    pub node: NodeId,
    /// The zone's kind.
    pub kind: ZoneKind,
    /// Watermark `min`.
    pub min: Option<PageCount>,
    /// Watermark `low`.
    pub low: Option<PageCount>,
    /// Watermark `high`.
    pub high: Option<PageCount>,
    /// Lowmem reserve for each limit: DMA, DMA32, Normal, Movable, Device.
    pub protection: Option<[PageCount; 5]>,
    /// Batch of the zone's pagesets.
    pub batch: Option<PageCount>,
    /// Fixed `high` of the zone's pagesets.
    pub pageset_high: Option<PageCount>,
    /// Smallest tuned `high`.
    pub pageset_high_min: Option<PageCount>,
    /// Largest tuned `high`.
    pub pageset_high_max: Option<PageCount>,
    /// Threshold of the zone's counters.
    pub stat_threshold: Option<u8>,
}

impl MachineModel {
    /// Returns the machine after node `id` has left: it has neither CPUs nor memory, and may come back. What the kernel
    /// reported is forgotten, because it was reported about another machine.
    ///
    /// # Errors
    /// [`Problem::UnknownNode`] for a node that is not online, [`Problem::NoNodes`] for the last one that is, and
    /// [`Problem::NoZones`] if no other node has memory.
    pub fn without(&self, id: NodeId) -> Result<Self, Problem> {
        let place = self.place(id).filter(|&place| self.nodes[place].presence == Presence::Online);
        let place = place.ok_or(Problem::UnknownNode(id.get().into()))?;
        if self.online_nodes().count() == 1 {
            return Err(Problem::NoNodes);
        }
        let mut left = self.clone();
        left.nodes[place].presence = Presence::PossibleOffline;
        left.nodes[place].cpus.clear();
        left.zones.retain(|zone| zone.node != id);
        left.forget_values();
        if left.zones.is_empty() { Err(Problem::NoZones) } else { Ok(left) }
    }

    /// Forgets the values that the kernel reported, except for its version and how it builds its lists.
    pub fn forget_values(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.fallback_order.clear();
            observed.zones.clear();
        }
    }

    /// Returns the index of node `id` in [`MachineModel::nodes`].
    #[must_use]
    pub fn place(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Returns the online nodes.
    pub fn online_nodes(&self) -> impl Iterator<Item = &NodeModel> {
        self.nodes.iter().filter(|node| node.presence == Presence::Online)
    }

    /// Returns the zones of node `id`, most constrained first.
    pub fn zones_of(&self, id: NodeId) -> impl Iterator<Item = &ZoneModel> {
        let from = self.zones.partition_point(|zone| zone.node < id);
        self.zones[from..].iter().take_while(move |zone| zone.node == id)
    }

    /// Returns the number of frames that the allocator manages on node `id`.
    #[must_use]
    pub fn managed_of(&self, id: NodeId) -> PageCount {
        self.zones_of(id).map(|zone| zone.managed).sum()
    }

    /// Returns the number of online CPUs.
    #[must_use]
    pub fn online_cpus(&self) -> u32 {
        self.online_nodes().map(|node| node.cpus.len() as u32).sum()
    }

    /// Returns the distance between the nodes at two indexes.
    #[must_use]
    pub fn distance_between(&self, from: usize, to: usize) -> u8 {
        self.nodes[from].distances[to]
    }

    /// Returns an allocator configuration with the machine's settings. Unknown `zone_reclaim_mode` bits are cleared.
    #[must_use]
    pub fn config(&self) -> Config {
        let settings = &self.settings;
        Config {
            page_bytes: self.page_bytes,
            watermarks: settings.watermarks(self.page_bytes, MovableMin::default()),
            node_reclaim: NodeReclaim::from_mode(settings.zone_reclaim_mode & 7).unwrap_or_default(),
            high_fraction: settings.high_fraction,
            min_unmapped_percent: settings.min_unmapped_percent,
            cpu_penalty: self.cpu_penalty(),
            past: zonal_history::PAST,
            ..Config::default()
        }
    }

    /// Returns the CPU penalty to assume. For observed values without a penalty this is `Off`, because a kernel builds
    /// its fallback orders at boot without the penalty.
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
        // Present frames count here rather than managed ones, because Linux puts a node with present frames into
        // N_MEMORY.
        self.zones_of(self.nodes[node].id).any(|zone| zone.present > PageCount::ZERO)
    }

    fn has_cpus(&self, node: usize) -> bool {
        !self.nodes[node].cpus.is_empty()
    }

    fn is_online(&self, node: usize) -> bool {
        self.nodes[node].presence == Presence::Online
    }
}
