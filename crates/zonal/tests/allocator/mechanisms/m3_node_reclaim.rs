//! Tests of M3: scans consult the zonelist cache before they reclaim a full zone, and try zones again after direct
//! reclaim.

use std::sync::{Arc, Mutex, mpsc};

use crate::common::scenarios::{Cache, Scripted, TestRequest, caching, one_cpu, order, pages, with_min};
use crate::common::{MODES, Plan, World, node, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest};
use zonal::units::ZoneKind;
use zonal::{Block, Config, Policy, Request};

const PLENTY: u64 = 1 << 20;
/// The modes before both changes.
const OLD: [ZonelistCache; 2] = [ZonelistCache::Original, ZonelistCache::Jackson2006];

fn config(mode: ZonelistCache) -> Config {
    Config { zonelist_cache: mode, node_reclaim: NodeReclaim::ON, ..with_min(600) }
}

/// Builds node 0, which has the CPU, below its watermarks, and node 1 with plenty of free frames.
fn near_full(mode: ZonelistCache) -> World {
    let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode));
    run_on(0);
    world.leave_free(0, 5);
    world.allocator.set_zonelist_cache(mode).unwrap(); // clears the full bits
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
        // Node 1 has no CPUs, so every CPU may reclaim it.
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

/// Returns the number of node reclaims during `requests` requests while both nodes are below `min`, so that every scan
/// is done twice.
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
    // There are two nodes, and the requests take five seconds.
    let on = in_both_scans(ZonelistCache::On, 500);
    assert!((2 * 4..=2 * 6).contains(&on), "{on} reclaims");
    for mode in [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original] {
        let published = in_both_scans(mode, 500);
        assert!(published > 500 * 2, "{mode:?}: {published} reclaims");
    }
}

#[test]
fn small_requests_still_reclaim_after_a_large_one_freed_too_little() {
    for (mode, server) in [
        (ZonelistCache::On, 0),
        (ZonelistCache::Published, 1),
        (ZonelistCache::CacheFirst, 1),
        (ZonelistCache::Original, 0), // this mode does not consult the cache before it reclaims the first zone
    ] {
        let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode)).leak();
        let (cache, reclaimer) = caching(world, PLENTY);
        let large = Request::new(order(9));
        cache.keep(world.leave_free(0, 5));
        // Reclaim frees nothing at first. Later, the cache has reclaimable frames again.
        world.controls.set_reclaimer(Scripted::new(PLENTY, |_, _| 0));
        assert_eq!(world.server(&large), 1);
        world.controls.set_reclaimer(reclaimer.clone());
        assert_eq!(world.server(&Request::page()), server, "{mode:?}");
        assert_eq!(reclaimer.calls(), usize::from(server == 0));
    }
}

#[test]
fn nodes_with_few_reclaimable_frames_are_skipped_and_were_marked_full_until_2011() {
    for mode in MODES {
        let world = near_full(mode);
        let too_few = Scripted::new(2048 / 100, |_, _| 0);
        world.controls.set_reclaimer(too_few.clone());
        let (_, events) = world.during(|| serve(&world, 50, 0));
        let marks = u64::from(OLD.contains(&mode));
        assert_eq!((events.node_reclaim_full, events.marks), (50, marks), "{mode:?}");
        assert_eq!(too_few.calls(), 0, "not called");
        let enough = Scripted::new(2048 / 100 + 1, |_, _| 0);
        world.controls.set_reclaimer(enough.clone());
        serve(&world, 1, 0);
        assert_eq!(enough.calls(), 1);
    }
}

/// This is the purpose of M3. Node reclaim frees only what it can free quickly and locally, so its failure does not
/// mean that direct reclaim would fail.
#[test]
fn direct_reclaim_succeeds_where_node_reclaim_finds_nothing() {
    for mode in MODES {
        let world = one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config(mode)).leak();
        run_on(0);
        let cache = Arc::new(Cache::default());
        cache.keep(world.leave_free(0, 5));
        world.leave_free(1, 5);
        let keeper = Arc::clone(&cache);
        let count = |request: &ReclaimRequest| if request.reason == ReclaimReason::Node { 0 } else { 10_000 };
        let reclaimer = Scripted::by_request(count, move |request| {
            keeper.reclaim(&world.allocator, request.node, request.target)
        });
        world.controls.set_reclaimer(reclaimer.clone());
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!(server, 0, "{mode:?}");
        assert!(
            events.node_reclaim_full >= 4,
            "{mode:?}: two zones at two watermarks, before direct reclaim"
        );
        assert_eq!(events.node_reclaim_some + events.node_reclaim_success, 0, "{mode:?}");
        let marked = OLD.contains(&mode);
        assert_eq!(events.marks > 0, marked, "{mode:?}: {} marks", events.marks);
        let requests = reclaimer.take_requests();
        assert!(requests.iter().all(|request| request.reason == ReclaimReason::Direct), "{mode:?}: no walk");
        let min = world.zone(0).watermarks.min.get();
        assert!(events.direct_reclaimed > min - 5, "{mode:?}: until the watermark was passed");
    }
}

