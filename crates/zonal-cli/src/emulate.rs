//! A machine file as the topology of a pool: nodes, CPUs, distances and shares of memory.
//!
//! The real machine lends memory and time, so zones keep their proportions, not their sizes.
//! Neighbours: `zonal-machine` reads the file, `zonal-linux` builds the pool.

use std::path::Path;

use zonal_linux::{PoolError, Topology, TopologyNode, ZoneShare};
use zonal_machine::{MachineModel, NodeModel};

use crate::outcome::Failure;

/// The topology that `file` describes, and its bytes a frame.
pub(crate) fn machine(file: &Path) -> Result<(Topology, u32), Failure> {
    let model = MachineModel::read(file).map_err(Failure::bad_input)?;
    let topology =
        topology(&model).map_err(|error| Failure::bad_input(format!("{}: {error}", file.display())))?;
    Ok((topology, model.page_bytes))
}

fn topology(model: &MachineModel) -> Result<Topology, PoolError> {
    let node = |node: &NodeModel| TopologyNode {
        id: node.id,
        cpus: node.cpus.clone(),
        distances: node.distances.clone(),
        zones: model
            .zones
            .iter()
            .filter(|zone| zone.node == node.id)
            .map(|zone| ZoneShare { kind: zone.kind, weight: zone.managed.get() })
            .collect(),
    };
    Topology::emulated(model.nodes.iter().map(node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_become_topologies() {
        for preset in zonal_machine::PRESETS {
            let model = zonal_machine::preset(preset.name).unwrap();
            let topology = topology(&model).unwrap();
            assert_eq!(topology.nodes().len(), model.nodes.len(), "{}", preset.name);
            let zones: usize = topology.nodes().iter().map(|node| node.zones.len()).sum();
            assert_eq!(zones, model.zones.len(), "{}", preset.name);
            assert!(topology.is_emulated());
        }
    }
}
