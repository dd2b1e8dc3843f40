//! The state of a page allocator at one time: nodes, zones, pagesets and totals.
//!
//! Memory amounts are in frames of [`Sample::page_bytes`]. Values that a source does not report are `None`. Related
//! files: `counters.rs` has the totals, `system.rs` reads `/proc` and `/sys` with the parsers of `zoneinfo.rs` and
//! `text.rs`, `captured.rs` is a file with a machine and its state, and `layout.rs` gives free blocks positions.

mod captured;
mod cgroup;
mod counters;
mod layout;
mod system;
mod text;
mod whole_blocks;
mod zoneinfo;

use serde::{Deserialize, Serialize};
use zonal::machine::FrameRange;
use zonal::units::{NodeId, PageCount, ZoneKind};

pub use captured::{CaptureError, CapturedState};
pub use cgroup::CgroupLimits;
pub use counters::{Counter, Totals};
pub use layout::{FreeLayout, lay_out};
pub use system::{Clock, StateError, SystemState};
pub use whole_blocks::whole_gib;

/// How many node ids are possible: as in `zonal`, and in Linux kernels with the most nodes.
pub const NODES_MAX: usize = 1024;
/// Largest number of orders that is read.
pub const ORDERS_MAX: usize = 32;
/// Largest number of pagesets: those of 8192 CPUs, the most of a kernel, in 128 zones.
pub const PAGESETS_MAX: usize = 1 << 20;
/// Largest length of zone kind and migrate type names. Those of Linux have at most 10 bytes.
const NAME_BYTES_MAX: usize = 64;

/// The state of a page allocator at one time.
///
/// Invariant: the zones are in order of node, and the pagesets in order of zone.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Seconds since the source was opened, on a clock that never goes back.
    pub seconds: f64,
    /// Name and process id of the program that has the pool.
    pub program: Option<String>,
    /// Process id of the program, and the number of the pool in it: two samples with others are not comparable.
    #[serde(skip)]
    pub life: Option<(u64, u64)>,
    /// Size of a frame in bytes.
    pub page_bytes: u64,
    /// Nodes in order of their ids.
    pub nodes: Vec<Node>,
    /// Zones that have memory.
    pub zones: Vec<ZoneSample>,
    /// Pagesets of all zones.
    pub pagesets: Vec<PagesetSample>,
    /// Processes that share the pool; empty if it is not shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Owner>,
    /// Counters since the pool was built or the system booted.
    pub totals: Totals,
    /// Parts that could not be read, and why.
    pub missing: Vec<String>,
}

/// A process that shares a pool, or has ended and keeps blocks in it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Owner {
    /// Number of the process in the pool.
    pub process: u64,
    /// Its process id.
    pub pid: u64,
    /// Its name, if its blocks outlive it.
    pub name: Option<String>,
    /// Whether it lives.
    pub is_alive: bool,
    /// Frames that it has allocated or taken over.
    pub held: u64,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Node {
    /// Id of the node.
    pub id: u64,
    /// CPUs of the node, as a list like `0-3,8`.
    pub cpus: Option<String>,
    /// Counters of the whole node.
    pub locality: Option<Locality>,
    /// Share of the last 10 seconds in which direct reclaim stalled a caller, in percent.
    pub stalled_percent: Option<f64>,
    /// Frames that are allocated: user, cache, kernel.
    pub allocated: Option<[u64; 3]>,
}

/// A zone.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ZoneSample {
    /// Node of the zone.
    pub node: u64,
    /// Kind: DMA, DMA32, Normal or Movable.
    pub kind: String,
    /// Frames that the allocator manages.
    pub managed: u64,
    /// Free frames, without those in pagesets.
    pub free: u64,
    /// Frames in pagesets.
    pub in_pagesets: u64,
    /// Watermark below which only urgent requests are served.
    pub min: u64,
    /// Watermark below which background reclaim starts.
    pub low: u64,
    /// Watermark at which background reclaim stops.
    pub high: u64,
    /// Frames reserved from requests for each higher kind of zone. Linux: `protection`.
    pub reserve: Vec<u64>,
    /// Free blocks of each order.
    pub free_blocks: Vec<u64>,
    /// Free blocks of each order by migrate type, where the kernel allows reading them.
    pub free_by_type: Vec<(String, Vec<u64>)>,
    /// Locality of allocations.
    pub locality: Option<Locality>,
    /// Threshold of counters that CPUs keep. Linux: `vm stats threshold`.
    pub stat_threshold: Option<u64>,
    /// Bad frames taken out of use.
    pub retired: Option<u64>,
}

/// Counts of allocations by where they were served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Locality {
    /// In the zone or node that they preferred.
    pub hit: u64,
    /// Here, although they preferred another one.
    pub miss: u64,
    /// Elsewhere, although they preferred this one.
    pub foreign: u64,
    /// As interleaved.
    pub interleave_hit: u64,
    /// On the node of the CPU.
    pub local: u64,
    /// On another node than that of the CPU.
    pub other: u64,
}

