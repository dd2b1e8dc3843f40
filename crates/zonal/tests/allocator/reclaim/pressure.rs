//! Tests of memory pressure: what is reported, how often, and how stalls are measured.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::scenarios::{Scripted, caching, one_cpu, pages};
use crate::common::{World, node, order, run_on};
use zonal::platform::pressure::{PressureKind, StallShares};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::ZoneKind;
use zonal::{Block, Config, Request};

fn world() -> &'static World {
    let watermarks = WatermarkSettings { min_free: Some(pages(100)), ..WatermarkSettings::default() };
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&Config { watermarks, ..Config::default() }).leak();
    world.controls.set_ms(10_000);
    run_on(0);
    world
}

fn kinds(world: &World) -> Vec<PressureKind> {
    world.controls.take_pressure().iter().map(|event| event.kind).collect()
}

/// Allocates until a request fails.
fn fill(world: &World) -> Vec<Block> {
    std::iter::from_fn(|| world.allocator.alloc(&Request::page().no_wait()).ok()).collect()
}

#[test]
fn a_node_is_reported_when_it_falls_below_low_and_when_it_is_above_high_again() {
    let world = world();
    let a = &world.allocator;
    let mut blocks = Vec::new();
    while world.zone(0).free >= world.zone(0).watermarks.low {
        assert_eq!(kinds(world), []);
        blocks.push(a.alloc(&Request::page()).unwrap());
    }
    // The pageset may still serve some requests without a look at the watermarks.
    blocks.extend(fill(world));
    let events = world.controls.take_pressure();
    let reported: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(reported, [PressureKind::BelowLow, PressureKind::Failing]);
    let watermarks = world.zone(0).watermarks;
    assert_eq!((events[0].node, events[0].low, events[0].high), (node(0), watermarks.low, watermarks.high));
    assert!(events[0].free < watermarks.low);
    // Frees alone report nothing, the next tick does, and only once.
    world.free(blocks.drain(..));
    a.drain_pagesets();
    assert_eq!(kinds(world), []);
    a.tick();
    a.tick();
    assert_eq!(kinds(world), [PressureKind::AboveHigh]);
    // Within a second, the node is not reported again.
    blocks.extend(fill(world));
    assert_eq!(kinds(world), []);
    world.controls.advance_ms(1000);
    assert!(a.alloc(&Request::page().no_wait()).is_err());
    assert_eq!(kinds(world), [PressureKind::BelowLow, PressureKind::Failing]);
    world.free(blocks);
}

#[test]
fn stalls_and_failures_are_reported_once_a_second() {
    let world = world();
    let a = &world.allocator;
    let blocks = fill(world);
    world.controls.advance_ms(5000);
    kinds(world);
    for _ in 0..10 {
        assert!(a.alloc(&Request::page()).is_err());
    }
    assert_eq!(kinds(world), [PressureKind::Stalling, PressureKind::Failing]);
    world.controls.advance_ms(999);
    assert!(a.alloc(&Request::page()).is_err());
    assert_eq!(kinds(world), []);
    world.controls.advance_ms(1);
    assert!(a.alloc(&Request::new(order(3))).is_err());
    assert_eq!(kinds(world), [PressureKind::Stalling, PressureKind::Failing]);
    // A clock that is set back does not silence the events for ever.
    world.controls.set_ms(100);
    assert!(a.alloc(&Request::page()).is_err());
    assert_eq!(kinds(world), [PressureKind::Stalling, PressureKind::Failing]);
    world.free(blocks);
}

