//! What a machine is made of: nodes, CPUs, zones, distances; and what makes a description wrong.
//!
//! Plain data borrowed from the caller, checked once by [`Machine::new`] and trusted afterwards.
//! Vocabulary: *spanned* >= *present* >= *managed* frames of a zone; a *range* is a run of managed
//! frames; the *parts* of a node's memory of one kind are its zones of that kind. Neighbours:
//! `layout.rs` measures a machine, `allocator.rs` takes it in.

use core::fmt;

use crate::units::{CpuId, MAX_CPUS, MAX_NODES, MAX_ORDER_LIMIT, NodeId, PageCount, Pfn, ZoneId, ZoneKind};

/// Distance of a node to itself, in the units of the ACPI SLIT.
pub const LOCAL_DISTANCE: u8 = 10;

/// Frames that one zone can span at most, counted from the last multiple of `2^18` at or before its
/// first frame: 16 TiB of 4 KiB frames. Frames of a zone are numbered in 32 bits.
///
/// Memory that spans more is described as several zones of one kind; [`FrameRange::zone_spans`] says
/// where to cut it. Where addresses have 32 bits the limit is `2^30`, because the metadata of more
/// frames would not fit.
pub const ZONE_FRAMES_MAX: u64 = if usize::BITS < u64::BITS { 1 << 30 } else { 1 << 32 };

/// A run of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRange {
    /// First frame.
    pub start: Pfn,
    /// Number of frames.
    pub count: PageCount,
}

impl FrameRange {
    /// The frame after the last.
    #[must_use]
    pub const fn end(&self) -> Pfn {
        self.start.plus(self.count)
    }

    /// Whether all of `other` lies in this range.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        // By offset, because the end of `other` may be beyond the last number there is.
        let offset = other.start.offset_from(self.start);
        offset
            .is_some_and(|offset| offset <= self.count && other.count <= self.count.saturating_minus(offset))
    }

    /// Returns the frames that lie in both ranges, or `None` when there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let start = self.start.max(other.start);
        // The end of a range may be beyond the last number there is.
        let rest = |of: &Self| of.count.saturating_minus(start.offset_from(of.start).unwrap_or_default());
        let count = rest(self).min(rest(other));
        (count != PageCount::ZERO).then_some(Self { start, count })
    }

    /// Cuts the range into spans that one zone each can have, ascending: the range itself if it is
    /// small enough, else cut at multiples of [`ZONE_FRAMES_MAX`].
    ///
    /// Cut a span by this and what is managed in it by [`FrameRange::intersection`] with each part; then
    /// describe the parts as zones of the same node and kind. No block is cut: the largest is `2^18` frames.
    /// Frames beyond the last number there is are left out.
    pub fn zone_spans(&self) -> impl Iterator<Item = Self> + Clone + use<> {
        let last_count = PageCount::new(u64::MAX - self.start.get());
        let mut rest = Self { start: self.start, count: self.count.min(last_count) };
        let fits = fits_in_zone(self);
        core::iter::from_fn(move || {
            let free_slots =
                if fits { u64::MAX } else { ZONE_FRAMES_MAX - rest.start.get() % ZONE_FRAMES_MAX };
            let part = Self { start: rest.start, count: rest.count.min(PageCount::new(free_slots)) };
            if part.count == PageCount::ZERO {
                return None;
            }
            rest = Self { start: part.end(), count: rest.count.saturating_minus(part.count) };
            Some(part)
        })
    }
}

/// Whether one zone can span the range, whatever its largest order is: the largest block there can be
/// decides where frames are numbered from.
fn fits_in_zone(range: &FrameRange) -> bool {
    let lead = range.start.get() % (1 << MAX_ORDER_LIMIT);
    range.count.get().checked_add(lead).is_some_and(|frames| frames <= ZONE_FRAMES_MAX)
}

