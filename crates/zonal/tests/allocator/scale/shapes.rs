//! Tests of machines with unusual shapes: nodes without memory or CPUs, ids with gaps, and CPU ids that the machine
//! does not have.

use crate::common::{Plan, TestPlatform, World, node, order, run_on};
use zonal::error::AllocError;
use zonal::machine::TopologyError;
use zonal::mempolicy::Policy;
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Config, NodeMask, Request};

const FRAMES: u64 = 1 << 13;

/// Allocates and frees blocks of every order on the CPU. Returns the node that served the requests.
fn served_by(world: &World, cpu: u32) -> u16 {
    run_on(cpu);
    let a = &world.allocator;
    let first = a.alloc(&Request::page()).unwrap();
    for o in (0..=10).map(order) {
        let block = a.alloc(&Request::new(o)).unwrap();
        assert_eq!(block.node, first.node);
        a.free(block.first, block.order).unwrap();
    }
    a.free(first.first, first.order).unwrap();
    a.verify().unwrap();
    first.node.get()
}

fn check_all_free(world: &World) {
    world.allocator.drain_pagesets();
    let accounting = world.allocator.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
}

#[test]
fn requests_of_unknown_cpus_bypass_the_pagesets() {
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.nodes = vec![(0, vec![3]), (1, vec![64])];
    let world = plan.build(&Config::default());
    let a = &world.allocator;
    for unknown in [0, 2, 4, 63, 65, 1000, u32::MAX] {
        assert_eq!(served_by(&world, unknown), 0, "as if on the first node");
        assert_eq!(a.node_of_cpu(CpuId::new(unknown)), None);
        assert!(a.pagesets().all(|pageset| pageset.count == PageCount::ZERO));
        a.tick_cpu(CpuId::new(unknown));
    }
    assert_eq!((served_by(&world, 3), served_by(&world, 64)), (0, 1));
    assert_eq!(a.pagesets().count(), 4, "two CPUs on two zones");
    assert_eq!(a.node_of_cpu(CpuId::new(64)), Some(node(1)));
    check_all_free(&world);
}

#[test]
fn many_cpus_are_each_on_their_node() {
    // The CPU numbers are spread over two nodes. Every fifth number is not a CPU, and each node lists its CPUs in
    // descending order.
    const NUMBERS: u32 = 1 << 14;
    let node_of = |cpu: u32| (cpu % 5 != 4).then_some((cpu % 3 % 2) as u16);
    let cpus_of = |id: u16| (0..NUMBERS).rev().filter(|&cpu| node_of(cpu) == Some(id)).collect();
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.nodes = vec![(0, cpus_of(0)), (1, cpus_of(1))];
    for (again, at) in [(0, 0), (1, 0), (0, 1)] {
        let mut twice = plan.clone();
        let cpu = plan.nodes[0].1[77];
        twice.nodes[again].1.insert(at, cpu);
        let error = twice.try_build(&Config::default(), TestPlatform::default()).map(drop).unwrap_err();
        assert_eq!(error, TopologyError::CpuTwice(CpuId::new(cpu)).into(), "CPU {cpu} on node {again}");
    }
    let world = plan.build(&Config::default());
    for cpu in 0..NUMBERS {
        assert_eq!(world.allocator.node_of_cpu(CpuId::new(cpu)), node_of(cpu).map(node), "CPU {cpu}");
    }
    let cpus: usize = plan.nodes.iter().map(|(_, cpus)| cpus.len()).sum();
    assert_eq!(world.allocator.pagesets().count(), 2 * cpus);
    // No two CPUs of a node share slots: the next allocation on each CPU returns the frame that the same CPU freed
    // last.
    let near = |at: u32| (at * (NUMBERS / 64)..NUMBERS).find(|&cpu| node_of(cpu) == Some(0)).unwrap();
    let one_page = |at| {
        run_on(near(at));
        let block = world.allocator.alloc(&Request::page()).unwrap();
        world.free([block]);
        block.first
    };
    let kept: Vec<_> = (0..64).map(one_page).collect();
    assert_eq!((0..64).map(one_page).collect::<Vec<_>>(), kept);
    world.allocator.verify().unwrap();
    check_all_free(&world);
}

