//! Tests which nodes and zones serve a request, how many frames it must leave, and why it fails.

use crate::common::scenarios::pages;
use crate::common::{Plan, TestPlatform, World, node, order, range, reclaim_on_this_thread, run_on};
use zonal::config::ZonelistCache;
use zonal::error::{AllocError, PolicyError, Shortage};
use zonal::mempolicy::{Policy, WeightTable};
use zonal::request::{Block, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Config, NodeMask, Request};

const FRAMES: u64 = 1 << 14;

type Ask<'a> = Request<'a>;

fn mask(nodes: &[u16]) -> NodeMask {
    nodes.iter().map(|&id| node(id)).collect()
}

/// Allocates blocks until the request fails; returns them and the error.
fn exhaust(world: &World, request: &Ask<'_>) -> (Vec<Block>, AllocError) {
    let mut blocks = Vec::new();
    loop {
        match world.allocator.alloc(request) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error),
        }
    }
}

fn shortage(error: AllocError) -> Shortage {
    match error {
        AllocError::OutOfMemory(shortage) => shortage,
        other => panic!("{other}"),
    }
}

fn nodes_of(blocks: &[Block], nodes: usize) -> Vec<usize> {
    (0..nodes).map(|at| blocks.iter().filter(|block| block.node.index() == at).count()).collect()
}

fn world(nodes: u16) -> World {
    run_on(0);
    Plan::even(nodes, 1, FRAMES).build(&Config::default())
}

fn free_all(world: &World, blocks: &[Block]) {
    blocks.iter().for_each(|block| world.allocator.free(block.first, block.order).unwrap());
    world.allocator.drain_pagesets();
    let accounting = world.allocator.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
}

#[test]
fn local_requests_fall_back_in_the_list_of_their_node() {
    let near = |a: u16, b: u16| if a / 2 == b / 2 { 12 } else { 32 };
    let world = Plan::with_distances(1, FRAMES, near, 4).build(&Config::default());
    for (cpu, list) in [(0, [0, 1, 2, 3]), (1, [1, 0, 3, 2]), (2, [2, 3, 0, 1]), (3, [3, 2, 1, 0])] {
        run_on(cpu);
        let policy = Policy::<TestPlatform>::local();
        for request in [Request::page(), Request::page().policy(&policy)] {
            let (blocks, _) = exhaust(&world, &request.no_wait());
            // Blocks come from each node down to `low` one after the other, and then down to `min` in the same order.
            // The last ones come from the pagesets of the other nodes.
            let mut order: Vec<u16> = blocks.iter().map(|block| block.node.get()).collect();
            order.dedup();
            assert_eq!(order[..4], list);
            assert!(order.len() < 8 || order[4..8] == list, "{order:?}");
            free_all(&world, &blocks);
        }
    }
}

#[test]
fn preferred_goes_first_to_its_node_and_on_in_its_list() {
    let world =
        Plan::with_distances(1, FRAMES, |a, b| 15 + 5 * a.abs_diff(b) as u8, 3).build(&Config::default());
    run_on(0);
    let policy = Policy::preferred(&world.allocator, node(2)).unwrap();
    let (blocks, _) = exhaust(&world, &Request::page().policy(&policy).no_wait());
    let mut order: Vec<u16> = blocks.iter().map(|block| block.node.get()).collect();
    order.dedup();
    assert_eq!(order[..3], [2, 1, 0]);
    free_all(&world, &blocks);
    let (blocks, error) = exhaust(&world, &Request::page().policy(&policy).this_node());
    assert_eq!(nodes_of(&blocks, 3)[..2], [0, 0]);
    assert_eq!((shortage(error).node, shortage(error).zones), (node(2), 1));
    free_all(&world, &blocks);
}