/// In every two seconds, a node is below `low` from 0.0 to 0.9 s and for a moment at 1.0 s, while requests stall and fail.
#[test]
fn events_of_one_kind_are_a_second_apart() {
    let world = world();
    let a = &world.allocator;
    let mut seen: Vec<(u64, PressureKind)> = Vec::new();
    let mut blocks = Vec::new();
    for tenth in 0..100 {
        if matches!(tenth % 20, 0 | 10) {
            blocks.extend(fill(world));
            assert!(a.alloc(&Request::page()).is_err());
        }
        if matches!(tenth % 20, 9 | 10) {
            world.free(blocks.drain(..));
            a.drain_pagesets();
        }
        a.tick();
        seen.extend(kinds(world).into_iter().map(|kind| (tenth, kind)));
        world.controls.advance_ms(100);
    }
    let all =
        [PressureKind::BelowLow, PressureKind::AboveHigh, PressureKind::Stalling, PressureKind::Failing];
    for kind in all {
        let times: Vec<u64> = seen.iter().filter(|(_, of)| *of == kind).map(|&(tenth, _)| tenth).collect();
        assert!(times.len() >= 5, "{kind:?}: {times:?}");
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{kind:?}: {times:?}");
    }
    assert!(seen.iter().all(|(_, kind)| all.contains(kind)), "a kind is missing in the list: {seen:?}");
    // The two levels alternate, so a report that was too early is made later.
    let levels = seen.iter().map(|&(_, kind)| kind).filter(|kind| all[..2].contains(kind));
    let levels: Vec<_> = levels.collect();
    assert!(levels.windows(2).all(|pair| pair[0] != pair[1]), "{levels:?}");
    assert_eq!(levels[0], PressureKind::BelowLow);
}

#[test]
fn the_time_of_stalls_is_measured() {
    let world = world();
    let a = &world.allocator;
    let blocks = fill(world);
    // Each call of the reclaimer takes three seconds.
    let controls = Arc::clone(&world.controls);
    world.controls.set_reclaimer(Scripted::by_request(
        |_| 1,
        move |_| {
            controls.advance_ms(3000);
            0
        },
    ));
    assert_eq!(a.stall_shares(node(0)), Some(StallShares::default()));
    assert_eq!(a.stall_shares(node(9)), None);
    assert!(a.alloc(&Request::page().no_retry()).is_err());
    // The clock is at 13 s: 3 of the last 10 s.
    let shares = a.stall_shares(node(0)).unwrap();
    assert_eq!((shares.last_10s, shares.last_60s, shares.last_300s), (3000, 500, 100));
    assert_eq!(shares.to_string(), "avg10=30.00 avg60=5.00 avg300=1.00");
    assert_eq!(a.nodes().next().unwrap().stalled, shares);
    world.controls.advance_ms(8500);
    // The clock is at 21.5 s: the window is 10 whole seconds and the half one that has begun.
    assert_eq!(a.stall_shares(node(0)).unwrap().last_10s, (2000 * 10_000 / 10_500) as u16);
    world.controls.advance_ms(400_000);
    assert_eq!(a.stall_shares(node(0)), Some(StallShares::default()));
    world.free(blocks);
}

/// As when a process looks whose clock is behind: the time that a stall had before must not count again, nor that before it.
#[test]
fn no_time_counts_as_stalled_because_a_clock_is_behind() {
    let world = world();
    let a = &world.allocator;
    let blocks = fill(world);
    let controls = Arc::clone(&world.controls);
    world.controls.set_reclaimer(Scripted::by_request(
        |_| 1,
        move |_| {
            for behind_ms in [0, 300_000, 399_999] {
                controls.set_ms(behind_ms);
                _ = a.stall_shares(node(0));
                controls.set_ms(400_000);
                _ = a.stall_shares(node(0));
            }
            controls.set_ms(403_000);
            0
        },
    ));
    world.controls.set_ms(400_000);
    assert!(a.alloc(&Request::page().no_retry()).is_err());
    let shares = a.stall_shares(node(0)).unwrap();
    assert_eq!((shares.last_10s, shares.last_60s, shares.last_300s), (3000, 500, 100));
    world.free(blocks);
}

#[test]
fn a_callback_may_allocate_and_free() {
    let world = world();
    let a = &world.allocator;
    let (cache, _) = caching(world, 4000);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    world.controls.on_pressure(move |_| {
        counted.fetch_add(1, Relaxed);
        if let Ok(block) = a.alloc(&Request::page()) {
            a.free(block.first, block.order).unwrap();
        }
    });
    for _ in 0..6000 {
        cache.keep([a.alloc(&Request::page()).unwrap()]);
    }
    assert!(calls.load(Relaxed) >= 2, "low, and a stall");
    world.check();
}
