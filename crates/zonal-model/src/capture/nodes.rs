//! Reads nodes, their CPUs and their distances from `sys/devices/system/node`, or from other files if that is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use zonal::units::MAX_NODES;

use super::tree::{NODES, Tree};
use crate::error::MachineError;
use crate::file::{FileKind, FileZone};
use crate::ids;
use crate::input::Limit;
use crate::model::NUMA_DEFAULT_DISTANCE;
use crate::resolve::CPUS_MAX;

/// The nodes found.
pub(super) struct Topology {
    nodes: BTreeMap<u64, Found>,
    possible: BTreeSet<u64>,
}

/// The known facts about a node.
#[derive(Default)]
struct Found {
    cpus: Option<Vec<u64>>,
    distances: Option<Vec<i64>>,
}

impl Topology {
    /// Reads the nodes, their CPUs and their distances.
    ///
    /// # Errors
    /// [`MachineError::Malformed`] for a `cpumap` that is not a bit mask, and for more CPUs than a machine
    /// can have.
    pub(super) fn read(tree: &Tree) -> Result<Self, MachineError> {
        let mut online: BTreeSet<u64> = list(tree.read(&format!("{NODES}/online"), Limit::List).as_deref());
        if online.is_empty() {
            online = tree.numbered(NODES, "node").into_iter().collect();
        }
        online.retain(|&id| id < MAX_NODES as u64);
        if online.is_empty() {
            tree.note(&format!("{NODES} is missing: all CPUs are assumed to be on node 0"));
            let found = Found { cpus: all_cpus(tree), distances: None };
            return Ok(Self { nodes: BTreeMap::from([(0, found)]), possible: BTreeSet::new() });
        }
        let mut possible = list(tree.read(&format!("{NODES}/possible"), Limit::List).as_deref());
        possible.retain(|id| *id < MAX_NODES as u64 && !online.contains(id));
        let (mut nodes, mut listed) = (BTreeMap::new(), 0);
        for &id in &online {
            let node = read_node(tree, id)?;
            let cpus = node.cpus.as_ref().map_or(0, Vec::len);
            listed += cpus;
            if listed > CPUS_MAX as usize {
                return Err(too_many_cpus(tree, id, cpus, listed));
            }
            nodes.insert(id, node);
        }
        Ok(Self { nodes, possible })
    }

    /// Adds nodes that are listed only in `proc/zoneinfo`.
    pub(super) fn add_nodes(&mut self, ids: &BTreeSet<u64>, tree: &Tree) {
        for &id in ids.iter().filter(|&&id| id < MAX_NODES as u64) {
            if !self.nodes.contains_key(&id) {
                tree.note(&format!("node {id} is only in proc/zoneinfo: its CPUs and distances are unknown"));
                self.possible.remove(&id);
                self.nodes.insert(id, Found::default());
            }
        }
    }

    pub(super) fn online_ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn possible_offline(&self) -> Vec<u64> {
        self.possible.iter().copied().collect()
    }

    pub(super) fn known_ids(&self) -> BTreeSet<u64> {
        self.nodes.keys().chain(&self.possible).copied().collect()
    }

    pub(super) fn cpus(&self, id: u64) -> Vec<u64> {
        self.nodes.get(&id).and_then(|node| node.cpus.clone()).unwrap_or_default()
    }

    /// Whether the CPUs of every node are known.
    pub(super) fn knows_cpus(&self) -> bool {
        self.nodes.values().all(|node| node.cpus.is_some())
    }

    /// Whether the distances of every node are known and valid.
    pub(super) fn knows_distances(&self) -> bool {
        self.nodes.keys().all(|&id| self.known_row(id).is_some() || self.nodes.len() == 1)
    }

    /// Returns the distances from node `id` to each online node, in ascending order of the nodes. Uses the kernel's
    /// defaults if the distances are missing or invalid.
    pub(super) fn distances(&self, id: u64, tree: &Tree) -> Vec<i64> {
        if let Some(row) = self.known_row(id) {
            return row.to_vec();
        }
        if self.nodes.len() > 1 {
            let file = format!("{NODES}/node{id}/distance");
            let what = if tree.has(&file) { "is invalid" } else { "is missing" };
            tree.note(&format!(
                "{file} {what}: distance {NUMA_DEFAULT_DISTANCE} to every other node is assumed"
            ));
        }
        let far = i64::from(NUMA_DEFAULT_DISTANCE);
        self.nodes.keys().map(|&to| if to == id { 10 } else { far }).collect()
    }