#[test]
fn bind_never_leaves_its_set() {
    let world = world(4);
    let policy = Policy::bind(&world.allocator, mask(&[1, 3])).unwrap();
    for urgency in [Urgency::Normal, Urgency::High, Urgency::Atomic, Urgency::Reserve] {
        for o in [0, 2, 5, 9, 10].map(order) {
            let (blocks, error) = exhaust(&world, &Request::new(o).policy(&policy).urgency(urgency));
            let by_node = nodes_of(&blocks, 4);
            assert!(by_node[0] == 0 && by_node[2] == 0 && by_node[1] > 0 && by_node[3] > 0);
            assert_eq!(shortage(error).zones, 2);
            free_all(&world, &blocks);
        }
    }
    // A cpuset restricts the policy's set further. An atomic request ignores the cpuset and respects only the policy's
    // set.
    let (only_3, not_at_all) = (mask(&[2, 3]), mask(&[0, 2]));
    let bound = Request::page().policy(&policy);
    assert_eq!(world.allocator.alloc(&bound.allowed(&only_3)).unwrap().node, node(3));
    let none = world.allocator.alloc(&bound.allowed(&not_at_all));
    assert_eq!(none, Err(AllocError::NoNodeInPolicy));
    let atomic = bound.allowed(&not_at_all).urgency(Urgency::Atomic);
    assert!([node(1), node(3)].contains(&world.allocator.alloc(&atomic).unwrap().node));
    // The policy binds the request to other nodes and the flag restricts it to its own node, so no node is left.
    assert_eq!(shortage(world.allocator.alloc(&bound.this_node()).unwrap_err()).zones, 0);
}

#[test]
fn cpusets_bind_all_but_atomic_requests() {
    let world = world(3);
    let allowed = mask(&[1]);
    let request = Request::page().allowed(&allowed);
    for urgency in [Urgency::Normal, Urgency::High, Urgency::Reserve] {
        let (blocks, error) = exhaust(&world, &request.urgency(urgency));
        assert_eq!((nodes_of(&blocks, 3)[0], nodes_of(&blocks, 3)[2]), (0, 0));
        assert_eq!(shortage(error).zones, 1);
        free_all(&world, &blocks);
    }
    let atomic = request.urgency(Urgency::Atomic);
    assert_eq!(world.allocator.alloc(&atomic).unwrap().node, node(0));
    let nowhere = mask(&[900]);
    assert_eq!(world.allocator.alloc(&Request::page().allowed(&nowhere)), Err(AllocError::NoNodeInPolicy));
    assert!(world.allocator.alloc(&Request::page().allowed(&nowhere).urgency(Urgency::Atomic)).is_ok());
}

#[test]
fn interleaving_is_even_and_counts_its_hits() {
    let world = world(3);
    let policy = Policy::interleave(&world.allocator, mask(&[0, 1, 2])).unwrap();
    for o in [0, 3, 5].map(order) {
        let take = |_| world.allocator.alloc(&Request::new(o).policy(&policy)).unwrap();
        let blocks: Vec<Block> = (0..99).map(take).collect();
        assert_eq!(nodes_of(&blocks, 3), [33, 33, 33]);
        free_all(&world, &blocks);
    }
    assert_eq!(world.allocator.locality().interleave_hit, 3 * 99);
    for _ in 0..3 {
        let run = world.allocator.alloc_contiguous(&Request::page().policy(&policy), pages(10)).unwrap();
        world.allocator.free_frames(run.range.start, pages(10)).unwrap();
    }
    assert_eq!(world.allocator.locality().interleave_hit, 3 * 99 + 3);
    let (blocks, _) = exhaust(&world, &Request::page().policy(&policy));
    let by_node = nodes_of(&blocks, 3);
    assert!(by_node.iter().all(|&count| count.abs_diff(by_node[0]) < 100), "{by_node:?}");
    free_all(&world, &blocks);
    // With a cpuset, the policy interleaves fewer nodes.
    let allowed = mask(&[0, 2]);
    let take = |_| world.allocator.alloc(&Request::page().policy(&policy).allowed(&allowed)).unwrap();
    assert_eq!(nodes_of(&(0..100).map(take).collect::<Vec<_>>(), 3), [50, 0, 50]);
}

