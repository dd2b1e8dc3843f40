//! Tests of M2, tuned pagesets: they are deep where many frames are allocated and freed, and shallow elsewhere.

use std::num::NonZeroU64;

use crate::common::scenarios::{one_cpu, order, pages, with_min};
use crate::common::{Plan, Random, World, node, run_on};
use zonal::config::Faults;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::{Events, PagesetSnapshot};
use zonal::units::{CpuId, ZoneKind};
use zonal::{Block, Config, Policy, Request};

const MANAGED: u64 = 1 << 19;

fn one_node(tuning: PagesetTuning) -> World {
    one_cpu(&[MANAGED], ZoneKind::Normal).build(&Config { tuning, ..Config::default() })
}

fn pageset_of(world: &World, cpu: u32, id: u16) -> PagesetSnapshot {
    let zone = world.zone(id).id;
    world.allocator.pagesets().find(|set| set.zone == zone && set.cpu == CpuId::new(cpu)).unwrap()
}

fn pageset(world: &World) -> PagesetSnapshot {
    pageset_of(world, 0, 0)
}

fn high(world: &World) -> u64 {
    pageset(world).high.get()
}

fn high_min(world: &World) -> u64 {
    world.zone(0).pageset_limits.high_min.get()
}

fn take(world: &World, count: usize) -> Vec<Block> {
    (0..count).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect()
}

/// Allocates `count` pages and frees all of them, `rounds` times. Each round takes a little more than a second.
fn repeat(world: &World, count: usize, rounds: usize) -> Events {
    let (_, events) = world.during(|| {
        for _ in 0..rounds {
            let held = take(world, count);
            world.controls.advance_ms(550);
            world.free(held);
            world.controls.advance_ms(550);
        }
    });
    events
}

#[test]
fn repeat_raises_high_and_spares_refills() {
    let [depth, fixed] = [PagesetTuning::Depth, PagesetTuning::Fixed].map(|tuning| {
        let world = one_node(tuning);
        assert_eq!(high(&world), high_min(&world));
        repeat(&world, 32_768, 6);
        let events = repeat(&world, 32_768, 4);
        let grown = high(&world) > 8 * high_min(&world);
        assert_eq!(grown, tuning == PagesetTuning::Depth, "high {}", high(&world));
        world.check();
        events
    });
    assert!(fixed.refills > 1000 && fixed.drains > 1000, "{fixed:?}");
    assert!(depth.refills * 10 <= fixed.refills, "{} refills against {}", depth.refills, fixed.refills);
    assert!(depth.drains * 10 <= fixed.drains, "{} drains against {}", depth.drains, fixed.drains);
}

/// After a long run of allocations, no pageset takes a large part of the frames that are left.
#[test]
fn refills_of_a_long_run_leave_frames_for_other_cpus() {
    let world = one_node(PagesetTuning::Depth);
    let mut counts = (0, 0);
    loop {
        let zone = world.zone(0);
        let spare = zone.free.get().saturating_sub(zone.watermarks.low.get());
        if spare < 1024 {
            break;
        }
        let before = pageset(&world).count.get();
        world.allocator.alloc(&Request::page()).unwrap();
        let came = (pageset(&world).count.get() + 1).saturating_sub(before);
        assert!(came <= 128.max(spare / 8), "{came} frames came while {spare} were left");
        counts = (counts.0 + u64::from(came >= 512), counts.1 + u64::from(came > 0));
    }
    assert!(counts.0 > 0 && counts.1 > counts.0, "large refills and all refills: {counts:?}");
}

#[test]
fn another_tuning_starts_afresh_and_holds_from_then_on() {
    let world = one_node(PagesetTuning::Depth);
    repeat(&world, 8192, 8);
    assert!(high(&world) > 4 * high_min(&world), "high {}", high(&world));
    world.allocator.set_tuning(PagesetTuning::Fixed).unwrap();
    assert_eq!(high(&world), high_min(&world));
    repeat(&world, 8192, 8);
    assert_eq!(high(&world), high_min(&world));
    world.allocator.set_tuning(PagesetTuning::Depth).unwrap();
    repeat(&world, 8192, 8);
    assert!(high(&world) > 4 * high_min(&world), "high {}", high(&world));
    world.check();
}

