//! A machine's description in the form that the allocator accepts, with the storage that this form borrows.

use zonal::machine::{FrameRange, Machine, NodeDescription, TopologyError, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, ZoneKind};
use zonal_model::{MachineModel, Presence};

/// The online nodes and the zones of a machine, owning the data that [`Machine`] borrows.
#[derive(Clone, Debug)]
pub struct OwnedMachine {
    nodes: Vec<(NodeId, Vec<CpuId>, Vec<u8>)>,
    zones: Vec<(NodeId, ZoneKind, FrameRange, Vec<FrameRange>)>,
    /// Present frames, by zone.
    present: Vec<PageCount>,
}

impl OwnedMachine {
    /// Calls `work` with the machine.
    ///
    /// # Errors
    /// The allocator's error about the machine. There is none for a machine that was read or captured.
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
    /// Converts a model. A model does not contain the positions of a zone's holes. The managed frames are therefore
    /// assumed to be the first frames of the zone, followed by frames that are present but not managed. A zone that is
    /// larger than the allocator supports becomes several consecutive zones.
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