#[test]
fn interleaving_requests_are_served_by_the_pagesets_of_their_nodes() {
    const ROUNDS: u64 = 2000;
    let world = world(3);
    let nodes = mask(&[0, 1, 2]);
    let weights = WeightTable::new();
    nodes.iter().for_each(|node| weights.set(node, 2));
    let even = Policy::interleave(&world.allocator, nodes).unwrap();
    let weighted = Policy::weighted_interleave(&world.allocator, nodes, &weights).unwrap();
    for (policy, cpu) in [(&even, 0), (&weighted, 1)] {
        run_on(cpu);
        let here = world.allocator.node_of_cpu(CpuId::new(cpu)).unwrap();
        let round = || {
            let take = |_| world.allocator.alloc(&Request::page().policy(policy)).unwrap();
            let blocks: Vec<Block> = (0..6).map(take).collect();
            blocks.iter().for_each(|block| world.allocator.free(block.first, block.order).unwrap());
            assert_eq!(nodes_of(&blocks, 3), [2, 2, 2]);
        };
        round();
        let zones = || world.allocator.zones().collect::<Vec<_>>();
        let (events, before) = (world.allocator.events(), zones());
        (0..ROUNDS).for_each(|_| round());
        assert_eq!(world.allocator.events().probes, events.probes, "no request scans");
        for (before, after) in before.iter().zip(zones()) {
            let (served, here) = (2 * ROUNDS, u64::from(after.node == here));
            let now = after.locality;
            assert_eq!(now.hit - before.locality.hit, served);
            assert_eq!(now.interleave_hit - before.locality.interleave_hit, served);
            assert_eq!(now.local - before.locality.local, here * served);
            assert_eq!(now.other - before.locality.other, (1 - here) * served);
            assert_eq!((now.miss, now.foreign), (before.locality.miss, before.locality.foreign));
        }
    }
    world.check();
}

#[test]
fn weights_are_kept_and_can_change_while_in_use() {
    let world = world(3);
    let weights = WeightTable::new();
    let nodes = mask(&[0, 1, 2]);
    let policy = Policy::weighted_interleave(&world.allocator, nodes, &weights);
    assert_eq!(policy.err(), Some(PolicyError::NoWeight));
    let set = |all: [u8; 3]| (0..).zip(all).for_each(|(id, weight)| weights.set(node(id), weight));
    set([5, 0, 2]);
    let policy = Policy::weighted_interleave(&world.allocator, nodes, &weights).unwrap();
    let take = |count| {
        let take = |_| world.allocator.alloc(&Request::page().policy(&policy)).unwrap();
        nodes_of(&(0..count).map(take).collect::<Vec<_>>(), 3)
    };
    assert_eq!(take(700), [500, 0, 200]);
    set([0, 3, 4]);
    assert_eq!(take(700), [0, 300, 400]);
    set([0, 0, 0]);
    assert_eq!(take(10), [10, 0, 0], "no weights: as if there were no policy");
    set([0, 255, 0]);
    assert_eq!(take(10), [0, 10, 0]);
}

#[test]
fn policies_without_memory_are_refused_at_once_or_when_it_goes() {
    let mut plan = Plan::even(3, 1, FRAMES);
    plan.hotplug = std::mem::take(&mut plan.zones[2].4);
    let world = plan.build(&Config::default());
    run_on(0);
    let (a, weights) = (&world.allocator, WeightTable::new());
    [1, 2].into_iter().for_each(|id| weights.set(node(id), 1));
    assert_eq!(Policy::preferred(a, node(2)).err(), Some(PolicyError::NoMemory));
    assert_eq!(Policy::preferred(a, node(3)).err(), Some(PolicyError::UnknownNode(node(3))));
    assert_eq!(Policy::bind(a, mask(&[2])).err(), Some(PolicyError::NoMemory));
    assert_eq!(Policy::bind(a, mask(&[])).err(), Some(PolicyError::NoMemory));
    assert_eq!(Policy::interleave(a, mask(&[0, 77])).err(), Some(PolicyError::UnknownNode(node(77))));
    let policies = [
        Policy::preferred(a, node(1)).unwrap(),
        Policy::bind(a, mask(&[1, 2])).unwrap(),
        Policy::interleave(a, mask(&[1, 2])).unwrap(),
        Policy::weighted_interleave(a, mask(&[1, 2]), &weights).unwrap(),
    ];
    let served = |at: usize| a.alloc(&Request::page().policy(&policies[at])).map(|block| block.node);
    let memory = range(2 * FRAMES, FRAMES);
    for policy in &policies {
        let block = a.alloc(&Request::page().policy(policy)).unwrap();
        assert_eq!(block.node, node(1));
        a.free(block.first, block.order).unwrap();
    }
    a.offline_memory(memory).unwrap();
    for at in 0..4 {
        assert_eq!(served(at), Err(AllocError::NoNodeInPolicy));
    }
    assert!(AllocError::NoNodeInPolicy.to_string().contains("memory"));
    a.online_memory(range(3 * FRAMES, FRAMES)).unwrap();
    assert_eq!((served(0), served(1)), (Err(AllocError::NoNodeInPolicy), Ok(node(2))));
    assert_eq!((served(2), served(3)), (Ok(node(2)), Ok(node(2))));
    a.online_memory(memory).unwrap();
    assert_eq!(served(0), Ok(node(1)));
}

