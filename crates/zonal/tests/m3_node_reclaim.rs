//! M3: the zonelist cache stands between a full zone and its reclaimer, and is reconsidered after
//! direct reclaim.

mod common;

use std::sync::mpsc;

use common::effects::{Scripted, TestRequest, caching, one_cpu, order, pages, with_min};
use common::{Plan, World, node, run_on};
use std::sync::Mutex;
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::units::ZoneKind;
use zonal::{Block, Config, Policy, Request};

const MODES: [ZonelistCache; 5] = [
    ZonelistCache::On,
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Off,
];
const PLENTY: u64 = 1 << 20;

fn config(mode: ZonelistCache) -> Config {
    Config { zonelist_cache: mode, node_reclaim: NodeReclaim::On, ..with_min(600) }
}

/// Node 0, with the CPU, below its watermarks; node 1 with plenty.
fn near_full(mode: ZonelistCache) -> World {
    let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode));
    run_on(0);
    world.leave_free(0, 5);
    world
}

fn serve(world: &World, count: usize, step_ms: u64) -> Vec<Block> {
    let page = || {
        world.controls.advance_ms(step_ms);
        world.allocator.alloc(&Request::page()).unwrap()
    };
    (0..count).map(|_| page()).collect()
}

#[test]
fn a_barren_reclaimer_is_called_once_a_second() {
    for mode in [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::CacheFirst] {
        let world = near_full(mode);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        let held = serve(&world, 10_000, 1);
        assert!(held.iter().all(|block| block.node == node(1)));
        assert!((9..=11).contains(&barren.calls()), "{mode:?}: {} calls", barren.calls());
        assert_eq!(barren.take_targets()[0], (0, 32));
    }
    for mode in [ZonelistCache::Original, ZonelistCache::Off] {
        let world = near_full(mode);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        serve(&world, 1000, 1);
        assert_eq!(barren.calls(), 1000, "{mode:?}: once a page");
    }
}

#[test]
fn as_first_published_the_cache_guards_all_reclaimers_but_the_first() {
    for (mode, first) in [(ZonelistCache::Original, 500), (ZonelistCache::CacheFirst, 1)] {
        // Node 1 has no CPUs: anybody may reclaim it.
        let world = one_cpu(&[2048, 2048, 1 << 16], ZoneKind::Normal).build(&config(mode));
        run_on(0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        serve(&world, 500, 1);
        let asked = barren.take_targets();
        let of = |id| asked.iter().filter(|(node, _)| *node == id).count();
        assert_eq!([of(0), of(1)], [first, 1], "{mode:?}");
    }
}

#[test]
fn as_first_published_a_first_zone_that_can_be_reclaimed_needs_no_cache() {
    for mode in [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original] {
        let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode)).leak();
        let (cache, _) = caching(world, PLENTY);
        let low = world.zone(0).watermarks.low.get() as usize;
        cache.keep(world.leave_free(0, low));
        world.controls.advance_ms(1001);
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!((server, events.node_reclaim_success, events.marks), (0, 1, 0), "{mode:?}");
        assert_eq!(events.wipes, u64::from(mode != ZonelistCache::Original), "{mode:?}");
    }
}

/// Both nodes below `min`: every scan is done twice. Node reclaims per failing request.
fn in_both_scans(mode: ZonelistCache, requests: u64) -> u64 {
    let world = one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config(mode));
    run_on(0);
    world.leave_free(0, 5);
    world.leave_free(1, 5);
    world.controls.set_reclaimer(Scripted::new(PLENTY, |_, _| 0));
    let (_, events) = world.during(|| {
        for _ in 0..requests {
            world.controls.advance_ms(10);
            assert!(world.allocator.alloc(&Request::page()).is_err());
        }
    });
    events.node_reclaim_some
}

#[test]
fn second_scans_reclaim_again_only_as_published() {
    // Two nodes, five seconds.
    let on = in_both_scans(ZonelistCache::On, 500);
    assert!((2 * 4..=2 * 6).contains(&on), "{on} reclaims");
    for mode in [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original] {
        let published = in_both_scans(mode, 500);
        assert!(published > 500 * 2, "{mode:?}: {published} reclaims");
    }
}

