//! The structures that an address in the metadata can belong to.
//!
//! Each structure has a short *name*, which is the same for all structures of its kind and in all versions. Its
//! `Display` form also identifies the node, zone or CPU.
//!
//! Related files: `admin/metadata_regions.rs` finds the structure that contains an address.

use core::fmt;

use crate::units::{CpuId, NodeId, ZoneId};

/// A part of the metadata.
///
/// Free areas are numbered from 0 within their zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Settings that can change at run time; read on many paths.
    Settings,
    /// The lock for run-time changes.
    ChangeLock,
    /// Index of the zonelists' current copy.
    ListVersions,
    /// Machine-wide totals, if the configuration enables them.
    MachineTotals,
    /// The nodes that have memory online.
    MemoryNodes,
    /// The CPUs that are online.
    OnlineCpus,
    /// Pageset slot for CPUs without a pageset; every operation on it falls back to the slow path.
    NullSlot,
    /// This process's views of zones, nodes and CPUs; written at start only.
    Views,
    /// Pageset slot that a CPU currently uses for single frames.
    CurrentSlot(CpuId),
    /// The pageset slots of a CPU; written at start only.
    PagesetSlots(CpuId),
    /// The frees that handlers on a CPU could not finish.
    DeferredFrees(CpuId),
    /// The set of nodes that a CPU looked up last in its zonelist, and the nearest zone on them.
    NearestZone(CpuId),
    /// A node's threshold, preferred zone and number of CPUs; read on many paths, written by run-time changes.
    NodeRules(NodeId),
    /// Totals of a node's counters, written by folds.
    NodeTotals(NodeId),
    /// State of a node's reclaim, and whether CPUs of the node may use a serving zone that is not their preferred
    /// zone.
    NodeState(NodeId),
    /// Event counters of requests that start at a node.
    Events(NodeId),
    /// Zones in the fallback order of a node; written when zonelists are rebuilt.
    Zonelist(NodeId),
    /// Full bits of a node's zonelist.
    ZonelistCache(NodeId),
    /// A zone's watermarks, reserve, threshold and limits; read on many paths, written by run-time changes.
    ZoneRules(ZoneId),
    /// Totals of a zone's counters, written by folds.
    ZoneTotals(ZoneId),
    /// A zone's shortage, and hints about reclaim and full bits.
    ZoneState(ZoneId),
    /// Nodes in whose zonelist caches the full bit of a zone is set.
    ZoneFullNodes(ZoneId),
    /// A zone's quarantine of freed blocks, with its lock.
    Quarantine(ZoneId),
    /// Lock and counts of a free area.
    FreeArea(ZoneId, usize),
    /// Bitmaps of a free area's free blocks.
    FreeBitmap(ZoneId, usize),
    /// The blocks that CPUs own in a zone.
    OwnedBlocks(ZoneId),
    /// Frame states of a zone, one byte for each frame.
    FrameStates(ZoneId),
    /// A CPU's pageset of a zone, except the frames in it.
    Pageset(ZoneId, CpuId),
    /// The frames in a CPU's pageset of a zone.
    Slots(ZoneId, CpuId),
}

impl Part {
    /// Returns the name that all parts of this kind share.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::ChangeLock => "change lock",
            Self::ListVersions => "list versions",
            Self::MachineTotals => "machine totals",
            Self::MemoryNodes => "memory nodes",
            Self::OnlineCpus => "online CPUs",
            Self::NullSlot => "null slot",
            Self::Views => "views",
            Self::CurrentSlot(_) => "current slot",
            Self::PagesetSlots(_) => "pageset slots",
            Self::DeferredFrees(_) => "deferred frees",
            Self::NearestZone(_) => "nearest zone",
            Self::NodeRules(_) => "node rules",
            Self::NodeTotals(_) => "node totals",
            Self::NodeState(_) => "node state",
            Self::Events(_) => "events",
            Self::Zonelist(_) => "zonelist",
            Self::ZonelistCache(_) => "zonelist cache",
            Self::ZoneRules(_) => "zone rules",
            Self::ZoneTotals(_) => "zone totals",
            Self::ZoneState(_) => "zone state",
            Self::ZoneFullNodes(_) => "zone full nodes",
            Self::Quarantine(_) => "quarantine",
            Self::FreeArea(..) => "free area",
            Self::FreeBitmap(..) => "free bitmap",
            Self::OwnedBlocks(_) => "owned blocks",
            Self::FrameStates(_) => "frame states",
            Self::Pageset(..) => "pageset",
            Self::Slots(..) => "slots",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Settings
            | Self::ChangeLock
            | Self::ListVersions
            | Self::MachineTotals
            | Self::MemoryNodes
            | Self::OnlineCpus
            | Self::NullSlot
            | Self::Views => f.write_str(self.name()),
            Self::CurrentSlot(cpu)
            | Self::PagesetSlots(cpu)
            | Self::DeferredFrees(cpu)
            | Self::NearestZone(cpu) => {
                write!(f, "{} of CPU {cpu}", self.name())
            }
            Self::NodeRules(node) => write!(f, "node {node} rules"),
            Self::NodeTotals(node) => write!(f, "node {node} totals"),
            Self::NodeState(node) => write!(f, "node {node} state"),
            Self::Events(node) | Self::Zonelist(node) | Self::ZonelistCache(node) => {
                write!(f, "{} of node {node}", self.name())
            }
            Self::ZoneRules(zone) => write!(f, "zone {zone} rules"),
            Self::ZoneTotals(zone) => write!(f, "zone {zone} totals"),
            Self::ZoneState(zone) => write!(f, "zone {zone} state"),
            Self::ZoneFullNodes(zone) => write!(f, "zone {zone} full nodes"),
            Self::Quarantine(zone) | Self::FrameStates(zone) | Self::OwnedBlocks(zone) => {
                write!(f, "zone {zone} {}", self.name())
            }
            Self::FreeArea(zone, area) => write!(f, "zone {zone} free area {area} lock and counts"),
            Self::FreeBitmap(zone, area) => write!(f, "zone {zone} free area {area} free bitmap"),
            Self::Pageset(zone, cpu) | Self::Slots(zone, cpu) => {
                write!(f, "zone {zone} {} of CPU {cpu}", self.name())
            }
        }
    }
}