/// Builds a node with zones of all four kinds.
fn four_zones() -> World {
    run_on(0);
    let mut plan = Plan::even(1, 1, FRAMES);
    let sizes = [
        (ZoneKind::Dma, 2048),
        (ZoneKind::Dma32, 8192),
        (ZoneKind::Normal, 16_384),
        (ZoneKind::Movable, 16_384),
    ];
    let mut at = 4096;
    plan.zones.clear();
    for (kind, frames) in sizes {
        plan.zones.push((0, kind, at, frames, vec![(at, frames)]));
        at += frames;
    }
    let lowmem_reserve_ratio = [64, 16, 32, 0];
    let watermarks = WatermarkSettings { lowmem_reserve_ratio, ..WatermarkSettings::default() };
    plan.build(&Config { watermarks, ..Config::default() })
}

fn zones(world: &World) -> Vec<ZoneSnapshot> {
    world.allocator.zones().collect()
}

#[test]
fn zone_limits_and_reserves() {
    let world = four_zones();
    let reserves: Vec<_> = zones(&world).iter().map(|zone| zone.reserve.map(PageCount::get)).collect();
    let dma = [0, 8192 / 64, (8192 + 16_384) / 64, (8192 + 2 * 16_384) / 64];
    assert_eq!(reserves, [dma, [0, 0, 1024, 2048], [0, 0, 0, 512], [0; 4]]);
    for limit in ZoneKind::ALL {
        let (blocks, error) = exhaust(&world, &Request::page().zone_limit(limit).no_wait());
        assert_eq!(shortage(error).zones as usize, limit.index() + 1);
        for zone in zones(&world) {
            let held = blocks.iter().filter(|block| block.zone == zone.id).count() as u64;
            if zone.kind > limit {
                assert_eq!(held, 0);
                continue;
            }
            let stop = zone.watermarks.min.get() + zone.reserve[limit.index()].get();
            let drift = u64::from(zone.stat_threshold);
            assert!(zone.free.get().abs_diff(stop) <= drift, "{limit} in {}: {zone:?}", zone.kind);
            assert_eq!(held + zone.free.get(), zone.managed.get());
        }
        free_all(&world, &blocks);
    }
}

#[test]
fn higher_zones_serve_first() {
    let world = four_zones();
    for limit in ZoneKind::ALL {
        let (blocks, _) = exhaust(&world, &Request::page().zone_limit(limit).no_wait());
        let mut order: Vec<usize> = blocks.iter().map(|block| block.zone.index()).collect();
        order.dedup();
        let downwards: Vec<usize> = (0..=limit.index()).rev().collect();
        assert_eq!(order[..=limit.index()], downwards);
        free_all(&world, &blocks);
    }
}

#[test]
fn urgency_determines_the_minimum_of_free_frames() {
    for cpus in [1, 4] {
        run_on(0);
        let world = Plan::even(1, cpus, 1 << 16).build(&Config::default());
        let zone = zones(&world)[0];
        let min = zone.watermarks.min.get();
        let high = min - min / 2;
        let atomic = high - high / 4;
        let mut held = Vec::new();
        for (urgency, stop) in
            [(Urgency::Normal, min), (Urgency::High, high), (Urgency::Atomic, atomic), (Urgency::Reserve, 0)]
        {
            let (blocks, error) = exhaust(&world, &Request::page().urgency(urgency));
            assert!(!blocks.is_empty());
            held.extend(blocks);
            let free = shortage(error).free.get();
            assert!(free.abs_diff(stop) <= u64::from(zone.stat_threshold), "{urgency:?}: {free}, not {stop}");
            // Requests of lower urgency now fail.
            assert!(world.allocator.alloc(&Request::page()).is_err());
        }
        assert_eq!(held.len(), 1 << 16, "the reserve is served to the last frame");
        free_all(&world, &held);
    }
}

