//! Tests of M1, the zonelist cache: requests need few probes however many nodes are full, and no request fails because
//! of the cache.

use crate::common::scenarios::{Random, TestRequest, one_cpu, order, with_min};
use crate::common::{MODES, World, node};
use zonal::config::ZonelistCache;
use zonal::machine::FrameRange;
use zonal::request::Urgency;
use zonal::units::{NodeId, Pfn, ZoneKind};
use zonal::{Block, Config, NodeMask, Policy, Request};

/// The modes that share one bitmap among all scans. They differ only around reclaim.
const PUBLISHED: [ZonelistCache; 4] = [
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Jackson2006,
];

/// Whether a mode has the rules that both changes of 2011 replaced.
fn is_before_2011(mode: ZonelistCache) -> bool {
    matches!(mode, ZonelistCache::Original | ZonelistCache::Jackson2006)
}

/// Builds `full` nodes that are filled to `low`, followed by a large node that serves.
fn filled(full: usize, mode: ZonelistCache) -> (World, Vec<Block>) {
    let mut frames = vec![128; full];
    frames.push(8192);
    let config = Config { zonelist_cache: mode, ..with_min(8 * full as u64 + 64) };
    let world = one_cpu(&frames, ZoneKind::Normal).build(&config);
    world.allocator.set_zonelist_cache(ZonelistCache::On).unwrap(); // this mode fills the nodes faster
    let mut held = Vec::new();
    while held.last().is_none_or(|block: &Block| usize::from(block.node.get()) < full) {
        held.push(world.allocator.alloc(&Request::page()).unwrap());
    }
    world.allocator.set_zonelist_cache(mode).unwrap();
    (world, held)
}

#[test]
fn probes_stay_few_with_the_cache_and_grow_without() {
    for full in [1, 63, 255, 1023] {
        let probes = MODES.map(|mode| {
            let (world, _) = filled(full, mode);
            assert_eq!(world.probes(&Request::page()), full as u64 + 1, "the first scan sets the full bits");
            let (_, events) = world.during(|| {
                for _ in 0..1000 {
                    assert_eq!(world.server(&Request::page()), full as u16);
                }
            });
            events.probes
        });
        let [on, published @ .., off] = probes;
        assert_eq!((published, off), ([2000; 4], 1000 * (full as u64 + 1)), "{full} full nodes");
        // Most frames come directly from the serving node's pageset, without a scan.
        assert!((2..200).contains(&on), "{full} full nodes: {on} probes");
    }
}

#[test]
fn frames_allocated_without_a_scan_are_counted_like_those_of_a_scan() {
    for mode in MODES {
        let (world, _) = filled(5, mode);
        let before: Vec<_> = world.allocator.zones().map(|zone| zone.locality).collect();
        for _ in 0..1000 {
            let block = world.allocator.alloc(&Request::page()).unwrap();
            world.allocator.free(block.first, block.order).unwrap();
        }
        world.allocator.verify().unwrap();
        let after: Vec<_> = world.allocator.zones().map(|zone| zone.locality).collect();
        assert_eq!(after[5].miss - before[5].miss, 1000, "{mode:?}");
        assert_eq!(after[5].other - before[5].other, 1000, "{mode:?}");
        assert_eq!(after[0].foreign - before[0].foreign, 1000, "{mode:?}");
        assert_eq!(after[0].hit, before[0].hit, "{mode:?}");
        assert_eq!(after[5].hit, before[5].hit, "{mode:?}");
        world.allocator.tick(); // folds the counter differences
        let ticked: Vec<_> = world.allocator.zones().map(|zone| zone.locality).collect();
        assert_eq!(ticked, after, "{mode:?}");
    }
}