#[test]
fn a_large_request_that_freed_too_little_leaves_small_ones_their_try() {
    for (mode, server) in [
        (ZonelistCache::On, 0),
        (ZonelistCache::Published, 1),
        (ZonelistCache::CacheFirst, 1),
        (ZonelistCache::Original, 0), // it does not look before the first zone's reclaim
    ] {
        let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode)).leak();
        let (cache, reclaimer) = caching(world, PLENTY);
        let large = Request::new(order(9));
        cache.keep(world.leave_free(0, 5));
        // Nothing comes for a while, then the cache has frames to give up again.
        world.controls.set_reclaimer(Scripted::new(PLENTY, |_, _| 0));
        assert_eq!(world.server(&large), 1);
        world.controls.set_reclaimer(reclaimer.clone());
        assert_eq!(world.server(&Request::page()), server, "{mode:?}");
        assert_eq!(reclaimer.calls(), usize::from(server == 0));
    }
}

#[test]
fn little_to_give_up_is_skipped_and_not_marked() {
    for mode in MODES {
        let world = near_full(mode);
        let unworthy = Scripted::new(2048 / 100, |_, _| 0);
        world.controls.set_reclaimer(unworthy.clone());
        let (_, events) = world.during(|| serve(&world, 50, 0));
        assert_eq!((events.node_reclaim_full, events.marks), (50, 0), "{mode:?}");
        assert_eq!(unworthy.calls(), 0, "not even asked");
        let worthy = Scripted::new(2048 / 100 + 1, |_, _| 0);
        world.controls.set_reclaimer(worthy.clone());
        serve(&world, 1, 0);
        assert_eq!(worthy.calls(), 1);
    }
}

#[test]
fn who_may_not_wait_does_not_reclaim_nor_mark() {
    for mode in MODES {
        let world = near_full(mode);
        let reclaimer = Scripted::new(PLENTY, |_, _| 32);
        world.controls.set_reclaimer(reclaimer.clone());
        for _ in 0..10 {
            let (server, events) = world.during(|| world.server(&Request::page().no_wait()));
            assert_eq!((server, events.node_reclaim_no_scan, events.marks), (1, 1, 0), "{mode:?}");
        }
        assert_eq!(reclaimer.calls(), 0);
    }
}

#[test]
fn nodes_of_other_cpus_are_left_to_them() {
    for mode in [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::CacheFirst] {
        let mut plan = Plan::even(3, 1, 4096);
        plan.nodes[2].1.clear();
        let world = plan.build(&Config { cpu_penalty: zonal::fallback::CpuPenalty::Off, ..config(mode) });
        run_on(0);
        let reclaimer = Scripted::new(PLENTY, |_, _| 0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        world.controls.set_reclaimer(reclaimer.clone());
        for round in 0..10 {
            let (server, events) = world.during(|| world.server(&Request::page()));
            // Node 1 is looked at each time, as it is never marked.
            let seen = (server, events.node_reclaim_some, events.node_reclaim_no_scan, events.probes);
            assert_eq!(seen, (2, u64::from(round == 0), 1, 3), "{mode:?}");
        }
        assert_eq!(reclaimer.take_targets(), [(0, 32)]);
        world.leave_free(2, 5); // a node without CPUs is anybody's
        world.controls.advance_ms(1001);
        assert!(world.allocator.alloc(&Request::page().no_retry()).is_err());
        assert!(reclaimer.take_targets().contains(&(2, 32)));
    }
}

#[test]
fn one_caller_at_a_time() {
    for mode in MODES {
        let world = near_full(mode).leak();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let slow = Scripted::new(PLENTY, move |_, _| {
            begun.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
            0
        });
        world.controls.set_reclaimer(slow.clone());
        let first = std::thread::spawn(|| world.server(&Request::page()));
        has_begun.recv().unwrap();
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!((server, events.node_reclaim_no_scan, events.marks), (1, 1, 0), "{mode:?}");
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), 1);
        assert_eq!(slow.calls(), 1);
        go_on.send(()).unwrap(); // the turn is free again
        world.controls.advance_ms(1001);
        world.server(&Request::page());
        assert_eq!(slow.calls(), 2);
    }
}

