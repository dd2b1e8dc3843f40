//! The allocator's state as plain data: what every front end renders.
//!
//! Figures are read one after the other while allocation goes on; they agree with each other only
//! when nothing is under way. The folder prints it in the formats of Linux. Neighbours: `verify.rs` checks, `events.rs` and `counters.rs` count.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
pub use crate::admin::settings::Settings;
use crate::machine::FrameRange;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::CpuLocality;
use crate::rules::stat_threshold::TotalsRule;
use crate::rules::watermarks::Watermarks;
use crate::units::PageKind;
use crate::units::{CpuId, MAX_ORDER_LIMIT, NodeId, Order, PageCount, ZoneId, ZoneKind};
use crate::zone::counters::{Item, NodeItem, ZoneItem, approximate_over};
pub use crate::zone::events::Events;
use crate::zone::{CpuInfo, Zone};

mod buddyinfo;
mod fallback_lists;
mod files;
mod numastat;
mod text;
mod vmstat;
mod zoneinfo;

pub use text::Snapshot;

/// The equation every zone and the whole allocator keep:
/// `managed = free + in_pagesets + allocated`, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accounting {
    /// Frames managed.
    pub managed: PageCount,
    /// Free in the buddies.
    pub free: PageCount,
    /// Kept in pagesets.
    pub in_pagesets: PageCount,
    /// Handed out, or waiting in quarantine.
    pub allocated: PageCount,
}

impl Accounting {
    /// Whether the equation holds.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.managed == self.free.plus(self.in_pagesets).plus(self.allocated)
    }
}

/// Where blocks came from, counted once a block (Linux: `numastat`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locality {
    /// Served by the preferred node.
    pub hit: u64,
    /// Served here although another node was preferred.
    pub miss: u64,
    /// Served elsewhere although this node was preferred.
    pub foreign: u64,
    /// Interleaving got its target.
    pub interleave_hit: u64,
    /// Served to a CPU of the same node.
    pub local: u64,
    /// Served to a CPU of another node.
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

/// One zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSnapshot {
    /// The zone.
    pub id: ZoneId,
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// All frames it spans.
    pub span: FrameRange,
    /// Frames present: those managed, and those that are memory but never managed.
    pub present: PageCount,
    /// Frames managed.
    pub managed: PageCount,
    /// Free frames.
    pub free: PageCount,
    /// Frames in pagesets.
    pub in_pagesets: PageCount,
    /// Watermarks.
    pub watermarks: Watermarks,
    /// Lowmem reserve against each zone limit.
    pub reserve: [PageCount; ZoneKind::COUNT],
    /// Limits of pagesets on the zone's own CPUs.
    pub pageset_limits: PagesetLimits,
    /// Counter threshold in force.
    pub stat_threshold: u8,
    /// Free blocks of each order, none of them half of a larger one. Linux: `/proc/buddyinfo`.
    pub free_blocks: [u64; MAX_ORDER_LIMIT as usize + 1],
    /// Where its blocks went.
    pub locality: Locality,
    /// Folds of the zone's counters so far.
    pub counter_folds: u64,
}

/// One pageset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetSnapshot {
    /// Zone of its frames.
    pub zone: ZoneId,
    /// CPU that uses it.
    pub cpu: CpuId,
    /// Frames it holds.
    pub count: PageCount,
    /// `pageset.high`.
    pub high: PageCount,
    /// Its batch, and the bounds of `high`.
    pub limits: PagesetLimits,
    /// Batches taken from the zone.
    pub refills: u64,
    /// Batches given back.
    pub drains: u64,
    /// Of these, given back for another CPU.
    pub remote_drains: u64,
}