#[test]
fn unknown_and_offline_cpus_work_in_different_parts_of_a_zone() {
    const PART: u64 = 1 << 14; // the free areas have this size: four for each of the four CPUs
    let world = Plan::even(1, 4, 16 * PART).build(&Config::default());
    for cpu in 0..3 {
        world.allocator.offline_cpu(CpuId::new(cpu)).unwrap();
    }
    let part_of = |cpu| {
        run_on(cpu);
        let block = world.allocator.alloc(&Request::page()).unwrap();
        world.free([block]);
        block.first.get() / PART
    };
    for cpus in [0..3, 4..16, u32::MAX - 15..u32::MAX] {
        let parts: std::collections::BTreeSet<u64> = cpus.clone().map(part_of).collect();
        assert_eq!(parts.len(), cpus.len(), "CPUs {cpus:?} use the parts {parts:?}");
    }
    check_all_free(&world);
}

#[test]
fn nodes_without_memory_are_served_by_the_nearest() {
    let mut plan = Plan::with_distances(1, FRAMES, |a, b| 10 + 10 * a.abs_diff(b) as u8, 3);
    plan.zones.remove(1);
    let world = plan.build(&Config::default());
    assert_eq!((served_by(&world, 0), served_by(&world, 2)), (0, 2));
    assert!([0, 2].contains(&served_by(&world, 1)));
    let a = &world.allocator;
    run_on(1);
    let strict = a.alloc(&Request::page().this_node());
    let AllocError::OutOfMemory(shortage) = strict.unwrap_err() else { panic!("{strict:?}") };
    assert_eq!((shortage.node, shortage.zones, shortage.free), (node(1), 0, PageCount::ZERO));
    // A CPU of a node without memory has no preferred node. A block from the first node of its fallback list counts as
    // a hit, but not as local.
    let before = a.locality();
    let block = a.alloc(&Request::page()).unwrap();
    let after = a.locality();
    assert_eq!((after.hit - before.hit, after.other - before.other, after.foreign), (1, 1, 0));
    a.free(block.first, block.order).unwrap();
    check_all_free(&world);
}

#[test]
fn nodes_without_cpus_serve_and_are_shared() {
    let mut plan = Plan::even(3, 2, FRAMES);
    plan.nodes[2].1.clear();
    let world = plan.build(&Config::default());
    let a = &world.allocator;
    let zones: Vec<_> = a.zones().collect();
    // All four CPUs use the node without CPUs, so each has a fourth of that zone's pageset limits.
    let batches = 4 * zones[0].pageset_limits.batch.get();
    let share = |low: u64, cpus: u64| (low / cpus).max(batches);
    assert_eq!(zones[0].pageset_limits.high_min.get(), share(zones[0].watermarks.low.get(), 2));
    assert_eq!(zones[2].pageset_limits.high_min.get(), share(zones[2].watermarks.low.get(), 4));
    let policy = Policy::preferred(a, node(2)).unwrap();
    for cpu in 0..4 {
        run_on(cpu);
        let request = Request::page().policy(&policy);
        let blocks: Vec<_> = (0..100).map(|_| a.alloc(&request).unwrap()).collect();
        assert!(blocks.iter().all(|block| block.node == node(2)));
        blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
        a.verify().unwrap();
    }
    // Nodes with CPUs get a penalty, so the node without CPUs comes first in the list of node 0.
    let mut list = Vec::new();
    a.fallback_order(node(0), |node| list.push(node.get()));
    assert_eq!(list, [0, 2, 1]);
    check_all_free(&world);
}

