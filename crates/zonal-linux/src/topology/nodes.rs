//! The nodes of a topology: their CPUs, distances, and the weights of their zones.
//!
//! A zone's *weight* is its part in the pool's memory, in any unit. Neighbours: `live.rs` makes nodes of what the
//! kernel tells, `mod.rs` makes machines of nodes.

use zonal::units::{CpuId, NodeId, ZoneKind};
use zonal_machine::{MachineModel, Presence};

/// A zone's part in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneShare {
    /// The zone's kind.
    pub kind: ZoneKind,
    /// Its weight against all other zones of the topology.
    pub weight: u64,
}

/// One node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyNode {
    /// The node's id.
    pub id: NodeId,
    /// The CPUs on it.
    pub cpus: Vec<CpuId>,
    /// Distances to all nodes of the topology, in their order.
    pub distances: Vec<u8>,
    /// Its zones, most constrained first; none where it has no memory.
    pub zones: Vec<ZoneShare>,
}

impl TopologyNode {
    pub(super) fn has_memory(&self) -> bool {
        self.zones.iter().any(|zone| zone.weight > 0)
    }
}

/// The online nodes of a machine, with zones that weigh what they manage.
pub(super) fn nodes_of(model: &MachineModel) -> Vec<TopologyNode> {
    let online = |place: &usize| model.nodes[*place].presence == Presence::Online;
    let places: Vec<usize> = (0..model.nodes.len()).filter(online).collect();
    let nodes = places.iter().map(|&place| &model.nodes[place]);
    nodes
        .map(|node| TopologyNode {
            id: node.id,
            cpus: node.cpus.clone(),
            distances: places.iter().map(|&to| node.distances[to]).collect(),
            zones: model
                .zones_of(node.id)
                .map(|zone| ZoneShare { kind: zone.kind, weight: zone.managed.get() })
                .collect(),
        })
        .collect()
}
