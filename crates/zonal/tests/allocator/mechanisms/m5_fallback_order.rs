//! Tests of M5, the fallback order. The lists equal the published ones, first choices are distributed evenly, and
//! allocation follows the lists.

use crate::common::scenarios::one_cpu;
use crate::common::{Plan, World, node, run_on};
use zonal::machine::FrameRange;
use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
use zonal::units::{PageCount, Pfn, ZoneKind};
use zonal::{Config, Request};

const LOADS: [NodeLoad; 3] = [NodeLoad::Accumulate, NodeLoad::AccumulateRemaining, NodeLoad::Assign];

fn lists(world: &World) -> Vec<Vec<u16>> {
    let list = |id| {
        let mut list = Vec::new();
        world.allocator.fallback_order(id, |node| list.push(node.get()));
        list
    };
    world.allocator.nodes().map(|node| list(node.id)).collect()
}

/// Returns a machine with the distances 10 12 32 32 / 12 10 32 32 / 32 32 10 12 / 32 32 12 10.
fn quad() -> Plan {
    Plan::with_distances(1, 4096, |from, to| if from / 2 == to / 2 { 12 } else { 32 }, 4)
}

fn with_load(node_load: NodeLoad) -> Config {
    Config { node_load, past: zonal_history::PAST, ..Config::default() }
}

#[test]
fn the_published_lists() {
    let spread = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]];
    for load in [NodeLoad::Accumulate, NodeLoad::AccumulateRemaining] {
        assert_eq!(lists(&quad().build(&with_load(load))), spread, "{load:?}");
    }
    let defect = lists(&quad().build(&with_load(NodeLoad::Assign)));
    assert_eq!(defect[3], [3, 2, 0, 1]);
}

#[test]
fn lists_follow_memory() {
    let mut plan = quad();
    plan.hotplug = std::mem::take(&mut plan.zones[3].4);
    let world = plan.build(&Config::default());
    let all = lists(&world);
    assert_eq!((&all[2][..], &all[3][..]), (&[2, 0, 1][..], &[2, 1, 0][..]));
    let span = world.zone(3).span;
    world.allocator.online_memory(span).unwrap();
    assert_eq!(lists(&world), [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]);
    run_on(3);
    assert_eq!(world.server(&Request::page()), 3);
    let world = quad().build(&Config::default());
    let range = FrameRange { start: Pfn::new(span.start.get()), count: PageCount::new(4096) };
    world.allocator.offline_memory(range).unwrap();
    assert_eq!(lists(&world), all);
}

#[test]
fn a_node_without_memory_counts_as_placed_in_its_own_list() {
    let mut plan = Plan::with_distances(1, 4096, |_, _| 0, 4);
    plan.distances =
        vec![vec![10, 12, 12, 20], vec![12, 10, 32, 20], vec![12, 32, 10, 20], vec![20, 20, 20, 10]];
    [1, 3].into_iter().for_each(|id: usize| plan.zones[id].4.clear());
    for load in [NodeLoad::AccumulateRemaining, NodeLoad::Assign] {
        assert_eq!(lists(&plan.build(&with_load(load)))[3], [2, 0], "{load:?}");
    }
}

/// Returns the lists by a simple implementation of the rule, which chooses one node after the other and does not sort.
fn rule(distances: &[Vec<u8>], has_memory: &[bool], has_cpus: &[bool], load_rule: NodeLoad) -> Vec<Vec<u16>> {
    let nodes = distances.len();
    let factor = if load_rule == NodeLoad::Accumulate { 1024 } else { 1024 * nodes as u64 };
    let mut load = vec![0_u64; nodes];
    let list = |from: usize| {
        let mut list = Vec::new();
        let mut before = from;
        while list.len() < has_memory.iter().filter(|&&has| has).count() {
            let key = |n: usize| {
                let far = u64::from(distances[from][n]) + u64::from(n < from) + u64::from(has_cpus[n]);
                (far * factor + load[n], n)
            };
            let left = (0..nodes).filter(|&n| has_memory[n] && !list.contains(&(n as u16)));
            let own = has_memory[from] && list.is_empty();
            let next = if own { from } else { left.min_by_key(|&n| key(n)).unwrap() };
            // The node itself counts as placed, even if it has no memory.
            let remaining = (nodes - list.len() - usize::from(!has_memory[from])) as u64;
            if distances[from][next] != distances[from][before] {
                match load_rule {
                    NodeLoad::Accumulate => load[next] += 1,
                    NodeLoad::AccumulateRemaining => load[next] += remaining,
                    NodeLoad::Assign => load[next] = remaining,
                }
            }
            before = next;
            list.push(next as u16);
        }
        list
    };
    (0..nodes).map(list).collect()
}