/// One node. Memory-less and CPU-less nodes are ordinary.
#[derive(Clone, Copy, Debug)]
pub struct NodeDescription<'a> {
    /// The node's id.
    pub id: NodeId,
    /// The CPUs on it.
    pub cpus: &'a [CpuId],
    /// Distance from this node to each node of the machine, in the machine's order of nodes.
    pub distances: &'a [u8],
}

/// One zone: the memory of one kind on one node, or one part of it.
///
/// A node has one zone of a kind as a rule. It has several, its *parts*, where the memory spans more than
/// a zone can ([`ZONE_FRAMES_MAX`]) or where a span over all of it would be mostly hole, because
/// metadata grows with spans. Parts are zones in every respect: each has watermarks, pagesets and
/// counters of its own. Requests use them in ascending order of address; the lowmem reserve that
/// their kind keeps is divided among them by size.
#[derive(Clone, Copy, Debug)]
pub struct ZoneDescription<'a> {
    /// The node it belongs to.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// All frames it could ever hold, holes and memory still to come ([`Machine::with_hotplug`]) included.
    pub span: FrameRange,
    /// Frames given to the allocator at start: ascending, disjoint, within the span; may be empty.
    pub managed: &'a [FrameRange],
}

impl ZoneDescription<'_> {
    /// Frames given to the allocator at start.
    fn managed_at_start(&self) -> PageCount {
        self.managed.iter().map(|range| range.count).sum()
    }
}

/// A machine whose description was found valid.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    nodes: &'a [NodeDescription<'a>],
    zones: &'a [ZoneDescription<'a>],
    hotplug: &'a [FrameRange],
    /// By zone; `None` = those managed at start.
    present: Option<&'a [PageCount]>,
}

/// What is wrong with a machine's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// There is no node at all.
    NoNodes,
    /// More nodes than [`MAX_NODES`].
    TooManyNodes(usize),
    /// Nodes must be in ascending order of id, each once.
    NodesNotAscending(NodeId),
    /// The distances of node `row` are not one for each node.
    DistanceRow {
        /// The node whose row it is.
        row: NodeId,
        /// Distances given.
        given: usize,
        /// Distances needed.
        needed: usize,
    },
    /// A node's distance to itself is not 10.
    Diagonal {
        /// The node.
        node: NodeId,
        /// What was given.
        distance: u8,
    },
    /// A distance between two nodes is below 10.
    DistanceTooSmall {
        /// From this node.
        row: NodeId,
        /// To this node.
        column: NodeId,
        /// What was given.
        distance: u8,
    },
    /// A CPU is on two nodes.
    CpuTwice(CpuId),
    /// There is no zone at all.
    NoZones,
    /// A zone names a node that is not there.
    ZoneOfUnknownNode(NodeId),
    /// A CPU id is [`MAX_CPUS`] or above.
    CpuTooLarge(CpuId),
    /// More zones than ids tell apart.
    TooManyZones(usize),
    /// Two zones claim the same frame.
    ZonesOverlap {
        /// First frame claimed twice.
        frame: Pfn,
        /// Node of the zone that claims it second.
        node: NodeId,
    },
    /// A zone's managed ranges are not ascending, disjoint, non-empty and inside its span.
    BadRange {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// First frame of the offending range.
        start: Pfn,
    },
    /// A range of memory that may come online later is empty or out of order, lies not within one zone's
    /// span, or is managed at start.
    BadHotplug {
        /// First frame of the offending range.
        start: Pfn,
    },
    /// The numbers of present frames are not one for each zone.
    PresentCount {
        /// Numbers given.
        given: usize,
        /// Numbers needed.
        needed: usize,
    },
    /// A zone has fewer frames present than managed, or more than it spans.
    BadPresent {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// Frames present, as given.
        present: PageCount,
        /// Frames managed at start.
        managed: PageCount,
        /// Frames spanned, without those that may come online later.
        most: PageCount,
    },
    /// A zone's span is empty, or ends beyond the last frame number.
    BadSpan {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// First frame of the span.
        start: Pfn,
    },
    /// A zone spans more than [`ZONE_FRAMES_MAX`] frames, counted from where its first block would begin.
    ZoneTooLarge(NodeId, ZoneKind),
    /// Zones must be listed by ascending node, kind and first frame.
    ZonesNotAscending(NodeId, ZoneKind),
}

