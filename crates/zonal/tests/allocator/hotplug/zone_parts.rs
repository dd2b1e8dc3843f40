//! Tests of nodes on which one kind's memory forms several zones. The zones, called parts, are allocated, counted,
//! reserved and reclaimed as if they were one.

use std::sync::Arc;

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::{Cache, Scripted, TestRequest, order, pages, with_min};
use crate::common::{Plan, World, node, range, run_on};
use zonal::config::NodeReclaim;
use zonal::machine::{FrameRange, TopologyError, ZONE_FRAMES_MAX, ZoneDescription};
use zonal::mempolicy::Policy;
use zonal::request::Urgency;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Block, Config, Machine, NodeMask, Request};

/// Frames per part.
const PART: u64 = 1 << 14;
const ALL: PageCount = PageCount::new(u64::MAX);
/// Distance from one part to the next.
const APART: u64 = 1 << 20;

in_every_way! {
    parts_serve_by_address_then_lower_kinds_then_other_nodes,
    every_part_of_the_own_node_is_local,
    parts_share_watermarks_and_the_reserve_of_their_kind,
    a_part_without_memory_has_no_reserve,
    frames_are_freed_to_their_own_part,
    the_first_part_with_memory_is_preferred,
    ranges_come_from_the_first_part_under_every_policy,
    a_full_part_is_remembered_on_a_machine_of_one_node_too,
    a_node_is_reclaimed_only_when_all_its_parts_are_low,
    adjacent_parts_do_not_merge_their_largest_blocks,
}

/// Returns a plan in which node 0 has three parts of normal memory far apart, with DMA32 and movable memory between
/// them. Node 1 has one zone.
fn plan() -> Plan {
    let mut plan = Plan::even(2, 2, PART);
    let zone = |node, kind, at: u64, frames| (node, kind, at * APART, frames, vec![(at * APART, frames)]);
    plan.zones = vec![
        zone(0, ZoneKind::Dma32, 2, PART / 2),
        zone(0, ZoneKind::Normal, 1, PART),
        zone(0, ZoneKind::Normal, 3, PART),
        zone(0, ZoneKind::Normal, 9, 2 * PART),
        zone(0, ZoneKind::Movable, 5, 4 * PART),
        zone(1, ZoneKind::Normal, 7, PART),
    ];
    plan
}

/// Returns a plan of one node with a CPU, whose zones are all parts of normal memory.
fn only_parts(parts: u64) -> Plan {
    let mut plan = Plan::even(1, 1, PART);
    plan.zones =
        (1..=parts).map(|at| (0, ZoneKind::Normal, at * APART, PART, vec![(at * APART, PART)])).collect();
    plan
}

fn zones(world: &World) -> Vec<ZoneSnapshot> {
    world.allocator.zones().collect()
}

/// Allocates until memory runs out. Returns the zones that served, in order, and the blocks.
fn sequence(world: &World, request: &TestRequest<'_>) -> (Vec<usize>, Vec<Block>) {
    let blocks = world.alloc_all(request);
    let mut zones: Vec<usize> = blocks.iter().map(|block| block.zone.index()).collect();
    zones.dedup();
    (zones, blocks)
}

fn parts_serve_by_address_then_lower_kinds_then_other_nodes(way: Way) {
    run_on(0);
    let world = plan().accessed(way).build(&Config::default());
    let normal = |order| Request::new(order).zone_limit(ZoneKind::Normal).urgency(Urgency::Reserve);
    for at in [0, 3, 7, 9, 10] {
        let (zones, blocks) = sequence(&world, &normal(order(at)));
        assert_eq!(zones, [1, 2, 3, 0, 5], "order {at}");
        world.check();
        world.free(blocks);
        world.allocator.drain_pagesets();
    }
    let (zones, blocks) = sequence(&world, &Request::new(order(9)).urgency(Urgency::Reserve));
    assert_eq!(zones, [4, 1, 2, 3, 0, 5]);
    world.free(blocks);
    let (zones, blocks) = sequence(&world, &normal(order(9)).this_node());
    assert_eq!(zones, [1, 2, 3, 0]);
    world.free(blocks);
    let policy = Policy::bind(&world.allocator, NodeMask::from_iter([node(1), node(0)])).unwrap();
    let (zones, blocks) = sequence(&world, &normal(order(9)).policy(&policy));
    assert_eq!(zones, [1, 2, 3, 0, 5]);
    // CPUs of the other node use the parts in the same order.
    world.free(blocks);
    run_on(2);
    let (zones, blocks) = sequence(&world, &normal(order(9)));
    assert_eq!(zones, [5, 1, 2, 3, 0]);
    world.free(blocks);
    world.allocator.drain_pagesets();
    assert_eq!(world.allocator.verify().unwrap().allocated, PageCount::ZERO);
}

