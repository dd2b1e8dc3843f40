//! The machine for which a pool is built: the running machine, or a machine that is emulated on it.
//!
//! With the *live* topology, memory is bound to the real NUMA nodes. The nodes of an *emulated* topology exist by
//! name only. Its CPUs are either the real CPUs, divided among the nodes, or emulated too: real CPUs are then mapped to
//! its CPUs, and a thread may act as any of them. `topology/nodes.rs` defines
//! nodes, `topology/live.rs` reads the running machine, `topology/limits.rs` reads how much memory is available, and
//! `topology/affinity.rs` sets where threads may run. This module does not depend on pools; `memory/plan.rs` divides a
//! pool's memory among a topology's nodes.

pub(crate) mod affinity;
pub(crate) mod limits;
mod live;
mod nodes;

use zonal::machine::LOCAL_DISTANCE;
use zonal::units::{CpuId, MAX_NODES, NodeId, ZoneKind};

use zonal_model::MachineModel;

use crate::error::{PoolError, node_list};
use nodes::nodes_of;
pub use nodes::{TopologyNode, ZoneShare};

/// Largest distance that a distance table can contain for a reachable node.
const DISTANCE_MAX: u8 = 254;
/// Distance between adjacent nodes on the ring of emulated nodes, unless the ring has too many nodes for it.
const RING_STEP: u16 = 10;

/// Source of a topology.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The running machine.
    Live,
    /// The running machine's CPUs, divided among emulated nodes.
    Divided,
    /// A description. The running machine provides only memory and CPU time.
    Emulated,
}

/// A machine's nodes, CPUs and distances, and each zone's share of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    origin: Origin,
    nodes: Vec<TopologyNode>,
    /// CPUs of the running machine, ascending.
    real_cpus: Vec<CpuId>,
    /// Memory that a pool can have on each node, in bytes; empty if the kernel does not report it reliably.
    available: Vec<(NodeId, u64)>,
    /// Reason why the topology could not be read, if it could not.
    missing: Option<String>,
}

impl Topology {
    /// Returns the topology of the running machine, or one node if the topology cannot be read.
    #[must_use]
    pub fn live() -> Self {
        let found = live::read(std::path::Path::new("/"));
        let mut real_cpus: Vec<CpuId> =
            found.nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        real_cpus.sort_unstable();
        let (nodes, available, missing) = (found.nodes, found.available, found.missing);
        Self { origin: Origin::Live, nodes, real_cpus, available, missing }
    }

    /// Returns the running machine's memory and CPUs as `count` nodes on a ring. CPUs are assigned round robin, so if
    /// there are fewer CPUs than nodes, the last nodes have no CPU.
    ///
    /// The CPUs are real, so pools access pagesets as on a machine that has these nodes: with restartable sequences.
    ///
    /// # Errors
    /// [`PoolError::FakeNodes`] if `count` is 0 or exceeds the maximum number of nodes.
    pub fn fake(count: usize) -> Result<Self, PoolError> {
        Self::live().faked(count)
    }

    fn faked(self, count: usize) -> Result<Self, PoolError> {
        if !(1..=MAX_NODES).contains(&count) {
            return Err(PoolError::FakeNodes { asked: count, most: MAX_NODES });
        }
        let node = |at: usize| {
            let id = NodeId::new(u16::try_from(at).ok()?)?;
            let cpus = self.real_cpus.iter().copied().skip(at).step_by(count).collect();
            let distances = (0..count).map(|to| ring_distance(at, to, count)).collect();
            let zones = vec![ZoneShare { kind: ZoneKind::Normal, weight: 1 }];
            Some(TopologyNode { id, cpus, distances, zones })
        };
        let nodes = (0..count).filter_map(node).collect();
        Ok(Self { origin: Origin::Divided, nodes, available: Vec::new(), ..self })
    }

    /// Returns the same nodes and CPUs, all of them emulated, so that threads may act as any CPU
    /// ([`Pool::act_as`](crate::Pool::act_as)). Pools then access pagesets with locks, and their memory is neither bound to
    /// nodes nor limited by what the kernel reports for each node.
    #[must_use]
    pub fn with_emulated_cpus(self) -> Self {
        Self { origin: Origin::Emulated, available: Vec::new(), ..self }
    }

    /// Returns the machine described by `nodes`, which must ascend by id, emulated on the running machine. Real CPUs
    /// are spread evenly over the described CPUs.
    ///
    /// # Errors
    /// [`PoolError::NoCpu`] if no node has a CPU. Other errors in `nodes` are found when the pool is built.
    pub fn emulated(nodes: Vec<TopologyNode>) -> Result<Self, PoolError> {
        if nodes.iter().all(|node| node.cpus.is_empty()) {
            return Err(PoolError::NoCpu);
        }
        Ok(Self { origin: Origin::Emulated, nodes, available: Vec::new(), ..Self::live() })
    }

    /// Returns the nodes of a shared pool that another process on this machine has made.
    pub(crate) fn described(nodes: Vec<TopologyNode>, is_divided: bool) -> Self {
        let origin = if is_divided { Origin::Divided } else { Origin::Live };
        Self { origin, nodes, available: Vec::new(), missing: None, ..Self::live() }
    }

