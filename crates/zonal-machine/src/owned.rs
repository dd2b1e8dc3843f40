//! A machine's description as the allocator takes it, with the storage it borrows from.

use zonal::machine::{FrameRange, Machine, NodeDescription, TopologyError, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, ZoneKind};

use crate::model::{MachineModel, Presence};

/// The online nodes and the zones of a machine, owning what [`Machine`] borrows.
#[derive(Clone, Debug)]
pub struct OwnedMachine {
    nodes: Vec<(NodeId, Vec<CpuId>, Vec<u8>)>,
    zones: Vec<(NodeId, ZoneKind, FrameRange, Vec<FrameRange>)>,
    /// By zone.
    present: Vec<PageCount>,
}

impl OwnedMachine {
    /// Calls `work` with the machine.
    ///
    /// # Errors
    /// What the allocator finds wrong with it; nothing, for a machine that was read or captured.
    pub fn with<R>(&self, work: impl FnOnce(&Machine<'_>) -> R) -> Result<R, TopologyError> {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|(id, cpus, distances)| NodeDescription { id: *id, cpus, distances })
            .collect();
        let zones: Vec<_> = self
            .zones
            .iter()
            .map(|(node, kind, span, managed)| ZoneDescription {
                node: *node,
                kind: *kind,
                span: *span,
                managed,
            })
            .collect();
        Machine::new(&nodes, &zones)?.with_present(&self.present).map(|machine| work(&machine))
    }
}

impl From<&MachineModel> for OwnedMachine {
    /// Where a zone's holes lie is not known: its managed frames are taken to be its first, and those that
    /// are present but not managed to follow them. A zone that is larger than the allocator's zones can be
    /// becomes several of them, one after the other.
    fn from(model: &MachineModel) -> Self {
        let online: Vec<usize> =
            (0..model.nodes.len()).filter(|&place| model.nodes[place].presence == Presence::Online).collect();
        let nodes = model.online_nodes().map(|node| {
            let row = online.iter().map(|&place| node.distances[place]).collect();
            (node.id, node.cpus.clone(), row)
        });
        let (mut zones, mut present) = (Vec::new(), Vec::new());
        for zone in &model.zones {
            let first = |count| FrameRange { start: zone.start, count };
            for span in first(zone.spanned).zone_spans() {
                let managed = first(zone.managed).intersection(&span);
                zones.push((zone.node, zone.kind, span, Vec::from_iter(managed)));
                let there = first(zone.present).intersection(&span);
                present.push(there.map_or(PageCount::ZERO, |range| range.count));
            }
        }
        Self { nodes: nodes.collect(), zones, present }
    }
}