fn every_part_of_the_own_node_is_local(way: Way) {
    run_on(0);
    let mut plan = plan();
    plan.zones.retain(|zone| zone.1 == ZoneKind::Normal);
    let world = plan.accessed(way).build(&Config::default());
    let mut blocks = world.alloc_all(&Request::page());
    let far = blocks.iter().position(|block| block.node == node(1)).unwrap();
    let first_far = blocks.drain(far..).collect::<Vec<_>>();
    let (near, others) = (blocks.len() as u64, first_far.len() as u64);
    assert!(near > 3 * PART);
    let locality = world.allocator.locality();
    // When all nodes are at `low`, the node of the CPU serves again, down to `min`, before requests fail.
    let late = first_far.iter().filter(|block| block.node == node(0)).count() as u64;
    assert_eq!((locality.hit, locality.local), (near + late, near + late), "{locality:?}");
    assert_eq!(
        (locality.miss, locality.foreign, locality.other),
        (others - late, others - late, others - late)
    );
    world.free(blocks);
    world.free(first_far);
    world.check();
}

fn parts_share_watermarks_and_the_reserve_of_their_kind(way: Way) {
    let settings = WatermarkSettings { min_free: Some(pages(2048)), ..WatermarkSettings::default() };
    let parted = plan().accessed(way).build(&Config { watermarks: settings, ..Config::default() });
    let mut whole = plan();
    // This plan has the same amount of memory, in one zone of each kind.
    whole.zones.retain(|zone| zone.1 != ZoneKind::Normal || zone.0 == 1);
    let managed = vec![(20 * APART, 4 * PART)];
    whole.zones.insert(1, (0, ZoneKind::Normal, 20 * APART, 4 * PART, managed));
    let whole = whole.accessed(way).build(&Config { watermarks: settings, ..Config::default() });
    let sum = |world: &World, of: &dyn Fn(&ZoneSnapshot) -> PageCount| -> u64 {
        let parts = world.allocator.zones().filter(|z| (z.node, z.kind) == (node(0), ZoneKind::Normal));
        parts.map(|zone| of(&zone).get()).sum()
    };
    let figures: [&dyn Fn(&ZoneSnapshot) -> PageCount; 4] =
        [&|zone| zone.managed, &|zone| zone.watermarks.min, &|zone| zone.watermarks.low, &|zone| {
            zone.reserve[3]
        }];
    for of in figures {
        // The figure of each part is rounded down.
        assert!(sum(&whole, of) - sum(&parted, of) <= 3, "{} of {}", sum(&parted, of), sum(&whole, of));
    }
    assert!(sum(&parted, &|zone| zone.reserve[3]) > 0);
    let reserve = |world: &World, at: usize| zones(world)[at].reserve;
    assert!(reserve(&parted, 3)[3].get() - 2 * reserve(&parted, 1)[3].get() <= 1, "by size");
    assert_eq!(reserve(&parted, 0), reserve(&whole, 0), "a lower kind counts all parts above it");
    assert_eq!(zones(&parted)[5], ZoneSnapshot { id: zones(&parted)[5].id, ..zones(&whole)[3] });
}

fn a_part_without_memory_has_no_reserve(way: Way) {
    let mut plan = plan();
    plan.zones[2].4.clear();
    let world = plan.accessed(way).build(&Config::default());
    let all = zones(&world);
    assert_eq!(all[2].reserve, [PageCount::ZERO; 4]);
    assert!((all[1].reserve[3].get() * 2).abs_diff(all[3].reserve[3].get()) <= 2);
}