#[test]
fn a_reclaiming_thread_acts_as_reserve() {
    let world = world(1);
    let (mut blocks, _) = exhaust(&world, &Request::page());
    reclaim_on_this_thread(true);
    let (more, _) = exhaust(&world, &Request::page());
    reclaim_on_this_thread(false);
    blocks.extend(more);
    assert_eq!(blocks.len() as u64, FRAMES);
    free_all(&world, &blocks);
}

#[test]
fn no_wait_never_stalls_and_no_retry_once() {
    let world = world(2);
    let stalls = || world.allocator.events().direct_stalls;
    let (mut blocks, _) = exhaust(&world, &Request::page().no_wait());
    assert_eq!(stalls(), 0);
    assert!(world.allocator.alloc(&Request::page().no_retry()).is_err());
    assert_eq!(stalls(), 1);
    assert!(world.allocator.alloc(&Request::new(order(9)).no_retry()).is_err());
    assert_eq!(stalls(), 2);
    reclaim_on_this_thread(true);
    let (more, _) = exhaust(&world, &Request::page());
    blocks.extend(more);
    reclaim_on_this_thread(false);
    assert_eq!(stalls(), 2, "a reclaiming caller does not reclaim again");
    assert!(!world.controls.take_woken().is_empty());
    free_all(&world, &blocks);
}

#[test]
fn every_block_of_the_largest_order_can_be_allocated() {
    let world = world(1);
    let request = Request::new(order(10)).urgency(Urgency::Reserve);
    let (blocks, error) = exhaust(&world, &request);
    assert_eq!(blocks.len() as u64, FRAMES / 1024);
    assert_eq!(shortage(error).order, order(10));
    free_all(&world, &blocks);
    // All blocks can be allocated again even if all frames are in a pageset, because it is drained before a request
    // fails.
    let (pages, _) = exhaust(&world, &Request::page().urgency(Urgency::Reserve));
    pages.iter().for_each(|block| world.allocator.free(block.first, block.order).unwrap());
    let (blocks, _) = exhaust(&world, &request);
    assert_eq!(blocks.len() as u64, FRAMES / 1024);
    free_all(&world, &blocks);
}

#[test]
fn refills_leave_the_reserve_of_urgent_requests_in_the_buddy() {
    for tuning in
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed]
    {
        run_on(0);
        let world = Plan::even(1, 1, 1 << 18).build(&Config { tuning, ..Config::default() });
        let mut blocks = Vec::new();
        while let Ok(block) = world.allocator.alloc(&Request::page()) {
            blocks.push(block);
            if blocks.len() % 16 == 0 || blocks.len() > 250_000 {
                let zone = zones(&world)[0];
                let floor = zone.watermarks.min.get() - u64::from(zone.stat_threshold);
                assert!(
                    zone.free.get() >= floor || zone.in_pagesets == PageCount::ZERO,
                    "{tuning:?} {zone:?}"
                );
            }
        }
        free_all(&world, &blocks);
    }
}

#[test]
fn the_zonelist_cache_never_decides_whether_a_request_succeeds() {
    for o in [0, 1, 3, 4, 9].map(order) {
        let counts = [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Off].map(|mode| {
            run_on(0);
            let config = Config { zonelist_cache: mode, ..Config::default() };
            let world = Plan::even(3, 1, FRAMES).build(&config);
            let (blocks, _) = exhaust(&world, &Request::new(order(10)));
            // All zones now have full bits for large blocks, and nothing clears these bits.
            assert_eq!(world.allocator.events().marks > 0, mode != ZonelistCache::Off);
            let (more, _) = exhaust(&world, &Request::new(o));
            free_all(&world, &[blocks, more.clone()].concat());
            more.len()
        });
        assert!(counts[0] > 0 && counts == [counts[0]; 3], "order {o}: {counts:?}");
    }
}

