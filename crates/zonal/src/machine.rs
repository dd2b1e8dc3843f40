//! What a machine is made of: nodes, CPUs, zones, distances; and what makes a description wrong.
//!
//! Plain data borrowed from the caller, checked once by [`Machine::new`] and trusted afterwards.
//! Vocabulary: *spanned* >= *present* >= *managed* frames of a zone; a *range* is a run of managed
//! frames. Neighbours: `layout.rs` measures a machine, `allocator.rs` takes it in.

use core::fmt;

use crate::units::{CpuId, MAX_NODES, MAX_ORDER_LIMIT, NodeId, PageCount, Pfn, ZoneKind};

/// Distance of a node to itself, in the units of the ACPI SLIT.
pub const LOCAL_DISTANCE: u8 = 10;

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

/// One zone: the memory of one kind on one node.
#[derive(Clone, Copy, Debug)]
pub struct ZoneDescription<'a> {
    /// The node it belongs to.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
    /// All frames it could ever hold, holes and memory still to come included.
    pub span: FrameRange,
    /// Frames given to the allocator at start: ascending, disjoint, within the span; may be empty.
    pub managed: &'a [FrameRange],
}

/// A machine whose description was found valid.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    nodes: &'a [NodeDescription<'a>],
    zones: &'a [ZoneDescription<'a>],
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
    /// A zone names a node that is not there.
    ZoneOfUnknownNode(NodeId),
    /// A node has two zones of one kind.
    ZoneTwice(NodeId, ZoneKind),
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
    /// A zone's span is empty, or ends beyond the last frame number.
    BadSpan {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// First frame of the span.
        start: Pfn,
    },
    /// A zone spans more than 2^32 frames, counted from where its first block would begin.
    ZoneTooLarge(NodeId, ZoneKind),
    /// Zones must be listed by ascending node and kind.
    ZonesNotAscending(NodeId, ZoneKind),
}

impl<'a> Machine<'a> {
    /// Checks a description.
    ///
    /// `nodes` ascend by id; `zones` ascend by node, then by kind.
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
        Ok(Self { nodes, zones })
    }

    /// The nodes, ascending by id.
    #[must_use]
    pub const fn nodes(&self) -> &'a [NodeDescription<'a>] {
        self.nodes
    }

    /// The zones, ascending by node and kind; a zone's place here is its `ZoneId`.
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

fn check_cpus(nodes: &[NodeDescription<'_>]) -> Result<(), TopologyError> {
    for (at, node) in nodes.iter().enumerate() {
        for (place, cpu) in node.cpus.iter().enumerate() {
            let again = node.cpus[place + 1..].contains(cpu)
                || nodes[at + 1..].iter().any(|other| other.cpus.contains(cpu));
            if again {
                return Err(TopologyError::CpuTwice(*cpu));
            }
        }
    }
    Ok(())
}

fn check_zones(nodes: &[NodeDescription<'_>], zones: &[ZoneDescription<'_>]) -> Result<(), TopologyError> {
    for (at, zone) in zones.iter().enumerate() {
        if position(nodes, zone.node).is_none() {
            return Err(TopologyError::ZoneOfUnknownNode(zone.node));
        }
        check_span(zone)?;
        if let Some(next) = zones.get(at + 1) {
            let (this, that) = ((zone.node, zone.kind), (next.node, next.kind));
            if this == that {
                return Err(TopologyError::ZoneTwice(zone.node, zone.kind));
            }
            if this > that {
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
    // The largest blocks there can be decide where frames are numbered from.
    let lead = start.get() % (1 << MAX_ORDER_LIMIT);
    if count == PageCount::ZERO || start.get().checked_add(count.get()).is_none() {
        return Err(TopologyError::BadSpan { node: zone.node, kind: zone.kind, start });
    }
    if count.get().saturating_add(lead) > 1 << 32 {
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
            Self::ZoneOfUnknownNode(node) => {
                write!(f, "a zone is on node {node}, which the machine does not have")
            }
            Self::ZoneTwice(node, kind) => {
                write!(f, "node {node} has two {kind} zones; one of each kind at most")
            }
            Self::ZonesOverlap { frame, node } => {
                write!(f, "a zone of node {node} overlaps another at frame {frame}; zones must be disjoint")
            }
            Self::BadRange { node, kind, start } => write!(
                f,
                "node {node} {kind}: the range at frame {start} is empty, out of order or outside the zone"
            ),
            Self::BadSpan { node, kind, start } => {
                write!(f, "node {node} {kind}: the span at frame {start} is empty or has no end")
            }
            Self::ZoneTooLarge(node, kind) => {
                write!(f, "node {node} {kind} spans more than 2^32 frames, the most a zone can")
            }
            Self::ZonesNotAscending(node, kind) => {
                write!(f, "zone {kind} of node {node} is out of order; list zones by node, then kind")
            }
        }
    }
}

impl core::error::Error for TopologyError {}
