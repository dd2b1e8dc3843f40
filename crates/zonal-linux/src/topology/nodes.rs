//! The nodes of a topology: their CPUs, distances, and the weights of their zones.
//!
//! A zone's *weight* is its share of the pool's memory, in any unit. Related files: `topology/live.rs` reads the
//! nodes of the running machine, and `topology/mod.rs` combines nodes into a topology.

use zonal::units::{CpuId, NodeId, ZoneKind};
use zonal_model::{MachineModel, Presence};

/// A zone's share of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneShare {
    /// The zone's kind.
    pub kind: ZoneKind,
    /// Weight relative to all other zones of the topology.
    pub weight: u64,
}

/// A node of a topology.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyNode {
    /// The node's id.
    pub id: NodeId,
    /// CPUs on the node.
    pub cpus: Vec<CpuId>,
    /// Distances to all nodes of the topology, in the order of the nodes.
    pub distances: Vec<u8>,
    /// Zones of the node, most constrained first; empty if it has no memory.
    pub zones: Vec<ZoneShare>,
}

impl TopologyNode {
    pub(super) fn has_memory(&self) -> bool {
        self.zones.iter().any(|zone| zone.weight > 0)
    }
}

/// Returns the online nodes of a machine, with zones weighted by their managed frames.
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