    /// Returns a machine model that was read, captured or loaded from a preset, emulated as by
    /// [`Topology::emulated`]. The result has the online nodes of the model; its zones share the pool in proportion
    /// to their managed memory.
    ///
    /// # Errors
    /// Those of [`Topology::emulated`].
    pub fn of_machine(model: &MachineModel) -> Result<Self, PoolError> {
        Self::emulated(nodes_of(model))
    }

    /// Returns the same machine with memory on the `wanted` nodes only. All nodes keep their CPUs.
    ///
    /// # Errors
    /// [`PoolError::UnknownNode`] and [`PoolError::NodeWithoutMemory`], which list the valid nodes, and
    /// [`PoolError::NoNode`] if `wanted` is empty.
    pub fn restricted_to(mut self, wanted: &[NodeId]) -> Result<Self, PoolError> {
        if wanted.is_empty() {
            return Err(PoolError::NoNode);
        }
        for &node in wanted {
            let Some(found) = self.nodes.iter().find(|one| one.id == node) else {
                return Err(PoolError::UnknownNode { node, existing: node_list(self.ids()) });
            };
            if !found.has_memory() {
                let existing = node_list(self.nodes.iter().filter(|one| one.has_memory()).map(|one| one.id));
                return Err(PoolError::NodeWithoutMemory { node, existing });
            }
        }
        for node in self.nodes.iter_mut().filter(|node| !wanted.contains(&node.id)) {
            node.zones.clear();
        }
        Ok(self)
    }

    /// Returns the nodes of the topology.
    #[must_use]
    pub fn nodes(&self) -> &[TopologyNode] {
        &self.nodes
    }

    /// Whether the nodes exist by name only.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.origin != Origin::Live
    }

    /// Whether the CPUs exist by name only. Threads may then act as any of them. Otherwise each thread acts as the CPU that
    /// runs it, which restartable sequences require.
    #[must_use]
    pub fn has_emulated_cpus(&self) -> bool {
        self.origin == Origin::Emulated
    }

    /// Whether memory can be bound to nodes, which requires the live topology and more than one node.
    pub(crate) fn can_be_bound(&self) -> bool {
        self.origin == Origin::Live && self.nodes.len() > 1
    }

    /// Whether pools built for this topology have memory on `node`.
    pub(crate) fn has_memory_on(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|one| one.id == node && one.has_memory())
    }

    /// Returns the nearest node to `node` on which pools have memory, or the first of several that are equally near.
    pub(crate) fn nearest_with_memory(&self, node: NodeId) -> Option<NodeId> {
        let from = self.nodes.iter().find(|one| one.id == node)?;
        let others = self.nodes.iter().zip(&from.distances).filter(|(one, _)| one.has_memory());
        others.min_by_key(|(_, distance)| **distance).map(|(one, _)| one.id)
    }

    /// Returns the bytes that a pool can have on `node`, if the kernel reports them reliably.
    pub(crate) fn available_on(&self, node: NodeId) -> Option<u64> {
        self.available.iter().find(|(of, _)| *of == node).map(|&(_, bytes)| bytes)
    }

    /// Returns the reason why the topology could not be read, if it could not.
    pub(crate) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Returns the topology's CPU for each real CPU id. Real CPUs are spread evenly over the topology's CPUs. If both
    /// sets of CPUs are equal, each CPU is mapped to itself.
    pub(crate) fn cpus_by_real_cpu(&self) -> Vec<CpuId> {
        let real = &self.real_cpus;
        let mut own: Vec<CpuId> = self.nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        if own.len() == real.len() && own.iter().all(|cpu| real.contains(cpu)) {
            own.clone_from(real);
        }
        let ids = real.last().map_or(1, |last| last.index() + 1);
        let mapped = |id: usize| match real.iter().position(|cpu| cpu.index() == id) {
            Some(at) => own[at * own.len() / real.len()],
            None => own[id % own.len()], // a CPU id that is not online now but may be later
        };
        (0..ids).map(mapped).collect()
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().map(|node| node.id)
    }
}

