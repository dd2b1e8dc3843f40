//! M5, the node fallback order: measures which nodes serve when two nodes spill at once, and at which distance. A
//! node *spills* when its CPUs allocate more memory than it has.
//!
//! The machine has the four nodes of the published patch. CPUs of nodes 2 and 3 allocate more than their nodes have,
//! alternating page by page. Measured are the share of each node's memory that is in use at the end, the share of the
//! spilled pages on the busiest other node, and the distance of spilled pages. Source: Ramakrishnan 2021, Linux
//! 54d032ced983.

use std::sync::atomic::AtomicBool;

use zonal::rules::fallback_order::NodeLoad;
use zonal::units::NodeId;
use zonal::{Config, Request};

use super::measure::{Better, Table};
use super::world::{Node, Shared, World, machine, run_on, with_worlds};
use super::{Findings, Mechanism, stops};

pub(super) const MATTERS: &str = "several nodes run out of memory at once and have equally distant \
    neighbours: each neighbour then serves one of them, instead of one serving all.";
pub(super) const DOES_NOT_MATTER: &str = "there are one or two nodes, all distances differ, or only one node runs \
    out of memory: the fallback orders are then the same, or only one is used.";

/// The rules to compare.
const RULES: [(&str, NodeLoad); 3] = [
    ("assign", NodeLoad::Assign),
    ("remaining", NodeLoad::AccumulateRemaining),
    ("accumulate", NodeLoad::Accumulate),
];

const NODES: usize = 4;
/// Number of frames on each node.
const FRAMES: u64 = 1 << 14;
/// The nodes that spill. Each has one CPU, whose id equals that of the node.
const SPILLING: [u32; 2] = [2, 3];
/// Pages that each of these CPUs allocates beyond its node's memory.
const SPILLED: u64 = FRAMES / 4;

/// Measures gain and cost.
pub(super) fn measure(stop: &AtomicBool) -> Option<Findings> {
    let found = RULES.map(|(_, rule)| spill(rule, stop));
    let found = found.into_iter().collect::<Option<Vec<Spill>>>()?;
    let mut table = Table::new(RULES.map(|(name, _)| name), "accumulate");
    for node in 0..NODES {
        // Node 0 is the one that serves both spilling nodes under the defective rule.
        let better = if node == 0 { Better::Less } else { Better::More };
        let names = (format!("used_node_{node}"), format!("% of node {node} in use"), "%");
        table.exact(better, names, found.iter().map(|spill| spill.used[node]));
    }
    table.exact(
        Better::Less,
        ("spilled_to_busiest_node", "% of spilled pages on the busiest other node", "%"),
        found.iter().map(|spill| spill.busiest),
    );
    table.exact(
        Better::Less,
        ("spilled_distance", "mean distance of spilled pages (10: local)", "distance"),
        found.iter().map(|spill| spill.distance),
    );
    let setup = format!(
        "4 nodes of {} MiB in two pairs, distances 10 12 32 32: CPUs of nodes 2 and 3 each allocate 25 % \
         more than their node has.",
        FRAMES >> 8
    );
    Some(table.finish(Mechanism::M5, setup))
}

/// The nodes from which pages came.
#[derive(Clone, Copy, Debug)]
struct Spill {
    /// Percentage of each node's memory that is in use.
    used: [f64; NODES],
    /// Percentage of the spilled pages that the busiest node served.
    busiest: f64,
    /// Mean distance of spilled pages.
    distance: f64,
}

/// Returns an entry of the distance matrix 10 12 32 32 / 12 10 32 32 / 32 32 10 12 / 32 32 12 10.
fn distance(from: usize, to: usize) -> u8 {
    match (from == to, from / 2 == to / 2) {
        (true, _) => 10,
        (_, true) => 12,
        (_, false) => 32,
    }
}

fn spill(rule: NodeLoad, stop: &AtomicBool) -> Option<Spill> {
    let machine = machine(&[Node { cpus: 1, frames: FRAMES }; NODES], distance);
    let config = Config { node_load: rule, past: zonal_history::PAST, ..Config::default() };
    with_worlds::<Shared, _>(
        &machine,
        &[config],
        |worlds| {
            if stops(stop) { None } else { Some(spill_on(&worlds[0])) }
        },
    )
}

fn spill_on(world: &World<'_, Shared>) -> Spill {
    let (mut pages, mut spilled, mut distances) = ([0_u64; NODES], [0_u64; NODES], 0_u64);
    for _ in 0..FRAMES + SPILLED {
        for cpu in SPILLING {
            run_on(cpu);
            let block = world.alloc(&Request::page()).expect("the other nodes have memory");
            pages[block.node.index()] += 1;
            if block.node != node(cpu) {
                spilled[block.node.index()] += 1;
                distances += u64::from(distance(cpu as usize, block.node.index()));
            }
        }
    }
    let all: u64 = spilled.iter().sum();
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    Spill {
        used: pages.map(|pages| percent(pages, FRAMES)),
        busiest: percent(spilled.into_iter().max().unwrap_or_default(), all),
        distance: distances as f64 / all.max(1) as f64,
    }
}

fn node(cpu: u32) -> NodeId {
    NodeId::new(cpu as u16).expect("four nodes")
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn spilled_pages_share_two_nodes_only_with_accumulated_load() {
        let [assign, both @ ..] = RULES.map(|(_, rule)| spill(rule, &AtomicBool::new(false)).unwrap());
        assert!((50.0..55.0).contains(&assign.used[0]) && assign.used[1] == 0.0, "{assign:?}");
        assert_eq!((assign.busiest, assign.distance), (100.0, 32.0));
        for accumulated in both {
            assert!(accumulated.used[..2].iter().all(|used| (25.0..28.0).contains(used)), "{accumulated:?}");
            assert_eq!((accumulated.busiest, accumulated.distance), (50.0, 32.0));
        }
    }

    #[test]
    fn equal_distances_and_full_nodes_are_no_gain() {
        let found = measure(&AtomicBool::new(false)).unwrap();
        let kind =
            |metric: &str| found.measures.iter().find(|measure| measure.metric == metric).unwrap().kind;
        for metric in ["used_node_2", "used_node_3", "spilled_distance"] {
            assert_eq!(kind(metric), Kind::Same, "{metric}");
        }
        for metric in ["used_node_0", "used_node_1", "spilled_to_busiest_node"] {
            assert_eq!(kind(metric), Kind::Gain, "{metric}");
        }
    }
}
