//! The errors in a machine's description.
//!
//! Neighbours: `machine.rs` checks descriptions.

use core::fmt;

use super::frames::{FrameRange, LOCAL_DISTANCE, ZONE_FRAMES_MAX};
use crate::units::{CpuId, MAX_CPUS, MAX_NODES, NodeId, PageCount, Pfn, ZoneId, ZoneKind};

/// An error in a machine's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// A machine without nodes.
    NoNodes,
    /// More nodes than [`MAX_NODES`].
    TooManyNodes(usize),
    /// A node that is listed twice or not in ascending order of id.
    NodesNotAscending(NodeId),
    /// A row of distances that does not have one distance for each node.
    DistanceRow {
        /// Node of the row.
        row: NodeId,
        /// Number of distances given.
        given: usize,
        /// Number of distances needed.
        needed: usize,
    },
    /// A distance from a node to itself that is not 10.
    Diagonal {
        /// The node.
        node: NodeId,
        /// The distance given.
        distance: u8,
    },
    /// A distance between two nodes that is below 10.
    DistanceTooSmall {
        /// Node of the row.
        row: NodeId,
        /// Node of the column.
        column: NodeId,
        /// The distance given.
        distance: u8,
    },
    /// A CPU that is listed twice.
    CpuTwice(CpuId),
    /// A machine without zones.
    NoZones,
    /// A zone on a node that the machine does not have.
    ZoneOfUnknownNode(NodeId),
    /// A CPU id that is [`MAX_CPUS`] or above.
    CpuTooLarge(CpuId),
    /// More zones than there are ids ([`ZoneId::COUNT`]).
    TooManyZones(usize),
    /// Two zones whose spans overlap.
    ZonesOverlap {
        /// First frame in both spans.
        frame: Pfn,
        /// Node of the zone that is listed second.
        node: NodeId,
    },
    /// A managed range that is empty, out of order, overlapping or outside the zone's span.
    BadRange {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// The range.
        range: FrameRange,
        /// Frames that the zone spans.
        span: FrameRange,
    },
    /// A range of memory that may come online later, but is empty or out of order, does not lie within one zone's
    /// span, or is managed at start.
    BadHotplug {
        /// First frame of the offending range.
        start: Pfn,
    },
    /// A list of present frames that does not have one number for each zone.
    PresentCount {
        /// Number of entries given.
        given: usize,
        /// Number of entries needed.
        needed: usize,
    },
    /// A zone with fewer frames present than managed, or more than it spans.
    BadPresent {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// Number of present frames given.
        present: PageCount,
        /// Frames managed at start.
        managed: PageCount,
        /// Frames spanned, except those that may come online later.
        most: PageCount,
    },
    /// A zone whose span is empty or ends beyond the largest frame number.
    BadSpan {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// The span.
        span: FrameRange,
    },
    /// A zone that spans more than [`ZONE_FRAMES_MAX`] frames, counted from where its first block would begin.
    ZoneTooLarge(NodeId, ZoneKind),
    /// A zone that is not in ascending order of node, kind and first frame.
    ZonesNotAscending(NodeId, ZoneKind),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoNodes => write!(f, "the machine has no nodes; at least one is needed"),
            Self::TooManyNodes(count) => {
                write!(f, "the machine has {count} nodes; at most {MAX_NODES} are allowed")
            }
            Self::NodesNotAscending(node) => {
                write!(f, "node {node} is listed twice or out of order; list each node once, by ascending id")
            }
            Self::DistanceRow { row, given, needed } => {
                write!(f, "node {row} has {given} distances; it needs {needed}, one for each node")
            }
            Self::Diagonal { node, distance } => write!(
                f,
                "the distance from node {node} to itself is {distance}; it must be {LOCAL_DISTANCE}"
            ),
            Self::DistanceTooSmall { row, column, distance } => write!(
                f,
                "the distance from node {row} to node {column} is {distance}; allowed values are \
                 {LOCAL_DISTANCE} to 255"
            ),
            Self::CpuTwice(cpu) => write!(f, "CPU {cpu} is listed twice; each CPU is on one node"),
            Self::CpuTooLarge(cpu) => write!(f, "CPU id {cpu} is too large; ids are below {MAX_CPUS}"),
            Self::NoZones => {
                write!(f, "the machine has no zones; at least one is needed, which may be empty at first")
            }
            Self::ZoneOfUnknownNode(node) => {
                write!(f, "a zone is on node {node}, which is not among the machine's nodes")
            }
            Self::TooManyZones(count) => {
                write!(f, "the machine has {count} zones; at most {} are allowed", ZoneId::COUNT)
            }
            Self::ZonesOverlap { frame, node } => {
                write!(f, "a zone of node {node} overlaps another at frame {frame}; zones must be disjoint")
            }
            Self::BadRange { node, kind, range, span } => write_bad_range(f, (node, kind), range, span),
            Self::BadHotplug { start } => write!(
                f,
                "the hotplug range at frame {start} is empty, out of order, not within one zone's span or \
                 managed at start; list disjoint unmanaged ranges in ascending order"
            ),
            Self::PresentCount { given, needed } => write!(
                f,
                "there are {given} counts of present frames; {needed} are needed, one for each zone"
            ),
            Self::BadPresent { node, kind, present, managed, most } => write!(
                f,
                "node {node} {kind} has {present} frames present; it must be {managed} (managed) to {most} \
                 (spanned, except memory that may come online later)"
            ),
            Self::BadSpan { node, kind, span } => write!(
                f,
                "node {node} {kind}: the span of {span} is empty or ends beyond the largest frame number"
            ),
            Self::ZoneTooLarge(node, kind) => write!(
                f,
                "node {node} {kind} spans more than {ZONE_FRAMES_MAX} frames, the limit of one zone; \
                     describe it as several zones"
            ),
            Self::ZonesNotAscending(node, kind) => {
                write!(f, "zone {kind} of node {node} is out of order; list zones by node, kind, first frame")
            }
        }
    }
}

impl core::error::Error for TopologyError {}

/// Writes the error in a managed range of a zone.
fn write_bad_range(
    f: &mut fmt::Formatter<'_>,
    (node, kind): (NodeId, ZoneKind),
    range: FrameRange,
    span: FrameRange,
) -> fmt::Result {
    write!(
        f,
        "node {node} {kind}: the managed range of {range} is empty, out of order or outside the zone ({span}); list \
         disjoint ranges within the zone in ascending order"
    )
}