#[test]
fn a_hit_of_a_policy_does_not_change_the_misses_of_other_requests() {
    for mode in MODES {
        let (world, _) = filled(5, mode);
        let far = Policy::preferred(&world.allocator, node(5)).unwrap();
        let locality = || -> Vec<_> { world.allocator.zones().map(|zone| zone.locality).collect() };
        assert_eq!(world.server(&Request::page()), 5);
        let before = locality();
        for _ in 0..10 {
            assert_eq!(world.server(&Request::page().policy(&far)), 5, "{mode:?}");
            (0..10).for_each(|_| assert_eq!(world.server(&Request::page()), 5, "{mode:?}"));
        }
        let after = locality();
        let changes = |at: usize| {
            let (before, after) = (before[at], after[at]);
            (after.hit - before.hit, after.miss - before.miss, after.foreign - before.foreign)
        };
        assert_eq!([changes(0), changes(5)], [(0, 0, 100), (10, 100, 0)], "{mode:?}");
        world.allocator.verify().unwrap();
    }
}

#[test]
fn a_cpu_served_by_another_node_returns_to_its_own_when_frames_are_freed() {
    let (world, held) = filled(5, ZonelistCache::On);
    let remote: Vec<Block> = (0..100).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    assert!(remote.iter().all(|block| block.node == node(5)));
    // One frame of the CPU's own node is freed to its pageset, so it is allocated next.
    let (of_node_0, others): (Vec<Block>, Vec<Block>) =
        held.into_iter().partition(|block| block.node == node(0));
    let own = of_node_0[0];
    world.free([own]);
    assert_eq!(world.allocator.alloc(&Request::page()).unwrap().first, own.first);
    assert_eq!(world.server(&Request::page()), 5);
    // After frames of a nearer node have reached the buddy allocator, they are allocated first, although every pair
    // stays on the fast path.
    let pair = || world.free([world.allocator.alloc(&Request::page()).unwrap()]);
    (0..50).for_each(|_| pair());
    let ((), events) = world.during(|| (0..5).for_each(|_| pair()));
    assert_eq!(events.probes, 0, "single frames of another node are allocated without a scan");
    world.free(others.into_iter().filter(|block| block.node == node(3)));
    assert_eq!(world.server(&Request::page()), 3);
    world.allocator.verify().unwrap();
}

#[test]
fn full_bits_are_wiped_once_a_second() {
    for &mode in &MODES[..5] {
        let (world, _) = filled(63, mode);
        world.probes(&Request::page());
        for second in 0..3 {
            world.controls.advance_ms(1001);
            world.allocator.tick(); // makes a CPU that another node serves check the nearer nodes again
            let (probes, events) = world.during(|| [0; 3].map(|_| world.probes(&Request::page())));
            let later = if mode == ZonelistCache::On { 0 } else { 2 }; // without a scan
            assert_eq!((probes, events.wipes), ([64, 2, later], 1), "second {second}");
        }
        world.controls.advance_ms(1000);
        world.allocator.tick();
        assert!(world.probes(&Request::page()) <= 2, "not before more than a second has passed");
    }
}

#[test]
fn a_freed_node_serves_again_at_once_or_within_a_second() {
    for &mode in &MODES[..5] {
        let early = mode == ZonelistCache::On;
        let (world, held) = filled(5, mode);
        assert_eq!(world.server(&Request::page()), 5);
        let (server, events) = world.during(|| {
            world.free(held.into_iter().filter(|block| block.node == node(2)));
            world.server(&Request::page())
        });
        assert_eq!(server == 2, early, "{mode:?} served by {server}");
        assert_eq!((events.early_clears > 0, events.wipes), (early, 0));
        world.controls.advance_ms(1001);
        assert_eq!(world.server(&Request::page()), 2, "{mode:?}");
    }
}

#[test]
fn a_block_that_bypasses_the_pagesets_clears_full_bits_too() {
    let world = one_cpu(&[2048, 2048, 4096], ZoneKind::Normal).build(&with_min(300));
    world.alloc_node(0);
    let held = world.alloc_node(1);
    assert_eq!(world.server(&Request::page()), 2);
    let large = held.into_iter().filter(|block| block.order.get() == 10);
    let (_, events) = world.during(|| world.free(large));
    assert_eq!((events.drains, events.early_clears > 0), (0, true));
    assert_eq!(world.server(&Request::page()), 1);
}