#[test]
fn lists_are_those_of_the_rule() {
    let mut random = crate::common::scenarios::Random(0xfa11_bacc);
    for round in 0..60 {
        let nodes = 2 + random.below(9) as u16;
        let levels = 1 + random.below(4) as u8;
        let mut plan = Plan::with_distances(1, 2048, |_, _| 0, nodes);
        for from in 0..usize::from(nodes) {
            for to in (0..usize::from(nodes)).filter(|&to| to != from) {
                plan.distances[from][to] = 11 + random.below(u64::from(levels)) as u8;
            }
            if from > 0 && random.below(4) == 0 {
                plan.nodes[from].1.clear();
            }
            if from > 0 && random.below(4) == 0 {
                plan.zones[from].4.clear();
            }
        }
        let memory: Vec<bool> = plan.zones.iter().map(|zone| !zone.4.is_empty()).collect();
        let cpus: Vec<bool> = plan.nodes.iter().map(|node| !node.1.is_empty()).collect();
        for load in LOADS {
            let found = lists(&plan.build(&with_load(load)));
            assert_eq!(found, rule(&plan.distances, &memory, &cpus, load), "round {round} {load:?}");
            let found = lists(&plan.build(&Config { cpu_penalty: CpuPenalty::Off, ..with_load(load) }));
            let no_cpus = vec![false; cpus.len()];
            assert_eq!(found, rule(&plan.distances, &memory, &no_cpus, load), "round {round} {load:?}");
        }
    }
}

/// Returns, for each node, how often it is the first choice of another node.
fn first_choices(world: &World) -> Vec<usize> {
    let lists = lists(world);
    (0..lists.len()).map(|id| lists.iter().filter(|list| usize::from(list[1]) == id).count()).collect()
}

#[test]
fn first_choices_are_spread_over_equal_nodes() {
    let on = |load| first_choices(&Plan::even(8, 1, 4096).build(&with_load(load)));
    let most = LOADS.map(|load| on(load).into_iter().max().unwrap());
    assert!(most[0] <= 2 && most[1] <= 2, "{most:?}");
    assert!(on(NodeLoad::Accumulate).iter().filter(|&&times| times == 0).count() <= 1);
    // Each board has two nodes at distance 12, so the first choice beyond the board depends on node load. These choices
    // are distributed evenly too.
    let boards = |load| {
        let plan = Plan::with_distances(1, 4096, |a, b| if a / 2 == b / 2 { 12 } else { 32 }, 8);
        let lists = lists(&plan.build(&with_load(load)));
        (0..8).map(|id| lists.iter().filter(|list| list[2] == id).count()).max().unwrap()
    };
    assert!(boards(NodeLoad::Accumulate) < boards(NodeLoad::Assign));
}

#[test]
fn nodes_without_memory_spread_their_first_choice() {
    // Nodes 4 to 7 have only CPUs. Nodes 0 to 3 have memory, and are equally far from each of them.
    let build = |load| {
        let mut plan = Plan::even(8, 1, 4096);
        (4..8).for_each(|id: usize| plan.zones[id].4.clear());
        plan.build(&with_load(load))
    };
    let firsts = |world: &World| lists(world)[4..].iter().map(|list| list[0]).collect::<Vec<_>>();
    let world = build(NodeLoad::Accumulate);
    let mut seen = firsts(&world);
    for (cpu, &first) in (4..8).zip(&seen) {
        run_on(cpu);
        assert_eq!(world.server(&Request::page()), first, "and that is who serves");
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() >= 3, "{:?}", firsts(&world));
    run_on(0);
    assert!(lists(&world).iter().all(|list| list.len() == 4));
}

#[test]
fn memory_without_cpus_is_used_first_unless_switched_off() {
    let mut plan = Plan::even(3, 1, 4096);
    plan.nodes[2].1.clear();
    assert_eq!(lists(&plan.build(&Config::default()))[0], [0, 2, 1]);
    let off = Config { cpu_penalty: CpuPenalty::Off, ..Config::default() };
    assert_eq!(lists(&plan.build(&off))[0], [0, 1, 2]);
}

#[test]
fn exhausted_nodes_are_followed_in_list_order() {
    let mut plan = one_cpu(&[1024; 5], ZoneKind::Normal);
    plan.distances[0] = vec![10, 40, 20, 30, 25];
    let world = plan.build(&Config::default());
    run_on(0);
    let mut servers: Vec<u16> =
        world.alloc_all(&Request::page().no_wait()).iter().map(|block| block.node.get()).collect();
    let mut seen = vec![servers.remove(0)];
    for server in servers {
        if !seen.contains(&server) {
            seen.push(server);
        }
    }
    assert_eq!(seen, [0, 2, 4, 3, 1]);
    assert_eq!(node(4), node(seen[2]));
}
