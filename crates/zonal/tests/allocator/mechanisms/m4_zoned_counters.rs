//! Tests of M4, zoned counters: larger machines fold less often, errors are bounded, counter drift lets no request
//! cross a watermark, and every block is counted once, in the zone that served it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{Random, Scripted, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, run_on};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::Locality;
use zonal::units::{CpuId, ZoneKind};
use zonal::{Config, Policy, Request};

fn fls(value: u64) -> u64 {
    u64::from(u64::BITS - value.leading_zeros())
}

/// Allocates and frees `pairs` pages on one CPU, 500 at a time, and as many one by one. Returns how often the first made the
/// counters of the node fold, and the others those of the zone, and the threshold.
fn folds(cpus: u32, frames: u64, pairs: u64) -> (u64, u64, u64) {
    let world = Plan::even(1, cpus, frames).build(&Config::default());
    run_on(0);
    let threshold = u64::from(world.zone(0).stat_threshold);
    assert_eq!(threshold, (2 * fls(u64::from(cpus)) * (1 + fls(frames / 32_768))).min(125));
    let in_turns = world.node_folds();
    for _ in 0..pairs / 500 {
        let held: Vec<_> = (0..500).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
        world.free(held);
    }
    let in_turns = world.node_folds() - in_turns;
    let in_pairs = world.zone(0).counter_folds;
    (0..pairs).for_each(|_| world.free([world.allocator.alloc(&Request::page()).unwrap()]));
    let in_pairs = world.zone(0).counter_folds - in_pairs;
    assert_eq!(world.allocator.locality().hit, 2 * pairs, "nothing is lost");
    (in_turns, in_pairs, threshold)
}

#[test]
fn folds_get_rarer_as_machine_and_zone_grow() {
    let pairs = 20_000;
    let mut last = u64::MAX;
    for (cpus, frames) in [(1, 1 << 12), (4, 1 << 12), (4, 1 << 16), (16, 1 << 18), (64, 1 << 20)] {
        let (folds, of_events, threshold) = folds(cpus, frames, pairs);
        // Each page is counted when it is allocated and when it is freed. In each direction, the counter folds after 1.5
        // thresholds, rounded up; a turn moves up to one fold to the other direction.
        let expected = 2 * pairs / (threshold + threshold / 2 + 1);
        assert!(folds.abs_diff(expected) <= 2 * pairs / 500, "{folds} folds, {expected} expected");
        assert!(folds < last, "{cpus} CPUs, {frames} frames: {folds} folds, fewer before: {last}");
        last = folds;
        // A hit and a local allocation of each pair fold after 1.5 times the largest threshold, whatever the machine.
        let expected = 2 * pairs / 188;
        assert!(of_events.abs_diff(expected) <= 6, "{of_events} folds of events, {expected} expected");
    }
    assert!(last * 10 < 2 * pairs, "at most one update in ten is shared: {last}");
}

#[test]
fn readings_are_wrong_by_no_more_than_the_drift_of_all_cpus() {
    let cpus = 8;
    let world = Plan::even(1, cpus, 1 << 17).build(&Config::default());
    let (mut random, mut held, mut worst) = (Random(77), Vec::new(), 0);
    for _ in 0..50_000 {
        run_on(random.below(u64::from(cpus)) as u32);
        if random.below(2) == 0 && !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            world.free([held.swap_remove(at)]);
        } else {
            held.extend(
                world.allocator.alloc(&Request::new(order([0, 0, 0, 1, 3, 5][random.below(6) as usize]))),
            );
        }
        let exact = world.zone(0).free;
        worst = worst.max(world.allocator.free_approximate().get().abs_diff(exact.get()));
    }
    let bound = u64::from(cpus) * u64::from(world.zone(0).stat_threshold);
    assert!(worst <= bound && worst > 0, "off by {worst} of {bound}");
    world.allocator.tick();
    assert_eq!(world.allocator.free_approximate(), world.zone(0).free, "folded");
    world.check();
}

#[test]
fn many_cpus_do_not_carry_a_zone_below_its_minimum() {
    let cpus = 64;
    let world = Plan::even(1, cpus, 1 << 16).build(&with_min(200));
    let zone = world.zone(0);
    let gap = zone.watermarks.low.get() - zone.watermarks.min.get();
    assert!(u64::from(cpus) * u64::from(zone.stat_threshold) > 10 * gap, "drift could hide the minimum");
    let mut failures = 0;
    for turn in 0_u32.. {
        run_on(turn % cpus);
        // The requests are single frames and also larger blocks, which bypass the pagesets, so that every CPU has
        // counter differences.
        let request = Request::new(order(if turn % 3 == 0 { 4 } else { 0 })).no_wait();
        failures = if world.allocator.alloc(&request).is_err() { failures + 1 } else { 0 };
        if turn % 100 == 0 || failures > 0 {
            assert!(world.zone(0).free >= zone.watermarks.min, "{}", world.zone(0).free);
        }
        if failures > 2 * cpus {
            break;
        }
    }
    assert_eq!(world.zone(0).free, zone.watermarks.min);
}

#[test]
fn large_blocks_do_not_carry_a_zone_below_its_minimum() {
    let world = Plan::even(1, 16, 4096).build(&with_min(20));
    let take = |at| world.allocator.alloc(&Request::new(order(at)).no_wait());
    for cpu in 0..16 {
        // These allocations are counted in the difference of the CPU. The frees on the unknown CPU 99 bypass the
        // pagesets, so they are counted in the zone at once.
        run_on(cpu);
        let blocks = [take(2).unwrap(), take(2).unwrap()];
        run_on(99);
        world.free(blocks);
    }
    [7; 30].into_iter().chain([6, 5, 4, 2]).for_each(|at| assert!(take(at).is_ok()));
    let zone = world.zone(0);
    assert_eq!((zone.free.get(), zone.free_blocks[7], zone.watermarks.min.get()), (140, 1, 20));
    let reading = world.allocator.free_approximate().get();
    assert!(reading > zone.watermarks.high.get() + 16 * u64::from(zone.stat_threshold), "{reading}");
    take(7).unwrap_err();
    take(6).unwrap();
}

