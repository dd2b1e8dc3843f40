//! The description of a machine: nodes, CPUs, zones and distances.
//!
//! A description is plain data that is borrowed from the caller. [`Machine::new`] checks it once, and all other code
//! relies on that check. The *spanned* frames of a zone include holes, the *present* frames are memory, and the
//! allocator controls the *managed* frames: spanned >= present >= managed. A *range* is a run of managed frames.
//! Several zones of one kind on one node are *parts*: together they are the node's memory of that kind. Related files:
//! `machine/frames.rs` has a description's runs of frames, and `machine/error.rs` has the errors in it.
//! `layout.rs` computes the metadata of a machine, and `allocator.rs` creates an allocator for a machine.

mod error;
mod frames;

pub use error::TopologyError;
use frames::fits_in_zone;
pub use frames::{FrameRange, LOCAL_DISTANCE, ZONE_FRAMES_MAX};

use crate::units::{CpuId, MAX_CPUS, MAX_NODES, NodeId, PageCount, Pfn, ZoneId, ZoneKind};

/// The description of one node, which may have no memory or no CPUs.
#[derive(Clone, Copy, Debug)]
pub struct NodeDescription<'a> {
    /// The node's id.
    pub id: NodeId,
    /// The CPUs of the node.
    pub cpus: &'a [CpuId],
    /// Distance from this node to each node of the machine, in the order of the machine's nodes.
    pub distances: &'a [u8],
}

/// The description of one zone: the memory of one kind on one node, or one part of that memory.
///
/// A node usually has one zone of each kind. It has several zones of a kind, called *parts*, if the memory spans more
/// frames than one zone can ([`ZONE_FRAMES_MAX`]). Parts are also useful if a single span would consist mostly of
/// holes, because the size of metadata grows with the span. Each part is a complete zone with its own watermarks,
/// pagesets and counters. Requests use them in ascending order of address. The lowmem reserve of their kind is divided
/// among them by size.
#[derive(Clone, Copy, Debug)]
pub struct ZoneDescription<'a> {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// All frames that the zone can ever contain, including holes and memory that may come online later
    /// ([`Machine::with_hotplug`]).
    pub span: FrameRange,
    /// Frames that the allocator manages from the start, as ascending and disjoint ranges within the span; may be
    /// empty.
    pub managed: &'a [FrameRange],
}

impl ZoneDescription<'_> {
    /// Returns the number of frames managed at start.
    fn managed_at_start(&self) -> PageCount {
        self.managed.iter().map(|range| range.count).sum()
    }
}

/// A machine description that has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    nodes: &'a [NodeDescription<'a>],
    zones: &'a [ZoneDescription<'a>],
    hotplug: &'a [FrameRange],
    /// Number of present frames in each zone; `None` means the frames managed at start.
    present: Option<&'a [PageCount]>,
}

impl<'a> Machine<'a> {
    /// Creates a machine from a description after checking it.
    ///
    /// `nodes` must be in ascending order of id. `zones` must be in ascending order of node, then of kind, then of
    /// first frame.
    ///
    /// # Errors
    /// Returns the first error found. The error names the node, the row and column of the distances, or the frame.
    pub fn new(
        nodes: &'a [NodeDescription<'a>],
        zones: &'a [ZoneDescription<'a>],
    ) -> Result<Self, TopologyError> {
        check_nodes(nodes)?;
        check_cpus(nodes)?;
        check_zones(nodes, zones)?;
        Ok(Self { nodes, zones, hotplug: &[], present: None })
    }

    /// Adds memory that is not managed at start and may come online later.
    ///
    /// `ranges` must be in ascending order and disjoint. Each range must be within one zone's span and outside the
    /// managed frames. All other unmanaged frames of the spans are holes, which never come online.
    ///
    /// # Errors
    /// Returns the first range that violates these rules, or [`TopologyError::BadPresent`] if a zone spans fewer
    /// frames than are present or may come online.
    pub fn with_hotplug(self, ranges: &'a [FrameRange]) -> Result<Self, TopologyError> {
        let mut free_from = Pfn::default();
        for range in ranges {
            let bad = TopologyError::BadHotplug { start: range.start };
            let zone = self.zones.iter().find(|zone| zone.span.contains(range)).ok_or(bad)?;
            let is_managed = zone.managed.iter().any(|managed| managed.intersection(range).is_some());
            if range.start < free_from || range.count == PageCount::ZERO || is_managed {
                return Err(bad);
            }
            free_from = range.end();
        }
        Self { hotplug: ranges, ..self }.with_present_checked()
    }

    /// Sets the number of frames in each zone that are present at start, in the order of the zones.
    ///
    /// The present frames are the managed frames and memory that the allocator never manages, such as memory that
    /// firmware or an early boot allocator retains. Present frames count towards the zone's size where Linux counts
    /// them ([`ThresholdForm`](crate::rules::stat_threshold::ThresholdForm), `present` in
    /// `/proc/zoneinfo`). Without this call, the present frames are the managed frames.
    ///
    /// # Errors
    /// Returns an error if there is not exactly one number for each zone. Returns an error if a number is less than the
    /// zone's managed frames, or more than its spanned frames without the memory that may come online later.
    pub fn with_present(self, present: &'a [PageCount]) -> Result<Self, TopologyError> {
        if present.len() != self.zones.len() {
            let (given, needed) = (present.len(), self.zones.len());
            return Err(TopologyError::PresentCount { given, needed });
        }
        Self { present: Some(present), ..self }.with_present_checked()
    }

    fn with_present_checked(self) -> Result<Self, TopologyError> {
        for (zone, &present) in self.zones.iter().zip(self.present.unwrap_or_default()) {
            let managed = zone.managed_at_start();
            let later =
                self.hotplug.iter().filter(|range| zone.span.contains(range)).map(|range| range.count);
            let most = zone.span.count.saturating_minus(later.sum());
            if !(managed..=most).contains(&present) {
                let (node, kind) = (zone.node, zone.kind);
                return Err(TopologyError::BadPresent { node, kind, present, managed, most });
            }
        }
        Ok(self)
    }

    /// Returns the number of frames in a zone that are present but never managed.
    pub(crate) fn unmanaged(&self, zone: usize) -> PageCount {
        let managed = self.zones[zone].managed_at_start();
        self.present.map_or(PageCount::ZERO, |present| present[zone].saturating_minus(managed))
    }

    /// Returns the memory that may come online later, as passed to [`Machine::with_hotplug`].
    #[must_use]
    pub const fn hotplug(&self) -> &'a [FrameRange] {
        self.hotplug
    }

    /// Returns every range that is or may become memory, in no particular order.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &'a FrameRange> + use<'a> {
        self.zones.iter().flat_map(|zone| zone.managed).chain(self.hotplug)
    }

    /// Returns the nodes, in ascending order of id.
    #[must_use]
    pub const fn nodes(&self) -> &'a [NodeDescription<'a>] {
        self.nodes
    }

    /// Returns the zones, in ascending order of node, kind and first frame; a zone's index in this list is its
    /// `ZoneId`.
    #[must_use]
    pub const fn zones(&self) -> &'a [ZoneDescription<'a>] {
        self.zones
    }

    /// Returns the index of node `id` in [`Machine::nodes`].
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Returns the largest CPU id plus one, or 0 without CPUs.
    #[must_use]
    pub fn cpu_ids(&self) -> usize {
        self.nodes.iter().flat_map(|n| n.cpus).map(|c| c.index() + 1).max().unwrap_or(0)
    }
}