/// One node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSnapshot {
    /// The node.
    pub id: NodeId,
    /// Frames allocated: user, cache, kernel.
    pub allocated: [PageCount; 3],
    /// Frames freed by background, direct and node reclaim.
    pub reclaimed: [PageCount; 3],
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// All zones, by node and kind.
    pub fn zones(&self) -> impl Iterator<Item = ZoneSnapshot> + use<'m, '_, P> {
        self.state.zones.iter().map(|zone| self.zone_snapshot(zone))
    }

    fn zone_snapshot(&self, zone: &Zone<'m, P>) -> ZoneSnapshot {
        zone.free_areas.settle();
        let order = |at: usize| Order::new(at as u8).filter(|&order| order <= self.max_order);
        ZoneSnapshot {
            id: zone.id,
            node: zone.node_id,
            kind: zone.kind,
            span: zone.span,
            present: zone.present(),
            managed: zone.managed(),
            free: PageCount::new(zone.free_areas.free_pages()),
            in_pagesets: self.state.pagesets_of(zone).frames(),
            watermarks: zone.watermarks(),
            reserve: ZoneKind::ALL.map(|limit| zone.reserve(limit)),
            pageset_limits: zone.pageset_limits(CpuLocality::Local),
            stat_threshold: zone.counters().threshold(),
            free_blocks: core::array::from_fn(|at| {
                order(at).map_or(0, |order| zone.free_areas.free_blocks(order))
            }),
            locality: self.zone_locality(zone),
            counter_folds: zone.counters().folds(),
        }
    }

    fn zone_locality(&self, zone: &Zone<'m, P>) -> Locality {
        let count = |item| self.zone_count(zone, item, self.state.served(zone, item));
        Locality {
            hit: count(ZoneItem::NumaHit),
            miss: count(ZoneItem::NumaMiss),
            foreign: count(ZoneItem::NumaForeign),
            interleave_hit: count(ZoneItem::InterleaveHit),
            local: count(ZoneItem::NumaLocal),
            other: count(ZoneItem::NumaOther),
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeSnapshot> + use<'m, '_, P> {
        (0..self.state.nodes.len()).map(|place| {
            let total = |item| PageCount::new(self.state.nodes[place].counters.approximate(item));
            NodeSnapshot {
                id: self.state.nodes[place].id,
                allocated: PageKind::ALL
                    .map(|kind| PageCount::new(self.allocated(place, kind).max(0) as u64)),
                // These are counted in totals only.
                reclaimed: [
                    NodeItem::ReclaimedBackground,
                    NodeItem::ReclaimedDirect,
                    NodeItem::ReclaimedNode,
                ]
                .map(total),
            }
        })
    }

    /// A counter of a zone with the differences of all CPUs, and those of blocks served at once.
    pub(super) fn zone_count(&self, zone: &Zone<'m, P>, item: ZoneItem, served: i64) -> u64 {
        let differences = self.state.pagesets_of(zone).pagesets.iter().map(|pageset| &pageset.zone_diffs);
        let sum = zone.counters().snapshot(item, differences) + served;
        sum.max(0) as u64
    }

    /// Frames allocated as `kind` on the node at a place, with the differences of all CPUs; it can be
    /// below zero for a moment.
    fn allocated(&self, place: usize, kind: PageKind) -> i64 {
        let pagesets =
            self.state.node_zones(place).iter().flat_map(|zone| self.state.pagesets_of(zone).pagesets);
        let differences = pagesets.map(|pageset| pageset.word().difference(kind as usize));
        self.state.nodes[place].counters.total(kind.item()) + differences.sum::<i64>()
    }

    /// Frames allocated on the node at a place. Summed before the sign is dropped: a frame freed
    /// twice and then withheld leaves one kind too small and another too large.
    pub(super) fn node_allocated(&self, place: usize) -> PageCount {
        let sum: i64 = PageKind::ALL.into_iter().map(|kind| self.allocated(place, kind)).sum();
        PageCount::new(sum.max(0) as u64)
    }

    /// All pagesets that are or were in use.
    pub fn pagesets(&self) -> impl Iterator<Item = PagesetSnapshot> + use<'m, '_, P> {
        self.state.zones.iter().flat_map(|zone| {
            let cpus = self.state.cpus.iter().filter(|cpu| cpu.exists());
            cpus.map(|&cpu| self.pageset_snapshot(zone, cpu))
        })
    }

    fn pageset_snapshot(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> PagesetSnapshot {
        let pageset = self.state.pagesets_of(zone).of(cpu);
        let limits = zone.pageset_limits(zone.locality(cpu));
        // Relaxed: figures for people.
        PagesetSnapshot {
            zone: zone.id,
            cpu: cpu.id,
            count: pageset.count(),
            high: pageset.high().max(limits.high_min),
            limits,
            refills: pageset.refills.load(Relaxed),
            drains: pageset.drains.load(Relaxed),
            remote_drains: pageset.remote_drains.load(Relaxed),
        }
    }

    /// The books of the whole allocator; they balance when nothing is under way.
    pub fn accounting(&self) -> Accounting {
        let mut accounting = Accounting::default();
        for zone in self.state.zones {
            accounting.managed = accounting.managed.plus(zone.managed());
            accounting.free = accounting.free.plus(PageCount::new(zone.free_areas.free_pages()));
            accounting.in_pagesets = accounting.in_pagesets.plus(self.state.pagesets_of(zone).frames());
        }
        accounting.allocated = (0..self.state.nodes.len()).map(|place| self.node_allocated(place)).sum();
        accounting
    }

    /// Frames allocated over the machine: user, cache, kernel; wrong by at most the drift of all CPUs. At
    /// the price of one read each where there is a total of the machine
    /// ([`TotalsRule::AndMachine`]), else of one for each node.
    pub fn allocated_approximate(&self) -> [PageCount; 3] {
        PageKind::ALL.map(|kind| {
            let total = self.machine_total(kind.item()).unwrap_or_else(|| self.nodes_total(kind.item()));
            PageCount::new(total.max(0) as u64)
        })
    }

    /// The machine's total of what nodes count, without differences, where there is one.
    pub(super) fn machine_total(&self, item: NodeItem) -> Option<i64> {
        let totals = &self.state.shared.machine_totals.0;
        // Relaxed: a figure of its own.
        (self.counters.totals == TotalsRule::AndMachine).then(|| totals[item.lane()].load(Relaxed) as i64)
    }

    /// The same, summed up over the nodes.
    pub(super) fn nodes_total(&self, item: NodeItem) -> i64 {
        self.state.nodes.iter().map(|node| node.counters.total(item)).sum()
    }

    /// Free frames of all zones, wrong by at most the drift of all CPUs, at the price of one read a
    /// zone.
    pub fn free_approximate(&self) -> PageCount {
        PageCount::new(approximate_over(self.state.zones.iter().map(Zone::counters), ZoneItem::Free))
    }

    /// What happened so far.
    pub fn events(&self) -> Events {
        let mut events = Events::default();
        self.state.nodes.iter().for_each(|node| node.events.add_to(&mut events));
        for pageset in self.state.pagesets.iter().flat_map(|zone| zone.pagesets) {
            events.probes += pageset.probes.load(Relaxed); // relaxed: figures for people
        }
        for pageset in self.pagesets() {
            events.refills += pageset.refills;
            events.drains += pageset.drains;
            events.remote_drains += pageset.remote_drains;
        }
        events
    }

    /// Where all blocks came from.
    pub fn locality(&self) -> Locality {
        let mut sum = Locality::default();
        self.zones().for_each(|zone| sum.add(&zone.locality));
        sum
    }

    /// Calls `sink` with each node of the fallback list of `node`, in order.
    pub fn fallback_order(&self, node: NodeId, mut sink: impl FnMut(NodeId)) {
        let Some(place) = self.state.place_of(node) else { return };
        let list = self.state.lists.read(place);
        let mut last = None;
        for position in 0..list.len().unwrap_or(0) {
            let id = list.node_at(position);
            if list.check().is_err() {
                return;
            }
            if last != Some(id) {
                sink(id);
                last = Some(id);
            }
        }
    }
}