#[test]
fn allocation_alone_never_raises_high() {
    let world = one_node(PagesetTuning::Depth);
    for _ in 0..10 {
        let mut held = take(&world, 5000);
        world.controls.advance_ms(1100);
        world.free(held.pop()); // only a free ends a period
        assert_eq!(high(&world), high_min(&world));
    }
}

#[test]
fn freeing_alone_never_raises_high() {
    let world = one_node(PagesetTuning::Depth);
    let mut held = take(&world, 100_000);
    world.controls.advance_ms(3000);
    while held.len() >= 5000 {
        world.free(held.drain(..5000));
        world.controls.advance_ms(1100);
        world.free(held.pop());
        assert_eq!(high(&world), high_min(&world));
    }
}

#[test]
fn high_follows_the_lesser_depth() {
    let world = one_node(PagesetTuning::Depth);
    let mut kept = Vec::new();
    for _ in 0..12 {
        kept.extend(take(&world, 12_000)); // allocates 12 000 frames, of which the next lines free 6000
        let back = kept.split_off(kept.len() - 6000);
        world.controls.advance_ms(550);
        world.free(back);
        world.controls.advance_ms(550);
    }
    assert!((5000..=6001).contains(&high(&world)), "high {}", high(&world));
}

#[test]
fn two_idle_periods_reset_the_measured_depths() {
    let world = one_node(PagesetTuning::Depth);
    repeat(&world, 8192, 5);
    assert!(high(&world) > 2 * high_min(&world));
    let held = take(&world, 2);
    world.controls.advance_ms(2100);
    world.free(held);
    assert_eq!(high(&world), high_min(&world));
    // The averages are reset too. Otherwise their remainder would raise `high` in the next period.
    world.controls.advance_ms(1100);
    world.free(take(&world, 1));
    assert_eq!(high(&world), high_min(&world));
}

/// Allocates all 2 MiB blocks except a few.
fn take_large(world: &World) -> Vec<Block> {
    let blocks = MANAGED / 512;
    (0..blocks - blocks / 64 + 2).map(|_| world.allocator.alloc(&Request::new(order(9))).unwrap()).collect()
}

#[test]
fn high_is_held_down_while_large_blocks_are_scarce() {
    for tuning in [PagesetTuning::Depth, PagesetTuning::Stepwise] {
        let world = one_node(tuning);
        let large = take_large(&world);
        repeat(&world, 4000, 5);
        assert_eq!(high(&world), high_min(&world), "{tuning:?}");
        assert!(pageset(&world).count.get() <= high_min(&world));
        world.free(large);
        repeat(&world, 4000, 6);
        assert!(high(&world) > 2 * high_min(&world), "{tuning:?} recovers");
        world.check();
    }
}

#[test]
fn a_deep_pageset_drains_once_large_blocks_are_scarce() {
    let world = one_node(PagesetTuning::Depth);
    repeat(&world, 6000, 6);
    let held = take(&world, 5000);
    assert!(high(&world) > 2 * high_min(&world));
    let _large = take_large(&world);
    world.free(held);
    assert!(pageset(&world).count.get() <= high_min(&world), "no period had to end first");
}

#[test]
fn stepwise_grows_with_use_and_decays_with_ticks() {
    let world = one_node(PagesetTuning::Stepwise);
    let low = high_min(&world);
    repeat(&world, 32_768, 3);
    let grown = high(&world);
    assert!(grown > 8 * low, "high {grown}");
    assert!(pageset(&world).count.get() > 2 * low);
    let fewer = repeat(&world, 4096, 3);
    assert!(fewer.refills < 3, "a deep pageset serves alone: {} refills", fewer.refills);
    let mut before = high(&world);
    for _ in 0..80 {
        world.allocator.tick();
        let now = high(&world);
        assert!(now <= before && now >= before - before / 8 && pageset(&world).count.get() <= now);
        before = now;
    }
    assert_eq!(before, low);
    world.check();
}

