//! Tests of the settings for node reclaim and statistics, which change while the allocator is in use.

use crate::common::scenarios::{Random, Scripted, order, pages, with_min};
use crate::common::{Plan, World, range, run_on};
use zonal::config::{InvalidFree, NodeReclaim, StatInterval, ZonelistCache};
use zonal::error::ConfigError;
use zonal::request::PageKind;
use zonal::rules::stat_threshold::{CounterRules, ThresholdRule};
use zonal::units::{CpuId, PageCount};
use zonal::{Config, Request};

/// Builds nodes 0 and 1 below their watermarks and node 2 with plenty of free frames. Node 1 has no CPUs and is at
/// distance 25 from node 0.
fn near_full(mode: ZonelistCache) -> World {
    let mut plan = Plan::with_distances(1, 4096, |_, _| 25, 3);
    plan.nodes[1].1.clear();
    let world = plan.build(&Config { zonelist_cache: mode, node_reclaim: NodeReclaim::ON, ..with_min(600) });
    run_on(0);
    world.leave_free(0, 5);
    world.leave_free(1, 5);
    world
}

/// Returns how often node reclaim is called for node 0 and for node 1 while 100 pages are allocated within a second.
fn calls(world: &World, reclaimer: &Scripted) -> [usize; 2] {
    for _ in 0..100 {
        assert_eq!(world.server(&Request::page()), 2);
    }
    let targets = reclaimer.take_targets();
    [0, 1].map(|id| targets.iter().filter(|(node, _)| *node == id).count())
}

