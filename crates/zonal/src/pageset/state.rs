//! The state of the machine: its zones, nodes, zonelists, CPUs and pagesets.
//!
//! Every operation needs this state; `Allocator` is its public interface. Related files: `pageset/session.rs`, `pageset/refill.rs`, `pageset/served.rs` and
//! `pageset/slot.rs` implement methods of this state.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::config::Config;
use crate::node_mask::NodeMask;
use crate::pageset::deferred::DeferredFrees;
use crate::pageset::{CachedOrders, ZonePagesets};
use crate::platform::pageset_slot::PagesetSlots;
use crate::platform::tracepoint::{RetireCause, Tracepoint};
use crate::platform::{Atomic, Platform};
use crate::rules::zonelist_cache::ScanForm;
use crate::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use crate::zone::events::Event;
use crate::zone::node::Node;
use crate::zone::shared::SharedCells;
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::Zonelists;
use crate::zonelist::nearest_zones::NearestZones;

/// The state of the machine, and the platform on which the allocator runs.
pub(crate) struct MachineState<'m, P: Platform> {
    pub(crate) platform: P,
    pub(crate) shared: &'m SharedCells<P>,
    pub(crate) zones: &'m [Zone<'m, P>],
    pub(crate) nodes: &'m [Node<'m, P>],
    pub(crate) lists: Zonelists<'m, P>,
    /// Pagesets by zone.
    pub(crate) pagesets: &'m [ZonePagesets<'m, P>],
    pub(crate) slots: PagesetSlots<'m, P>,
    pub(crate) nearest: NearestZones<'m, P>,
    /// CPU info by CPU id.
    pub(crate) cpus: &'m [CpuInfo],
    /// One value for each CPU id: 1 while the CPU is online.
    pub(crate) cpus_online: &'m [P::U32],
    pub(crate) cached: CachedOrders,
    /// Deferred frees by CPU index.
    pub(crate) deferred: &'m [DeferredFrees<P>],
    /// Distances between nodes, in row-major order.
    pub(crate) distances: &'m [u8],
    /// First frame of each zone and the zone's index, in ascending order of frames.
    pub(crate) starts: &'m [(Pfn, u16)],
    /// Every range that is or may become memory, in ascending order and disjoint.
    pub(crate) memory: &'m [(Pfn, PageCount)],
    /// Whether an exchange alone claims a freed block: under [`InvalidFree::Exact`], unless processes share the allocator.
    pub(crate) claims_by_exchange: bool,
    /// The process whose allocator this is, from 1, or 0.
    pub(crate) process: u8,
    /// The configuration at creation. Settings that can change have their current values in `shared`.
    pub(crate) config: Config,
    pub(crate) metadata_bytes: u64,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the CPU info of the CPU that runs the caller, if the machine has that CPU.
    #[inline]
    pub(crate) fn current_cpu_info(&self) -> Option<CpuInfo> {
        self.cpu_info(self.platform.current_cpu())
    }

    /// Returns the CPU info of a CPU, if the machine has it.
    #[inline]
    pub(crate) fn cpu_info(&self, cpu: CpuId) -> Option<CpuInfo> {
        self.cpus.get(cpu.index()).copied().filter(CpuInfo::exists)
    }

    /// Returns the pagesets of a zone.
    #[inline]
    pub(crate) fn pagesets_of(&self, zone: &Zone<'m, P>) -> &'m ZonePagesets<'m, P> {
        &self.pagesets[zone.id.index()]
    }

    /// Returns how many frames of a zone CPUs cache: in pagesets, and free in owned blocks.
    pub(crate) fn in_pagesets(&self, zone: &Zone<'m, P>) -> PageCount {
        let pagesets = self.pagesets_of(zone).pagesets.iter();
        pagesets.map(super::Pageset::count).sum::<PageCount>().plus(PageCount::new(zone.owned_pages()))
    }

    /// Returns the configuration.
    pub(crate) const fn config(&self) -> &Config {
        match P::CONFIG {
            Some(config) => config,
            None => &self.config,
        }
    }

    /// Returns the past form of the scan, if the zonelist cache is in a past mode.
    #[inline]
    pub(crate) fn past_scan(&self) -> Option<&'static dyn ScanForm> {
        let cache = self.shared.zonelist_cache();
        if cache.is_past() { self.config().past.scan_form(cache) } else { None }
    }

    /// Whether a CPU is online.
    pub(crate) fn is_online(&self, cpu: CpuInfo) -> bool {
        self.cpus_online[cpu.id.index()].load(Relaxed) != 0 // relaxed: pagesets are closed under their locks
    }

    /// Returns the zones of the node with index `place`.
    pub(crate) fn node_zones(&self, place: usize) -> &'m [Zone<'m, P>] {
        let node = &self.nodes[place];
        &self.zones[node.first_zone..][..node.zone_count]
    }

    /// Returns all zones of the node with index `node` in the order in which requests use them.
    ///
    /// The order is by descending kind, and by ascending address within a kind.
    pub(crate) fn zones_by_preference(&self, node: usize) -> impl Iterator<Item = &'m Zone<'m, P>> + Clone {
        let zones = self.node_zones(node);
        let of_kind = move |&kind: &ZoneKind| zones.iter().filter(move |zone| zone.kind == kind);
        ZoneKind::ALL.iter().rev().flat_map(of_kind)
    }

    /// Returns the CPUs of this process: all, unless processes share the allocator.
    pub(crate) fn local_cpus(&self) -> impl Iterator<Item = &CpuInfo> + Clone + use<'_, 'm, P> {
        self.cpus_of(self.process)
    }

    /// Returns the CPUs of a process from 1, or all for 0.
    pub(crate) fn cpus_of(&self, process: u8) -> impl Iterator<Item = &CpuInfo> + Clone + use<'_, 'm, P> {
        let ids = self.ids_of(process);
        self.cpus[ids].iter().filter(|cpu| cpu.exists())
    }

    /// Returns the CPU ids of a process, as [`MachineState::cpus_of`].
    pub(crate) fn ids_of(&self, process: u8) -> Range<usize> {
        let of_each = self.cpus.len().div_ceil(usize::from(self.config().processes).max(1));
        let first = usize::from(process.saturating_sub(1)) * of_each;
        first..(first + of_each).min(self.cpus.len())
    }

    /// Returns zone and CPU for each pageset of this process that was ever used; the other pagesets never need
    /// maintenance.
    pub(super) fn used_pagesets(&self) -> impl Iterator<Item = (&Zone<'m, P>, CpuInfo)> {
        let cpus = self.local_cpus().copied();
        let pairs = cpus.flat_map(|cpu| self.zones.iter().map(move |zone| (zone, cpu)));
        pairs.filter(|(zone, cpu)| self.pagesets_of(zone).of(*cpu).was_used())
    }

    /// Returns the nodes that have memory online.
    pub(crate) fn memory_nodes(&self) -> NodeMask {
        let words = &self.shared.memory_nodes.0;
        // Relaxed: each word is independent, and an old value was correct a moment ago.
        NodeMask { words: core::array::from_fn(|at| words[at].load(Relaxed)) }
    }

    /// Returns the index of the node with this id.
    #[inline]
    pub(crate) fn place_of(&self, id: NodeId) -> Option<usize> {
        // On most machines ids have no gaps, so the index equals the id.
        if self.nodes.get(id.index()).is_some_and(|node| node.id == id) {
            return Some(id.index());
        }
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Counts and reports frames on the node with index `place` that were taken out of use. `first` is the first of
    /// them, or `None` if they are some of a batch.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_retired(
        &self,
        place: usize,
        cause: RetireCause,
        first: Option<Pfn>,
        frames: PageCount,
    ) {
        let event = match cause {
            RetireCause::BadFrame => Event::BadFrames,
            RetireCause::InvalidFree => Event::Retired,
            RetireCause::Poison => Event::PoisonFound,
        };
        let node = &self.nodes[place];
        node.events.add(event, frames.get());
        self.platform.trace(Tracepoint::Retired { node: node.id, first, frames, cause });
    }
}
