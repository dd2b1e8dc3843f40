//! Tests of background and direct reclaim, and of reclaimers that allocate, report wrong numbers or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{Cache, Scripted, caching, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, range, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::error::OnlineError;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest};
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{NodeId, ZoneKind};
use zonal::{Config, NodeMask, Platform, Policy, Request};

const PLENTY: u64 = 1 << 20;

/// Builds one node of 4096 frames, `free` of which are free.
fn one_node(free: usize) -> &'static World {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(400)).leak();
    run_on(0);
    world.leave_free(0, free);
    world.allocator.background_reclaim(node(0)); // clears the wake-up that the allocations caused
    world.controls.take_woken();
    world
}

#[test]
fn background_reclaim_is_woken_once_until_it_begins() {
    let world = one_node(450); // the free frames are between min and low
    for _ in 0..3 {
        let (held, events) =
            world.during(|| [0; 20].map(|_| world.allocator.alloc(&Request::page()).unwrap()));
        assert_eq!(world.controls.take_woken(), [node(0)]);
        assert_eq!(events.background_wakes, 1);
        world.free(held);
        world.allocator.drain_pagesets();
        assert_eq!(world.allocator.background_reclaim(node(0)), pages(0));
    }
}

#[test]
fn only_nodes_in_reach_are_woken() {
    let world = Plan::even(3, 1, 2048).build(&with_min(600));
    run_on(0);
    (0..3).for_each(|id| drop(world.leave_free(id, 5)));
    for id in 0..3 {
        world.allocator.background_reclaim(node(id));
    }
    let mask: NodeMask = [node(0), node(2)].into_iter().collect();
    let bound = Policy::bind(&world.allocator, mask).unwrap();
    assert!(world.allocator.alloc(&Request::page().policy(&bound).no_wait()).is_err());
    assert_eq!(world.controls.take_woken(), [node(0), node(2)]);
    assert!(world.allocator.alloc(&Request::page().no_wait()).is_err());
    assert_eq!(world.controls.take_woken(), [node(1)]);
}

#[test]
fn background_reclaim_works_until_high() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(400)).leak();
    let (cache, _) = caching(world, PLENTY);
    cache.keep(world.leave_free(0, 100));
    let freed = world.allocator.background_reclaim(node(0));
    let zone = world.zone(0);
    assert!(zone.free > zone.watermarks.high && zone.free.get() <= zone.watermarks.high.get() + 64);
    assert_eq!(freed.get(), zone.free.get() + zone.in_pagesets.get() - 100);
    assert_eq!(world.allocator.nodes().next().unwrap().reclaimed[0], freed);
    assert_eq!(world.allocator.background_reclaim(node(0)), pages(0), "nothing left to do");
    world.check();
}

#[test]
fn background_reclaim_stops_when_nothing_frees() {
    let world = one_node(100);
    let barren = Scripted::new(PLENTY, |_, _| 0);
    world.controls.set_reclaimer(barren.clone());
    assert_eq!(world.allocator.background_reclaim(node(0)), pages(0));
    assert_eq!(barren.calls(), 1);
    let overstating = Scripted::new(PLENTY, |_, target| target.get());
    world.controls.set_reclaimer(overstating.clone());
    world.allocator.background_reclaim(node(0));
    assert!(overstating.calls() <= 17, "{} calls: words are not frames", overstating.calls());
}

/// A cache may get frames after background reclaim has failed many times, and no other request may reclaim.
#[test]
fn a_node_that_was_unreclaimable_is_tried_again_after_a_second() {
    let world = one_node(100);
    let wakes = || {
        assert!(world.allocator.alloc(&Request::page().no_wait()).is_err());
        !world.controls.take_woken().is_empty()
    };
    let rounds = (0..100).take_while(|_| {
        let woken = wakes();
        world.allocator.background_reclaim(node(0));
        woken
    });
    assert!((8..100).contains(&rounds.count()), "it is given up");
    for _ in 0..3 {
        world.controls.advance_ms(900);
        assert!(!wakes());
        world.controls.advance_ms(101);
        assert!(wakes());
        assert_eq!(world.allocator.background_reclaim(node(0)), pages(0));
        assert!(!wakes());
    }
    let (cache, _) = caching(world, PLENTY);
    cache.keep(world.leave_free(0, 50));
    world.controls.advance_ms(1001);
    assert!(wakes());
    assert_ne!(world.allocator.background_reclaim(node(0)), pages(0));
}

