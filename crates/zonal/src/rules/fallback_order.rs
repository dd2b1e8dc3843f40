//! Node fallback order (M5): the order in which nodes are scanned for free memory for a request that prefers one
//! node.
//!
//! [`fallback_order`] computes the list of one node from the distances between nodes. It gives each node a *load*,
//! which balances equally distant nodes: a node that was the first of its distance group in an earlier list counts as
//! slightly farther in later lists. A full rebuild therefore zeroes one load array and builds the lists of all nodes
//! with it, in ascending order. Nodes are indices into the machine's ascending list of nodes.
//!
//! Related files: `zonelist/mod.rs` builds zonelists from these orders.
//!
//! Source: Ramakrishnan 2021, Linux 54d032ced983 ("node load").

use core::fmt::Debug;
use core::panic::RefUnwindSafe;

use crate::rules::sort::sort_by_key;

/// The name of a [`LoadRule`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum NodeLoad {
    /// The load increases by one. Linux: since 5.18.
    #[default]
    Accumulate,
    /// The patch as published. Linux: 5.16 and 5.17, and before 2.6.23.
    AccumulateRemaining,
    /// Linux 2.6.23 to 5.15.
    Assign,
}

/// How a node's load changes when the node is the first of a distance group in a list. The crate `zonal-history` has past
/// rules.
pub trait LoadRule: Debug + Sync + RefUnwindSafe {
    /// Returns the name of the rule.
    fn node_load(&self) -> NodeLoad;
    /// Returns the node's load after `load`, when `left` online nodes are not yet in the list.
    fn after(&self, load: u64, left: u64) -> u64;
    /// Returns the load that weighs as much as a distance of 1, with `online` nodes. Nodes whose distance and load together
    /// exceed `u64::MAX` in this scale are in ascending order.
    fn scale(&self, online: u64) -> u64;
}

impl PartialEq for dyn LoadRule {
    fn eq(&self, other: &Self) -> bool {
        self.node_load() == other.node_load()
    }
}

impl Eq for dyn LoadRule {}

/// The rule of [`NodeLoad::Accumulate`].
#[derive(Clone, Copy, Debug)]
pub struct Accumulate;

impl LoadRule for Accumulate {
    fn node_load(&self) -> NodeLoad {
        NodeLoad::Accumulate
    }

    fn after(&self, load: u64, _left: u64) -> u64 {
        load.saturating_add(1)
    }

    fn scale(&self, _online: u64) -> u64 {
        1024
    }
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

/// The rules by which an order is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FallbackRules {
    /// How the load of a node changes.
    pub load: &'static dyn LoadRule,
    /// Whether nodes with CPUs count as farther.
    pub cpu_penalty: CpuPenalty,
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
    // `from` comes first if it has memory; the others are not sorted yet.
    let own_first = core::iter::once(from).chain((0..nodes.len()).filter(|&node| node != from));
    let usable = own_first.filter(|&node| nodes.has_memory(node) && nodes.is_online(node));
    let length = usable.zip(&mut *order).map(|(node, place)| *place = node as u16).count();
    let online = (0..nodes.len()).filter(|&node| nodes.is_online(node)).count() as u64;
    let own = usize::from(length > 0 && usize::from(order[0]) == from);
    let scale = rules.load.scale(online);
    // The load changes only for nodes that are already in the list, so the keys of the other nodes do not change
    // while one list is built. Sorting once therefore has the same result as repeatedly choosing the node with the
    // smallest key.
    sort_by_key(&mut order[own..length], |&node| {
        let to = usize::from(node);
        let penalty = u64::from(rules.cpu_penalty == CpuPenalty::On && nodes.has_cpus(to));
        let far = u64::from(nodes.distance(from, to)) + u64::from(to < from) + penalty;
        (far.saturating_mul(scale).saturating_add(load[to]), node)
    });
    let mut before = from;
    for (place, &node) in order[..length].iter().enumerate() {
        let node = usize::from(node);
        if nodes.distance(from, node) != nodes.distance(from, before) {
            // The node itself counts as placed, whether it is in its own list or not.
            let left = online.saturating_sub((place + 1 - own) as u64);
            load[node] = rules.load.after(load[node], left);
        }
        before = node;
    }
    length
}
