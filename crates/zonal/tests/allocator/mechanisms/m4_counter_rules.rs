//! Tests of M4's settings: fixed thresholds, the thresholds of the first posting, folds to zero, machine totals, and
//! thresholds that memory pressure does not change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{Random, Scripted, order, with_min};
use crate::common::{Plan, World, node, run_on};
use zonal::request::PageKind;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Block, Config, Request};

const DEFAULT: CounterRules = CounterRules {
    threshold: ThresholdRule::Scaled,
    fold: FoldRule::Overstep,
    totals: TotalsRule::PerNode,
    pressure: PressureRule::Lowered,
};

fn fls(value: u64) -> u64 {
    u64::from(u64::BITS - value.leading_zeros())
}

fn with(counters: CounterRules) -> Config {
    Config { counters, ..Config::default() }
}

fn fixed(threshold: u8) -> CounterRules {
    CounterRules { threshold: ThresholdRule::Fixed(threshold), ..DEFAULT }
}

fn first_posting() -> CounterRules {
    CounterRules { threshold: zonal_history::FirstPosting::RULE, ..DEFAULT }
}

/// Returns the number of frames allocated as user pages, without differences that have not been folded.
fn user(world: &World) -> u64 {
    world.allocator.allocated_approximate()[0].get()
}

#[test]
fn the_published_rules_of_today_are_the_default() {
    assert_eq!(CounterRules::default(), DEFAULT);
    assert_eq!(Config::default().counters, DEFAULT);
}

#[test]
fn fixed_thresholds_hold_in_every_zone_and_node_with_memory() {
    let mut plan = Plan::even(3, 4, 1 << 16);
    plan.zones[1].4.clear(); // the zone spans frames, but none of them are managed
    plan.hotplug = vec![(plan.zones[1].2, 4096)];
    plan.zones[2] = (2, ZoneKind::Normal, 1 << 20, 4096, vec![(1 << 20, 500)]);
    for threshold in [1, 32, 125] {
        let world = plan.build(&with(fixed(threshold)));
        let of_zones = || world.allocator.zones().map(|zone| zone.stat_threshold).collect::<Vec<_>>();
        assert_eq!(of_zones(), [threshold, 0, threshold]);
        world.allocator.offline_cpu(CpuId::new(3)).unwrap();
        assert_eq!(of_zones(), [threshold, 0, threshold]);
        world.allocator.online_memory(crate::common::range(plan.zones[1].2, 4096)).unwrap();
        assert_eq!(of_zones(), [threshold; 3]);
        // The node counters do not change until a difference exceeds the threshold, so the first visible step comes
        // after that.
        run_on(0);
        let held: Vec<Block> =
            (0..threshold).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
        assert_eq!(user(&world), 0);
        world.allocator.alloc(&Request::page()).unwrap();
        assert_eq!(user(&world), u64::from(threshold) + 1 + u64::from(threshold / 2));
        world.free(held);
        world.check();
    }
}

/// Returns the thresholds of all zones, in order.
fn thresholds(world: &World) -> Vec<u8> {
    world.allocator.zones().map(|zone| zone.stat_threshold).collect()
}

/// Frames in 128 MiB, with frames of 4 KiB. Thresholds count memory in this unit.
const UNIT: u64 = 1 << 15;

/// Returns a node of 511 CPUs with two zones. The first is small. The second spans 33 units, of which `present` frames
/// are present and few are managed.
fn scarcely_managed(present: u64) -> Plan {
    let mut plan = Plan::even(1, 511, 4096);
    let start = UNIT * 64;
    plan.zones.push((0, ZoneKind::Normal, start, UNIT * 33, vec![(start, 4096)]));
    plan.hotplug = vec![(start + 4096, 4096)];
    plan.present = vec![4096, present];
    plan
}