#[test]
fn a_node_has_one_background_worker() {
    let world = one_node(100);
    let inner = Scripted::new(PLENTY, move |id, _| {
        assert_eq!(world.allocator.background_reclaim(id), pages(0));
        0
    });
    world.controls.set_reclaimer(inner.clone());
    world.allocator.background_reclaim(node(0));
    assert_eq!(inner.calls(), 1);
}

#[test]
fn direct_reclaim_asks_for_what_the_order_needs() {
    // Blocks above order 3 are first reclaimed by range. A zone that is short of its watermark then lacks frames for it.
    for (of, targets) in
        [(0, vec![32]), (3, vec![32]), (5, vec![32]), (6, vec![64]), (9, vec![400]), (10, vec![400])]
    {
        let world = one_node(100);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        assert!(world.allocator.alloc(&Request::new(order(of)).no_retry()).is_err());
        let found = barren.take_targets();
        assert_eq!(found, targets.into_iter().map(|target| (0, target)).collect::<Vec<_>>(), "order {of}");
        assert!(world.allocator.alloc(&Request::new(order(of)).no_wait()).is_err());
        assert_eq!(barren.calls(), 0, "who may not wait reclaims nothing");
    }
}

#[test]
fn a_request_without_retries_calls_the_reclaimers_once() {
    for of in [0, 3, 4, 9] {
        let world = one_cpu(&[8192], ZoneKind::Normal).build(&with_min(0)).leak();
        let (cache, _) = caching(world, PLENTY);
        cache.keep(world.alloc_all(&Request::page().kind(PageKind::Cache).no_wait()));
        // One call empties a range for order 4, but not one for order 9.
        let little = Scripted::by_request(
            |_| PLENTY,
            move |request| match request.range {
                Some(range) => cache.reclaim_in(&world.allocator, &range, pages(32)),
                None => cache.reclaim(&world.allocator, request.node, pages(32)),
            },
        );
        world.controls.set_reclaimer(little.clone());
        let (served, events) =
            world.during(|| world.allocator.alloc(&Request::new(order(of)).no_retry()).is_ok());
        assert_eq!((served, events.direct_stalls, little.calls()), (of < 9, 1, 1), "order {of}");
    }
}

#[test]
fn direct_reclaim_goes_over_the_nodes_in_reach() {
    let world = one_cpu(&[2048; 4], ZoneKind::Normal).build(&with_min(800));
    run_on(0);
    (0..4).for_each(|id| drop(world.leave_free(id, 5)));
    let ten_each = Scripted::new(PLENTY, |_, _| 10);
    world.controls.set_reclaimer(ten_each.clone());
    assert!(world.allocator.alloc(&Request::page().no_retry()).is_err());
    assert_eq!(ten_each.take_targets(), [(0, 32), (1, 22), (2, 12), (3, 2)]);
    let mask: NodeMask = [node(1), node(3)].into_iter().collect();
    let bound = Policy::bind(&world.allocator, mask).unwrap();
    assert!(world.allocator.alloc(&Request::page().policy(&bound).no_retry()).is_err());
    assert_eq!(ten_each.take_targets(), [(1, 32), (3, 22)]);
    assert!(world.allocator.alloc(&Request::page().this_node().no_retry()).is_err());
    assert_eq!(ten_each.take_targets(), [(0, 32)]);
}

#[test]
fn direct_reclaim_frees_a_block() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(400)).leak();
    let (cache, reclaimer) = caching(world, PLENTY);
    let min = world.zone(0).watermarks.min.get() as usize;
    cache.keep(world.leave_free(0, min));
    let kept = cache.len();
    for _ in 0..1000 {
        world.allocator.alloc(&Request::page()).unwrap();
    }
    let given = kept - cache.len();
    assert!((1000..1100).contains(&given), "{given} given up for 1000");
    assert!((given / 32..=given / 32 + 1).contains(&reclaimer.calls()), "32 at a time");
    assert!(world.zone(0).free.get() as usize >= min);
    world.check();
}