/// On a machine with many nodes, a request that allows only a few of them goes directly to those nodes. It tries them
/// in the order of distance, skips full nodes, and uses no other node.
#[test]
fn a_few_nodes_of_many_serve_in_order_and_alone() {
    const NODES: u16 = 24;
    for zonelist_cache in [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Off] {
        let plan = Plan::with_distances(1, 1024, |from, to| 10 + 2 * from.abs_diff(to) as u8, NODES);
        let world = plan.build(&Config { zonelist_cache, ..Config::default() });
        let a = &world.allocator;
        run_on(11);
        let few = [2, 7, 15, 20];
        let few_mask = mask(&few);
        let mut nearest = Vec::new();
        a.fallback_order(node(11), |node| nearest.extend(Some(node.get()).filter(|id| few.contains(id))));
        let last = *nearest.last().unwrap();
        for round in 0..3 {
            let request = Ask::page().allowed(&few_mask);
            let (blocks, error) = exhaust(&world, &request);
            assert_eq!(shortage(error).zones as usize, few.len());
            let mut servers: Vec<u16> = blocks.iter().map(|block| block.node.get()).collect();
            servers.dedup();
            assert_eq!(servers[..4], nearest, "round {round}, {zonelist_cache:?}");
            assert!(servers[4..].iter().all(|server| few.contains(server)));
            assert!(blocks.len() > 3 * 1024);
            for node in a.nodes().filter(|node| !few.contains(&node.id.get())) {
                assert_eq!(node.allocated, [PageCount::ZERO; 3], "{}", node.id);
            }
            // If memory is freed on one of the allowed nodes, the next request finds it.
            let (of_last, others): (Vec<Block>, Vec<Block>) =
                blocks.into_iter().partition(|block| block.node == node(last));
            of_last.into_iter().for_each(|block| a.free(block.first, block.order).unwrap());
            a.drain_pagesets();
            let block = a.alloc(&request).unwrap();
            assert_eq!(block.node, node(last));
            a.free(block.first, block.order).unwrap();
            others.into_iter().for_each(|block| a.free(block.first, block.order).unwrap());
            a.drain_pagesets();
            world.controls.advance_ms(1100);
            assert_eq!(a.verify().unwrap().allocated, PageCount::ZERO);
        }
    }
}

#[test]
fn several_preferred_nodes_serve_in_the_order_of_the_caller() {
    let world = world(4);
    let a = &world.allocator;
    let order = [node(2), node(1)];
    let policy = Policy::preferred_many(a, &order).unwrap();
    let request = Request::page().policy(&policy);
    let (blocks, error) = exhaust(&world, &request);
    assert_eq!(shortage(error).zones, 4, "every node is in reach");
    // The preferred nodes serve down to `low`, then down to `min`, and then all nodes in the CPU's fallback order.
    let mut served: Vec<usize> = blocks.iter().map(|block| block.node.index()).collect();
    served.dedup();
    assert_eq!(served[..6], [2, 1, 2, 1, 0, 3], "{served:?}");
    free_all(&world, &blocks);
    // A node that has gone is skipped, and a cpuset applies.
    a.offline_memory(world.zone(2).span).unwrap();
    assert_eq!(a.alloc(&request).unwrap().node, node(1));
    assert_eq!(a.alloc(&request.allowed(&mask(&[3]))).unwrap().node, node(3));
    assert_eq!(a.alloc(&request.this_node()).unwrap().node, node(0));
    assert_eq!(a.alloc_contiguous(&request, PageCount::new(5000)).unwrap().node, node(1));
    // Atomic requests and blocks of other orders follow it too.
    assert_eq!(a.alloc(&Request::new(crate::common::order(9)).policy(&policy)).unwrap().node, node(1));
}

#[test]
fn preferred_nodes_must_exist_and_one_must_have_memory() {
    let world = world(2);
    let a = &world.allocator;
    let unknown = [node(0), node(7)];
    assert_eq!(Policy::preferred_many(a, &unknown).err(), Some(PolicyError::UnknownNode(node(7))));
    assert_eq!(Policy::preferred_many(a, &[]).err(), Some(PolicyError::NoMemory));
    let only = [node(1)];
    let policy = Policy::preferred_many(a, &only).unwrap();
    a.offline_memory(world.zone(1).span).unwrap();
    assert_eq!(a.alloc(&Request::page().policy(&policy)).err(), Some(AllocError::NoNodeInPolicy));
}