#[test]
fn the_first_entry_is_tried_without_the_cache() {
    for mode in PUBLISHED {
        let (world, held) = filled(3, mode);
        world.probes(&Request::page());
        world.free(held.into_iter().filter(|block| block.node == node(0)));
        world.controls.advance_ms(5000);
        let (server, events) = world.during(|| world.server(&Request::page()));
        assert_eq!((server, events.wipes, events.marks), (0, 0, 0), "{mode:?}: the cache is not checked");
    }
}

#[test]
fn a_first_zone_is_marked_full_before_a_wipe_only_as_first_published() {
    for mode in PUBLISHED {
        let (world, _) = filled(3, mode);
        let marks = || world.during(|| world.probes(&Request::page())).1.marks;
        marks();
        world.controls.advance_ms(1001);
        // Three requests set full bits of three zones. The first zone's may have been cleared with the old bits.
        let expected = if is_before_2011(mode) { [2, 1, 0] } else { [3, 0, 0] };
        assert_eq!([0; 3].map(|_| marks()), expected, "{mode:?}");
    }
}

/// Builds nodes 0 and 1 without a free frame, and node 2 with plenty of free frames.
fn two_empty() -> World {
    let world = one_cpu(&[2048, 2048, 1 << 16], ZoneKind::Dma32).build(&with_min(300));
    world.alloc_node(0);
    world.alloc_node(1);
    world
}

/// Whether a full bit of node 1, set by the scan for `first`, makes the scan for `next` skip that node.
fn binds(world: &World, first: &TestRequest<'_>, next: &TestRequest<'_>) -> bool {
    world.allocator.set_zonelist_cache(ZonelistCache::On).unwrap(); // clears the full bits
    assert_eq!(world.server(first), 2);
    match world.probes(next) {
        2 => true,
        3 => false,
        probes => panic!("{probes} probes"),
    }
}

#[test]
fn full_bits_apply_to_the_same_or_a_higher_order_class() {
    let world = two_empty();
    let class = |order| [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2][usize::from(order)];
    for (first, next) in (0..=10).flat_map(|first| (0..=10).map(move |next| (first, next))) {
        let bound = binds(&world, &Request::new(order(first)), &Request::new(order(next)));
        assert_eq!(bound, class(next) >= class(first), "{first} then {next}");
    }
}

#[test]
fn full_bits_apply_to_the_same_or_a_lower_urgency() {
    let world = two_empty();
    let all = [Urgency::Normal, Urgency::High, Urgency::Atomic];
    for (first, next) in all.into_iter().flat_map(|first| all.map(|next| (first, next))) {
        let [a, b] = [first, next].map(|urgency| Request::page().urgency(urgency));
        assert_eq!(binds(&world, &a, &b), next <= first, "{first:?} then {next:?}");
    }
}

#[test]
fn full_bits_apply_to_the_same_or_a_higher_zone_limit() {
    let world = two_empty();
    let all = [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];
    for (first, next) in all.into_iter().flat_map(|first| all.map(|next| (first, next))) {
        let [a, b] = [first, next].map(|limit| Request::page().zone_limit(limit));
        assert_eq!(binds(&world, &a, &b), next >= first, "{first:?} then {next:?}");
    }
}

#[test]
fn full_bits_set_at_low_do_not_apply_to_scans_at_min() {
    let probes = [0, 1, 2, 3].map(|at| {
        let mode = MODES[at];
        let config = Config { zonelist_cache: mode, ..with_min(600) };
        let world = one_cpu(&[2048; 3], ZoneKind::Normal).build(&config);
        world.alloc_node(0);
        for id in [1, 2] {
            world.leave_free(id, world.zone(id).watermarks.low.get() as usize);
        }
        world.controls.advance_ms(1001);
        let first = world.probes(&Request::page().no_wait());
        world.allocator.drain_pagesets(); // returns the frames above `min` that a refill moved to the pageset
        [first, world.probes(&Request::page().no_wait())]
    });
    // The scans at low probe all three nodes, twice. The scan at min probes node 0 and then node 1. With `Published`,
    // the full bits set at low exclude node 1 until the second scan.
    assert_eq!(probes[0], [3 + 3 + 2, 1 + 3 + 2]);
    assert_eq!(probes[1..], [[3 + 3 + 1 + 2, 1 + 3 + 1 + 2]; 3]);
}

