//! Tests of clocks that stop, jump or run backwards, of CPUs that vanish, and of CPUs that the machine does not have.
//! Requests succeed, wrong hints are corrected, and no frame is lost.

use crate::common::scenarios::{one_cpu, pages, with_min};
use crate::common::{Plan, Random, World, node, order, range, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::request::Block;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, ZoneKind};
use zonal::{Config, Request};

/// A century, in milliseconds.
const CENTURY_MS: u64 = 100 * 365 * 24 * 3600 * 1000;
/// The last whole millisecond that the clock can show, after 584 years.
const END_MS: u64 = u64::MAX / 1_000_000;
const TUNINGS: [PagesetTuning; 4] =
    [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
const CACHES: [ZonelistCache; 3] = [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Off];

/// Returns the milliseconds that a clock shows at its reading number `at`.
type Clock = fn(at: u64, random: &mut Random) -> u64;

const CLOCKS: [(&str, Clock); 6] = [
    ("stopped", |_, _| 0),
    ("stopped at its end", |_, _| END_MS),
    ("forward by centuries", |at, _| (at / 100 * CENTURY_MS).min(END_MS)),
    ("backward", |at, _| END_MS - at * 1500),
    ("back and forth by a second", |at, _| 1_000_000 + at % 2 * 1500),
    ("at random", |_, random| random.pick(&[0, 1, END_MS, random.0 % END_MS, 5_000, 7_000])),
];

#[test]
fn histories_are_exact_whatever_the_clock_shows() {
    for (name, clock) in CLOCKS {
        for (at, tuning) in TUNINGS.into_iter().enumerate() {
            let node_reclaim = [NodeReclaim::OFF, NodeReclaim::ON][at % 2];
            let config =
                Config { tuning, zonelist_cache: CACHES[at % CACHES.len()], node_reclaim, ..with_min(64) };
            let world = Plan::even(2, 2, 4096).build(&config);
            let (mut random, mut held) = (Random(at as u64), Vec::<Block>::new());
            for look in 0..3000 {
                world.controls.set_ms(clock(look, &mut random));
                run_on(random.below(4) as u32);
                match random.below(16) {
                    0 => world.allocator.tick(),
                    1..7 if !held.is_empty() => {
                        world.free([held.swap_remove(random.below(held.len() as u64) as usize)]);
                    }
                    _ => match world.allocator.alloc(&Request::new(order(random.pick(&[0, 0, 0, 1, 3])))) {
                        Ok(block) => held.push(block),
                        Err(why) => {
                            assert!(
                                world.allocator.accounting().allocated > pages(7000),
                                "{why}, clock {name}"
                            );
                            world.free(held.drain(..held.len() / 2));
                        }
                    },
                }
            }
            world.check();
            world.free(held);
            world.allocator.drain_pagesets();
            assert_eq!(world.allocator.verify().unwrap().free, pages(2 * 4096), "clock {name}");
        }
    }
}

#[test]
fn full_bits_expire_within_a_second_of_any_clock() {
    let leaps = [(0, CENTURY_MS), (CENTURY_MS, 0), (CENTURY_MS, CENTURY_MS - 5000), (END_MS, 1)];
    for (cache, (before, after)) in CACHES[..2].iter().flat_map(|&cache| leaps.map(|leap| (cache, leap))) {
        let config = Config { zonelist_cache: cache, ..with_min(64) };
        let world = one_cpu(&[4096, 4096, 4096], ZoneKind::Normal).build(&config);
        run_on(0);
        world.controls.set_ms(before);
        let mut held = Vec::new();
        while held.last().is_none_or(|block: &Block| block.node != node(2)) {
            held.push(world.allocator.alloc(&Request::page()).unwrap());
        }
        // Node 0 stays full. Node 1 has free frames now, but its full bit is still set.
        world.free(held.into_iter().filter(|block| block.node == node(1)));
        world.allocator.drain_pagesets();
        world.controls.set_ms(after);
        world.allocator.tick();
        world.allocator.alloc(&Request::page()).unwrap();
        world.controls.set_ms(after + 1001);
        world.allocator.drain_pagesets();
        assert_eq!(world.server(&Request::page()), 1, "{cache:?}, from {before} to {after} ms");
        world.check();
    }
}

/// Allocates many frames and then frees them, each in a period of its own, which raises `high`.
fn wave(world: &World) {
    let held: Vec<_> = (0..6000).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    world.controls.advance_ms(1100);
    world.free(held);
}

#[test]
fn tuning_goes_on_after_the_clock_went_backwards() {
    for (before, after) in
        [(CENTURY_MS, 0), (CENTURY_MS, CENTURY_MS - 5000), (0, CENTURY_MS), (END_MS - 9000, 3)]
    {
        let world = one_cpu(&[1 << 18], ZoneKind::Normal).build(&Config::default());
        run_on(0);
        let high = || world.allocator.pagesets().next().unwrap().high.get();
        world.controls.set_ms(before);
        (0..3).for_each(|_| wave(&world));
        let least = world.zone(0).pageset_limits.high_min.get();
        assert!(high() > least, "the wave is high enough");
        world.controls.set_ms(after);
        // The jump itself starts a new period. Three periods later, tuning works as before.
        (0..2).for_each(|_| world.free(world.allocator.alloc(&Request::page())));
        assert_eq!(high(), least, "from {before} to {after} ms");
        (0..3).for_each(|_| wave(&world));
        assert!(high() > least, "no more tuning from {before} to {after} ms");
        world.check();
    }
}

/// Builds an allocator in which CPU 1 caches frames and no longer runs. Returns it with the number of cached frames.
fn vanished(config: &Config, count: usize) -> (World, u64) {
    let world = Plan::even(1, 2, 1 << 14).build(config);
    run_on(1);
    let held: Vec<_> = (0..count).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    world.free(held);
    let kept = world.allocator.pagesets().map(|pageset| pageset.count.get()).sum();
    assert!(kept > 0);
    run_on(0);
    (world, kept)
}

#[test]
fn frames_of_a_vanished_cpu_can_be_allocated_by_others() {
    for tuning in TUNINGS {
        let config = Config { tuning, ..with_min(0) };
        // A request that would otherwise fail drains the pagesets of CPU 1.
        let (world, _) = vanished(&config, 100);
        let all = world.alloc_all(&Request::page().no_wait());
        assert_eq!(all.len(), 1 << 14, "{tuning:?}");
        world.free(all);
        // A request for a large block that includes the cached frames drains them too.
        world.allocator.drain_pagesets();
        assert_eq!(world.alloc_all(&Request::new(order(10)).no_wait()).len(), 16);
        // The tick drains them too.
        let (world, kept) = vanished(&config, 100);
        for _ in 0..6 {
            world.controls.advance_ms(1001);
            world.allocator.tick();
        }
        let least = world.zone(0).pageset_limits.high_min.get();
        assert!(world.zone(0).in_pagesets.get() <= kept.min(least));
        world.check();
    }
}

#[test]
fn requests_of_offline_and_unknown_cpus_bypass_the_pagesets() {
    for gone in [1, 2, 63, 1 << 20, u32::MAX] {
        let (world, _) = vanished(&Config::default(), 100);
        if gone == 1 {
            world.allocator.offline_cpu(CpuId::new(1)).unwrap();
            assert_eq!(world.zone(0).in_pagesets, pages(0), "its pagesets were drained");
        } else {
            world.allocator.offline_cpu(CpuId::new(gone)).unwrap_err();
            world.allocator.tick_cpu(CpuId::new(gone));
        }
        let kept = world.zone(0).in_pagesets;
        run_on(gone);
        let mut held = Vec::new();
        for at in 0..500 {
            held.push(world.allocator.alloc(&Request::new(order((at % 11) as u8 / 3))).unwrap());
            assert_eq!(world.zone(0).in_pagesets, kept, "CPU {gone} has no pagesets");
        }
        world.check();
        world.free(held);
        assert_eq!(world.zone(0).in_pagesets, kept);
        world.allocator.drain_pagesets();
        assert_eq!(world.allocator.verify().unwrap().free, pages(1 << 14));
    }
}

#[test]
fn memory_cached_by_a_vanished_cpu_can_go_offline() {
    let (world, _) = vanished(&with_min(0), 100);
    world.allocator.offline_memory(range(1 << 14, 1 << 14)).unwrap();
    assert_eq!(world.allocator.verify().unwrap().managed, pages(0));
}