#[test]
fn a_reclaimer_that_allocates_gets_the_reserve_and_never_recurses() {
    let world = one_node(100);
    let depth = Arc::new(AtomicU64::new(0));
    let taken = Arc::new(AtomicU64::new(0));
    let (in_depth, in_taken) = (Arc::clone(&depth), Arc::clone(&taken));
    let needy = Scripted::new(PLENTY, move |_, _| {
        assert_eq!(in_depth.fetch_add(1, Relaxed), 0, "reclaim within reclaim");
        assert!(world.allocator.platform().is_reclaiming());
        let held: Vec<_> = (0..50).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
        in_taken.fetch_add(50, Relaxed);
        let rest = world.alloc_all(&Request::page());
        assert_eq!(rest.len(), 50, "to the last frame");
        world.free(held.into_iter().chain(rest));
        in_depth.fetch_sub(1, Relaxed);
        0
    });
    world.controls.set_reclaimer(needy.clone());
    assert!(world.allocator.alloc(&Request::page()).is_err(), "below min for everybody else");
    assert_eq!(needy.calls(), 16);
    assert_eq!(taken.load(Relaxed), 16 * 50);
    assert!(!world.allocator.platform().is_reclaiming());
    world.check();
}

#[test]
fn a_reclaimer_may_use_the_allocator_in_both_calls() {
    // With node reclaim on, a request that fails first calls `count`. The second zone serves the requests of the
    // reclaimer.
    let config = Config { node_reclaim: NodeReclaim::ON, ..with_min(400) };
    let world = one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config).leak();
    run_on(0);
    world.leave_free(0, 5);
    world.leave_free(1, 5);
    let depth = Arc::new(AtomicU64::new(0));
    let calls = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&calls);
    let use_allocator = move || {
        assert_eq!(depth.fetch_add(1, Relaxed), 0, "called again within a call");
        assert!(world.allocator.platform().is_reclaiming());
        calls.fetch_add(1, Relaxed);
        let held = world.alloc_all(&Request::page());
        assert_eq!(held.len(), 10, "to the last frame of both nodes");
        assert!(world.allocator.alloc(&Request::new(order(3))).is_err());
        assert_eq!(world.allocator.background_reclaim(node(0)), pages(0));
        assert_eq!(world.allocator.shrink_caches(node(0), pages(1)), pages(0));
        assert_eq!(world.allocator.reclaim_range(range(4096, 64)), Ok(pages(0)));
        assert!(world.allocator.platform().is_reclaiming(), "still");
        world.free(held);
        world.allocator.drain_pagesets();
        depth.fetch_sub(1, Relaxed);
    };
    let (counting, reclaiming) = (use_allocator.clone(), use_allocator);
    let needy = Scripted::by_request(
        move |_| {
            counting();
            PLENTY
        },
        move |_| {
            reclaiming();
            0
        },
    );
    world.controls.set_reclaimer(needy.clone());
    assert!(world.allocator.alloc(&Request::page().no_retry()).is_err());
    assert_eq!(world.allocator.background_reclaim(node(1)), pages(0));
    let asked = needy.take_requests();
    for reason in [ReclaimReason::Node, ReclaimReason::Direct, ReclaimReason::Background] {
        assert!(asked.iter().any(|request| request.reason == reason), "{reason:?}");
    }
    assert!(total.load(Relaxed) > asked.len() as u64, "while it counted as well");
}

#[test]
fn caches_shrink_on_request() {
    let world = one_cpu(&[4096, 4096], ZoneKind::Normal).build(&with_min(400)).leak();
    let (cache, reclaimer) = caching(world, PLENTY);
    let mut held = world.leave_free(1, 3000);
    cache.keep(held.drain(..500));
    assert_eq!(world.allocator.shrink_caches(node(0), pages(100)), pages(0), "nothing of this node");
    assert_eq!(world.allocator.shrink_caches(node(1), pages(100)), pages(100));
    assert_eq!((world.zone(1).free, cache.len()), (pages(3100), 400), "in the zone, not in a pageset");
    assert_eq!(world.allocator.shrink_caches(node(1), pages(1000)), pages(400));
    let asked = reclaimer.take_requests();
    let expected = [(0, 100), (1, 100), (1, 1000)]
        .map(|(at, target)| ReclaimRequest::new(ReclaimReason::Shrink, node(at), pages(target)));
    assert_eq!(asked, expected);
    assert!(asked.iter().all(|request| request.may_write && request.may_unmap));
    assert_eq!(world.allocator.shrink_caches(node(2), pages(1)), pages(0), "there is no such node");
    assert_eq!(reclaimer.calls(), 0);
}