/// Builds node 0 without a free frame, node 1 with every second frame free, and node 2 with all frames free.
fn fragmented(mode: ZonelistCache) -> World {
    let config = Config { zonelist_cache: mode, ..with_min(300) };
    let world = one_cpu(&[2048, 4096, 1 << 16], ZoneKind::Normal).build(&config);
    world.alloc_node(0);
    let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
    let all = world.alloc_all(&Request::page().policy(&policy).this_node().no_wait());
    world.free(all.into_iter().filter(|block| block.first.get() % 2 == 0));
    world.allocator.drain_pagesets();
    world.allocator.set_zonelist_cache(mode).unwrap();
    world
}

#[test]
fn a_large_request_makes_small_ones_fall_back_only_as_published() {
    for mode in MODES {
        let after = if PUBLISHED.contains(&mode) { 2 } else { 1 };
        let world = fragmented(mode);
        assert_eq!(world.server(&Request::page()), 1);
        assert_eq!(world.server(&Request::new(order(9))), 2);
        assert_eq!(world.server(&Request::page()), after, "{mode:?}");
        world.controls.advance_ms(1001);
        assert_eq!(world.server(&Request::page()), 1, "{mode:?}");
    }
}

#[test]
fn small_frees_leave_the_full_bits_of_large_requests() {
    let world = fragmented(ZonelistCache::On);
    let large = Request::new(order(9));
    assert_eq!(world.probes(&large), 3);
    for _ in 0..20 {
        let small: Vec<Block> = (0..100).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
        assert!(small.iter().all(|block| block.node == node(1)));
        let (_, events) = world.during(|| {
            world.free(small);
            world.allocator.drain_pagesets();
        });
        assert!(events.drains > 0);
        assert_eq!(world.probes(&large), 2, "node 1 still has no large block");
    }
}

#[test]
fn disallowed_zones_are_skipped_but_never_marked_full() {
    for mode in MODES {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 2048], ZoneKind::Normal).build(&config);
        world.alloc_node(0);
        let mask: NodeMask = [node(0), node(2)].into_iter().collect();
        assert_eq!(world.server(&Request::page().allowed(&mask)), 2);
        assert_eq!(world.server(&Request::page()), 1, "{mode:?}: not marked by the other's cpuset");
        let alone: NodeMask = [node(0)].into_iter().collect();
        let bound = Policy::bind(&world.allocator, alone).unwrap();
        let hard = Request::page().no_wait();
        assert!(world.allocator.alloc(&hard.allowed(&alone)).is_err());
        assert_eq!(world.server(&hard.allowed(&alone).urgency(Urgency::Atomic)), 1, "ignores the cpuset");
        assert!(world.allocator.alloc(&hard.policy(&bound).urgency(Urgency::Atomic)).is_err());
    }
}

#[test]
fn in_2006_a_first_zone_outside_the_cpuset_set_up_the_cache() {
    for mode in PUBLISHED {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 4096], ZoneKind::Normal).build(&config);
        world.alloc_node(1);
        let mask: NodeMask = [node(1), node(2)].into_iter().collect();
        let request = Request::page().allowed(&mask);
        assert_eq!(world.server(&request), 2);
        let (server, events) = world.during(|| world.server(&request));
        // Node 1 is the first node that may serve, and its full bit is set.
        let probes = if is_before_2011(mode) { 1 } else { 2 };
        assert_eq!((server, events.probes), (2, probes), "{mode:?}");
        world.controls.advance_ms(1001);
        let (_, events) = world.during(|| world.server(&request));
        assert_eq!((events.probes, events.wipes), (2, 1), "{mode:?}");
        // Requests that may use the first zone do not consult the cache before they try it.
        let all: NodeMask = [node(0), node(1), node(2)].into_iter().collect();
        world.controls.advance_ms(1001);
        let (server, events) = world.during(|| world.server(&Request::page().allowed(&all)));
        assert_eq!((server, events.wipes), (0, 0), "{mode:?}");
        // Requests that ignore cpusets do not consult the cache before the first zone either.
        let (server, events) = world.during(|| world.server(&request.urgency(Urgency::Atomic)));
        assert_eq!((server, events.wipes), (0, 0), "{mode:?}");
    }
}

