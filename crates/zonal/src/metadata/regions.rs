//! The structures that an address in the metadata can belong to.
//!
//! Each structure has a short *name*, which is the same for all structures of its kind and in all versions. Its
//! `Display` form also identifies the node, zone or CPU.
//!
//! Related files: `admin/metadata_regions.rs` finds the structure that contains an address. The views of zones, nodes and
//! zonelists find it among their own.

use crate::units::{CpuId, NodeId, ZoneId};

messages! {
    /// A part of the metadata.
    ///
    /// Free areas are numbered from 0 within their zone.
    #[derive(PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Part {
        /// Settings that can change at run time; read on many paths.
        Settings => "settings",
        /// The lock for run-time changes.
        ChangeLock => "change lock",
        /// Index of the zonelists' current copy.
        ListVersions => "list versions",
        /// Machine-wide totals, if the configuration enables them.
        MachineTotals => "machine totals",
        /// The nodes that have memory online.
        MemoryNodes => "memory nodes",
        /// The CPUs that are online.
        OnlineCpus => "online CPUs",
        /// Pageset slot for CPUs without a pageset; every operation on it falls back to the slow path.
        NullSlot => "null slot",
        /// This process's views of zones, nodes and CPUs; written at start only.
        Views => "views",
        /// Pageset slot that a CPU currently uses for single frames.
        CurrentSlot(cpu: CpuId) => "current slot of CPU {cpu}",
        /// The pageset slots of a CPU; written at start only.
        PagesetSlots(cpu: CpuId) => "pageset slots of CPU {cpu}",
        /// The frees that handlers on a CPU could not finish.
        DeferredFrees(cpu: CpuId) => "deferred frees of CPU {cpu}",
        /// The set of nodes that a CPU looked up last in its zonelist, and the nearest zone on them.
        NearestZone(cpu: CpuId) => "nearest zone of CPU {cpu}",
        /// A node's threshold, preferred zone and number of CPUs; read on many paths, written by run-time changes.
        NodeRules(node: NodeId) => "node {node} rules",
        /// Totals of a node's counters, written by folds.
        NodeTotals(node: NodeId) => "node {node} totals",
        /// State of a node's reclaim, and whether CPUs of the node may use a serving zone that is not their preferred
        /// zone.
        NodeState(node: NodeId) => "node {node} state",
        /// Event counters of requests that start at a node.
        Events(node: NodeId) => "events of node {node}",
        /// Zones in the fallback order of a node; written when zonelists are rebuilt.
        Zonelist(node: NodeId) => "zonelist of node {node}",
        /// Full bits of a node's zonelist.
        ZonelistCache(node: NodeId) => "zonelist cache of node {node}",
        /// A zone's watermarks, reserve, threshold and limits; read on many paths, written by run-time changes.
        ZoneRules(zone: ZoneId) => "zone {zone} rules",
        /// Totals of a zone's counters, written by folds.
        ZoneTotals(zone: ZoneId) => "zone {zone} totals",
        /// A zone's shortage, and hints about reclaim and full bits.
        ZoneState(zone: ZoneId) => "zone {zone} state",
        /// Nodes in whose zonelist caches the full bit of a zone is set.
        ZoneFullNodes(zone: ZoneId) => "zone {zone} full nodes",
        /// A zone's quarantine of freed blocks, with its lock.
        Quarantine(zone: ZoneId) => "zone {zone} quarantine",
        /// Lock and counts of a free area.
        FreeArea(zone: ZoneId, area: usize) => "zone {zone} free area {area} lock and counts",
        /// Bitmaps of a free area's free blocks.
        FreeBitmap(zone: ZoneId, area: usize) => "zone {zone} free area {area} free bitmap",
        /// The blocks that CPUs own in a zone.
        OwnedBlocks(zone: ZoneId) => "zone {zone} owned blocks",
        /// Frame states of a zone, one byte for each frame.
        FrameStates(zone: ZoneId) => "zone {zone} frame states",
        /// A CPU's pageset of a zone, except the frames in it.
        Pageset(zone: ZoneId, cpu: CpuId) => "zone {zone} pageset of CPU {cpu}",
        /// The frames in a CPU's pageset of a zone.
        Slots(zone: ZoneId, cpu: CpuId) => "zone {zone} slots of CPU {cpu}",
    }
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

/// Whether the byte at `address` is part of `value`.
pub(crate) fn holds<T: ?Sized>(value: &T, address: usize) -> bool {
    let start = core::ptr::from_ref(value).addr();
    (start..start + size_of_val(value)).contains(&address)
}

/// Returns the index of the value that contains the byte at `address`.
pub(crate) fn index<T>(values: &[T], address: usize) -> Option<usize> {
    holds(values, address).then(|| (address - values.as_ptr().addr()) / size_of::<T>())
}

/// Returns the first part whose condition is true.
pub(crate) fn first_true<const N: usize>(parts: [(bool, Part); N]) -> Option<Part> {
    parts.into_iter().find_map(|(is_it, part)| is_it.then_some(part))
}
