//! The allocator's state as plain data, for front ends.
//!
//! Figures are read one by one while allocation continues, so they are consistent only if no thread allocates or
//! frees meanwhile.
//!
//! Related files: the folder `admin/snapshot` prints the figures in the formats of Linux, `admin/verify.rs` checks
//! them, and `zone/events.rs` and `zone/counters.rs` maintain the counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::pressure::StallShares;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::CpuLocality;
use crate::rules::stat_threshold::TotalsRule;
use crate::rules::watermarks::Watermarks;
use crate::units::PageKind;
use crate::units::{CpuId, MAX_ORDER_LIMIT, NodeId, Order, PageCount, ZoneId, ZoneKind};
use crate::zone::counters::{Item, NodeItem, ZoneItem};
pub use crate::zone::events::Events;
use crate::zone::{CpuInfo, Zone};

mod display;
mod files;
mod text;

pub use text::Snapshot;

/// The accounting of a zone or the whole allocator: `managed = free + in_pagesets + allocated`, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accounting {
    /// Managed frames.
    pub managed: PageCount,
    /// Frames that are free in the buddies.
    pub free: PageCount,
    /// Frames in pagesets.
    pub in_pagesets: PageCount,
    /// Frames allocated, or in quarantine.
    pub allocated: PageCount,
}

impl Accounting {
    /// Whether the equation holds.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.managed == self.free.plus(self.in_pagesets).plus(self.allocated)
    }
}

/// Counts of the places that blocks were served from, counted once per block. Linux: `numastat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locality {
    /// Blocks served from their preferred node.
    pub hit: u64,
    /// Blocks served from this node although another node was preferred.
    pub miss: u64,
    /// Blocks served from another node although this node was preferred.
    pub foreign: u64,
    /// Blocks of interleaved requests that were served from the target node.
    pub interleave_hit: u64,
    /// Blocks served to a CPU of the node they come from.
    pub local: u64,
    /// Blocks served to a CPU of another node.
    pub other: u64,
}

impl Locality {
    /// Adds the counts of `more`.
    pub fn add(&mut self, more: &Self) {
        self.hit += more.hit;
        self.miss += more.miss;
        self.foreign += more.foreign;
        self.interleave_hit += more.interleave_hit;
        self.local += more.local;
        self.other += more.other;
    }
}

/// The state of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSnapshot {
    /// Id of the zone.
    pub id: ZoneId,
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// All frames that the zone spans.
    pub span: FrameRange,
    /// Present frames: the managed frames, and frames that are memory but never managed.
    pub present: PageCount,
    /// Managed frames.
    pub managed: PageCount,
    /// Free frames.
    pub free: PageCount,
    /// Frames in pagesets.
    pub in_pagesets: PageCount,
    /// Frames that fences keep, which count as allocated.
    pub fenced: PageCount,
    /// Frames of freed blocks in quarantine, which count as allocated.
    pub quarantined: PageCount,
    /// Retired frames, which count as allocated: bad ones, and those whose poison had changed.
    pub retired: PageCount,
    /// Bad frames in use, which are retired when their blocks are freed.
    pub retiring: PageCount,
    /// Watermarks.
    pub watermarks: Watermarks,
    /// Lowmem reserve for each zone limit.
    pub reserve: [PageCount; ZoneKind::COUNT],
    /// Limits of pagesets on the zone's local CPUs.
    pub pageset_limits: PagesetLimits,
    /// Counter threshold in force.
    pub stat_threshold: u8,
    /// Free blocks of each order that are not inside a larger free block. Linux: `/proc/buddyinfo`.
    pub free_blocks: [u64; MAX_ORDER_LIMIT as usize + 1],
    /// Locality of the blocks that the zone served, or that it would have served as the preferred zone.
    pub locality: Locality,
    /// Folds of the zone's counters so far.
    pub counter_folds: u64,
}

/// The state of one pageset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetSnapshot {
    /// Zone of the frames.
    pub zone: ZoneId,
    /// CPU that uses the pageset.
    pub cpu: CpuId,
    /// Frames in the pageset.
    pub count: PageCount,
    /// `pageset.high`.
    pub high: PageCount,
    /// Batch, and limits of `high`.
    pub limits: PagesetLimits,
    /// Batches refilled from the zone.
    pub refills: u64,
    /// Batches drained to the zone.
    pub drains: u64,
    /// Batches that another CPU drained.
    pub remote_drains: u64,
    /// Most frames that moved under one hold of the pageset's lock; never more than 512.
    pub longest_hold: PageCount,
}