#[test]
fn background_reclaim_lowers_thresholds_and_rest_restores_them() {
    let world = Plan::even(1, 16, 1 << 16).build(&with_min(400)).leak();
    run_on(0);
    let calm = world.zone(0);
    let seen = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&seen);
    world.controls.set_reclaimer(Scripted::new(0, move |_, _| {
        note.store(u64::from(world.zone(0).stat_threshold), Relaxed);
        0
    }));
    world.leave_free(0, 100);
    world.allocator.background_reclaim(node(0));
    let gap = calm.watermarks.low.get() - calm.watermarks.min.get();
    assert_eq!(seen.load(Relaxed), (gap / 16).clamp(1, 125));
    assert!(seen.load(Relaxed) < u64::from(calm.stat_threshold));
    assert_eq!(world.zone(0).stat_threshold, calm.stat_threshold);
}

#[test]
fn thresholds_follow_cpus() {
    let world = Plan::even(1, 16, 1 << 16).build(&Config::default());
    run_on(0);
    let of = |cpus: u64| 2 * fls(cpus) * (1 + fls((1 << 16) / 32_768));
    assert_eq!(u64::from(world.zone(0).stat_threshold), of(16));
    (4..16).for_each(|cpu| world.allocator.offline_cpu(CpuId::new(cpu)).unwrap());
    assert_eq!(u64::from(world.zone(0).stat_threshold), of(4));
    (4..16).for_each(|cpu| world.allocator.online_cpu(CpuId::new(cpu)).unwrap());
    assert_eq!(u64::from(world.zone(0).stat_threshold), of(16));
}

/// Returns the NUMA events of each zone.
fn localities(world: &World) -> Vec<Locality> {
    world.allocator.zones().map(|zone| zone.locality).collect()
}

fn count(hit: u64, miss: u64, foreign: u64, interleave_hit: u64, local: u64, other: u64) -> Locality {
    Locality { hit, miss, foreign, interleave_hit, local, other }
}

#[test]
fn blocks_are_counted_once_where_they_came_from() {
    let new = || Plan::even(2, 1, 1 << 16).build(&Config::default());
    let none = Locality::default();
    let take = |world: &World, request: &dyn Fn() -> Request<'static>, count: usize| {
        for _ in 0..count {
            world.allocator.alloc(&request()).unwrap();
        }
    };
    for order_of in [0, 2, 5, 9] {
        let plain = || Request::new(order(order_of));
        let world = new();
        run_on(1);
        take(&world, &plain, 20);
        assert_eq!(localities(&world), [none, count(20, 0, 0, 0, 20, 0)], "order {order_of}");
        // Node 0 has no free frame, so it is the preferred node but not the serving node.
        let world = new();
        run_on(0);
        world.alloc_node(0);
        let before = localities(&world);
        take(&world, &plain, 20);
        let after = localities(&world);
        assert_eq!(after[0], Locality { foreign: 20, ..before[0] });
        assert_eq!(after[1], count(0, 20, 0, 0, 0, 20));
        let world = new();
        run_on(0);
        let far = Policy::preferred(&world.allocator, node(1)).unwrap();
        for _ in 0..20 {
            world.allocator.alloc(&plain().policy(&far)).unwrap();
        }
        assert_eq!(localities(&world), [none, count(20, 0, 0, 0, 0, 20)]);
        let world = new();
        let both = Policy::interleave(&world.allocator, [node(0), node(1)].into_iter().collect()).unwrap();
        for _ in 0..20 {
            world.allocator.alloc(&plain().policy(&both)).unwrap();
        }
        assert_eq!(localities(&world), [count(10, 0, 0, 10, 10, 0), count(10, 0, 0, 10, 0, 10)]);
    }
}

#[test]
fn a_cpu_whose_node_has_no_memory_hits_the_first_of_its_list() {
    let mut plan = one_cpu(&[4096, 4096], ZoneKind::Normal);
    plan.nodes[0].1.clear();
    plan.nodes.push((2, vec![0]));
    plan.distances = vec![vec![10, 20, 20], vec![20, 10, 20], vec![30, 15, 10]];
    let world = plan.build(&Config::default());
    run_on(0);
    (0..10).for_each(|_| assert_eq!(world.server(&Request::page()), 1));
    assert_eq!(localities(&world), [Locality::default(), count(10, 0, 0, 0, 0, 10)]);
}

/// A step that must fold a counter also looks whether the preferred zone serves again, so no tick is needed.
#[test]
fn a_cpu_served_by_another_node_returns_at_a_fold_when_watermarks_fall() {
    let world = Plan::even(2, 1, 1 << 15).build(&with_min(8192));
    run_on(0);
    let served_by = || world.allocator.alloc(&Request::page()).unwrap().node;
    while served_by() == node(0) {}
    let pair = || {
        let block = world.allocator.alloc(&Request::page()).unwrap();
        world.free([block]);
        block.node
    };
    (0..1000).for_each(|_| assert_eq!(pair(), node(1)));
    let low = WatermarkSettings { min_free: Some(pages(64)), ..WatermarkSettings::default() };
    world.allocator.set_watermarks(low).unwrap();
    assert!((0..1000).any(|_| pair() == node(0)), "no request folds a counter");
}
