//! Node fallback order (M5): the order in which nodes are scanned for free memory for a request that prefers one
//! node.
//!
//! [`fallback_order`] computes the list of one node from the distances between nodes. It gives each node a *load*,
//! which balances equally distant nodes: a node that was the first of its distance group in an earlier list counts as
//! slightly farther in later lists. A full rebuild therefore zeroes one load array and builds the lists of all nodes
//! with it, in the order of [`build_sequence`]. Nodes are indices into the machine's ascending list of nodes.
//!
//! Related files: `zonelist/mod.rs` builds zonelists from these orders.
//!
//! Source: Ramakrishnan 2021, Linux 54d032ced983 ("node load").

/// How a node's load changes when the node is the first of a distance group in a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum NodeLoad {
    /// The load increases by one. Linux: since 5.18.
    #[default]
    Accumulate,
    /// The load increases by the number of online nodes that are not yet in the list: the patch as published. Linux:
    /// 5.16 and 5.17.
    AccumulateRemaining,
    /// The load becomes the number of online nodes that are not yet in the list. This discards the load of earlier
    /// lists, which was a defect of Linux before 5.16.
    Assign,
}

/// Whether nodes with CPUs count as farther by one, so that memory-only nodes are used first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum CpuPenalty {
    /// Nodes with CPUs count as farther by one. Linux: in lists that are rebuilt after boot.
    #[default]
    On,
    /// CPUs make no difference. Linux: in lists built at boot, before the CPUs of nodes are known.
    Off,
}

/// Whether a node without memory is in its own list. The rest of the list is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OwnPlace {
    /// A node is in its own list only if it has memory. Linux: since 6.7.
    #[default]
    WithMemory,
    /// Every node is first in its own list, although the entry is useless if the node has no memory. Linux: before
    /// 6.7.
    Always,
}

/// The rules by which an order is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FallbackRules {
    /// How the load of a node changes.
    pub node_load: NodeLoad,
    /// Whether nodes with CPUs count as farther.
    pub cpu_penalty: CpuPenalty,
    /// Whether a node without memory is in its own list.
    pub own_place: OwnPlace,
}

