//! The errors in a machine's description.
//!
//! Related files: `machine.rs` checks descriptions and returns these errors.

use super::frames::{FrameRange, LOCAL_DISTANCE, ZONE_FRAMES_MAX};
use crate::units::{CpuId, MAX_CPUS, MAX_NODES, NodeId, PageCount, Pfn, ZoneId, ZoneKind};

messages! {
    /// An error in a machine's description.
    pub enum TopologyError: core::error::Error {
        /// The machine has no nodes.
        NoNodes => "the machine has no nodes; at least one is needed",
        /// The machine has more nodes than [`MAX_NODES`].
        TooManyNodes(count: usize) => "the machine has {count} nodes; at most {MAX_NODES} are allowed",
        /// The node is listed twice or not in ascending order of id.
        NodesNotAscending(node: NodeId) =>
            "node {node} is listed twice or out of order; list each node once, by ascending id",
        /// A row of distances does not have one distance for each node.
        DistanceRow {
            /// Node of the row.
            row: NodeId,
            /// Number of distances given.
            given: usize,
            /// Number of distances needed.
            needed: usize,
        } => "node {row} has {given} distances; it needs {needed}, one for each node",
        /// The distance from a node to itself is not 10.
        Diagonal {
            /// The node.
            node: NodeId,
            /// Distance in the description.
            distance: u8,
        } => "the distance from node {node} to itself is {distance}; it must be {LOCAL_DISTANCE}",
        /// A distance between two nodes is below 10.
        DistanceTooSmall {
            /// Node of the row.
            row: NodeId,
            /// Node of the column.
            column: NodeId,
            /// Distance in the description.
            distance: u8,
        } =>
            "the distance from node {row} to node {column} is {distance}; allowed values are {LOCAL_DISTANCE} to \
             255",
        /// The CPU is listed twice.
        CpuTwice(cpu: CpuId) => "CPU {cpu} is listed twice; each CPU is on one node",
        /// The machine has no zones.
        NoZones => "the machine has no zones; at least one is needed, which may be empty at first",
        /// A zone is on a node that the machine does not have.
        ZoneOfUnknownNode(node: NodeId) => "a zone is on node {node}, which is not among the machine's nodes",
        /// The CPU id is [`MAX_CPUS`] or above.
        CpuTooLarge(cpu: CpuId) => "CPU id {cpu} is too large; ids are below {MAX_CPUS}",
        /// The machine has more zones than there are zone ids ([`ZoneId::COUNT`]).
        TooManyZones(count: usize) => ("the machine has {count} zones; at most {} are allowed", ZoneId::COUNT),
        /// The spans of two zones overlap.
        ZonesOverlap {
            /// First frame in both spans.
            frame: Pfn,
            /// Node of the zone that is listed second.
            node: NodeId,
        } => "a zone of node {node} overlaps another at frame {frame}; zones must be disjoint",
        /// A managed range is empty, out of order, overlaps another, or is outside the zone's span.
        BadRange {
            /// Node of the zone.
            node: NodeId,
            /// Kind of the zone.
            kind: ZoneKind,
            /// The range.
            range: FrameRange,
            /// Span of the zone.
            span: FrameRange,
        } =>
            "node {node} {kind}: the managed range of {range} is empty, out of order or outside the zone ({span}); \
             list disjoint ranges within the zone in ascending order",
        /// A range of memory that may come online later is empty, out of order, not within the span of one zone, or
        /// managed at start.
        BadHotplug {
            /// First frame of the offending range.
            start: Pfn,
        } =>
            "the hotplug range at frame {start} is empty, out of order, not within one zone's span or managed at \
             start; list disjoint unmanaged ranges in ascending order",
        /// The list of present frames does not have one number for each zone.
        PresentCount {
            /// Number of entries given.
            given: usize,
            /// Number of entries needed.
            needed: usize,
        } => "there are {given} counts of present frames; {needed} are needed, one for each zone",
        /// A zone's number of present frames is below its managed frames, or above the span minus the frames that
        /// may come online later.
        BadPresent {
            /// Node of the zone.
            node: NodeId,
            /// Kind of the zone.
            kind: ZoneKind,
            /// Number of present frames given.
            present: PageCount,
            /// Number of frames managed at start.
            managed: PageCount,
            /// Number of frames in the span, except frames that may come online later.
            most: PageCount,
        } =>
            "node {node} {kind} has {present} frames present; it must be {managed} (managed) to {most} (spanned, \
             except memory that may come online later)",
        /// The span of a zone is empty or ends beyond the largest frame number.
        BadSpan {
            /// Node of the zone.
            node: NodeId,
            /// Kind of the zone.
            kind: ZoneKind,
            /// The span.
            span: FrameRange,
        } => "node {node} {kind}: the span of {span} is empty or ends beyond the largest frame number",
        /// The zone spans more than [`ZONE_FRAMES_MAX`] frames, counted from the last multiple of `2^18` at or before its
        /// first frame.
        ZoneTooLarge(node: NodeId, kind: ZoneKind) =>
            "node {node} {kind} spans more than {ZONE_FRAMES_MAX} frames, the limit of one zone; describe it as \
             several zones",
        /// The zone is not in ascending order of node, kind and first frame.
        ZonesNotAscending(node: NodeId, kind: ZoneKind) =>
            "zone {kind} of node {node} is out of order; list zones by node, kind, first frame",
    }
}
