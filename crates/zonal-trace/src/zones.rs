//! The zone of a frame, by the ranges of the trace's machine.
//!
//! Related files: `info/` and `export/` use this.

use zonal::units::{NodeId, Pfn, ZoneKind};
use zonal_machine::MachineModel;

/// A zone by its node and kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneName {
    /// The node.
    pub node: NodeId,
    /// The kind.
    pub kind: ZoneKind,
}

/// The zones of a machine by their frames.
#[derive(Clone, Default, Debug)]
pub struct Zones {
    /// First frames, frames after the last one, and names, ascending.
    ranges: Vec<(u64, u64, usize)>,
    names: Vec<ZoneName>,
}

impl Zones {
    /// Reads the zones of a machine. Without a machine there are none.
    #[must_use]
    pub fn new(machine: Option<&MachineModel>) -> Self {
        let zones = machine.map_or(&[][..], |machine| &machine.zones);
        let range = |(place, zone): (usize, &zonal_machine::ZoneModel)| {
            let first = zone.start.get();
            (first, first.saturating_add(zone.spanned.get()), place)
        };
        let mut ranges: Vec<_> = zones.iter().enumerate().map(range).collect();
        ranges.sort_unstable();
        Self {
            ranges,
            names: zones.iter().map(|zone| ZoneName { node: zone.node, kind: zone.kind }).collect(),
        }
    }

    /// Returns the zones, in the order of the machine.
    #[must_use]
    pub fn names(&self) -> &[ZoneName] {
        &self.names
    }

    /// Returns the place of a frame's zone in [`Zones::names`]. Where ranges overlap, it is the one that begins last.
    #[must_use]
    pub fn find(&self, page: Pfn) -> Option<usize> {
        let end = self.ranges.partition_point(|(first, ..)| *first <= page.get());
        self.ranges[..end].iter().rev().find(|(_, end, _)| page.get() < *end).map(|(.., place)| *place)
    }
}