#[test]
fn the_reclaim_distance_changes_at_run_time() {
    // With the zonelist cache, each zone is reclaimed once a second. Without it, each zone is reclaimed for every page.
    for (mode, tries) in [(ZonelistCache::On, 1), (ZonelistCache::Off, 100)] {
        let world = near_full(mode);
        let barren = Scripted::new(1 << 20, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        for (distance, expected) in
            [(30, [1, 1]), (24, [1, 0]), (9, [0, 0]), (25, [1, 1]), (0, [0, 0]), (255, [1, 1])]
        {
            world.allocator.set_reclaim_distance(distance);
            assert_eq!(calls(&world, &barren), expected.map(|calls| calls * tries), "{mode:?}, {distance}");
            assert_eq!(world.allocator.settings().reclaim_distance, distance);
        }
    }
}

#[test]
fn the_unmapped_ratio_changes_at_run_time() {
    // A node has 100 reclaimable frames of 4096, which is more than 2 % and less than 3 %.
    let world = near_full(ZonelistCache::On);
    let barren = Scripted::new(100, |_, _| 0);
    world.controls.set_reclaimer(barren.clone());
    for (percent, expected) in [(2, [1, 1]), (3, [0, 0]), (100, [0, 0]), (0, [1, 1])] {
        world.allocator.set_min_unmapped_percent(percent).unwrap();
        assert_eq!(calls(&world, &barren), expected, "{percent} %");
        assert_eq!(world.allocator.settings().min_unmapped_percent, percent);
    }
    assert_eq!(world.allocator.set_min_unmapped_percent(101), Err(ConfigError::Percent(101)));
    assert_eq!(world.allocator.settings().min_unmapped_percent, 0, "nothing is changed");
}

#[test]
fn a_minimum_above_the_memory_that_is_left_does_not_prevent_other_changes() {
    let world = Plan::even(1, 1, 8192).build(&with_min(5000));
    let a = &world.allocator;
    a.offline_memory(range(8192 + 4096, 4096)).unwrap();
    let others =
        [("watermark_scale_factor", "30"), ("lowmem_reserve_ratio", "256 256 32 0"), ("movable_min", "own")];
    others.iter().for_each(|(name, text)| a.set_setting(name, text).unwrap());
    a.set_setting("min_free_kbytes", "20000").unwrap_err();
    assert_eq!(a.settings().watermarks.min_free, Some(pages(5000)), "nothing is changed");
}

#[test]
fn settings_are_those_of_the_configuration_until_they_change() {
    let counters = CounterRules { threshold: ThresholdRule::Fixed(9), ..CounterRules::default() };
    let config = Config {
        high_fraction: 70,
        counters,
        stat_interval: StatInterval::from_seconds(40).unwrap(),
        zonelist_cache: ZonelistCache::Original,
        node_reclaim: NodeReclaim::from_mode(5).unwrap(),
        reclaim_distance: 77,
        min_unmapped_percent: 6,
        invalid_free: InvalidFree::Checked,
        ..Config::default()
    };
    let world = Plan::even(1, 2, 1 << 14).build(&config);
    let settings = world.allocator.settings();
    assert_eq!((settings.node_load, settings.tuning), (config.node_load, config.tuning));
    assert_eq!((settings.high_fraction, settings.counters), (70, counters));
    assert_eq!((settings.reclaim_distance, settings.min_unmapped_percent), (77, 6));
    assert_eq!(
        (settings.zonelist_cache, settings.invalid_free),
        (ZonelistCache::Original, InvalidFree::Checked)
    );
    assert_eq!((settings.node_reclaim.mode(), settings.stat_interval.seconds()), (5, 40));
    world.allocator.set_stat_interval(StatInterval::SECOND);
    world.allocator.set_high_fraction(0);
    let changed = world.allocator.settings();
    assert_eq!((changed.stat_interval.seconds(), changed.high_fraction), (1, 0));
    assert_eq!((changed.reclaim_distance, changed.counters), (77, counters));
}

#[test]
fn an_interval_is_a_second_or_more() {
    assert_eq!(StatInterval::from_seconds(0), None);
    assert_eq!(StatInterval::from_seconds(1), Some(StatInterval::default()));
    assert_eq!(StatInterval::from_seconds(u32::MAX).map(StatInterval::seconds), Some(u32::MAX));
}

fn every(seconds: u32) -> StatInterval {
    StatInterval::from_seconds(seconds).unwrap()
}

/// Returns the number of allocated user frames according to the totals, without differences that have not been folded.
fn user(world: &World) -> u64 {
    world.allocator.allocated_approximate()[0].get()
}

/// Allocates a page at each of `seconds` and then ticks. Returns the totals after each tick.
fn readings(world: &World, seconds: core::ops::RangeInclusive<u64>) -> Vec<u64> {
    let reading = |second| {
        world.controls.set_ms(second * 1000);
        world.allocator.alloc(&Request::page()).unwrap();
        world.allocator.tick();
        user(world)
    };
    seconds.map(reading).collect()
}

#[test]
fn ticks_fold_at_the_interval_that_is_set() {
    let config = Config { stat_interval: every(5), ..Config::default() };
    let world = Plan::even(1, 64, 1 << 18).build(&config);
    run_on(0);
    assert_eq!(readings(&world, 1..=11), [0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 10]);
    world.allocator.set_stat_interval(every(2));
    assert_eq!(readings(&world, 12..=15), [12, 12, 14, 14]);
    world.allocator.set_stat_interval(every(1));
    assert_eq!(readings(&world, 16..=18), [16, 17, 18]);
    world.allocator.set_stat_interval(every(u32::MAX));
    assert_eq!(readings(&world, 19..=80), vec![18; 62]);
    world.allocator.stat_refresh();
    assert_eq!(user(&world), 80);
    world.check();
}

#[test]
fn each_cpu_folds_at_its_own_tick() {
    let config = Config { stat_interval: every(3), ..Config::default() };
    let world = Plan::even(1, 64, 1 << 18).build(&config);
    let at = |ms, cpu| {
        world.controls.set_ms(ms);
        world.allocator.tick_cpu(CpuId::new(cpu));
        user(&world)
    };
    for cpu in [0, 1] {
        run_on(cpu);
        (0..10).for_each(|_| _ = world.allocator.alloc(&Request::page()).unwrap());
    }
    assert_eq!([at(1000, 0), at(2000, 1), at(2400, 0), at(2600, 0)], [0, 0, 0, 10]);
    assert_eq!([at(2700, 1), at(2800, 1)], [20, 20], "to the nearest tick");
}

#[test]
fn a_long_interval_delays_nothing_but_folds() {
    let config = Config { stat_interval: every(1000), ..Config::default() };
    let mut plan = Plan::even(2, 1, 1 << 16);
    plan.nodes[1].1.clear();
    let world = plan.build(&config);
    run_on(0);
    let policy = zonal::Policy::preferred(&world.allocator, crate::common::node(1)).unwrap();
    let block = world.allocator.alloc(&Request::page().policy(&policy)).unwrap();
    assert_ne!(world.zone(1).in_pagesets, PageCount::ZERO);
    for second in 1..=4 {
        world.controls.set_ms(second * 1000);
        world.allocator.tick();
    }
    assert_eq!(world.zone(1).in_pagesets, PageCount::ZERO, "an idle remote pageset drains after three ticks");
    assert_eq!(user(&world), 0, "and what it counted stays");
    world.free([block]);
    world.check();
}

#[test]
fn a_clock_that_is_set_back_or_stands_still_holds_folds_up_for_no_longer_than_a_tick() {
    let world = Plan::even(1, 64, 1 << 18).build(&Config { stat_interval: every(5), ..Config::default() });
    run_on(0);
    assert_eq!(readings(&world, 100..=101), [1, 1]);
    assert_eq!(readings(&world, 50..=51), [3, 3]);
    world.allocator.set_stat_interval(every(1));
    assert_eq!(readings(&world, 51..=51), [5]);
    assert_eq!(readings(&world, 51..=51), [6]);
}

#[test]
fn a_refresh_makes_approximate_readings_exact_on_every_node() {
    let (nodes, cpus) = (3, 12);
    let config = Config { stat_interval: every(u32::MAX), ..Config::default() };
    let world = Plan::even(nodes, cpus / u32::from(nodes), 1 << 16).build(&config);
    let (mut random, mut held) = (Random(41), Vec::new());
    let all = [order(0), order(0), order(1), order(3), order(5), order(9)];
    for _ in 0..20 {
        for _ in 0..500 {
            run_on(random.below(u64::from(cpus)) as u32);
            if random.below(2) == 0 && !held.is_empty() {
                let at = random.below(held.len() as u64) as usize;
                world.free([held.swap_remove(at)]);
            } else {
                let kind = PageKind::ALL[random.below(3) as usize];
                let request = Request::new(all[random.below(6) as usize]).kind(kind).no_wait();
                held.extend(world.allocator.alloc(&request));
            }
        }
        let exact = || {
            let mut allocated = [PageCount::ZERO; 3];
            for node in world.allocator.nodes() {
                allocated.iter_mut().zip(node.allocated).for_each(|(sum, of)| *sum = sum.plus(of));
            }
            let free: PageCount = world.allocator.zones().map(|zone| zone.free).sum();
            (allocated, free, world.allocator.locality())
        };
        let approximate = || (world.allocator.allocated_approximate(), world.allocator.free_approximate());
        let (allocated, free, locality) = exact();
        world.controls.advance_ms(1000);
        world.allocator.tick();
        assert_ne!(approximate(), (allocated, free), "something is left on CPUs");
        world.allocator.stat_refresh();
        assert_eq!(approximate(), (allocated, free));
        assert_eq!(exact(), (allocated, free, locality), "nothing is lost");
        // All differences are folded now, so another refresh changes nothing.
        let folds = || {
            let of_zones = world.allocator.zones().map(|zone| zone.counter_folds).sum::<u64>();
            of_zones + world.node_folds()
        };
        let before = folds();
        world.allocator.stat_refresh();
        assert_eq!(folds(), before);
    }
    world.free(held);
    world.check();
}