impl<'a> Machine<'a> {
    /// Checks a description.
    ///
    /// `nodes` ascend by id; `zones` ascend by node, then by kind, then by first frame.
    ///
    /// # Errors
    /// The first thing found wrong, naming node, row and column, or frame.
    pub fn new(
        nodes: &'a [NodeDescription<'a>],
        zones: &'a [ZoneDescription<'a>],
    ) -> Result<Self, TopologyError> {
        check_nodes(nodes)?;
        check_cpus(nodes)?;
        check_zones(nodes, zones)?;
        Ok(Self { nodes, zones, hotplug: &[], present: None })
    }

    /// Describes memory that is not managed at start and may come online later: `ranges` ascend, are
    /// disjoint, and lie each within one zone's span, beside what is managed. All else in the spans are
    /// holes, which never come online.
    ///
    /// # Errors
    /// The first range of which that does not hold; or [`TopologyError::BadPresent`] when a zone would not
    /// span what is present and what may come.
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

    /// Says how many frames of each zone are present at start, in the order of the zones: those managed, and
    /// those that are memory but were never given to the allocator, such as what firmware or an early boot
    /// allocator keeps. They are counted in the zone's size where Linux counts them
    /// ([`ThresholdRule::FirstPosting`](crate::rules::stat_threshold::ThresholdRule::FirstPosting), `present` in
    /// `/proc/zoneinfo`). Without this call, the frames present are those managed.
    ///
    /// # Errors
    /// When there is not one number for each zone, or a number is below what the zone manages or above what
    /// it spans, where memory that may come online later is left out.
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

    /// Frames of a zone that are present but never managed.
    pub(crate) fn unmanaged(&self, zone: usize) -> PageCount {
        let managed = self.zones[zone].managed_at_start();
        self.present.map_or(PageCount::ZERO, |present| present[zone].saturating_minus(managed))
    }

    /// Memory that may come online later, as [`Machine::with_hotplug`] took it.
    #[must_use]
    pub const fn hotplug(&self) -> &'a [FrameRange] {
        self.hotplug
    }

    /// Every range that is or may become memory; in no particular order.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &'a FrameRange> + use<'a> {
        self.zones.iter().flat_map(|zone| zone.managed).chain(self.hotplug)
    }

    /// The nodes, ascending by id.
    #[must_use]
    pub const fn nodes(&self) -> &'a [NodeDescription<'a>] {
        self.nodes
    }

    /// The zones, ascending by node, kind and first frame; a zone's place here is its `ZoneId`.
    #[must_use]
    pub const fn zones(&self) -> &'a [ZoneDescription<'a>] {
        self.zones
    }

    /// Place of node `id` among [`Machine::nodes`].
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<usize> {
        position(self.nodes, id)
    }

    /// One more than the largest CPU id.
    #[must_use]
    pub fn cpu_ids(&self) -> usize {
        self.nodes.iter().flat_map(|n| n.cpus).map(|c| c.index() + 1).max().unwrap_or(0)
    }
}

fn position(nodes: &[NodeDescription<'_>], id: NodeId) -> Option<usize> {
    nodes.binary_search_by_key(&id, |n| n.id).ok()
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

/// CPU ids that are looked at together: a bit each, on the stack.
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
        if position(nodes, zone.node).is_none() {
            return Err(TopologyError::ZoneOfUnknownNode(zone.node));
        }
        check_span(zone)?;
        if let Some(next) = zones.get(at + 1) {
            let place = |zone: &ZoneDescription<'_>| (zone.node, zone.kind, zone.span.start);
            if place(zone) > place(next) {
                return Err(TopologyError::ZonesNotAscending(next.node, next.kind));
            }
        }
        for other in &zones[..at] {
            let start = zone.span.start.max(other.span.start);
            if start < zone.span.end().min(other.span.end()) {
                return Err(TopologyError::ZonesOverlap { frame: start, node: zone.node });
            }
        }
        check_ranges(zone)?;
    }
    Ok(())
}