    fn known_row(&self, id: u64) -> Option<&[i64]> {
        let row = self.nodes.get(&id)?.distances.as_deref()?;
        let own = self.nodes.keys().position(|&to| to == id)?;
        let sane = row.len() == self.nodes.len()
            && row[own] == 10
            && row.iter().all(|distance| (10..=255).contains(distance));
        sane.then_some(row)
    }

    /// Returns one zone per node with the node's total memory, for a tree whose zones are unknown.
    pub(super) fn made_up_zones(&self, tree: &Tree) -> Vec<FileZone> {
        let page_kib = tree.page_bytes(None) / 1024;
        let mut start = 0;
        let mut zones = Vec::new();
        for &node in self.nodes.keys() {
            let of_node = tree.memory_kib(&format!("{NODES}/node{node}/meminfo"));
            let alone = self.nodes.len() == 1;
            let kib = of_node.or_else(|| tree.memory_kib("proc/meminfo").filter(|_| alone));
            let Some(kib) = kib else {
                tree.note(&format!("the memory of node {node} is unknown: none is assumed"));
                continue;
            };
            let pages = kib / page_kib;
            if pages == 0 {
                continue;
            }
            let kind = FileKind::Normal;
            zones.push(FileZone { node, kind, start, spanned: pages, present: pages, managed: pages });
            start = start.saturating_add(pages);
        }
        zones
    }
}

/// Returns the error for too many CPUs. A CPU counts once for each node that lists it. Emulated nodes also list CPUs of
/// other nodes, but never so many.
fn too_many_cpus(tree: &Tree, id: u64, cpus: usize, listed: usize) -> MachineError {
    let problem = format!(
        "it lists {cpus} CPUs, which makes {listed} with those of the nodes before it; a machine has at most \
         {CPUS_MAX}"
    );
    MachineError::Malformed { path: tree.root().join(NODES).join(format!("node{id}")), problem }
}

fn read_node(tree: &Tree, id: u64) -> Result<Found, MachineError> {
    let directory = format!("{NODES}/node{id}");
    let row = tree.read(&format!("{directory}/distance"), Limit::List);
    // The row is cut off after one number more than possible, which still shows that the row is invalid.
    let numbers =
        |text: String| text.split_whitespace().take(MAX_NODES + 1).map(|word| word.parse().ok()).collect();
    Ok(Found { cpus: node_cpus(tree, &directory)?, distances: row.and_then(numbers) })
}

/// Reads the CPUs of a node from the list, otherwise from the bit mask (the only form in old kernels), otherwise from
/// the links.
fn node_cpus(tree: &Tree, directory: &str) -> Result<Option<Vec<u64>>, MachineError> {
    if let Some(text) = tree.read(&format!("{directory}/cpulist"), Limit::List) {
        let cpus: Vec<u64> = list(Some(&text)).into_iter().collect();
        if !cpus.is_empty() || text.trim().is_empty() {
            return Ok(Some(cpus));
        }
        tree.note(&format!("{directory}/cpulist is invalid: other files that name its CPUs are used"));
    }
    let file = format!("{directory}/cpumap");
    if let Some(text) = tree.read(&file, Limit::List) {
        let cpus = mask(&text);
        return cpus
            .map(Some)
            .map_err(|problem| MachineError::Malformed { path: tree.root().join(file), problem });
    }
    let linked: BTreeSet<u64> = tree.numbered(directory, "cpu").into_iter().collect();
    let instead = if linked.is_empty() { "no CPUs are assumed" } else { "its links to CPUs are used" };
    tree.note(&format!("{directory} has neither cpulist nor cpumap: {instead}"));
    Ok((!linked.is_empty()).then(|| linked.into_iter().collect()))
}