#[test]
fn in_2006_lists_of_a_binding_policy_had_no_cache() {
    for &mode in &MODES[..5] {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 2048, 4096], ZoneKind::Normal).build(&config);
        (0..3).for_each(|id| drop(world.alloc_node(id)));
        let bound = Policy::bind(&world.allocator, (1..4).map(node).collect()).unwrap();
        let request = Request::page().policy(&bound);
        world.allocator.set_zonelist_cache(mode).unwrap(); // clears the full bits
        let (probes, first) = world.during(|| world.probes(&request));
        let of_2006 = mode == ZonelistCache::Jackson2006;
        assert_eq!((probes, first.marks == 0), (3, of_2006), "{mode:?}");
        let (server, events) = world.during(|| world.server(&request));
        assert_eq!((server, events.probes), (3, if of_2006 { 3 } else { 2 }), "{mode:?}");
        // Requests without the policy use a list that has a cache.
        world.probes(&Request::page());
        assert!(world.probes(&Request::page()) < 3, "{mode:?}");
    }
}

/// Returns the node that should serve, which is the first in fallback order that is allowed and has a free frame.
fn nearest(world: &World, mask: &NodeMask, empty: &[u16]) -> Option<u16> {
    let mut order = Vec::new();
    world.allocator.fallback_order(node(0), |id| order.push(id));
    let serves = |id: &NodeId| mask.contains(*id) && !empty.contains(&id.get());
    order.into_iter().find(serves).map(NodeId::get)
}

#[test]
fn the_nearest_allowed_node_serves_on_any_machine_under_any_cpuset() {
    for seed in 1..=6 {
        let mut random = Random(seed * 0x9E37_79B9);
        let nodes = [3, 20, 64, 65, 130, 200][seed as usize - 1];
        // No pageset can hold all frames of a zone this large.
        let mut plan = one_cpu(&vec![512; nodes], ZoneKind::Normal);
        // The nodes have sparse ids and random distances, and most of them have memory.
        let mut id = 0;
        for at in 0..nodes {
            plan.nodes[at].0 = id;
            plan.zones[at].0 = id;
            id += 1 + random.below(4) as u16;
            for to in 0..nodes {
                plan.distances[at][to] = if at == to { 10 } else { 11 + random.below(60) as u8 };
            }
        }
        let ids: Vec<u16> = plan.nodes.iter().map(|node| node.0).collect();
        plan.zones.retain(|_| random.below(8) != 0);
        let world = plan.build(&Config { zonelist_cache: ZonelistCache::Off, ..with_min(0) });
        let with_memory: Vec<u16> = plan.zones.iter().map(|zone| zone.0).collect();
        let empty: Vec<u16> = with_memory.iter().copied().filter(|_| random.below(3) == 0).collect();
        empty.iter().for_each(|&id| drop(world.alloc_node(id)));
        for mode in MODES {
            world.allocator.set_zonelist_cache(mode).unwrap();
            for _ in 0..200 {
                let one_in = 1 + random.below(nodes as u64);
                let mask: NodeMask =
                    ids.iter().filter(|_| random.below(one_in) == 0).map(|&id| node(id)).collect();
                let request = Request::page().allowed(&mask).no_wait();
                let served = world.allocator.alloc(&request).ok();
                assert_eq!(served.map(|block| block.node.get()), nearest(&world, &mask, &empty), "{mode:?}");
                world.free(served);
            }
        }
    }
}

