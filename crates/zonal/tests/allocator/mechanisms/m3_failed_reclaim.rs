//! Tests of M3: how long, and for which zone limits, scans remember that node reclaim failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::scenarios::{Cache, Scripted, caching, one_cpu, with_min};
use crate::common::{World, node, range, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::platform::reclaimer::ReclaimReason;
use zonal::units::ZoneKind;
use zonal::{Config, Request};

const PLENTY: u64 = 1 << 20;

fn config(mode: ZonelistCache) -> Config {
    Config { zonelist_cache: mode, node_reclaim: NodeReclaim::ON, ..with_min(600) }
}

/// Builds one node whose zone has `frames` frames fewer free than `watermarks.min`. Its reclaimable cache holds 3000
/// frames.
fn short_by(mode: ZonelistCache, frames: u64) -> (&'static World, Arc<Cache>, Arc<Scripted>) {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&config(mode)).leak();
    run_on(0);
    let (cache, reclaimer) = caching(world, PLENTY);
    let min = world.zone(0).watermarks.min.get();
    let mut held = world.leave_free(0, (min - frames) as usize);
    cache.keep(held.drain(..3000));
    (world, cache, reclaimer)
}

/// With or without the zonelist cache, the same requests succeed, however often node reclaim must be tried.
#[test]
fn the_cache_never_decides_whether_a_request_succeeds() {
    for frames in [1, 20, 60, 100, 140, 160, 180, 300, 500] {
        let results = [ZonelistCache::Off, ZonelistCache::On].map(|mode| {
            let (world, _cache, _reclaimer) = short_by(mode, frames);
            let once = world.allocator.alloc(&Request::page().no_retry()).is_ok();
            let (world, cache, _) = short_by(mode, frames);
            // Only node reclaim frees frames. Direct and background reclaim free nothing.
            let only_node = move |request: &zonal::platform::reclaimer::ReclaimRequest| {
                request.reason == ReclaimReason::Node
            };
            let reclaimer = Scripted::by_request(
                move |request| if only_node(request) { PLENTY } else { 0 },
                move |request| {
                    let may = only_node(request);
                    if may { cache.reclaim(&world.allocator, request.node, request.target) } else { 0 }
                },
            );
            world.controls.set_reclaimer(reclaimer);
            (once, world.allocator.alloc(&Request::page()).is_ok())
        });
        assert_eq!(results[0], results[1], "short by {frames}");
        assert_eq!(results[0], (true, true), "short by {frames}: there is enough to reclaim");
    }
}

/// Builds node 0 below its watermarks, node 1 with plenty of free frames, and a reclaimer that frees nothing.
fn barren(mode: ZonelistCache) -> (World, Arc<Scripted>) {
    let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode));
    run_on(0);
    world.leave_free(0, 5);
    let reclaimer = Scripted::new(PLENTY, |_, _| 0);
    world.controls.set_reclaimer(reclaimer.clone());
    (world, reclaimer)
}

#[test]
fn remembered_failures_end_when_the_clock_is_set_back() {
    for mode in [ZonelistCache::On, ZonelistCache::Published] {
        let (world, reclaimer) = barren(mode);
        world.controls.set_ms(100_000_000);
        world.allocator.alloc(&Request::page()).unwrap();
        assert_eq!(reclaimer.calls(), 1);
        world.controls.set_ms(1000);
        for _ in 0..1000 {
            world.controls.advance_ms(10);
            world.allocator.alloc(&Request::page()).unwrap();
        }
        assert!((9..=12).contains(&reclaimer.calls()), "{mode:?}: {} calls", reclaimer.calls());
    }
}

#[test]
fn another_mode_of_node_reclaim_is_tried_at_once() {
    let (world, reclaimer) = barren(ZonelistCache::On);
    for (at, mode) in [1, 3, 7].into_iter().enumerate() {
        world.allocator.set_node_reclaim(NodeReclaim::from_mode(mode).unwrap());
        for _ in 0..3 {
            world.allocator.alloc(&Request::page()).unwrap();
        }
        assert_eq!(reclaimer.calls(), at + 1, "mode {mode}");
    }
}

/// If node reclaim failed for a request with a higher zone limit, a request that needs the lower zone tries node
/// reclaim again.
#[test]
fn failures_are_remembered_by_zone_limit() {
    let base = 1 << 20;
    let mut plan = one_cpu(&[4096, 4096], ZoneKind::Normal);
    plan.zones = vec![
        (0, ZoneKind::Dma32, 4096, 4096, vec![(4096, 4096)]),
        (0, ZoneKind::Normal, base, 4096, vec![(base, 4096)]),
        (1, ZoneKind::Dma32, 1 << 18, 1 << 16, vec![(1 << 18, 1 << 16)]),
        (1, ZoneKind::Normal, base + (1 << 18), 1 << 16, vec![(base + (1 << 18), 1 << 16)]),
    ];
    for mode in [ZonelistCache::Off, ZonelistCache::On] {
        let world = plan.build(&config(mode)).leak();
        run_on(0);
        let cache = Arc::new(Cache::default());
        let mut held = world.alloc_node(0);
        held.retain(|block| block.zone.index() == 0);
        world.free(held);
        let lower = Request::page().zone_limit(ZoneKind::Dma32).this_node().no_wait();
        cache.keep(world.alloc_all(&lower));
        let asked = Arc::new(AtomicUsize::new(0));
        let reclaimer = Scripted::by_request(|_| PLENTY, {
            let asked = Arc::clone(&asked);
            move |request| {
                if request.zone_limit != ZoneKind::Dma32 {
                    return 0;
                }
                asked.fetch_add(1, Relaxed); // relaxed: only one thread runs
                cache.reclaim(&world.allocator, request.node, request.target)
            }
        });
        world.controls.set_reclaimer(reclaimer);
        let mut near = 0;
        for _ in 0..500 {
            world.controls.advance_ms(10);
            world.allocator.alloc(&Request::page()).unwrap();
            let block = world.allocator.alloc(&Request::page().zone_limit(ZoneKind::Dma32)).unwrap();
            near += usize::from(block.node == node(0));
        }
        assert_eq!(near, 500, "{mode:?}: {} reclaims for DMA32", asked.load(Relaxed));
    }
}

/// A node with several zone parts is reclaimed when the last part that has memory fails, whichever part went offline.
#[test]
fn parts_without_memory_do_not_prevent_node_reclaim() {
    let base = 1 << 20;
    for (parts, gone) in [(1, None), (2, None), (2, Some(8192)), (2, Some(4096))] {
        let mut plan = one_cpu(&[4096, 4096], ZoneKind::Normal);
        plan.zones = (0..parts)
            .map(|at| (0, ZoneKind::Normal, 4096 * (1 + at), 4096, vec![(4096 * (1 + at), 4096)]))
            .chain([(1, ZoneKind::Normal, base, 1 << 16, vec![(base, 1 << 16)])])
            .collect();
        let world = plan.build(&config(ZonelistCache::Off));
        run_on(0);
        gone.into_iter().for_each(|first| world.allocator.offline_memory(range(first, 4096)).unwrap());
        world.alloc_node(0);
        let reclaimer = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(reclaimer.clone());
        for _ in 0..100 {
            assert_eq!(world.server(&Request::page()), 1);
        }
        assert_eq!(reclaimer.calls(), 100, "{parts} parts, without that at {gone:?}");
    }
}