#[test]
fn until_2011_a_full_bit_of_a_zone_with_few_reclaimable_frames_stopped_later_scans() {
    for mode in MODES {
        let world = one_cpu(&[2048, 2048, 1 << 16], ZoneKind::Normal).build(&config(mode));
        run_on(0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        world.controls.advance_ms(1001);
        world.controls.set_reclaimer(Scripted::new(0, |_, _| 0));
        assert_eq!(world.server(&Request::page()), 2);
        let (server, events) = world.during(|| world.server(&Request::page()));
        let expected = if OLD.contains(&mode) { (1, 2) } else { (2, 3) };
        assert_eq!((server, (events.node_reclaim_full, events.probes)), (2, expected), "{mode:?}");
    }
}

#[test]
fn node_reclaim_may_do_what_its_mode_says() {
    for value in 1..=7 {
        let mode = NodeReclaim::from_mode(value).unwrap();
        let world = near_full(ZonelistCache::On);
        world.allocator.set_node_reclaim(mode);
        let counted = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&counted);
        let count = move |request: &ReclaimRequest| {
            seen.lock().unwrap().push(*request);
            PLENTY
        };
        let barren = Scripted::by_request(count, |_| 0);
        world.controls.set_reclaimer(barren.clone());
        assert_eq!(world.server(&Request::new(order(6)).zone_limit(ZoneKind::Normal)), 1);
        let requests = barren.take_requests();
        assert_eq!(requests, *counted.lock().unwrap(), "counted and asked for alike");
        let [request] = requests[..] else { panic!("{requests:?}") };
        assert_eq!((request.may_write, request.may_unmap), (value & 2 != 0, value & 4 != 0), "mode {value}");
        assert_eq!((request.reason, request.node), (ReclaimReason::Node, node(0)));
        assert_eq!((request.order, request.target, request.zone), (order(6), pages(64), None));
        assert_eq!((request.zone_limit, request.range), (ZoneKind::Normal, None));
    }
    assert_eq!((NodeReclaim::OFF.mode(), NodeReclaim::ON.mode()), (0, 1));
    let refused = NodeReclaim::from_mode(9).unwrap_err();
    assert_eq!(refused.to_string(), "zone_reclaim_mode is 9; allowed values are 0 to 7");
}

#[test]
fn requests_that_must_not_wait_neither_reclaim_nor_set_full_bits() {
    for mode in MODES {
        let world = near_full(mode);
        let reclaimer = Scripted::new(PLENTY, |_, _| 32);
        world.controls.set_reclaimer(reclaimer.clone());
        for _ in 0..10 {
            let (server, events) = world.during(|| world.server(&Request::page().no_wait()));
            assert_eq!((server, events.node_reclaim_no_scan), (1, 1), "{mode:?}");
        }
        // In 2006, a zone that was not reclaimed was marked full.
        let is_marked = world.allocator.events().marks > 0;
        assert_eq!(is_marked, mode == ZonelistCache::Jackson2006, "{mode:?}");
        assert_eq!(reclaimer.calls(), 0);
    }
}

#[test]
fn nodes_with_other_cpus_are_not_reclaimed() {
    for mode in [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::CacheFirst] {
        let mut plan = Plan::even(3, 1, 4096);
        plan.nodes[2].1.clear();
        let world = plan
            .build(&Config { cpu_penalty: zonal::rules::fallback_order::CpuPenalty::Off, ..config(mode) });
        run_on(0);
        let reclaimer = Scripted::new(PLENTY, |_, _| 0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        world.controls.set_reclaimer(reclaimer.clone());
        for round in 0..10 {
            let (server, events) = world.during(|| world.server(&Request::page()));
            // Every request probes node 1, because its full bit is never set.
            let seen = (server, events.node_reclaim_some, events.node_reclaim_no_scan, events.probes);
            assert_eq!(seen, (2, u64::from(round == 0), 1, 3), "{mode:?}");
        }
        assert_eq!(reclaimer.take_targets(), [(0, 32)]);
        world.leave_free(2, 5); // every CPU may reclaim node 2, because it has no CPUs
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
        // In 2006, a zone that another caller was reclaiming was marked full.
        let marks = u64::from(mode == ZonelistCache::Jackson2006);
        assert_eq!((server, events.node_reclaim_no_scan, events.marks), (1, 1, marks), "{mode:?}");
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), 1);
        assert_eq!(slow.calls(), 1);
        go_on.send(()).unwrap(); // allows the next call to end
        world.controls.advance_ms(1001);
        world.server(&Request::page());
        assert_eq!(slow.calls(), 2);
    }
}