#[test]
fn one_node_and_strict_lists_use_no_cache() {
    for mode in MODES.into_iter().filter(|&mode| mode != ZonelistCache::Jackson2006) {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        for world in [
            one_cpu(&[2048], ZoneKind::Normal).build(&config),
            one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config),
        ] {
            let strict = Request::page().this_node().no_wait();
            let mut held = world.alloc_all(&strict);
            held.extend(world.alloc_all(&strict));
            let events = world.allocator.events();
            assert_eq!((events.marks, events.wipes), (0, 0), "{mode:?}");
            assert!(held.iter().all(|block| block.node == node(0)));
            world.free(held.drain(..500));
            assert_eq!(world.server(&strict), 0, "{mode:?}: found at once");
        }
    }
}

#[test]
fn full_bits_are_cleared_when_zonelists_are_rebuilt() {
    for (mode, rebuild) in PUBLISHED.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 4096, 1024], ZoneKind::Normal).build(&config);
        world.alloc_node(0);
        let near = world.alloc_node(1);
        assert_eq!(world.server(&Request::page()), 2);
        world.free(near);
        assert_eq!(world.server(&Request::page()), 2, "marked");
        if rebuild {
            let span = world.zone(3).span;
            world.allocator.offline_memory(FrameRange { start: Pfn::new(span.start.get()), ..span }).unwrap();
        }
        assert_eq!(world.server(&Request::page()), if rebuild { 1 } else { 2 });
    }
}

/// Runs a history of single-page allocations and frees. Returns which allocations succeeded. The oldest pages are freed
/// first, so that frees do not depend on which node served.
fn history(seed: u64, mode: ZonelistCache) -> Vec<bool> {
    // The watermarks are so close together that they are within the drift of the counters, so watermark checks use
    // exact counts.
    let config = Config { zonelist_cache: mode, ..with_min(20) };
    let world = one_cpu(&[700, 600, 900, 800], ZoneKind::Normal).build(&config);
    let (mut random, mut held, mut outcomes) = (Random(seed), Vec::new(), Vec::new());
    for _ in 0..800 {
        if random.below(100) < 60 {
            for _ in 0..random.below(64) {
                let block = world.allocator.alloc(&Request::page().no_wait());
                outcomes.push(block.is_ok());
                held.extend(block);
            }
        } else {
            let from = random.below(held.len() as u64 + 1) as usize;
            let to = (from + random.below(64) as usize).min(held.len());
            world.free(held.drain(from..to));
        }
        world.controls.advance_ms(random.below(100));
    }
    world.check();
    outcomes
}

#[test]
fn the_mode_never_decides_which_requests_succeed() {
    for seed in 1..20 {
        let outcomes = MODES.map(|mode| history(seed * 0x9E37_79B9, mode));
        assert!(outcomes[0].contains(&false) && outcomes[0].contains(&true));
        assert!(outcomes.iter().all(|mode| *mode == outcomes[0]), "seed {seed}");
    }
}

#[test]
fn requests_that_fail_with_the_cache_fail_without_it() {
    for (seed, &mode) in (1..10).flat_map(|seed| MODES[..5].iter().map(move |mode| (seed, mode))) {
        let config = Config { zonelist_cache: mode, ..with_min(16) };
        let world = one_cpu(&[2048, 1024, 4096, 1024], ZoneKind::Normal).build(&config);
        let (mut random, mut held, mut failures) = (Random(seed * 0x5851), Vec::new(), 0);
        for _ in 0..4000 {
            let urgency = [Urgency::Normal, Urgency::High, Urgency::Atomic][random.below(3) as usize];
            let request = Request::new(order(random.below(10) as u8)).urgency(urgency).no_wait();
            if let Ok(block) = world.allocator.alloc(&request) {
                held.push(block);
            } else {
                failures += 1;
                world.allocator.set_zonelist_cache(ZonelistCache::Off).unwrap();
                assert!(world.allocator.alloc(&request).is_err(), "the cache hid a block");
                world.allocator.set_zonelist_cache(mode).unwrap();
                let at = random.below(held.len() as u64) as usize;
                world.free([held.swap_remove(at)]);
            }
            world.controls.advance_ms(random.below(20));
        }
        assert!(failures > 100);
        world.check();
    }
}