#[test]
fn far_nodes_are_marked_instead() {
    for (distance, calls) in [(30, 1), (31, 0)] {
        let mut plan = Plan::with_distances(1, 4096, |_, _| distance, 3);
        plan.nodes[1].1.clear();
        let world = plan.build(&config(ZonelistCache::On));
        run_on(0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        for _ in 0..10 {
            assert_eq!(world.server(&Request::page()), 2);
        }
        let asked = barren.take_targets();
        assert_eq!(asked.iter().filter(|(node, _)| *node == 1).count(), calls, "distance {distance}");
        assert_eq!(asked.iter().filter(|(node, _)| *node == 0).count(), 1);
        assert_eq!(world.probes(&Request::page()), 2);
    }
}

#[test]
fn the_watermark_is_checked_again() {
    for mode in MODES {
        // Some: four frames of eight, and that lifts the zone above its watermark.
        let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode)).leak();
        let (cache, reclaimer) = caching(world, PLENTY);
        let low = world.zone(0).watermarks.low.get() as usize;
        cache.keep(world.leave_free(0, low + 5).drain(..4));
        let (server, events) = world.during(|| world.server(&Request::new(order(3))));
        assert_eq!((server, events.node_reclaim_some, reclaimer.calls()), (0, 1, 1), "{mode:?}");
        // Success by the reclaimer's word, but the frames are not there.
        let world = near_full(mode);
        world.controls.set_reclaimer(Scripted::new(PLENTY, |_, _| 32));
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!((server, events.node_reclaim_success), (1, 1), "{mode:?}");
        // At `low`, only as published is that a mark.
        let at_min_only = mode == ZonelistCache::On || mode == ZonelistCache::Off;
        assert_eq!(events.marks, u64::from(!at_min_only));
    }
}

#[test]
fn success_serves_from_the_reclaimed_node() {
    let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(ZonelistCache::On)).leak();
    let (cache, reclaimer) = caching(world, PLENTY);
    let low = world.zone(0).watermarks.low.get() as usize;
    cache.keep(world.leave_free(0, low));
    let held = serve(world, 1000, 0);
    assert!(held.iter().all(|block| block.node == node(0)));
    assert!(reclaimer.take_targets().iter().all(|&asked| asked == (0, 32)));
    let (_, events) = world.during(|| world.server(&Request::new(order(6)).no_retry()));
    assert!(events.node_reclaim_success + events.node_reclaim_some >= 1);
    assert!(reclaimer.take_targets().iter().all(|&asked| asked == (0, 64)), "max(2^order, 32)");
    assert_eq!(world.allocator.nodes().next().unwrap().reclaimed[2].get() % 32, 0);
}

/// Probes of a request that all scans fail for, until direct reclaim frees frames of node 3 alone.
fn probes_around_direct_reclaim(mode: ZonelistCache) -> u64 {
    let config = Config { zonelist_cache: mode, ..with_min(800) };
    let world = one_cpu(&[2048; 4], ZoneKind::Normal).build(&config).leak();
    let (cache, _) = caching(world, PLENTY);
    for id in 0..3 {
        world.leave_free(id, 5);
    }
    let min = world.zone(3).watermarks.min.get() as usize;
    let held = world.leave_free(3, min);
    assert!(world.allocator.alloc(&Request::page().no_wait()).is_err());
    cache.keep(held);
    let request: TestRequest<'_> = Request::page();
    let probes = world.probes(&request);
    assert_eq!(world.allocator.nodes().nth(3).unwrap().reclaimed[1], pages(32));
    probes
}

#[test]
fn direct_reclaim_makes_scans_reconsider() {
    // Before it, low and min: node 0 and what the marks leave, then all four. After it: as
    // published all four again; else node 0 and the one node that was reclaimed.
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::Published), 2 * (1 + 4) + 4);
    // Before all marks were cleared: node 0 alone, and once more all four.
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::CacheFirst), 2 * (1 + 4) + 1 + 4);
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::Original), 2 * (1 + 4) + 1 + 4);
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::On), 2 * (1 + 4) + 2);
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::Off), 2 * 4 + 4);
}

#[test]
fn reclaimers_own_requests_never_reclaim() {
    let world = near_full(ZonelistCache::On);
    let reclaimer = Scripted::new(PLENTY, |_, _| 0);
    world.controls.set_reclaimer(reclaimer.clone());
    let strict = Policy::preferred(&world.allocator, node(0)).unwrap();
    use zonal::Platform;
    world.allocator.platform().set_reclaiming(true);
    let got = world.take_all(&Request::page().policy(&strict).this_node());
    world.allocator.platform().set_reclaiming(false);
    assert_eq!((got.len(), reclaimer.calls()), (5, 0), "the last frames, and no reclaim");
}