fn frames_are_freed_to_their_own_part(way: Way) {
    run_on(0);
    let world = plan().accessed(way).build(&Config::default());
    let before = zones(&world);
    for (at, zone) in before.iter().enumerate() {
        let frame = zone.span.start;
        assert_eq!(world.allocator.span_of(frame), Some(zone.span));
        let last = Pfn::new(zone.span.end().get() - 1);
        assert_eq!(world.allocator.span_of(last), Some(zone.span), "zone {at}");
        assert_eq!(world.allocator.span_of(zone.span.end()), None);
    }
    let request = Request::new(order(4)).urgency(Urgency::Reserve);
    let blocks = world.alloc_all(&request);
    assert!(blocks.iter().all(|block| {
        before[block.zone.index()]
            .span
            .contains(&FrameRange { start: block.first, count: block.order.pages() })
    }));
    // Frees the blocks in another order than they were allocated in.
    let (odd, even): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 1);
    world.free(odd.into_iter().chain(even).map(|(_, block)| block));
    world.allocator.drain_pagesets();
    let after = zones(&world);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.free, before.free_blocks), (after.free, after.free_blocks));
    }
}

fn the_first_part_with_memory_is_preferred(way: Way) {
    run_on(0);
    let world = only_parts(3).accessed(way).build(&Config::default());
    let a = &world.allocator;
    let part = |at: u64| range(at * APART, PART);
    let served = || {
        let block = a.alloc(&Request::page()).unwrap();
        a.free(block.first, block.order).unwrap();
        block.zone.index()
    };
    assert_eq!(served(), 0);
    a.offline_memory(part(1)).unwrap();
    assert_eq!(served(), 1);
    a.offline_memory(part(2)).unwrap();
    assert_eq!(served(), 2);
    a.online_memory(part(1)).unwrap();
    assert_eq!(served(), 0);
    world.check();
    let mut order = Vec::new();
    a.fallback_order(node(0), |node| order.push(node.get()));
    assert_eq!(order, [0], "a node is listed once");
}

fn ranges_come_from_the_first_part_under_every_policy(way: Way) {
    run_on(0);
    let world = only_parts(3).accessed(way).build(&Config::default());
    let nodes = [node(0)];
    let many = Policy::preferred_many(&world.allocator, &nodes).unwrap();
    for request in [Request::page(), Request::page().policy(&many)] {
        let run = world.allocator.alloc_contiguous(&request, pages(100)).unwrap();
        assert_eq!(run.zone.index(), 0);
    }
}

fn a_full_part_is_remembered_on_a_machine_of_one_node_too(way: Way) {
    run_on(0);
    let world = only_parts(3).accessed(way).build(&Config::default());
    let request = Request::page();
    let mut held = world.alloc_all(&request.no_wait());
    assert_eq!(held.last().unwrap().zone.index(), 2, "the last part is used last");
    // The last part now has free frames again. The other parts stay full.
    let cut = held.iter().position(|block| block.zone.index() == 2).unwrap();
    world.free(held.drain(cut..));
    world.allocator.drain_pagesets();
    assert!(world.allocator.events().marks >= 2, "{:?}", world.allocator.events());
    let (blocks, events) = world.during(|| (0..1000).map(|_| world.allocator.alloc(&request).unwrap()));
    let blocks: Vec<Block> = blocks.collect();
    assert!(blocks.iter().all(|block| block.zone.index() == 2));
    assert!(events.probes < 100, "frames come from the pageset of the last part: {events:?}");
    world.free(blocks);
    world.free(held);
    world.check();
}

fn a_node_is_reclaimed_only_when_all_its_parts_are_low(way: Way) {
    let mut plan = plan();
    plan.zones.retain(|zone| zone.1 == ZoneKind::Normal);
    let world = plan.accessed(way).build(&Config { node_reclaim: NodeReclaim::ON, ..with_min(4096) }).leak();
    let cache = Arc::new(Cache::default());
    let keeper = Arc::clone(&cache);
    let scripted = Scripted::new(4 * PART, move |node, _| {
        let reclaimed = keeper.reclaim(&world.allocator, node, ALL);
        world.allocator.drain_pagesets(); // the watermark checks do not count frames in a pageset
        reclaimed
    });
    world.controls.set_reclaimer(scripted.clone());
    run_on(0);
    // These are single frames, so that their number exceeds the watermark of the first part plus the differences that
    // CPUs have not folded.
    let mut held: Vec<Block> = (0..256).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    // The parts fall below their watermarks one after the other, and nothing is reclaimed.
    while held.last().is_none_or(|block: &Block| block.zone.index() < 2) {
        held.push(world.allocator.alloc(&Request::new(order(4))).unwrap());
    }
    assert_eq!(scripted.calls(), 0);
    // All parts are now below `low`, and all reclaimable frames are in the first part.
    held.extend(world.alloc_all(&Request::page().no_wait().this_node().urgency(Urgency::Reserve)));
    let (first, others) =
        held.into_iter().partition(|block| block.zone.index() == 0 && block.order.get() == 0);
    let (first, others): (Vec<Block>, Vec<Block>) = (first, others);
    assert!(first.len() as u64 > zones(world)[0].watermarks.low.get());
    cache.keep(first);
    let block = world.allocator.alloc(&Request::page()).unwrap();
    assert_eq!((scripted.calls(), block.zone.index()), (1, 0));
    world.free(others);
    world.check();
}