/// Reads the CPUs of a machine without node directories.
fn all_cpus(tree: &Tree) -> Option<Vec<u64>> {
    let online = list(tree.read("sys/devices/system/cpu/online", Limit::List).as_deref());
    if !online.is_empty() {
        return Some(online.into_iter().collect());
    }
    let text = tree.read("proc/cpuinfo", Limit::Log).unwrap_or_default();
    let in_cpuinfo = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        if key.trim() == "processor" { value.trim().parse().ok() } else { None }
    });
    let mut cpus: BTreeSet<u64> = in_cpuinfo.take(CPUS_MAX as usize).collect();
    if cpus.is_empty() {
        let text = tree.read("proc/stat", Limit::Log).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.split_whitespace().next());
        let numbers = words.filter_map(|word| word.strip_prefix("cpu")?.parse().ok());
        cpus = numbers.take(CPUS_MAX as usize).collect();
    }
    if cpus.is_empty() {
        tree.note("the CPUs are unknown (sys/devices/system/cpu/online, proc/cpuinfo, proc/stat)");
        return None;
    }
    Some(cpus.into_iter().collect())
}

/// Parses a list of ids as Linux prints it: `0-3,8,10-11`. Skips malformed parts, and stops at a part that is not above
/// those before it, which no kernel prints.
fn list(text: Option<&str>) -> BTreeSet<u64> {
    let mut next = 0;
    let parts = ids::parts(text.unwrap_or("")).filter_map(|part| {
        let (first, last) = part.ok()?;
        // Without this bound, a corrupt range could exhaust memory.
        (last < u64::from(CPUS_MAX)).then_some(first..=last)
    });
    let is_above = |ids: &RangeInclusive<u64>| *ids.start() >= std::mem::replace(&mut next, ids.end() + 1);
    parts.take_while(is_above).flatten().collect()
}

/// Parses a mask as Linux prints it, and returns the numbers of the set bits. A mask consists of hexadecimal 32-bit
/// groups, the most significant first, as in `00000001,0000000f`.
fn mask(text: &str) -> Result<Vec<u64>, String> {
    const RIGHT: &str =
        "it must be groups of one to eight hexadecimal digits separated by commas, such as 00000001,0000000f";
    const GROUPS_MAX: usize = CPUS_MAX as usize / 32;
    let text = text.trim();
    let count = text.split(',').count();
    if count > GROUPS_MAX {
        return Err(format!("{count} groups of 32 CPUs; the maximum is {GROUPS_MAX}"));
    }
    let mut set = Vec::new();
    for (at, group) in text.rsplit(',').enumerate() {
        let digits = (1..=8).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u32::from_str_radix(group, 16).ok().filter(|_| digits);
        let bits = bits.ok_or_else(|| {
            let shown: String = group.chars().take(20).collect();
            format!("{shown:?} is not part of a CPU mask; {RIGHT}")
        })?;
        set.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| at as u64 * 32 + bit));
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_cpus() {
        assert_eq!(mask("f\n"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(mask("00000000,00000000\n"), Ok(vec![]));
        assert_eq!(mask("3,80000000,00000001"), Ok(vec![0, 63, 64, 65]));
        assert_eq!(mask("FF").unwrap().len(), 8);
        for (text, what) in [
            ("", "\"\""),
            ("0000000g", "\"0000000g\""),
            ("00000000,,1", "\"\""),
            ("123456789", "\"123456789\""),
            ("+1", "\"+1\""),
            ("0-3", "\"0-3\""),
            ("1 2", "\"1 2\""),
            ("0x3", "\"0x3\""),
            ("1,\u{661}", "\"\u{661}\""),
        ] {
            let problem = mask(text).unwrap_err();
            assert!(problem.starts_with(what) && problem.contains("such as 00000001,0000000f"), "{problem}");
        }
        let long = vec!["0"; (1 << 15) + 1].join(",");
        assert!(mask(&long).unwrap_err().contains("the maximum is 32768"));
        assert_eq!(mask(&long[2..]), Ok(vec![]));
    }

    #[test]
    fn lists_of_ids() {
        let found = |text| list(Some(text)).into_iter().collect::<Vec<_>>();
        assert_eq!(found("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(found("\n"), [0; 0]);
        assert_eq!(found("5-3,x,1-,7,0-99999999999"), [7]);
        assert_eq!(found("2,4,4,5"), [2, 4]);
        // The text repeats all ids many times, so a full parse would take hours.
        assert_eq!(found(&"0-1048575,".repeat(100_000)).len(), 1 << 20);
    }
}
