//! Reads the running machine's topology from `/sys`, with no more than a pool needs.
//!
//! Paths hang below a root, so that captured trees can be read as well. Where the kernel has no
//! notion of nodes, or hides it, the machine is one node and says why.
//! Neighbours: `topology.rs` gives the result its meaning.

use std::fs;
use std::io;
use std::path::Path;

use zonal::machine::LOCAL_DISTANCE;
use zonal::units::{CpuId, NodeId, ZoneKind};

use crate::error::PoolError;
use crate::limits::meminfo_field;
use crate::topology::{TopologyNode, ZoneShare};

/// What was read. `room` is empty where nodes' numbers do not add up to the machine's.
pub(crate) struct Found {
    pub(crate) nodes: Vec<TopologyNode>,
    pub(crate) room: Vec<(NodeId, u64)>,
    pub(crate) missing: Option<String>,
}

/// Reads the topology below `root`.
pub(crate) fn read(root: &Path) -> Result<Found, PoolError> {
    let dir = root.join("sys/devices/system/node");
    let online = match fs::read_to_string(dir.join("online")) {
        Ok(online) => online,
        Err(e) => return one_node(root, &e.to_string()),
    };
    let ids = parse_list(&online).map_err(|why| bad(&dir.join("online"), &why))?;
    let mut nodes = Vec::new();
    let (mut room, mut total) = (Vec::new(), 0);
    for id in ids {
        let node = read_node(&dir, id)?;
        total += node.total;
        room.push((node.topology.id, node.available));
        nodes.push(node.topology);
    }
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return one_node(root, "no node has a CPU");
    }
    if !covers_machine(root, total) {
        room.clear();
    }
    Ok(Found { nodes, room, missing: None })
}

struct NodeRead {
    topology: TopologyNode,
    total: u64,
    available: u64,
}

fn read_node(dir: &Path, id: u32) -> Result<NodeRead, PoolError> {
    let dir = dir.join(format!("node{id}"));
    let text = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map_err(|source| PoolError::Unreadable { path, source })
    };
    let node = u16::try_from(id).ok().and_then(NodeId::new);
    let node = node.ok_or_else(|| bad(&dir, "more nodes than can be told apart"))?;
    let cpus = parse_list(&text("cpulist")?).map_err(|why| bad(&dir.join("cpulist"), &why))?;
    let distances = text("distance")?;
    let distances: Result<Vec<u8>, _> = distances.split_whitespace().map(str::parse).collect();
    let distances = distances.map_err(|why| bad(&dir.join("distance"), &why.to_string()))?;
    let memory = text("meminfo")?;
    let field = |name| meminfo_field(&memory, name).unwrap_or(0);
    let total = field("MemTotal");
    // Free memory and file pages, which go when asked; shared memory counts as file pages but stays.
    let available =
        field("MemFree") + field("FilePages").saturating_sub(field("Shmem") + field("Unevictable"));
    let zones = match total {
        0 => Vec::new(),
        _ => vec![ZoneShare { kind: ZoneKind::Normal, weight: available.max(1) }],
    };
    let cpus = cpus.into_iter().map(CpuId::new).collect();
    Ok(NodeRead { topology: TopologyNode { id: node, cpus, distances, zones }, total, available })
}

/// Whether the nodes' memory adds up to the machine's: virtual machines whose memory grew can
/// report nodes with less than they have.
fn covers_machine(root: &Path, nodes_total: u64) -> bool {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    meminfo_field(&text, "MemTotal").is_some_and(|total| nodes_total >= total - total / 16)
}

fn one_node(root: &Path, why: &str) -> Result<Found, PoolError> {
    let path = root.join("sys/devices/system/cpu/online");
    let online = fs::read_to_string(&path).ok().and_then(|text| parse_list(&text).ok());
    let known = online.filter(|cpus| !cpus.is_empty());
    let cpus = known.unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (0..count as u32).collect()
    });
    let cpus = cpus.into_iter().map(CpuId::new).collect();
    let zones = vec![ZoneShare { kind: ZoneKind::Normal, weight: 1 }];
    let node = TopologyNode { id: NodeId::default(), cpus, distances: vec![LOCAL_DISTANCE], zones };
    Ok(Found { nodes: vec![node], room: Vec::new(), missing: Some(why.into()) })
}

/// Numbers of a list such as `0-3,8`, ascending.
fn parse_list(text: &str) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if first <= last && last < 1 << 20 => numbers.extend(first..=last),
            _ => return Err(format!("`{part}` is no range of numbers")),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn bad(path: &Path, why: &str) -> PoolError {
    let source = io::Error::new(io::ErrorKind::InvalidData, why);
    PoolError::Unreadable { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::tests::Tree;

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
        let found = read(&tree.0).unwrap();
        let [first, last] = found.nodes.as_slice() else { panic!("two nodes") };
        assert_eq!(first.cpus, [0, 1, 4].map(CpuId::new));
        assert_eq!(first.zones, [ZoneShare { kind: ZoneKind::Normal, weight: 650 * 1024 }]);
        assert_eq!((last.id.get(), last.distances.as_slice()), (3, [21, 10].as_slice()));
        assert!(last.cpus.is_empty() && last.zones.is_empty());
        assert_eq!(found.room[0], (first.id, 650 * 1024));
        assert_eq!(found.missing, None);
    }

    #[test]
    fn numbers_that_do_not_add_up_are_no_limits() {
        let tree = tree("grown", 4000);
        assert!(read(&tree.0).unwrap().room.is_empty());
    }

    #[test]
    fn bad_files_are_named() {
        let tree = tree("bad", 1000);
        fs::write(tree.0.join(NODE).join("node0/cpulist"), "3-x").unwrap();
        let error = read(&tree.0).err().unwrap().to_string();
        assert!(error.contains("node0/cpulist") && error.contains("3-x"), "{error}");
    }

    #[test]
    fn without_nodes_it_is_one() {
        let tree = Tree::new("nodeless", &[("sys/devices/system/cpu/online", "0-2\n")]);
        let found = read(&tree.0).unwrap();
        assert_eq!(found.nodes[0].cpus.len(), 3);
        assert!(found.missing.is_some());
    }
}