#[test]
fn since_2012_far_nodes_are_marked_full_instead() {
    let cases = [(30, ZonelistCache::On, 1), (31, ZonelistCache::On, 0)];
    let earlier = [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original]
        .map(|mode| (255, mode, 1));
    for (distance, mode, calls) in cases.into_iter().chain(earlier) {
        let mut plan = Plan::with_distances(1, 4096, |_, _| distance, 3);
        plan.nodes[1].1.clear();
        let world = plan.build(&config(mode));
        run_on(0);
        world.leave_free(0, 5);
        world.leave_free(1, 5);
        let barren = Scripted::new(PLENTY, |_, _| 0);
        world.controls.set_reclaimer(barren.clone());
        for _ in 0..10 {
            assert_eq!(world.server(&Request::page()), 2);
        }
        let asked = barren.take_targets();
        assert_eq!(
            asked.iter().filter(|(node, _)| *node == 1).count(),
            calls,
            "{mode:?}, distance {distance}"
        );
        let of_first = if mode == ZonelistCache::Original { 10 } else { 1 };
        assert_eq!(asked.iter().filter(|(node, _)| *node == 0).count(), of_first, "{mode:?}");
        assert_eq!(world.probes(&Request::page()), 2);
    }
}

/// Builds node 0 with two zones that have no free frame, and node 1 with plenty of free frames.
fn two_zones(mode: ZonelistCache) -> &'static World {
    let mut plan = one_cpu(&[2048, 1 << 16], ZoneKind::Normal);
    plan.zones[0].1 = ZoneKind::Dma32;
    plan.zones.insert(1, (0, ZoneKind::Normal, 1 << 20, 6144, vec![(1 << 20, 6144)]));
    let world = plan.build(&config(mode)).leak();
    run_on(0);
    world.alloc_node(0);
    world.allocator.set_zonelist_cache(mode).unwrap(); // clears the full bits
    world
}

#[test]
fn zones_were_reclaimed_one_by_one_and_nodes_are_as_a_whole() {
    for mode in MODES {
        let by_zone = ![ZonelistCache::On, ZonelistCache::Off].contains(&mode);
        let world = two_zones(mode);
        let zones: Vec<_> = world.allocator.zones().map(|zone| zone.id).collect();
        // Reclaim is tried only above 1 % of the frames: 81 for the node, or 20 and 61 for its zones. 50 are
        // reclaimable.
        let reclaimer = Scripted::new(50, |_, _| 0);
        world.controls.set_reclaimer(reclaimer.clone());
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!(server, 1);
        let asked: Vec<_> = reclaimer.take_requests().iter().map(|request| request.zone).collect();
        let outcomes = (events.node_reclaim_full, events.node_reclaim_some);
        if by_zone {
            assert_eq!((asked, outcomes), (vec![Some(zones[0])], (1, 1)), "{mode:?}");
        } else {
            assert_eq!((asked, outcomes), (vec![], (2, 0)), "{mode:?}");
        }
        // Background reclaim is called for each zone that lacks frames, highest first, or for the node as a whole.
        world.allocator.background_reclaim(node(0));
        let requests = reclaimer.take_requests();
        assert!(requests.iter().all(|request| request.reason == ReclaimReason::Background));
        let asked: Vec<_> = requests.iter().map(|request| request.zone).collect();
        let one_by_one = vec![Some(zones[1]), Some(zones[0])];
        assert_eq!(asked, if by_zone { one_by_one.clone() } else { vec![None] }, "{mode:?}");
        // In modes that reclaim by zone, direct reclaim is called only for the zones that the request can use.
        let strict = Request::page().this_node().no_retry();
        for (request, zones) in
            [(strict, &one_by_one[..]), (strict.zone_limit(ZoneKind::Dma32), &one_by_one[1..])]
        {
            assert!(world.allocator.alloc(&request).is_err());
            let direct = |request: &ReclaimRequest| request.reason == ReclaimReason::Direct;
            let asked: Vec<_> = reclaimer
                .take_requests()
                .iter()
                .filter(|request| direct(request))
                .map(|request| request.zone)
                .collect();
            assert_eq!(asked, if by_zone { zones.to_vec() } else { vec![None] }, "{mode:?}");
        }
    }
}