#[test]
fn the_first_posting_counts_present_frames_up_to_120() {
    let plan = scarcely_managed(UNIT * 31);
    let world = plan.build(&with(DEFAULT));
    assert_eq!(thresholds(&world), [18, 18], "2 * fls(511)");
    let world = plan.build(&with(first_posting()));
    assert_eq!(thresholds(&world), [18, 108], "2 * fls(511) * (1 + fls(31))");
    assert_eq!(world.allocator.zones().nth(1).unwrap().present, PageCount::new(UNIT * 31));
    // A node's counters use the largest threshold of its zones. Differences up to 108 are not folded, and the fold
    // exceeds the true count by 54.
    run_on(0);
    let held: Vec<Block> = (0..109).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    assert_eq!(user(&world), 109 + 54);
    world.free(held);
    world.check();
    // The formula yields 2 * fls(511) * (1 + fls(32)) = 126, which is above the limit.
    let plan = scarcely_managed(UNIT * 32);
    assert_eq!(thresholds(&plan.build(&with(first_posting()))), [18, 120]);
}

#[test]
fn the_first_posting_holds_through_changes_of_cpus_memory_and_settings() {
    // The present memory is one frame less than a power of two, so memory that comes online changes the threshold.
    let world = scarcely_managed(UNIT * 16 - 1).build(&with(first_posting()));
    let of = |cpus: u64, units: u64| vec![18, (2 * fls(cpus) * (1 + fls(units))) as u8];
    assert_eq!(thresholds(&world), of(511, 15));
    (255..511).for_each(|cpu| world.allocator.offline_cpu(CpuId::new(cpu)).unwrap());
    assert_eq!(thresholds(&world), [16, 16 * 5]);
    (255..511).for_each(|cpu| world.allocator.online_cpu(CpuId::new(cpu)).unwrap());
    assert_eq!(thresholds(&world), of(511, 15));
    let more = crate::common::range(UNIT * 64 + 4096, 1);
    world.allocator.online_memory(more).unwrap();
    assert_eq!(thresholds(&world), of(511, 16), "what comes online is present");
    world.allocator.set_high_fraction(8);
    world.allocator.set_watermarks(with_min(400).watermarks).unwrap();
    assert_eq!(thresholds(&world), of(511, 16));
    world.allocator.offline_memory(more).unwrap();
    assert_eq!(thresholds(&world), of(511, 15), "what goes offline is not");
    // A zone without managed frames has threshold 0, however many frames are present.
    world.allocator.offline_memory(crate::common::range(UNIT * 64, 4096)).unwrap();
    assert_eq!(thresholds(&world), [18, 0]);
    world.check();
}

/// Allocates single pages on one CPU. Returns how many user frames the totals show after each of `pages` allocations.
fn readings(rules: CounterRules, pages: usize) -> Vec<u64> {
    let world = Plan::even(1, 2, 1 << 16).build(&with(rules));
    run_on(0);
    let read = |_| {
        world.allocator.alloc(&Request::page()).unwrap();
        user(&world)
    };
    (0..pages).map(read).collect()
}

#[test]
fn folds_to_zero_bring_the_total_level() {
    let steps = |every: usize, first: usize, beyond: u64| -> Vec<u64> {
        let folded = |page: usize| page.checked_sub(first).map(|past| first + past / every * every);
        (1..=100).map(|page| folded(page).map_or(0, |at| at as u64 + beyond)).collect()
    };
    // With threshold 8, oversteps fold at 9, 22, 35 and so on, and exceed the true count by 4. Folds to zero happen at
    // 9, 18, 27 and so on.
    assert_eq!(readings(fixed(8), 100), steps(13, 9, 4));
    assert_eq!(readings(CounterRules { fold: FoldRule::ToZero, ..fixed(8) }, 100), steps(9, 9, 0));
}

/// Allocates and frees `pairs` pages on one CPU, 1000 at a time. Returns how often the node's counters were folded.
fn folds(rules: CounterRules, pairs: u64) -> u64 {
    let world = Plan::even(1, 4, 1 << 16).build(&with(rules));
    run_on(0);
    let before = world.node_folds();
    for _ in 0..pairs / 1000 {
        let held: Vec<_> = (0..1000).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
        world.free(held);
    }
    assert_eq!(world.allocator.locality().hit, pairs, "nothing is lost");
    world.node_folds() - before
}