fn check_nodes(nodes: &[NodeDescription<'_>]) -> Result<(), TopologyError> {
    if nodes.is_empty() {
        return Err(TopologyError::NoNodes);
    }
    if nodes.len() > MAX_NODES {
        return Err(TopologyError::TooManyNodes(nodes.len()));
    }
    for pair in nodes.windows(2) {
        if pair[0].id >= pair[1].id {
            return Err(TopologyError::NodesNotAscending(pair[1].id));
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        let (row, given, needed) = (node.id, node.distances.len(), nodes.len());
        if given != needed {
            return Err(TopologyError::DistanceRow { row, given, needed });
        }
        for (to, &distance) in node.distances.iter().enumerate() {
            if to == at && distance != LOCAL_DISTANCE {
                return Err(TopologyError::Diagonal { node: row, distance });
            }
            if distance < LOCAL_DISTANCE {
                return Err(TopologyError::DistanceTooSmall { row, column: nodes[to].id, distance });
            }
        }
    }
    Ok(())
}

/// Number of CPU ids that one pass checks, with a bitmap on the stack.
const CPUS_AT_ONCE: usize = 1 << 13;

fn check_cpus(nodes: &[NodeDescription<'_>]) -> Result<(), TopologyError> {
    let cpus = || nodes.iter().flat_map(|node| node.cpus).copied();
    if let Some(cpu) = cpus().find(|cpu| cpu.index() >= MAX_CPUS) {
        return Err(TopologyError::CpuTooLarge(cpu));
    }
    let ids = cpus().map(|cpu| cpu.index() + 1).max().unwrap_or(0);
    for first in (0..ids).step_by(CPUS_AT_ONCE) {
        let mut seen = [0_u64; CPUS_AT_ONCE / 64];
        for cpu in cpus() {
            let at = cpu.index().wrapping_sub(first);
            let Some(word) = seen.get_mut(at / 64) else { continue };
            if *word & 1 << (at % 64) != 0 {
                return Err(TopologyError::CpuTwice(cpu));
            }
            *word |= 1 << (at % 64);
        }
    }
    Ok(())
}

fn check_zones(nodes: &[NodeDescription<'_>], zones: &[ZoneDescription<'_>]) -> Result<(), TopologyError> {
    if zones.len() > ZoneId::COUNT {
        return Err(TopologyError::TooManyZones(zones.len()));
    }
    if zones.is_empty() {
        return Err(TopologyError::NoZones);
    }
    for (at, zone) in zones.iter().enumerate() {
        if nodes.binary_search_by_key(&zone.node, |node| node.id).is_err() {
            return Err(TopologyError::ZoneOfUnknownNode(zone.node));
        }
        let (node, kind, span) = (zone.node, zone.kind, zone.span);
        if span.count == PageCount::ZERO || span.start.get().checked_add(span.count.get()).is_none() {
            return Err(TopologyError::BadSpan { node, kind, span });
        }
        if !fits_in_zone(&span) {
            return Err(TopologyError::ZoneTooLarge(node, kind));
        }
        if let Some(next) = zones.get(at + 1) {
            let place = |zone: &ZoneDescription<'_>| (zone.node, zone.kind, zone.span.start);
            if place(zone) > place(next) {
                return Err(TopologyError::ZonesNotAscending(next.node, next.kind));
            }
        }
        for other in &zones[..at] {
            let start = span.start.max(other.span.start);
            if start < span.end().min(other.span.end()) {
                return Err(TopologyError::ZonesOverlap { frame: start, node });
            }
        }
        let mut free_from = span.start;
        for range in zone.managed {
            let misplaced = range.start < free_from || !span.contains(range);
            if misplaced || range.count == PageCount::ZERO {
                return Err(TopologyError::BadRange { node, kind, range: *range, span });
            }
            free_from = range.end();
        }
    }
    Ok(())
}