/// After reclaim of a node freed nothing, it is not repeated for the next zone of that node. Requests that cannot use
/// the higher zone are an exception.
#[test]
fn a_node_is_reclaimed_once_a_second_whatever_its_zones() {
    let world = two_zones(ZonelistCache::On);
    let barren = Scripted::new(PLENTY, |_, _| 0);
    world.controls.set_reclaimer(barren.clone());
    let (held, events) = world.during(|| serve(world, 10_000, 1));
    assert!(held.iter().all(|block| block.node == node(1)));
    assert!((9..=11).contains(&barren.calls()), "{} calls", barren.calls());
    assert_eq!(events.node_reclaim_some, barren.calls() as u64);
    // After reclaim failed for the lower zone alone, a request that can use both zones still tries to reclaim the node.
    world.controls.advance_ms(1001);
    barren.take_requests();
    for (limit, calls) in [(ZoneKind::Dma32, 1), (ZoneKind::Movable, 1), (ZoneKind::Dma32, 0)] {
        let served = world.allocator.alloc(&Request::page().zone_limit(limit).no_retry());
        assert_eq!(served.is_ok(), limit == ZoneKind::Movable, "node 1 has no DMA32");
        let of_node = |request: &&ReclaimRequest| request.reason == ReclaimReason::Node;
        assert_eq!(barren.take_requests().iter().filter(of_node).count(), calls, "{limit}");
    }
}

#[test]
fn one_caller_a_zone_or_one_a_node() {
    for (mode, by_zone) in [(ZonelistCache::Published, true), (ZonelistCache::On, false)] {
        let world = two_zones(mode);
        let calls = Mutex::new(0);
        // While the first call reclaims the higher zone, another thread requests a page from the lower one.
        let reclaimer = Scripted::new(PLENTY, move |_, _| {
            let first = std::mem::replace(&mut *calls.lock().unwrap(), 1) == 0;
            if first {
                std::thread::scope(|scope| {
                    let lower = Request::page().zone_limit(ZoneKind::Dma32).this_node().no_retry();
                    let other = move || world.during(|| world.allocator.alloc(&lower).is_err()).1;
                    let events = scope.spawn(other).join().unwrap();
                    assert_eq!(events.node_reclaim_some > 0, by_zone, "{mode:?}: {events:?}");
                    assert_eq!(events.node_reclaim_no_scan > 0, !by_zone, "{mode:?}: {events:?}");
                });
            }
            0
        });
        world.controls.set_reclaimer(reclaimer);
        assert_eq!(world.server(&Request::page()), 1);
        // All threads have given up the right to reclaim the node, so no call is refused.
        world.controls.advance_ms(1001);
        let (_, events) = world.during(|| world.server(&Request::page()));
        assert_eq!(events.node_reclaim_no_scan, 0, "{mode:?}");
    }
}

#[test]
fn the_watermark_is_checked_again() {
    for mode in MODES.into_iter().filter(|&mode| mode != ZonelistCache::Jackson2006) {
        // Reclaim frees four frames of eight. These lift the zone above its watermark.
        let world = one_cpu(&[2048, 1 << 16], ZoneKind::Normal).build(&config(mode)).leak();
        let (cache, reclaimer) = caching(world, PLENTY);
        let low = world.zone(0).watermarks.low.get() as usize;
        cache.keep(world.leave_free(0, low + 5).drain(..4));
        let (server, events) = world.during(|| world.server(&Request::new(order(3))));
        assert_eq!((server, events.node_reclaim_some, reclaimer.calls()), (0, 1, 1), "{mode:?}");
        // The reclaimer reports success but frees no frames.
        let world = near_full(mode);
        world.controls.set_reclaimer(Scripted::new(PLENTY, |_, _| 32));
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!((server, events.node_reclaim_success), (1, 1), "{mode:?}");
        // When a scan at `low` ends this way, only the published modes set a full bit.
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

/// Returns the number of probes by a request whose scans all fail, until direct reclaim frees frames of node 3 only.
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
    // Before direct reclaim, each of the scans at low and at min probes node 0, which is all that the full bits leave,
    // and then all four nodes. Afterwards, `Published` probes all four nodes again. The default mode probes node 0 and
    // the one node that was reclaimed.
    assert_eq!(probes_around_direct_reclaim(ZonelistCache::Published), 2 * (1 + 4) + 4);
    // These two modes do not clear the full bits. Their scan probes node 0 alone, and then all four nodes.
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
    world.allocator.platform().begin_reclaiming();
    let got = world.alloc_all(&Request::page().policy(&strict).this_node());
    world.allocator.platform().end_reclaiming();
    assert_eq!((got.len(), reclaimer.calls()), (5, 0), "the last frames, and no reclaim");
}