/// The properties of nodes that the order depends on. Nodes are indices `0..len()`, ascending by node id.
pub trait FallbackNodes {
    /// Returns the number of nodes, at most 2^16. This includes nodes that are offline but may come online.
    fn len(&self) -> usize;
    /// Returns the distance from one node to another. The distance 10 means local.
    fn distance(&self, from: usize, to: usize) -> u8;
    /// Whether the node has memory.
    fn has_memory(&self, node: usize) -> bool;
    /// Whether the node has CPUs.
    fn has_cpus(&self, node: usize) -> bool;
    /// Whether the node is online. An offline node is in no other node's list, but may have a list itself.
    fn is_online(&self, node: usize) -> bool;
    /// Whether there are no nodes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the nodes in the sequence of a full rebuild: first all online nodes, then all offline nodes, each in
/// ascending order.
///
/// Linux since 6.1 also builds lists for possible nodes that are offline, and these lists affect the loads.
pub fn build_sequence(nodes: &impl FallbackNodes) -> impl Iterator<Item = usize> {
    let online = (0..nodes.len()).filter(|&node| nodes.is_online(node));
    online.chain((0..nodes.len()).filter(|&node| !nodes.is_online(node)))
}

/// Writes the fallback order of the node at `from` into `order` and returns its length.
///
/// `load` has one element for each node. The caller must zero it before the first node of a full rebuild, and must
/// not change it between nodes. The function takes O(n log n) time for n nodes.
///
/// # Panics
/// Panics if `load` or `order` is shorter than the list of nodes, or if `from` is not in that list.
pub fn fallback_order(
    from: usize,
    nodes: &impl FallbackNodes,
    rules: &FallbackRules,
    load: &mut [u64],
    order: &mut [u16],
) -> usize {
    let length = list_candidates(from, nodes, rules, order);
    let online = (0..nodes.len()).filter(|&node| nodes.is_online(node)).count() as u64;
    let own = usize::from(length > 0 && usize::from(order[0]) == from);
    // The load changes only for nodes that are already in the list, so the key of the other nodes does not change
    // while one list is built. Sorting once therefore has the same result as repeatedly choosing the node with the
    // smallest key.
    order[own..length].sort_unstable_by_key(|&node| {
        (key(from, usize::from(node), nodes, rules, online, load[usize::from(node)]), node)
    });
    let mut before = from;
    for (place, &node) in order[..length].iter().enumerate() {
        let node = usize::from(node);
        if nodes.distance(from, node) != nodes.distance(from, before) {
            // The node itself counts as placed, whether it is in its own list or not.
            let left = online.saturating_sub((place + 1 - own) as u64);
            match rules.node_load {
                NodeLoad::Accumulate => load[node] += 1,
                NodeLoad::AccumulateRemaining => load[node] += left,
                NodeLoad::Assign => load[node] = left,
            }
        }
        before = node;
    }
    length
}

/// Writes the nodes of the list and returns their number. `from` comes first if it belongs in its own list; the
/// others are not sorted.
fn list_candidates(
    from: usize,
    nodes: &impl FallbackNodes,
    rules: &FallbackRules,
    order: &mut [u16],
) -> usize {
    let usable = |node: usize| nodes.has_memory(node) && nodes.is_online(node);
    let own = usable(from) || rules.own_place == OwnPlace::Always;
    let mut length = 0;
    let others = (0..nodes.len()).filter(|&node| node != from && usable(node));
    for node in own.then_some(from).into_iter().chain(others) {
        order[length] = node as u16;
        length += 1;
    }
    length
}

fn key(
    from: usize,
    to: usize,
    nodes: &impl FallbackNodes,
    rules: &FallbackRules,
    online: u64,
    load: u64,
) -> u64 {
    let factor = match rules.node_load {
        NodeLoad::Accumulate => 1024,
        NodeLoad::AccumulateRemaining | NodeLoad::Assign => 1024 * online,
    };
    let penalty = u64::from(rules.cpu_penalty == CpuPenalty::On && nodes.has_cpus(to));
    (u64::from(nodes.distance(from, to)) + u64::from(to < from) + penalty) * factor + load
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// A machine, described by a distance matrix and the properties of each node.
    #[derive(Clone, Debug)]
    struct Matrix {
        rows: Vec<Vec<u8>>,
        memory: Vec<bool>,
        cpus: Vec<bool>,
        online: Vec<bool>,
    }

    impl FallbackNodes for Matrix {
        fn len(&self) -> usize {
            self.rows.len()
        }
        fn distance(&self, from: usize, to: usize) -> u8 {
            self.rows[from][to]
        }
        fn has_memory(&self, node: usize) -> bool {
            self.memory[node]
        }
        fn has_cpus(&self, node: usize) -> bool {
            self.cpus[node]
        }
        fn is_online(&self, node: usize) -> bool {
            self.online[node]
        }
    }

    fn matrix(rows: &[&[u8]]) -> Matrix {
        let all = vec![true; rows.len()];
        let rows = rows.iter().map(|row| row.to_vec()).collect();
        Matrix { rows, memory: all.clone(), cpus: all.clone(), online: all }
    }

    fn quad() -> Matrix {
        matrix(&[&[10, 12, 32, 32], &[12, 10, 32, 32], &[32, 32, 10, 12], &[32, 32, 12, 10]])
    }

    fn rules(node_load: NodeLoad) -> FallbackRules {
        FallbackRules { node_load, ..FallbackRules::default() }
    }

    fn orders(nodes: &Matrix, rules: &FallbackRules) -> Vec<Vec<u16>> {
        let mut load = vec![0; nodes.len()];
        let mut lists = vec![Vec::new(); nodes.len()];
        for from in build_sequence(nodes) {
            let mut order = vec![0; nodes.len()];
            let length = fallback_order(from, nodes, rules, &mut load, &mut order);
            order.truncate(length);
            lists[from] = order;
        }
        lists
    }

    /// Whether a node without memory is listed has no effect on the rest of the lists, so the allocator and the kernels
    /// that list such nodes agree.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn lists_differ_by_useless_entries_only() {
        let mut state = 0xfa11_u64;
        for _ in 0..2000 {
            let machine = random_machine(&mut state);
            for rules in every_rule() {
                let strip = |own_place| {
                    let mut lists = orders(&machine, &FallbackRules { own_place, ..rules });
                    lists.iter_mut().for_each(|list| list.retain(|&node| machine.memory[usize::from(node)]));
                    lists
                };
                assert_eq!(strip(OwnPlace::WithMemory), strip(OwnPlace::Always), "{machine:?} {rules:?}");
            }
        }
    }

    /// Builds the orders with the rule as published, which repeatedly chooses the node with the smallest key.
    fn naive(nodes: &Matrix, rules: &FallbackRules) -> Vec<Vec<u16>> {
        let count = nodes.len();
        let online = nodes.online.iter().filter(|&&on| on).count() as u64;
        let factor = if rules.node_load == NodeLoad::Accumulate { 1024 } else { 1024 * online };
        let mut load = vec![0u64; count];
        let mut lists = vec![Vec::new(); count];
        for from in build_sequence(nodes) {
            let mut before = from;
            let mut unused: Vec<usize> = (0..count).filter(|&n| nodes.memory[n] && nodes.online[n]).collect();
            let mut own = unused.contains(&from) || rules.own_place == OwnPlace::Always;
            let mut left = if own { online } else { online.saturating_sub(1) };
            while own || !unused.is_empty() {
                let mut best = (u64::MAX, from);
                for &node in unused.iter().filter(|_| !own) {
                    let penalty = nodes.cpus[node] && rules.cpu_penalty == CpuPenalty::On;
                    let far = u64::from(nodes.rows[from][node]) + u64::from(node < from) + u64::from(penalty);
                    best = best.min((far * factor + load[node], node));
                }
                own = false;
                let node = best.1;
                unused.retain(|&other| other != node);
                if nodes.rows[from][node] != nodes.rows[from][before] {
                    match rules.node_load {
                        NodeLoad::Accumulate => load[node] += 1,
                        NodeLoad::AccumulateRemaining => load[node] += left,
                        NodeLoad::Assign => load[node] = left,
                    }
                }
                lists[from].push(node as u16);
                before = node;
                left = left.saturating_sub(1);
            }
        }
        lists
    }