#[test]
fn frames_of_a_range_are_asked_for() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(100)).leak();
    run_on(0);
    let cache = Arc::new(Cache::default());
    let (mut inside, outside) = (Vec::new(), world.leave_free(0, 0));
    let wanted = range(4096 + 1024, 1024);
    let (of_range, outside): (Vec<_>, Vec<_>) =
        outside.into_iter().partition(|block| (5120..6144).contains(&block.first.get()));
    inside.extend(of_range);
    cache.keep(inside.drain(..900));
    let keeper = Arc::clone(&cache);
    let reclaimer = Scripted::by_request(
        |_| PLENTY,
        move |request| keeper.reclaim(&world.allocator, request.node, request.target),
    );
    world.controls.set_reclaimer(reclaimer.clone());
    assert_eq!(world.allocator.reclaim_range(wanted), Ok(pages(900)));
    let [request] = reclaimer.take_requests()[..] else { panic!("once") };
    assert_eq!(
        (request.reason, request.range, request.target),
        (ReclaimReason::Range, Some(wanted), pages(1024))
    );
    let in_use = world.allocator.offline_memory(wanted).unwrap_err();
    assert!(
        matches!(in_use, OnlineError::InUse { start, in_use, .. } if start == wanted.start && in_use == pages(124)),
        "{in_use}"
    );
    world.free(inside);
    assert_eq!(world.allocator.reclaim_range(wanted), Ok(pages(0)), "all free: nobody is asked");
    assert_eq!(reclaimer.calls(), 0);
    world.allocator.offline_memory(wanted).unwrap();
    let crossing = range(4096 + 4000, 200);
    let refused = world.allocator.reclaim_range(crossing);
    assert!(matches!(refused, Err(OnlineError::NotInOneZone { range, .. }) if range == crossing));
    world.free(outside);
    world.check();
}

#[test]
fn pagesets_stay_small_while_their_zone_is_reclaimed() {
    for tuning in
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed]
    {
        stay_small_while_reclaimed(tuning);
    }
}

fn stay_small_while_reclaimed(tuning: PagesetTuning) {
    let config = Config { tuning, ..with_min(20_000) };
    let world = one_cpu(&[1 << 18], ZoneKind::Normal).build(&config).leak();
    let cap = 4 * world.zone(0).pageset_limits.batch.get();
    let (cache, _) = caching(world, PLENTY);
    let mut held = world.leave_free(0, 29_500);
    // The pageset is already deep when reclaim begins.
    world.free(held.drain(..5000));
    let count = move || world.allocator.pagesets().next().unwrap().count.get();
    assert!(count() > 8 * cap);
    cache.keep(held.drain(..20_000));
    let most = Arc::new(AtomicU64::new(0));
    let (seen, keeper) = (Arc::clone(&most), Arc::clone(&cache));
    world.controls.set_reclaimer(Scripted::new(PLENTY, move |id: NodeId, _| {
        let before = keeper.len();
        while keeper.len() + 6000 > before {
            assert_eq!(keeper.reclaim(&world.allocator, id, pages(1)), 1);
            seen.fetch_max(count(), Relaxed);
        }
        let held: Vec<_> = (0..4000)
            .map(|_| {
                let block = world.allocator.alloc(&Request::page()).unwrap();
                seen.fetch_max(count(), Relaxed);
                block
            })
            .collect();
        world.free(held);
        6000
    }));
    assert_eq!(world.allocator.background_reclaim(node(0)), pages(6000));
    assert!(most.load(Relaxed) <= cap, "{} frames in a pageset, {cap} allowed", most.load(Relaxed));
    world.free(held.drain(..1000));
    assert!(count() > cap, "and afterwards deep again");
}

