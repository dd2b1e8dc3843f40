//! Reads the running machine's topology and its currently available memory.
//!
//! `zonal-model` captures the topology. Paths are relative to a root directory, so that captured trees can be read
//! as well. Where the kernel does not support nodes, or hides them, the result is one node and the reason. Related
//! files: `topology/nodes.rs` defines the nodes, and `topology/mod.rs` makes a topology of the result.

use std::fs;
use std::path::Path;

use zonal::machine::LOCAL_DISTANCE;
use zonal::units::{CpuId, NodeId, ZoneKind};
use zonal_model::{MachineModel, capture};

use super::limits::meminfo_field;
use super::nodes::{TopologyNode, ZoneShare, nodes_of};

const NODES: &str = "sys/devices/system/node";

/// The result. `available` is empty if the nodes' memory does not add up to the machine's.
pub(super) struct Found {
    pub(super) nodes: Vec<TopologyNode>,
    pub(super) available: Vec<(NodeId, u64)>,
    pub(super) missing: Option<String>,
}

/// Reads the topology below `root`.
pub(super) fn read(root: &Path) -> Found {
    match capture(root) {
        Err(why) => one_node(&why.to_string()),
        Ok(_) if !root.join(NODES).exists() => one_node(&format!("there is no {NODES}")),
        Ok(captured) => with_memory(root, &captured.model),
    }
}

/// Returns the nodes of `model`. Each has one zone, whose weight is the memory available on the node.
fn with_memory(root: &Path, model: &MachineModel) -> Found {
    let mut nodes = nodes_of(model);
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return one_node("no node has a CPU");
    }
    let (mut available, mut total) = (Vec::new(), 0);
    for node in &mut nodes {
        let managed = model.managed_of(node.id).get() * u64::from(model.page_bytes);
        let file = root.join(NODES).join(format!("node{}/meminfo", node.id));
        let memory = fs::read_to_string(file)
            .map_or_else(|_| Memory { total: managed, available: managed }, |text| Memory::parse(&text));
        node.zones = match memory.total {
            0 => Vec::new(),
            _ => vec![ZoneShare { kind: ZoneKind::Normal, weight: memory.available.max(1) }],
        };
        total += memory.total;
        available.push((node.id, memory.available));
    }
    if !covers_machine(root, total) {
        available.clear();
    }
    Found { nodes, available, missing: None }
}

/// Memory of a node in bytes.
struct Memory {
    total: u64,
    available: u64,
}

impl Memory {
    fn parse(meminfo: &str) -> Self {
        let field = |name| meminfo_field(meminfo, name).unwrap_or(0);
        // Free memory plus reclaimable file pages. `FilePages` includes shared memory, which cannot be reclaimed.
        let file_pages = field("FilePages").saturating_sub(field("Shmem") + field("Unevictable"));
        Self { total: field("MemTotal"), available: field("MemFree") + file_pages }
    }
}

/// Whether the nodes' memory adds up to the machine's, within one sixteenth. In a virtual machine whose memory has
/// grown, the nodes may report less memory than they have.
fn covers_machine(root: &Path, nodes_total: u64) -> bool {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    meminfo_field(&text, "MemTotal").is_some_and(|total| nodes_total >= total - total / 16)
}

/// Returns all CPUs and all memory as one node, with the reason.
fn one_node(why: &str) -> Found {
    // SAFETY: `sysconf` has no preconditions.
    let possible = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let cpus = (0..u32::try_from(possible).unwrap_or(1).max(1)).map(CpuId::new).collect();
    let zones = vec![ZoneShare { kind: ZoneKind::Normal, weight: 1 }];
    let node = TopologyNode { id: NodeId::default(), cpus, distances: vec![LOCAL_DISTANCE], zones };
    Found { nodes: vec![node], available: Vec::new(), missing: Some(why.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::limits::tests::Tree;

    const NODE: &str = "sys/devices/system/node";

    fn memory(total: u64, free: u64) -> String {
        format!(
            "Node 3 MemTotal: {total} kB\nNode 3 MemFree: {free} kB\nNode 3 Active(file): 1 kB\n\
             Node 3 FilePages: 100 kB\nNode 3 Unevictable: 20 kB\nNode 3 Shmem: 30 kB\n"
        )
    }

    fn tree(name: &str, machine_total: u64) -> Tree {
        let file = |at: &str| format!("{NODE}/{at}");
        let texts = [
            ("proc/meminfo".into(), format!("MemTotal: {machine_total} kB\n")),
            (file("online"), "0,3\n".into()),
            (file("node0/cpulist"), "0-1,4\n".into()),
            (file("node0/distance"), "10 21\n".into()),
            (file("node0/meminfo"), memory(1000, 600)),
            (file("node3/cpulist"), "\n".into()),
            (file("node3/distance"), "21 10\n".into()),
            (file("node3/meminfo"), memory(0, 0)),
        ];
        let files: Vec<(&str, &str)> =
            texts.iter().map(|(at, text): &(String, String)| (&**at, &**text)).collect();
        Tree::new(name, &files)
    }

    #[test]
    fn reads_sparse_nodes_without_cpus_or_memory() {
        let tree = tree("sparse", 1000);
        let found = read(&tree.0);
        let [first, last] = found.nodes.as_slice() else { panic!("two nodes") };
        assert_eq!(first.cpus, [0, 1, 4].map(CpuId::new));
        assert_eq!(first.zones, [ZoneShare { kind: ZoneKind::Normal, weight: 650 * 1024 }]);
        assert_eq!((last.id.get(), last.distances.as_slice()), (3, [21, 10].as_slice()));
        assert!(last.cpus.is_empty() && last.zones.is_empty());
        assert_eq!(found.available[0], (first.id, 650 * 1024));
        assert_eq!(found.missing, None);
    }

    #[test]
    fn node_memory_that_does_not_add_up_is_not_a_limit() {
        let tree = tree("grown", 4000);
        assert!(read(&tree.0).available.is_empty());
    }

    #[test]
    fn machine_without_node_files_is_one_node() {
        let tree = Tree::new("nodeless", &[("proc/meminfo", "MemTotal: 1000 kB\n")]);
        let found = read(&tree.0);
        assert_eq!(found.nodes.len(), 1);
        assert!(!found.nodes[0].cpus.is_empty() && found.missing.is_some());
        assert!(read(Path::new("/nonexistent")).missing.is_some());
    }
}