    #[test]
    fn published_quad() {
        let balanced = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]];
        assert_eq!(orders(&quad(), &rules(NodeLoad::Accumulate)), balanced);
        assert_eq!(orders(&quad(), &rules(NodeLoad::AccumulateRemaining)), balanced);
        assert_eq!(orders(&quad(), &rules(NodeLoad::Assign))[3], [3, 2, 0, 1]);
    }

    #[test]
    fn node_without_memory() {
        let mut machine = quad();
        machine.memory[3] = false;
        let lists = orders(&machine, &FallbackRules::default());
        assert_eq!(lists[2], [2, 0, 1]);
        assert_eq!(lists[3], [2, 1, 0]);
        let always = FallbackRules { own_place: OwnPlace::Always, ..FallbackRules::default() };
        assert_eq!(orders(&machine, &always)[3], [3, 2, 1, 0]);
    }

    #[test]
    fn memory_only_nodes_come_first() {
        let mut machine = matrix(&[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
        machine.cpus[2] = false;
        assert_eq!(orders(&machine, &FallbackRules::default())[0], [0, 2, 1]);
        let boot = FallbackRules { cpu_penalty: CpuPenalty::Off, ..FallbackRules::default() };
        assert_eq!(orders(&machine, &boot)[0], [0, 1, 2]);
    }

    #[test]
    fn offline_nodes_are_built_last_and_used_by_none() {
        let mut machine = matrix(&[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
        machine.online[1] = false;
        machine.memory[1] = false;
        assert_eq!(build_sequence(&machine).collect::<Vec<_>>(), [0, 2, 1]);
        // Nodes 0 and 2 were each first in one list, so their loads are equal. In the list of node 1, node 0 counts
        // as farther because its id is below 1.
        assert_eq!(orders(&machine, &FallbackRules::default()), [vec![0, 2], vec![2, 0], vec![2, 0]]);
    }

    #[test]
    fn no_memory_anywhere() {
        let mut machine = quad();
        machine.memory = vec![false; 4];
        assert!(orders(&machine, &FallbackRules::default()).iter().all(Vec::is_empty));
    }

    /// Returns the next random number of a small generator for these tests (xorshift).
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn random_machine(state: &mut u64) -> Matrix {
        let count = 1 + next(state) as usize % 12;
        let levels = 1 + next(state) % 4;
        let mut machine = matrix(&vec![&vec![10u8; count][..]; count]);
        for from in 0..count {
            for to in (0..count).filter(|&to| to != from) {
                machine.rows[from][to] = 10 + (next(state) % levels) as u8;
            }
            machine.online[from] = !next(state).is_multiple_of(8);
            machine.memory[from] = machine.online[from] && !next(state).is_multiple_of(4);
            machine.cpus[from] = !next(state).is_multiple_of(4);
        }
        machine
    }

    fn every_rule() -> impl Iterator<Item = FallbackRules> {
        let loads = [NodeLoad::Accumulate, NodeLoad::AccumulateRemaining, NodeLoad::Assign];
        (0..12).map(move |choice| FallbackRules {
            node_load: loads[choice % 3],
            cpu_penalty: if choice / 3 % 2 == 0 { CpuPenalty::On } else { CpuPenalty::Off },
            own_place: if choice / 6 == 0 { OwnPlace::WithMemory } else { OwnPlace::Always },
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn sorting_equals_repeated_minimum_on_every_three_node_machine() {
        for code in 0..3_usize.pow(6) * 64 {
            let mut machine = matrix(&[&[10; 3], &[10; 3], &[10; 3]]);
            let mut digits = code / 64;
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                machine.rows[from][to] = [11, 12, 20][digits % 3];
                digits /= 3;
            }
            for node in 0..3 {
                machine.memory[node] = code >> node & 1 == 1;
                machine.cpus[node] = code >> (3 + node) & 1 == 1;
            }
            let rules = every_rule().nth(code % 12).unwrap();
            assert_eq!(orders(&machine, &rules), naive(&machine, &rules), "{machine:?} {rules:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn sorting_equals_repeated_minimum_on_random_machines() {
        let mut state = 0x5eed_u64;
        for _ in 0..600 {
            let machine = random_machine(&mut state);
            for rules in every_rule() {
                assert_eq!(orders(&machine, &rules), naive(&machine, &rules), "{machine:?} {rules:?}");
            }
        }
    }
}