/// A pageset: the frames of a zone that one CPU keeps.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PagesetSample {
    /// Index of the zone in [`Sample::zones`].
    pub zone: usize,
    /// The CPU.
    pub cpu: u64,
    /// Frames in the pageset.
    pub count: u64,
    /// Number of frames above which it drains.
    pub high: u64,
    /// Frames that a refill or a drain moves.
    pub batch: u64,
    /// Refills so far.
    pub refills: Option<u64>,
    /// Drains so far, by any CPU.
    pub drains: Option<u64>,
}

impl Locality {
    /// Adds other counts. Sums that are too large stay at the largest number, because other programs report the counts.
    pub fn add(&mut self, other: &Self) {
        self.hit = self.hit.saturating_add(other.hit);
        self.miss = self.miss.saturating_add(other.miss);
        self.foreign = self.foreign.saturating_add(other.foreign);
        self.interleave_hit = self.interleave_hit.saturating_add(other.interleave_hit);
        self.local = self.local.saturating_add(other.local);
        self.other = self.other.saturating_add(other.other);
    }
}

impl ZoneSample {
    /// Returns a name such as `1 Normal`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.node, self.kind)
    }

    /// Returns frames that are neither free nor in pagesets.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.managed.saturating_sub(self.free).saturating_sub(self.in_pagesets)
    }

    /// Returns which frames of a zone are in use when its free blocks have the orders of this one; the first frames if
    /// those are not known.
    #[must_use]
    pub fn used_in(&self, managed: FrameRange) -> Vec<FrameRange> {
        if self.free_blocks.is_empty() {
            let count = PageCount::new(managed.count.get().saturating_sub(self.free));
            return vec![FrameRange { count, ..managed }];
        }
        lay_out(managed, &self.free_blocks).used(managed)
    }

    /// Returns which watermark the free frames are below, if any.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        match self.free {
            free if free < self.min => Pressure::BelowMin,
            free if free < self.low => Pressure::BelowLow,
            free if free < self.high => Pressure::BelowHigh,
            _ => Pressure::None,
        }
    }

    /// Returns the share of free memory that is in blocks from `order` on, or `None` if no memory is free.
    #[must_use]
    pub fn free_in_blocks_from(&self, order: usize) -> Option<f64> {
        let frames = |(order, blocks): (usize, &u64)| *blocks as f64 * (order as f64).exp2();
        let all: f64 = self.free_blocks.iter().enumerate().map(frames).sum();
        let large: f64 = self.free_blocks.iter().enumerate().skip(order).map(frames).sum();
        (all > 0.0).then(|| large / all).filter(|share| share.is_finite())
    }
}

/// How scarce the free frames of a zone are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pressure {
    /// At `high` or above it.
    None,
    /// Below `high`: background reclaim goes on if it runs.
    BelowHigh,
    /// Below `low`: background reclaim starts.
    BelowLow,
    /// Below `min`: only urgent requests are served.
    BelowMin,
}

impl Sample {
    /// Returns the state of a zone.
    #[must_use]
    pub fn zone(&self, node: NodeId, kind: ZoneKind) -> Option<&ZoneSample> {
        self.zones.iter().find(|zone| zone.node == u64::from(node.get()) && zone.kind == kind.name())
    }

    /// Returns the zones of a node.
    pub fn zones_of(&self, node: u64) -> impl Iterator<Item = &ZoneSample> {
        self.zones.iter().filter(move |zone| zone.node == node)
    }

    /// Returns the smallest order of blocks that have at least 2 MiB.
    #[must_use]
    pub fn large_order(&self) -> usize {
        const LARGE: u64 = 2 << 20;
        LARGE.div_ceil(self.page_bytes.max(1)).next_power_of_two().trailing_zeros() as usize
    }

    /// Returns the locality of a node: its own counters, or else the sum of its zones.
    #[must_use]
    pub fn locality_of(&self, node: &Node) -> Option<Locality> {
        node.locality.or_else(|| sum(self.zones_of(node.id).filter_map(|zone| zone.locality)))
    }

    /// Returns the locality of all nodes.
    #[must_use]
    pub fn locality(&self) -> Option<Locality> {
        sum(self.nodes.iter().filter_map(|node| self.locality_of(node)))
    }
}

fn sum(parts: impl Iterator<Item = Locality>) -> Option<Locality> {
    parts.fold(None, |sum: Option<Locality>, part| {
        let mut sum = sum.unwrap_or_default();
        sum.add(&part);
        Some(sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_other_programs_never_overflow() {
        let largest = Locality { hit: u64::MAX, miss: 1, ..Locality::default() };
        let node = |id| Node { id, locality: Some(largest), ..Node::default() };
        let sample = Sample { nodes: vec![node(0), node(1)], ..Sample::default() };
        assert_eq!(sample.locality().map(|sum| (sum.hit, sum.miss)), Some((u64::MAX, 2)));
        let zone = ZoneSample { free_blocks: vec![u64::MAX; 100], free: u64::MAX, ..ZoneSample::default() };
        assert!(zone.free_in_blocks_from(9) > Some(0.9));
        assert_eq!(zone.used(), 0);
        let many_orders = ZoneSample { free_blocks: vec![1; 2000], ..ZoneSample::default() };
        assert_eq!(many_orders.free_in_blocks_from(9), None);
    }
}