#[test]
fn node_ids_with_gaps() {
    let mut plan = Plan::even(3, 1, FRAMES);
    for (at, id) in [5, 64, 1023].into_iter().enumerate() {
        plan.nodes[at].0 = id;
        plan.zones[at].0 = id;
    }
    let world = plan.build(&Config::default());
    let a = &world.allocator;
    assert_eq!([0, 1, 2].map(|cpu| served_by(&world, cpu)), [5, 64, 1023]);
    run_on(0);
    let nodes = NodeMask::from_iter([node(64), node(1023)]);
    let policy = Policy::interleave(a, nodes).unwrap();
    let blocks: Vec<_> = (0..6).map(|_| a.alloc(&Request::page().policy(&policy)).unwrap()).collect();
    assert_eq!(
        blocks.iter().map(|block| block.node.get()).collect::<Vec<_>>(),
        [64, 1023, 64, 1023, 64, 1023]
    );
    assert!(blocks.iter().all(|block| a.zones().nth(block.zone.index()).unwrap().node == block.node));
    blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    let only = Policy::bind(a, NodeMask::from_iter([node(1023)])).unwrap();
    let block = a.alloc(&Request::page().policy(&only)).unwrap();
    a.free(block.first, block.order).unwrap();
    for unknown in [0, 4, 6, 63, 65, 1022].map(node) {
        assert_eq!(a.background_reclaim(unknown), PageCount::ZERO);
        a.fallback_order(unknown, |_| panic!("no such node"));
        assert!(Policy::preferred(a, unknown).is_err());
    }
    check_all_free(&world);
}

#[test]
fn a_machine_without_cpus_or_memory() {
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.nodes.iter_mut().for_each(|(_, cpus)| cpus.clear());
    let world = plan.build(&Config::default());
    assert_eq!(served_by(&world, 0), 0);
    world.allocator.tick();
    check_all_free(&world);
    // Now the zones have no memory at start, but all of their memory may come online later.
    plan.zones.iter_mut().for_each(|zone| zone.4.clear());
    let empty = plan.build(&Config::default());
    assert!(matches!(empty.allocator.alloc(&Request::page()), Err(AllocError::OutOfMemory(_))));
    assert_eq!(empty.allocator.verify().unwrap().managed, PageCount::ZERO);
}

#[test]
fn zones_smaller_than_a_block_and_across_its_borders() {
    let mut plan = Plan::even(1, 2, FRAMES);
    plan.zones.clear();
    for (start, count) in [(1, 1), (2, 1), (1023, 2), (1500, 700), (4095, 1)] {
        let kind = [ZoneKind::Dma, ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];
        plan.zones.push((0, kind[plan.zones.len() % 4], start, count, vec![(start, count)]));
    }
    plan.zones.pop();
    let world = plan.build(&Config::default());
    run_on(0);
    let request = |o: u8| Request::new(order(o)).urgency(zonal::request::Urgency::Reserve);
    let largest = (0..=10).rev().find_map(|o| world.allocator.alloc(&request(o)).ok()).unwrap();
    assert_eq!((largest.first.get(), largest.order), (1536, order(9)));
    let mut blocks = vec![largest];
    while let Ok(block) = world.allocator.alloc(&request(0)) {
        blocks.push(block);
    }
    let taken: u64 = blocks.iter().map(|block| block.order.pages().get()).sum();
    assert_eq!(taken, 1 + 1 + 2 + 700);
    blocks.iter().for_each(|block| world.allocator.free(block.first, block.order).unwrap());
    check_all_free(&world);
}

#[test]
fn the_highest_frame_numbers_there_are() {
    let mut plan = Plan::even(1, 1, FRAMES);
    let start = u64::MAX - FRAMES;
    plan.zones = vec![(0, ZoneKind::Normal, start, FRAMES, vec![(start, FRAMES)])];
    let world = plan.build(&Config::default());
    assert_eq!(served_by(&world, 0), 0);
    let request = Request::page().urgency(zonal::request::Urgency::Reserve);
    let blocks: Vec<_> = core::iter::from_fn(|| world.allocator.alloc(&request).ok()).collect();
    assert_eq!(blocks.len() as u64, FRAMES);
    assert!(blocks.iter().any(|block| block.first.get() == u64::MAX - 1));
    blocks.iter().for_each(|block| world.allocator.free(block.first, block.order).unwrap());
    check_all_free(&world);
    world.allocator.offline_memory(crate::common::range(u64::MAX - 1, 1)).unwrap();
    assert_eq!(world.allocator.verify().unwrap().managed, PageCount::new(FRAMES - 1));
}