#[test]
fn stepwise_shrinks_while_its_zone_is_below_high() {
    // The watermarks are so high that enough large blocks remain below them.
    let config = Config { tuning: PagesetTuning::Stepwise, ..with_min(1 << 14) };
    let world = Plan::even(1, 4, MANAGED).build(&config);
    run_on(0);
    repeat(&world, 32_768, 3);
    let (grown, low) = (high(&world), high_min(&world));
    assert!(grown > low + 4000, "{grown} {low}");
    world.allocator.drain_pagesets();
    let zone = world.zone(0);
    let mut held = take(&world, (zone.free.get() - zone.watermarks.low.get() - 1000) as usize);
    assert!(world.zone(0).free < zone.watermarks.high);
    // The pageset holds fewer frames than `high`, but they are drained because the zone is below its `high` watermark.
    world.free(held.drain(..(low + 2000) as usize));
    assert!(pageset(&world).count.get() <= low, "{} kept", pageset(&world).count);
    assert!(high(&world) < grown);
    world.free(held);
    world.check();
}

#[test]
fn stepwise_decays_an_empty_pageset_too() {
    let world = one_node(PagesetTuning::Stepwise);
    repeat(&world, 32_768, 3);
    let _held = take(&world, pageset(&world).count.get() as usize);
    assert_eq!(pageset(&world).count, pages(0));
    (0..80).for_each(|_| world.allocator.tick());
    assert_eq!(high(&world), high_min(&world));
}

#[test]
fn stepwise_refills_grow_during_a_run_of_allocations() {
    let [stepwise, fixed] = [PagesetTuning::Stepwise, PagesetTuning::Fixed].map(|tuning| {
        let world = one_node(tuning);
        world.during(|| take(&world, 50_000)).1.refills
    });
    // Refills are counted in batches. A run moves up to eight of them at a time, so the difference depends on how many
    // frames stay in the pageset.
    assert!(stepwise <= fixed + 8, "{stepwise} {fixed}");
    let world = one_node(PagesetTuning::Stepwise);
    take(&world, 50_000);
    let counts = (0..512).map(|_| {
        take(&world, 1);
        pageset(&world).count.get()
    });
    assert_eq!(counts.max(), Some(511), "a refill is cut at 512 frames, one of which was allocated");
}

/// Compares the fast path of the stepwise rule with one step at a time under the lock, on the same random steps: runs of
/// allocations, runs of frees, mixtures of both, larger blocks, and ticks.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn stepwise_is_exact_without_the_lock() {
    let tuning = PagesetTuning::Stepwise;
    // Fault injection turns off the fast path; no request has this number.
    let each_locked = Config { tuning, faults: Faults::EveryNth(NonZeroU64::MAX), ..Config::default() };
    let worlds = [Config { tuning, ..Config::default() }, each_locked]
        .map(|config| one_cpu(&[1 << 16], ZoneKind::Normal).build(&config));
    let mut held = worlds.each_ref().map(|world| take(world, 20_000));
    let mut large = [(); 2].map(|()| Vec::new());
    let mut random = Random(9);
    let (mut moved, mut drains) = (0_u64, 0);
    for round in 0..3000 {
        let most = random.pick(&[6, 40, 900]);
        let (steps, pops_of_8) = (random.below(most), random.pick(&[0, 3, 4, 4, 5, 8]));
        for _ in 0..steps {
            let pops = random.below(8) < pops_of_8;
            let before = pageset(&worlds[0]).drains;
            for (world, held) in worlds.iter().zip(&mut held) {
                if pops && held.len() < 40_000 {
                    held.push(world.allocator.alloc(&Request::page()).unwrap());
                } else {
                    world.free(held.pop());
                }
            }
            let [fast, locked] = worlds.each_ref().map(pageset);
            assert_eq!(fast, locked, "round {round}");
            moved += 1;
            drains += u64::from(fast.drains > before);
        }
        let other = random.below(80);
        for (world, large) in worlds.iter().zip(&mut large) {
            match other {
                0..8 => world.allocator.tick(),
                8..12 => large.extend(world.allocator.alloc(&Request::new(order(2)))),
                12..16 => world.free(large.pop()),
                16 => world.allocator.drain_pagesets(),
                _ => {}
            }
        }
    }
    assert!(moved > 100_000 && drains > 100, "{moved} steps, {drains} drains");
    worlds.iter().for_each(World::check);
}