#[test]
fn an_overstep_saves_a_third_of_the_folds() {
    let pairs = 20_000;
    for threshold in [8, 32, 125] {
        // Each page is counted when it is allocated and when it is freed; a turn moves up to one fold.
        let (every, turns) = (u64::from(threshold) + 1, 2 * pairs / 1000);
        let to_zero = folds(CounterRules { fold: FoldRule::ToZero, ..fixed(threshold) }, pairs);
        assert!(to_zero.abs_diff(2 * pairs / every) <= turns, "{to_zero} folds at {threshold}");
        let overstep = folds(fixed(threshold), pairs);
        let expected = 2 * pairs / (every + u64::from(threshold / 2));
        assert!(overstep.abs_diff(expected) <= turns, "{overstep} folds at {threshold}");
    }
}

/// Runs a random history on two nodes. Returns the allocated frames by kind at its end, and again after all CPUs have
/// folded.
fn history(rules: CounterRules, seed: u64) -> [[PageCount; 3]; 2] {
    let world = Plan::even(2, 2, 1 << 14).build(&with(rules));
    let (mut random, mut held) = (Random(seed), Vec::new());
    for step in 0..20_000 {
        run_on(random.below(4) as u32);
        if random.below(100) < 45 && !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            world.free([held.swap_remove(at)]);
        } else {
            let size = order([0, 0, 0, 0, 2, 5, 9][random.below(7) as usize]);
            let request = Request::new(size).kind(PageKind::ALL[random.below(3) as usize]).no_wait();
            held.extend(world.allocator.alloc(&request));
        }
        if step % 2000 == 0 {
            world.check();
        }
    }
    let before = world.allocator.allocated_approximate();
    world.allocator.tick();
    let mut exact = [PageCount::ZERO; 3];
    for node in world.allocator.nodes() {
        exact.iter_mut().zip(node.allocated).for_each(|(sum, of)| *sum = sum.plus(of));
    }
    let after = world.allocator.allocated_approximate();
    assert_eq!(after, exact, "folded");
    world.check();
    [before, after]
}

#[test]
fn the_machines_total_is_what_its_nodes_add_up_to() {
    for seed in 1..4 {
        for rules in [DEFAULT, fixed(32), CounterRules { fold: FoldRule::ToZero, ..fixed(3) }] {
            let [sums, exact] = history(rules, seed * 0x5851);
            let machine = CounterRules { totals: TotalsRule::AndMachine, ..rules };
            assert_eq!(history(machine, seed * 0x5851), [sums, exact], "{machine:?}");
            assert_ne!(sums, exact, "some differences were on CPUs");
        }
    }
}

#[test]
fn pressure_leaves_thresholds_unchanged_if_configured() {
    let lowered = |counters| {
        let world = Plan::even(1, 16, 1 << 16).build(&Config { counters, ..with_min(400) }).leak();
        run_on(0);
        let calm = world.zone(0).stat_threshold;
        let seen = Arc::new(AtomicU64::new(0));
        let note = Arc::clone(&seen);
        world.controls.set_reclaimer(Scripted::new(0, move |_, _| {
            note.store(u64::from(world.zone(0).stat_threshold), Relaxed);
            0
        }));
        world.leave_free(0, 100);
        world.allocator.background_reclaim(node(0));
        assert_eq!(world.zone(0).stat_threshold, calm);
        u64::from(calm) - seen.load(Relaxed)
    };
    assert_eq!(lowered(DEFAULT), 30 - 6);
    assert_eq!(lowered(first_posting()), 0);
    assert_eq!(lowered(CounterRules { pressure: PressureRule::Unchanged, ..DEFAULT }), 0);
    assert_eq!(lowered(fixed(60)), 0);
}

#[test]
fn no_rule_carries_a_zone_below_its_minimum() {
    let to_zero = CounterRules { fold: FoldRule::ToZero, ..DEFAULT };
    let unchanged = CounterRules { pressure: PressureRule::Unchanged, ..DEFAULT };
    for counters in [fixed(125), fixed(2), to_zero, unchanged] {
        let cpus = 64;
        let world = Plan::even(1, cpus, 1 << 16).build(&Config { counters, ..with_min(200) });
        let mut failures = 0;
        for turn in 0_u32.. {
            run_on(turn % cpus);
            let request = Request::new(order(if turn % 3 == 0 { 4 } else { 0 })).no_wait();
            failures = if world.allocator.alloc(&request).is_err() { failures + 1 } else { 0 };
            if failures > 2 * cpus {
                break;
            }
        }
        let zone = world.zone(0);
        assert_eq!(zone.free, zone.watermarks.min, "{counters:?}");
    }
}
