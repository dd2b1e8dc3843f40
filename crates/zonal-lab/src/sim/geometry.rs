//! Where CPUs and memory of a simulated machine are.

use zonal::units::NodeId;

/// Where CPUs and memory are.
pub(crate) struct Geometry {
    /// Place of the node of each CPU, by CPU id.
    pub(crate) node_of_cpu: Vec<usize>,
    pub(crate) nodes: usize,
    /// By place, ascending.
    pub(crate) ids: Vec<NodeId>,
    /// Row by row.
    pub(crate) distances: Vec<u8>,
}

impl Geometry {
    pub(crate) fn distance(&self, from: usize, to: usize) -> u8 {
        self.distances[from * self.nodes + to]
    }

    pub(crate) fn place_of(&self, node: NodeId) -> Option<usize> {
        self.ids.binary_search(&node).ok()
    }
}