/// Returns the distance between two nodes on a ring of `count` nodes. Each step of the shorter way adds ten, or less
/// if the distances would exceed the maximum.
fn ring_distance(from: usize, to: usize, count: usize) -> u8 {
    let apart = from.abs_diff(to);
    let hops = apart.min(count - apart) as u16;
    let farthest = (count / 2).max(1) as u16;
    let step = (u16::from(DISTANCE_MAX - LOCAL_DISTANCE) / farthest).clamp(1, RING_STEP);
    (u16::from(LOCAL_DISTANCE) + hops * step).min(u16::from(DISTANCE_MAX)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u16, cpus: &[u32], weight: u64) -> TopologyNode {
        let zones = vec![ZoneShare { kind: ZoneKind::Normal, weight }];
        let cpus = cpus.iter().copied().map(CpuId::new).collect();
        TopologyNode { id: NodeId::new(id).unwrap(), cpus, distances: vec![10, 20], zones }
    }

    fn with_real_cpus(mut topology: Topology, cpus: &[u32]) -> Topology {
        topology.real_cpus = cpus.iter().copied().map(CpuId::new).collect();
        topology
    }

    #[test]
    fn described_machines_weight_zones_by_managed_frames() {
        let text = r#"{ "name": "two", "page_bytes": 4096, "possible_offline": [1],
            "nodes": [ {"id": 0, "cpus": [0, 1], "distances": {"0": 10, "5": 31}},
                       {"id": 5, "cpus": [], "distances": {"0": 17, "5": 10}} ],
            "zones": [ {"node": 0, "kind": "DMA32", "start": 16, "spanned": 90, "present": 80, "managed": 70},
                       {"node": 5, "kind": "Movable", "start": 900, "spanned": 9, "present": 9, "managed": 9} ] }"#;
        let model = MachineModel::from_json(text, "test").unwrap();
        let topology = Topology::of_machine(&model).unwrap();
        assert!(topology.is_emulated());
        let [near, far] = topology.nodes() else { panic!("two nodes are online") };
        assert_eq!((near.distances.as_slice(), far.distances.as_slice()), (&[10, 31][..], &[17, 10][..]));
        assert_eq!(near.zones, [ZoneShare { kind: ZoneKind::Dma32, weight: 70 }]);
        assert_eq!((far.id.get(), far.zones[0].kind), (5, ZoneKind::Movable));
    }

    fn ids(cpus: Vec<CpuId>) -> Vec<u32> {
        cpus.into_iter().map(CpuId::get).collect()
    }

    #[test]
    fn the_live_machine_has_memory_and_cpus() {
        let live = Topology::live();
        assert!(live.nodes().iter().any(TopologyNode::has_memory));
        for cpu in &live.real_cpus {
            assert_eq!(live.cpus_by_real_cpu()[cpu.index()], *cpu);
        }
    }

    #[test]
    fn fake_nodes_form_a_ring_and_share_the_cpus() {
        let live = with_real_cpus(Topology::live(), &[0, 1, 4]);
        let fake = live.faked(4).unwrap();
        let first = &fake.nodes()[0];
        assert_eq!(first.distances, [10, 20, 30, 20]);
        let cpus: Vec<_> = fake.nodes().iter().map(|node| ids(node.cpus.clone())).collect();
        assert_eq!(cpus, [vec![0], vec![1], vec![4], vec![]]);
        assert_eq!(ids(fake.cpus_by_real_cpu()), [0, 1, 4, 0, 4]);
        assert_eq!(ring_distance(0, 512, 1024), 254);
        assert!(matches!(Topology::fake(0), Err(PoolError::FakeNodes { asked: 0, .. })));
        assert!(Topology::fake(1025).is_err());
        assert!(fake.is_emulated() && !fake.has_emulated_cpus() && !fake.can_be_bound());
        let nodes = fake.nodes().to_vec();
        let acting = fake.with_emulated_cpus();
        assert!(acting.is_emulated() && acting.has_emulated_cpus());
        assert_eq!(acting.nodes(), nodes);
    }

    #[test]
    fn real_cpus_are_spread_over_emulated_ones() {
        let nodes = vec![node(0, &[0, 1, 2, 3], 1), node(1, &[4, 5, 6, 7], 1)];
        let emulated = with_real_cpus(Topology::emulated(nodes.clone()).unwrap(), &[0, 1]);
        assert_eq!(ids(emulated.cpus_by_real_cpu()), [0, 4]);
        let few = with_real_cpus(Topology::emulated(vec![node(0, &[9], 1)]).unwrap(), &[0, 1, 2]);
        assert_eq!(ids(few.cpus_by_real_cpu()), [9, 9, 9]);
        let without_cpus = Topology::emulated(vec![node(0, &[], 1)]);
        assert!(matches!(without_cpus, Err(PoolError::NoCpu)));
    }

    #[test]
    fn restriction_keeps_cpus_and_errors_list_valid_nodes() {
        let machine = Topology::emulated(vec![node(0, &[0], 3), node(2, &[1], 0)]).unwrap();
        let wanted = |id| [NodeId::new(id).unwrap()];
        assert!(matches!(machine.clone().restricted_to(&[]), Err(PoolError::NoNode)));
        let error = machine.clone().restricted_to(&wanted(1)).unwrap_err().to_string();
        assert_eq!(error, "node 1 does not exist; this machine has nodes 0,2");
        let error = machine.clone().restricted_to(&wanted(2)).unwrap_err().to_string();
        assert_eq!(error, "node 2 has no memory; memory is on node 0");
        let both = Topology::emulated(vec![node(0, &[0], 3), node(2, &[1], 4)]).unwrap();
        let only = both.restricted_to(&wanted(2)).unwrap();
        let [with, without] = [wanted(2), wanted(0)].map(|[node]| node);
        assert!(only.has_memory_on(with) && !only.has_memory_on(without));
        assert_eq!(only.nearest_with_memory(without), Some(with));
        assert!(!only.nodes()[0].has_memory() && only.nodes()[1].has_memory());
        assert_eq!(only.nodes()[0].cpus.len(), 1);
    }
}