#[test]
fn parts_must_ascend_and_be_disjoint() {
    let refused = |change: &dyn Fn(&mut Plan), error: TopologyError| {
        let mut plan = only_parts(3);
        change(&mut plan);
        let platform = crate::common::TestPlatform::default();
        let found = plan.try_build(&Config::default(), platform).err();
        assert_eq!(found, Some(error.into()), "{error}");
    };
    let kind = ZoneKind::Normal;
    refused(&|plan| plan.zones.swap(1, 2), TopologyError::ZonesNotAscending(node(0), kind));
    let overlap = |at| TopologyError::ZonesOverlap { frame: Pfn::new(at), node: node(0) };
    refused(&|plan| plan.zones[1] = plan.zones[0].clone(), overlap(APART));
    refused(&|plan| plan.zones[0].3 = APART + 1, overlap(2 * APART));
    let spans: Vec<FrameRange> = (0..4097).map(|at| range(at * 8, 1)).collect();
    let zones: Vec<_> =
        spans.iter().map(|&span| ZoneDescription { node: node(0), kind, span, managed: &[] }).collect();
    let nodes = [zonal::machine::NodeDescription { id: node(0), cpus: &[], distances: &[10] }];
    assert_eq!(Machine::new(&nodes, &zones).unwrap_err(), TopologyError::TooManyZones(4097));
    assert!(Machine::new(&nodes, &zones[..4096]).is_ok());
}

#[test]
fn spans_are_divided_between_blocks() {
    let cut = |start, count| -> Vec<(u64, u64)> {
        let spans = range(start, count).zone_spans();
        spans.map(|span| (span.start.get(), span.count.get())).collect()
    };
    let most = ZONE_FRAMES_MAX;
    assert_eq!(cut(5, 0), []);
    assert_eq!(cut(0, most), [(0, most)]);
    assert_eq!(cut(7 << 18, most), [(7 << 18, most)]);
    assert_eq!(cut(0, most + 1), [(0, most), (most, 1)]);
    assert_eq!(cut(1, most), [(1, most - 1), (most, 1)], "counted from where the largest block would begin");
    let far = 3 * most + 12_345;
    let parts = [(far, most - 12_345), (4 * most, most), (5 * most, 12_346)];
    assert_eq!(cut(far, 2 * most + 1), parts);
    let end = u64::MAX - most + 1;
    assert_eq!(cut(end - 1, u64::MAX), [(end - 1, 1), (end, most - 1)], "frames end somewhere");
    for &(start, count) in &parts {
        let (whole, part) = (range(far, 2 * most + 1), range(start, count));
        assert_eq!(whole.intersection(&part), Some(part));
        assert_eq!(part.intersection(&whole), Some(part));
    }
    assert_eq!(range(5, 10).intersection(&range(15, 10)), None);
    assert_eq!(range(5, 10).intersection(&range(14, u64::MAX)), Some(range(14, 1)));
    assert_eq!(range(u64::MAX, u64::MAX).intersection(&range(0, u64::MAX)), None);
    assert_eq!(range(4, u64::MAX).intersection(&range(1, u64::MAX)), Some(range(4, u64::MAX - 3)));
}

fn adjacent_parts_do_not_merge_their_largest_blocks(way: Way) {
    // The parts are adjacent. No block crosses the boundary between them.
    run_on(0);
    let mut plan = only_parts(2);
    plan.zones[1].2 = APART + PART;
    plan.zones[1].4 = vec![(APART + PART, PART)];
    let world = plan.accessed(way).build(&Config::default());
    let blocks = world.alloc_all(&Request::new(Order::DEFAULT_MAX).urgency(Urgency::Reserve));
    assert_eq!(blocks.len() as u64, 2 * PART / 1024);
    world.free(blocks);
    world.check();
}
