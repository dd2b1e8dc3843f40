//! Compares the orders of all node loads with the rules as published.

use std::vec;
use std::vec::Vec;

use zonal::rules::fallback_order::{CpuPenalty, FallbackNodes, FallbackRules, NodeLoad, fallback_order};

use super::*;

/// Returns online nodes, then offline nodes, each in ascending order.
fn build_sequence(nodes: &Matrix) -> impl Iterator<Item = usize> {
    let online = (0..nodes.len()).filter(|&node| nodes.online[node]);
    online.chain((0..nodes.len()).filter(|&node| !nodes.online[node]))
}

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
    FallbackRules { load: load_rule(node_load), cpu_penalty: CpuPenalty::On }
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

/// Builds the orders with the rule as published, which repeatedly chooses the node with the smallest key.
fn naive(nodes: &Matrix, rules: &FallbackRules) -> Vec<Vec<u16>> {
    let count = nodes.len();
    let online = nodes.online.iter().filter(|&&on| on).count() as u64;
    let factor = if rules.load.node_load() == NodeLoad::Accumulate { 1024 } else { 1024 * online };
    let mut load = vec![0u64; count];
    let mut lists = vec![Vec::new(); count];
    for from in build_sequence(nodes) {
        let mut before = from;
        let mut unused: Vec<usize> = (0..count).filter(|&n| nodes.memory[n] && nodes.online[n]).collect();
        let mut own = unused.contains(&from);
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
                match rules.load.node_load() {
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
    let lists = orders(&machine, &rules(NodeLoad::Accumulate));
    assert_eq!(lists[2], [2, 0, 1]);
    assert_eq!(lists[3], [2, 1, 0]);
}

#[test]
fn memory_only_nodes_come_first() {
    let mut machine = matrix(&[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
    machine.cpus[2] = false;
    assert_eq!(orders(&machine, &rules(NodeLoad::Accumulate))[0], [0, 2, 1]);
    let boot = FallbackRules { cpu_penalty: CpuPenalty::Off, ..rules(NodeLoad::Accumulate) };
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
    assert_eq!(orders(&machine, &rules(NodeLoad::Accumulate)), [vec![0, 2], vec![2, 0], vec![2, 0]]);
}

#[test]
fn extreme_loads_are_the_largest() {
    for rules in every_rule() {
        let rule = rules.load;
        assert!(rule.after(u64::MAX, u64::MAX) == u64::MAX && rule.scale(u64::MAX) >= 1024, "{rule:?}");
        // Loads that no rebuild leaves: the caller of this list has not zeroed them.
        let (mut load, mut order) = ([u64::MAX, u64::MAX - 1, 0, u64::MAX], [0; 4]);
        assert_eq!(fallback_order(0, &quad(), &rules, &mut load, &mut order), 4);
        assert_eq!(order, [0, 2, 1, 3], "{rule:?}");
    }
}

#[test]
fn no_memory_anywhere() {
    let mut machine = quad();
    machine.memory = vec![false; 4];
    assert!(orders(&machine, &rules(NodeLoad::Accumulate)).iter().all(Vec::is_empty));
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
    (0..6).map(move |choice| FallbackRules {
        load: load_rule(loads[choice % 3]),
        cpu_penalty: if choice / 3 % 2 == 0 { CpuPenalty::On } else { CpuPenalty::Off },
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
        let rules = every_rule().nth(code % 6).unwrap();
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
