//! The CPUs and nodes of a simulated machine, and the distances between nodes.

use zonal::units::NodeId;

/// Topology of a simulated machine.
pub(crate) struct Geometry {
    /// Node index of each CPU, indexed by CPU id.
    pub(crate) node_of_cpu: Vec<usize>,
    pub(crate) nodes: usize,
    /// Node ids by node index, ascending.
    pub(crate) ids: Vec<NodeId>,
    /// Distances between nodes, row by row.
    pub(crate) distances: Vec<u8>,
}

impl Geometry {
    pub(crate) fn distance(&self, from: usize, to: usize) -> u8 {
        self.distances[from * self.nodes + to]
    }

    pub(crate) fn place_of(&self, node: NodeId) -> Option<usize> {
        // Most machines number their nodes from 0.
        let is_own_index = self.ids.get(node.index()) == Some(&node);
        if is_own_index { Some(node.index()) } else { self.ids.binary_search(&node).ok() }
    }
}