fn check_span(zone: &ZoneDescription<'_>) -> Result<(), TopologyError> {
    let FrameRange { start, count } = zone.span;
    if count == PageCount::ZERO || start.get().checked_add(count.get()).is_none() {
        return Err(TopologyError::BadSpan { node: zone.node, kind: zone.kind, start });
    }
    if !fits_in_zone(&zone.span) {
        return Err(TopologyError::ZoneTooLarge(zone.node, zone.kind));
    }
    Ok(())
}

fn check_ranges(zone: &ZoneDescription<'_>) -> Result<(), TopologyError> {
    let mut free_from = zone.span.start;
    for range in zone.managed {
        let misplaced = range.start < free_from || !zone.span.contains(range);
        if misplaced || range.count == PageCount::ZERO {
            return Err(TopologyError::BadRange { node: zone.node, kind: zone.kind, start: range.start });
        }
        free_from = range.end();
    }
    Ok(())
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoNodes => write!(f, "the machine has no node; at least one is needed"),
            Self::TooManyNodes(count) => write!(f, "{count} nodes; at most {MAX_NODES} are possible"),
            Self::NodesNotAscending(node) => {
                write!(f, "node {node} is listed twice or out of order; list nodes once, ids ascending")
            }
            Self::DistanceRow { row, given, needed } => {
                write!(f, "distances of node {row}: {given} given, {needed} needed (one for each node)")
            }
            Self::Diagonal { node, distance } => {
                write!(f, "distance of node {node} to itself is {distance}; it must be {LOCAL_DISTANCE}")
            }
            Self::DistanceTooSmall { row, column, distance } => {
                write!(f, "distance from node {row} to node {column} is {distance}; it must be 10..=255")
            }
            Self::CpuTwice(cpu) => write!(f, "CPU {cpu} is listed twice; a CPU is on one node"),
            Self::NoZones => {
                write!(f, "the machine has no zone; at least one is needed, though it may be empty at first")
            }
            Self::ZoneOfUnknownNode(node) => {
                write!(f, "a zone is on node {node}, which the machine does not have")
            }
            Self::CpuTooLarge(cpu) => write!(f, "CPU id {cpu} is too large; ids are below {MAX_CPUS}"),
            Self::TooManyZones(count) => write!(f, "{count} zones; at most {} are possible", ZoneId::COUNT),
            Self::ZonesOverlap { frame, node } => {
                write!(f, "a zone of node {node} overlaps another at frame {frame}; zones must be disjoint")
            }
            Self::BadRange { node, kind, start } => write!(
                f,
                "node {node} {kind}: the range at frame {start} is empty, out of order or outside the zone"
            ),
            Self::BadHotplug { start } => write!(
                f,
                "the hot-plug range at frame {start} is empty, out of order, not within one zone's span or \
                 managed at start"
            ),
            Self::PresentCount { given, needed } => {
                write!(f, "{given} numbers of present frames given, {needed} needed (one for each zone)")
            }
            Self::BadPresent { node, kind, present, managed, most } => write!(
                f,
                "node {node} {kind} has {present} frames present; it must be {managed} (managed) to {most} \
                 (spanned, but for what comes online later)"
            ),
            Self::BadSpan { node, kind, start } => {
                write!(f, "node {node} {kind}: the span at frame {start} is empty or has no end")
            }
            Self::ZoneTooLarge(node, kind) => {
                write!(
                    f,
                    "node {node} {kind} spans more than {ZONE_FRAMES_MAX} frames, the most one zone can; \
                     describe it as several zones"
                )
            }
            Self::ZonesNotAscending(node, kind) => {
                write!(f, "zone {kind} of node {node} is out of order; list zones by node, kind, first frame")
            }
        }
    }
}

impl core::error::Error for TopologyError {}
