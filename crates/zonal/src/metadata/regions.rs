//! Which structure an address of the metadata can belong to.
//!
//! Each has a short *name*, the same for all of its kind and from version to version; what it shows of itself says
//! which one it is. Neighbours: `admin/metadata_regions.rs` finds the one that holds an address.

use core::fmt;

use crate::units::{CpuId, NodeId, ZoneId};

/// A part of the metadata. Regions are counted from 0 within their zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Part {
    /// What can be changed at run time, read on many paths.
    Settings,
    /// The lock of changes at run time.
    ChangeLock,
    /// Which copy of all zonelists is current.
    ListVersions,
    /// Totals of the whole machine, used where the configuration asks for them.
    MachineTotals,
    /// Which nodes have memory online.
    MemoryNodes,
    /// Which CPUs are online.
    OnlineCpus,
    /// The pageset of CPUs that have none: everything trips there.
    Nowhere,
    /// What this process knows of zones, nodes and CPUs; written at start only.
    Views,
    /// Which of its pagesets a CPU uses for single frames now.
    CurrentSlot(CpuId),
    /// What single frames need of each pageset of a CPU; written at start only.
    PagesetSlots(CpuId),
    /// A node's threshold, home zone and number of CPUs: read on many paths, written by changes.
    NodeRules(NodeId),
    /// Totals of what a node counts, written by folds.
    NodeTotals(NodeId),
    /// State of a node's reclaim, and whether CPUs of it are away.
    NodeNotes(NodeId),
    /// Events of requests that start at a node.
    Events(NodeId),
    /// Zones in the fallback order of a node; written when lists are rebuilt.
    Zonelist(NodeId),
    /// Which of these were found full.
    ZonelistCache(NodeId),
    /// A zone's watermarks, reserve, threshold and limits: read on many paths, written by changes.
    ZoneRules(ZoneId),
    /// Totals of what a zone counts, written by folds.
    ZoneTotals(ZoneId),
    /// What a zone is short of, and notes around reclaim and marks.
    ZoneNotes(ZoneId),
    /// In which nodes' caches a zone is marked as full.
    ZoneMarks(ZoneId),
    /// A zone's freed blocks that are kept back, with their lock.
    Quarantine(ZoneId),
    /// Lock and counts of a region.
    Region(ZoneId, usize),
    /// Bitmaps of a region's free blocks.
    FreeBitmap(ZoneId, usize),
    /// A byte for each frame of a zone.
    FrameStates(ZoneId),
    /// A CPU's pageset of a zone, but for the frames in it.
    Pageset(ZoneId, CpuId),
    /// The frames in a CPU's pageset of a zone.
    Slots(ZoneId, CpuId),
}

impl Part {
    /// The name of all parts of its kind.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::ChangeLock => "change lock",
            Self::ListVersions => "list versions",
            Self::MachineTotals => "machine totals",
            Self::MemoryNodes => "memory nodes",
            Self::OnlineCpus => "online CPUs",
            Self::Nowhere => "nowhere",
            Self::Views => "views",
            Self::CurrentSlot(_) => "current slot",
            Self::PagesetSlots(_) => "pageset slots",
            Self::NodeRules(_) => "node rules",
            Self::NodeTotals(_) => "node totals",
            Self::NodeNotes(_) => "node notes",
            Self::Events(_) => "events",
            Self::Zonelist(_) => "zonelist",
            Self::ZonelistCache(_) => "zonelist cache",
            Self::ZoneRules(_) => "zone rules",
            Self::ZoneTotals(_) => "zone totals",
            Self::ZoneNotes(_) => "zone notes",
            Self::ZoneMarks(_) => "zone marks",
            Self::Quarantine(_) => "quarantine",
            Self::Region(..) => "region",
            Self::FreeBitmap(..) => "free bitmap",
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
            | Self::Nowhere
            | Self::Views => f.write_str(self.name()),
            Self::CurrentSlot(cpu) | Self::PagesetSlots(cpu) => write!(f, "{} of CPU {cpu}", self.name()),
            Self::NodeRules(node) => write!(f, "node {node} rules"),
            Self::NodeTotals(node) => write!(f, "node {node} totals"),
            Self::NodeNotes(node) => write!(f, "node {node} notes"),
            Self::Events(node) | Self::Zonelist(node) | Self::ZonelistCache(node) => {
                write!(f, "{} of node {node}", self.name())
            }
            Self::ZoneRules(zone) => write!(f, "zone {zone} rules"),
            Self::ZoneTotals(zone) => write!(f, "zone {zone} totals"),
            Self::ZoneNotes(zone) => write!(f, "zone {zone} notes"),
            Self::ZoneMarks(zone) => write!(f, "zone {zone} marks"),
            Self::Quarantine(zone) | Self::FrameStates(zone) => write!(f, "zone {zone} {}", self.name()),
            Self::Region(zone, region) => write!(f, "zone {zone} region {region} lock and counts"),
            Self::FreeBitmap(zone, region) => write!(f, "zone {zone} region {region} free bitmap"),
            Self::Pageset(zone, cpu) | Self::Slots(zone, cpu) => {
                write!(f, "zone {zone} {} of CPU {cpu}", self.name())
            }
        }
    }
}