#[test]
fn pagesets_of_other_nodes_cpus_stay_small() {
    for tuning in [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed] {
        let world = Plan::even(2, 1, 1 << 18).build(&Config { tuning, ..Config::default() });
        run_on(0);
        let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
        let cap = 4 * world.zone(1).pageset_limits.batch.get();
        for _ in 0..5 {
            let far = || world.allocator.alloc(&Request::page().policy(&policy)).unwrap();
            let held: Vec<Block> = (0..5000).map(|_| far()).collect();
            world.controls.advance_ms(550);
            for block in held {
                assert_eq!(block.node, node(1));
                world.free([block]);
                assert!(pageset_of(&world, 0, 1).count.get() <= cap);
            }
            world.controls.advance_ms(550);
        }
        assert_eq!(pageset_of(&world, 0, 1).high.get(), cap, "{tuning:?}");
    }
}

#[test]
fn idle_pagesets_drain() {
    let world = Plan::even(2, 1, 1 << 18).build(&Config::default());
    run_on(0);
    repeat(&world, 8192, 5);
    let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
    let far = world.allocator.alloc(&Request::page().policy(&policy)).unwrap();
    let counts = || [pageset_of(&world, 0, 0).count.get(), pageset_of(&world, 0, 1).count.get()];
    let before = counts();
    assert!(before[0] > 4 * high_min(&world) && before[1] > 0);
    world.allocator.tick(); // this tick records that the pagesets were used
    world.allocator.tick();
    assert_eq!(counts(), before, "idle for one tick");
    world.allocator.tick();
    assert_eq!(counts(), [high_min(&world), before[1]], "two: local down to its limit");
    world.allocator.tick();
    assert_eq!(counts(), [high_min(&world), 0], "three: remote drains");
    world.free([far]);
    assert_eq!(counts()[1], 1);
    for _ in 0..8 {
        world.allocator.tick();
        world.free([world.allocator.alloc(&Request::page().policy(&policy)).unwrap()]);
    }
    assert!(counts()[1] > 0, "one in use does not drain");
    world.check();
}

#[test]
fn a_high_fraction_fixes_high() {
    for tuning in [PagesetTuning::Depth, PagesetTuning::Stepwise] {
        let world = one_node(tuning);
        world.allocator.set_high_fraction(64);
        let fixed = MANAGED / 64;
        assert_eq!(high(&world), fixed);
        repeat(&world, 32_768, 4);
        world.allocator.tick();
        assert_eq!(high(&world), fixed);
        world.allocator.set_high_fraction(0);
        assert_eq!(high(&world), high_min(&world));
        repeat(&world, 32_768, 6);
        assert!(high(&world) > fixed, "{tuning:?} tunes again");
    }
}

#[test]
fn limits_follow_cpus() {
    // The slots are laid out once. Together, the four CPUs' slots hold a thirteenth of the zone.
    let slots = (1 << 18) / 13 / 4 + 64;
    let limits = |low: u64, managed: u64, cpus: u64| {
        [low / cpus, managed / 8 / cpus].map(|high| high.max(252).min(slots))
    };
    for tuning in [PagesetTuning::Depth, PagesetTuning::Fixed] {
        let world = Plan::even(1, 4, 1 << 18).build(&Config { tuning, ..with_min(3600) });
        run_on(0);
        let check = |cpus: u64| {
            let zone = world.zone(0);
            let expected = limits(zone.watermarks.low.get(), zone.managed.get(), cpus);
            let found = [zone.pageset_limits.high_min.get(), zone.pageset_limits.high_max.get()];
            assert_eq!(found[0], expected[0], "{cpus} CPUs");
            // The slots for all CPUs may lower the upper limit.
            assert!((zone.managed.get() / 16 / 4..=expected[1]).contains(&found[1]), "{}", found[1]);
            expected[0]
        };
        assert_eq!(high(&world), check(4));
        for gone in [3, 2, 1] {
            let held = take(&world, 100);
            run_on(gone);
            world.free(held);
            world.allocator.offline_cpu(CpuId::new(gone)).unwrap();
            assert_eq!(pageset_of(&world, gone, 0).count, pages(0), "drained");
            run_on(0);
            let low = check(u64::from(gone));
            assert!(high(&world) >= low, "{tuning:?}");
        }
        for back in [1, 2, 3] {
            world.allocator.online_cpu(CpuId::new(back)).unwrap();
        }
        let low = check(4);
        if tuning == PagesetTuning::Fixed {
            assert_eq!(high(&world), low, "a fixed high is the lower limit, whatever it was");
        }
        world.check();
    }
}