/// The state of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSnapshot {
    /// Id of the node.
    pub id: NodeId,
    /// Allocated frames: user, cache, kernel.
    pub allocated: [PageCount; 3],
    /// Frames freed by background, direct and node reclaim.
    pub reclaimed: [PageCount; 3],
    /// Shares of the recent time in which direct reclaim stalled callers that prefer the node.
    pub stalled: StallShares,
    /// Folds of the node's counters so far.
    pub counter_folds: u64,
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Returns all zones, by node and kind.
    pub fn zones(&self) -> impl Iterator<Item = ZoneSnapshot> + use<'m, '_, P> {
        self.state.zones.iter().map(|zone| self.state.zone_snapshot(zone))
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeSnapshot> + use<'m, '_, P> {
        (0..self.state.nodes.len()).map(|place| {
            let total = |item| PageCount::new(self.state.nodes[place].counters.approximate(item));
            NodeSnapshot {
                id: self.state.nodes[place].id,
                allocated: PageKind::ALL
                    .map(|kind| PageCount::new(self.state.allocated(place, kind).max(0) as u64)),
                // These items are counted directly in the totals, without per-CPU differences.
                reclaimed: [
                    NodeItem::ReclaimedBackground,
                    NodeItem::ReclaimedDirect,
                    NodeItem::ReclaimedNode,
                ]
                .map(total),
                stalled: self.state.nodes[place].cells.stalls.0.shares(self.state.platform.now()),
                counter_folds: self.state.nodes[place].counters.folds(),
            }
        })
    }

    /// Returns all pagesets, one for each zone and CPU.
    pub fn pagesets(&self) -> impl Iterator<Item = PagesetSnapshot> + use<'m, '_, P> {
        self.state.zones.iter().flat_map(|zone| {
            let cpus = self.state.cpus.iter().filter(|cpu| cpu.exists());
            cpus.map(|&cpu| self.state.pageset_snapshot(zone, cpu))
        })
    }

    /// Returns the accounting of the whole allocator, which balances if no thread allocates or frees during the call.
    pub fn accounting(&self) -> Accounting {
        let (state, zones) = (&self.state, self.state.zones.iter());
        Accounting {
            managed: zones.clone().map(Zone::managed).sum(),
            free: zones.clone().map(|zone| PageCount::new(zone.free_areas.pages())).sum(),
            in_pagesets: zones.map(|zone| state.in_pagesets(zone)).sum(),
            allocated: (0..state.nodes.len()).map(|place| state.node_allocated(place)).sum(),
        }
    }

    /// Returns the approximate numbers of frames allocated on the whole machine: user, cache, kernel.
    ///
    /// The error is at most the drift of all CPUs. Each number costs one read per CPU and zone of its node, and in addition
    /// one read if machine-wide totals are maintained ([`TotalsRule::AndMachine`]), or else one read per node.
    pub fn allocated_approximate(&self) -> [PageCount; 3] {
        PageKind::ALL.map(|kind| {
            let total =
                self.state.machine_total(kind.item()).unwrap_or_else(|| self.state.nodes_total(kind.item()));
            PageCount::new((total + self.state.block_frames(kind)).max(0) as u64)
        })
    }

    /// Returns the approximate number of free frames in all zones.
    ///
    /// The error is at most the drift of all CPUs. The function costs one read per zone.
    pub fn free_approximate(&self) -> PageCount {
        let sum: i64 = self.state.zones.iter().map(|zone| zone.counters().total(ZoneItem::Free)).sum();
        PageCount::new(sum.max(0) as u64)
    }

    /// Returns the event counts since the allocator was created.
    pub fn events(&self) -> Events {
        let mut events = Events::default();
        self.state.nodes.iter().for_each(|node| node.events.add_to(&mut events));
        for pageset in self.state.pagesets.iter().flat_map(|zone| zone.pagesets) {
            events.probes += pageset.probes.load(Relaxed); // relaxed: for display only
        }
        for pageset in self.pagesets() {
            events.refills += pageset.refills;
            events.drains += pageset.drains;
            events.remote_drains += pageset.remote_drains;
        }
        events
    }

    /// Returns the locality of all blocks.
    pub fn locality(&self) -> Locality {
        let mut sum = Locality::default();
        self.zones().for_each(|zone| sum.add(&zone.locality));
        sum
    }

    /// Calls `sink` with each node in the fallback list of `node`, in order.
    pub fn fallback_order(&self, node: NodeId, sink: impl FnMut(NodeId)) {
        let Some(place) = self.state.place_of(node) else { return };
        self.state.lists.nodes(place, sink);
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    fn zone_snapshot(&self, zone: &Zone<'m, P>) -> ZoneSnapshot {
        zone.free_areas.settle();
        let count = |item| self.zone_count(zone, item, self.served(zone, item));
        let order = |at: usize| Order::new(at as u8).filter(|&order| order <= self.config().max_order);
        ZoneSnapshot {
            id: zone.id,
            node: zone.node_id,
            kind: zone.kind,
            span: zone.span,
            present: zone.present(),
            managed: zone.managed(),
            free: PageCount::new(zone.free_areas.pages()),
            in_pagesets: self.in_pagesets(zone),
            fenced: zone.fenced(),
            quarantined: PageCount::new(zone.quarantined()),
            retired: PageCount::new(zone.retired()),
            retiring: PageCount::new(zone.pending()),
            watermarks: zone.watermarks(),
            reserve: ZoneKind::ALL.map(|limit| zone.reserve(limit)),
            pageset_limits: zone.pageset_limits(CpuLocality::Local),
            stat_threshold: zone.counters().threshold(),
            free_blocks: core::array::from_fn(|at| {
                order(at).map_or(0, |order| zone.free_areas.blocks(order))
            }),
            locality: Locality {
                hit: count(ZoneItem::NumaHit),
                miss: count(ZoneItem::NumaMiss),
                foreign: count(ZoneItem::NumaForeign),
                interleave_hit: count(ZoneItem::InterleaveHit),
                local: count(ZoneItem::NumaLocal),
                other: count(ZoneItem::NumaOther),
            },
            counter_folds: zone.counters().folds(),
        }
    }

    /// Returns the machine-wide total of a node counter, without per-CPU differences, if it is maintained.
    pub(super) fn machine_total(&self, item: NodeItem) -> Option<i64> {
        let totals = &self.shared.machine_totals.0;
        // Relaxed: an independent value.
        (self.config().counters.totals == TotalsRule::AndMachine)
            .then(|| totals[item.lane()].load(Relaxed) as i64)
    }

    /// Returns the value of a zone counter, including the differences of all CPUs and `served`, the difference for
    /// blocks that were served from pageset slots.
    pub(super) fn zone_count(&self, zone: &Zone<'m, P>, item: ZoneItem, served: i64) -> u64 {
        let differences = self.pagesets_of(zone).pagesets.iter().map(|pageset| &pageset.zone_diffs);
        let sum = zone.counters().snapshot(item, differences) + served;
        sum.max(0) as u64
    }

    /// Returns the number of frames allocated as `kind` on the node with index `place`, including the differences of
    /// all CPUs.
    ///
    /// The result can temporarily be negative.
    fn allocated(&self, place: usize, kind: PageKind) -> i64 {
        let pagesets = self.node_zones(place).iter().flat_map(|zone| self.pagesets_of(zone).pagesets);
        let differences =
            pagesets.map(|pageset| pageset.word().difference(kind as usize) + pageset.block_frames(kind));
        self.nodes[place].counters.total(kind.item()) + differences.sum::<i64>()
    }

    /// Returns the number of frames allocated as `kind` according to the pagesets' cells, which only the pagesets
    /// of CPUs on a zone's own node use.
    fn block_frames(&self, kind: PageKind) -> i64 {
        let cpus = self.cpus.iter().filter(|cpu| cpu.exists());
        let of_cpu = |&cpu: &CpuInfo| {
            let zones = self.node_zones(usize::from(cpu.node)).iter();
            zones.map(|zone| self.pagesets_of(zone).of(cpu).block_frames(kind)).sum::<i64>()
        };
        cpus.map(of_cpu).sum()
    }

    /// Returns the number of frames allocated on the node with index `place`.
    ///
    /// The kinds are summed before a negative value is replaced by zero. The reason is that a frame that was freed
    /// twice and then retired leaves one kind's count too small and another's too large.
    pub(super) fn node_allocated(&self, place: usize) -> PageCount {
        let sum: i64 = PageKind::ALL.into_iter().map(|kind| self.allocated(place, kind)).sum();
        PageCount::new(sum.max(0) as u64)
    }

    fn pageset_snapshot(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> PagesetSnapshot {
        let pageset = self.pagesets_of(zone).of(cpu);
        let limits = zone.pageset_limits(zone.locality(cpu));
        // Relaxed: for display only.
        PagesetSnapshot {
            zone: zone.id,
            cpu: cpu.id,
            count: pageset.count(),
            high: pageset.high().max(limits.high_min),
            limits,
            refills: pageset.refills.load(Relaxed),
            drains: pageset.drains.load(Relaxed),
            remote_drains: pageset.remote_drains.load(Relaxed),
            longest_hold: PageCount::new(pageset.longest_hold.load(Relaxed)),
        }
    }

    /// Returns the sum of all nodes' totals, without per-CPU differences.
    pub(super) fn nodes_total(&self, item: NodeItem) -> i64 {
        self.nodes.iter().map(|node| node.counters.total(item)).sum()
    }
}