/// Runs `work` with a reclaimer that panics, and checks that the panic leaves no state behind.
fn survives<R>(world: &'static World, work: impl Fn() -> R) {
    let threshold = world.zone(0).stat_threshold;
    for _ in 0..3 {
        world.controls.advance_ms(1001);
        let calls = Scripted::new(PLENTY, |_, _| panic!("a reclaimer's own fault"));
        world.controls.set_reclaimer(calls.clone());
        assert!(catch_unwind(AssertUnwindSafe(&work)).is_err());
        assert_eq!(calls.calls(), 1);
        assert!(!world.allocator.platform().is_reclaiming());
        assert_eq!(world.zone(0).stat_threshold, threshold);
        world.check();
    }
    // Pagesets may exceed four batches again.
    let cap = 4 * world.zone(0).pageset_limits.batch.get();
    let held = world.leave_free(0, 0);
    world.free(held);
    assert!(world.allocator.pagesets().next().unwrap().count.get() > cap);
}

fn for_panics(config: Config) -> &'static World {
    let world = Plan::even(1, 8, 1 << 16).build(&config).leak();
    run_on(0);
    world.leave_free(0, 100);
    world
}

#[test]
fn a_panic_in_direct_reclaim_leaves_the_allocator_usable() {
    let world = for_panics(with_min(3000));
    survives(world, || world.allocator.alloc(&Request::page()));
}

#[test]
fn a_panic_in_background_reclaim_leaves_the_allocator_usable() {
    let world = for_panics(with_min(3000));
    survives(world, || world.allocator.background_reclaim(node(0)));
}

#[test]
fn a_panic_in_node_reclaim_leaves_the_allocator_usable() {
    let world = for_panics(Config { node_reclaim: NodeReclaim::ON, ..with_min(3000) });
    survives(world, || world.allocator.alloc(&Request::page().no_retry()));
    assert_eq!(world.allocator.events().node_reclaim_no_scan, 0, "the turn was given back");
}

#[test]
fn untrue_reports_of_reclaimers_do_not_loop() {
    // A request for a large block also stops after 1024 frames, or after 512 that were not of a range.
    for (of, rounds) in [(0, 1024), (3, 1024), (4, 16), (9, 2)] {
        let world = one_node(100);
        let overstating = Scripted::new(PLENTY, |_, target| target.get());
        world.controls.set_reclaimer(overstating.clone());
        assert!(world.allocator.alloc(&Request::new(order(of))).is_err());
        assert_eq!(overstating.calls(), rounds, "order {of}");
        assert_eq!(world.zone(0).free, pages(100));
    }
}

/// A caller that does not wait may hold a lock that the reclaimer also locks, or may be a signal handler.
#[test]
fn requests_that_do_not_wait_call_no_reclaimer() {
    use ZonelistCache::{CacheFirst, Off, On, Original, Published};
    for mode in [On, Published, CacheFirst, Original, Off] {
        let config = Config { zonelist_cache: mode, node_reclaim: NodeReclaim::ON, ..with_min(600) };
        let world = one_cpu(&[2048, 1 << 14], ZoneKind::Normal).build(&config);
        run_on(0);
        let mut all = world.leave_free(0, 5);
        let called = move |_: &ReclaimRequest| panic!("{mode:?}: called for a request that does not wait");
        world.controls.set_reclaimer(Scripted::by_request(called, called));
        let (held, events) = world.during(|| {
            let mut held = world.alloc_all(&Request::new(order(3)).no_wait());
            held.extend(world.alloc_all(&Request::page().no_wait()));
            let mut more = [held[0].first; 64];
            assert!(world.allocator.alloc_bulk(&Request::page().no_wait(), &mut more).is_err());
            held
        });
        assert!(events.node_reclaim_no_scan > 0, "{mode:?}: node reclaim was not considered");
        assert_eq!(events.node_reclaim_full + events.node_reclaim_some + events.node_reclaim_success, 0);
        all.extend(held);
        world.free(all);
        world.check();
    }
}
