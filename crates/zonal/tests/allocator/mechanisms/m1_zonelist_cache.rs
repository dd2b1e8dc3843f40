//! M1, the zonelist cache: few probes however many nodes are full, and nothing lost by it.

use crate::common::effects::{Random, TestRequest, one_cpu, order, with_min};
use crate::common::{World, node};
use zonal::config::ZonelistCache;
use zonal::machine::FrameRange;
use zonal::request::Urgency;
use zonal::units::{NodeId, Pfn, ZoneKind};
use zonal::{Block, Config, NodeMask, Policy, Request};

const MODES: [ZonelistCache; 5] = [
    ZonelistCache::On,
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Off,
];
/// Those with one bitmap for all scans, which differ around reclaim only.
const PUBLISHED: [ZonelistCache; 3] =
    [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original];

/// `full` nodes filled to `low` before a large one that serves.
fn filled(full: usize, mode: ZonelistCache) -> (World, Vec<Block>) {
    let mut frames = vec![128; full];
    frames.push(8192);
    let config = Config { zonelist_cache: mode, ..with_min(8 * full as u64 + 64) };
    let world = one_cpu(&frames, ZoneKind::Normal).build(&config);
    world.allocator.set_zonelist_cache(ZonelistCache::On); // fills faster
    let mut held = Vec::new();
    while held.last().is_none_or(|block: &Block| usize::from(block.node.get()) < full) {
        held.push(world.allocator.alloc(&Request::page()).unwrap());
    }
    world.allocator.set_zonelist_cache(mode);
    (world, held)
}

#[test]
fn probes_stay_few_with_the_cache_and_grow_without() {
    for full in [1, 63, 255, 1023] {
        let probes = MODES.map(|mode| {
            let (world, _) = filled(full, mode);
            assert_eq!(world.probes(&Request::page()), full as u64 + 1, "the first scan finds out");
            let (_, events) = world.during(|| {
                for _ in 0..1000 {
                    assert_eq!(world.server(&Request::page()), full as u16);
                }
            });
            events.probes
        });
        let [on, published @ .., off] = probes;
        assert_eq!((published, off), ([2000; 3], 1000 * (full as u64 + 1)), "{full} full nodes");
        // Most frames come from the serving node's pageset at once, without a scan.
        assert!((2..200).contains(&on), "{full} full nodes: {on} probes");
    }
}

#[test]
fn frames_that_come_without_a_scan_are_counted_as_those_of_one() {
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
        world.allocator.tick(); // folds
        let ticked: Vec<_> = world.allocator.zones().map(|zone| zone.locality).collect();
        assert_eq!(ticked, after, "{mode:?}");
    }
}

#[test]
fn a_cpu_that_is_away_comes_home_when_frames_do() {
    let (world, held) = filled(5, ZonelistCache::On);
    let away: Vec<Block> = (0..100).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    assert!(away.iter().all(|block| block.node == node(5)));
    // One frame of the home node, through the pageset: it is the next to go.
    let (at_home, others): (Vec<Block>, Vec<Block>) =
        held.into_iter().partition(|block| block.node == node(0));
    let own = at_home[0];
    world.free([own]);
    assert_eq!(world.allocator.alloc(&Request::page()).unwrap().first, own.first);
    assert_eq!(world.server(&Request::page()), 5);
    // Another node nearer by: at once, when its frames reach the buddy, although nothing trips.
    let pair = || world.free([world.allocator.alloc(&Request::page()).unwrap()]);
    (0..50).for_each(|_| pair());
    let ((), events) = world.during(|| (0..5).for_each(|_| pair()));
    assert_eq!(events.probes, 0, "single frames come from away without a scan");
    world.free(others.into_iter().filter(|block| block.node == node(3)));
    assert_eq!(world.server(&Request::page()), 3);
    world.allocator.verify().unwrap();
}

#[test]
fn marks_are_wiped_once_a_second() {
    for &mode in &MODES[..4] {
        let (world, _) = filled(63, mode);
        world.probes(&Request::page());
        for second in 0..3 {
            world.controls.advance_ms(1001);
            world.allocator.tick(); // so that a CPU that is away looks anew
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
    for &mode in &MODES[..4] {
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
fn a_block_freed_past_the_pagesets_drops_marks_too() {
    let world = one_cpu(&[2048, 2048, 4096], ZoneKind::Normal).build(&with_min(300));
    world.take_node(0);
    let held = world.take_node(1);
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
        assert_eq!((server, events.wipes, events.marks), (0, 0, 0), "{mode:?}: no look at the cache");
    }
}

#[test]
fn a_first_zone_is_marked_before_a_wipe_only_as_first_published() {
    for mode in PUBLISHED {
        let (world, _) = filled(3, mode);
        let marks = || world.during(|| world.probes(&Request::page())).1.marks;
        marks();
        world.controls.advance_ms(1001);
        // Each of three zones once; the first one's mark may be gone again with the old ones.
        let original = mode == ZonelistCache::Original;
        let expected = if original { [2, 1, 0] } else { [3, 0, 0] };
        assert_eq!([0; 3].map(|_| marks()), expected, "{mode:?}");
    }
}

/// Nodes 0 and 1 without a frame, node 2 with plenty.
fn two_empty() -> World {
    let world = one_cpu(&[2048, 2048, 1 << 16], ZoneKind::Dma32).build(&with_min(300));
    world.take_node(0);
    world.take_node(1);
    world
}

/// Whether a scan that found node 1 full keeps the next one away from it.
fn binds(world: &World, first: &TestRequest<'_>, next: &TestRequest<'_>) -> bool {
    world.allocator.set_zonelist_cache(ZonelistCache::On); // forgets
    assert_eq!(world.server(first), 2);
    match world.probes(next) {
        2 => true,
        3 => false,
        probes => panic!("{probes} probes"),
    }
}

#[test]
fn marks_bind_the_same_or_a_higher_order_class() {
    let world = two_empty();
    let class = |order| [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2][usize::from(order)];
    for (first, next) in (0..=10).flat_map(|first| (0..=10).map(move |next| (first, next))) {
        let bound = binds(&world, &Request::new(order(first)), &Request::new(order(next)));
        assert_eq!(bound, class(next) >= class(first), "{first} then {next}");
    }
}

#[test]
fn marks_bind_the_same_or_a_lower_urgency() {
    let world = two_empty();
    let all = [Urgency::Normal, Urgency::High, Urgency::Atomic];
    for (first, next) in all.into_iter().flat_map(|first| all.map(|next| (first, next))) {
        let [a, b] = [first, next].map(|urgency| Request::page().urgency(urgency));
        assert_eq!(binds(&world, &a, &b), next <= first, "{first:?} then {next:?}");
    }
}

#[test]
fn marks_bind_the_same_or_a_higher_zone_limit() {
    let world = two_empty();
    let all = [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];
    for (first, next) in all.into_iter().flat_map(|first| all.map(|next| (first, next))) {
        let [a, b] = [first, next].map(|limit| Request::page().zone_limit(limit));
        assert_eq!(binds(&world, &a, &b), next >= first, "{first:?} then {next:?}");
    }
}

#[test]
fn marks_at_low_do_not_bind_scans_at_min() {
    let probes = [0, 1, 2, 3].map(|at| {
        let mode = MODES[at];
        let config = Config { zonelist_cache: mode, ..with_min(600) };
        let world = one_cpu(&[2048; 3], ZoneKind::Normal).build(&config);
        world.take_node(0);
        for id in [1, 2] {
            world.leave_free(id, world.zone(id).watermarks.low.get() as usize);
        }
        world.controls.advance_ms(1001);
        let first = world.probes(&Request::page().no_wait());
        world.allocator.drain_pagesets(); // gives back what the refill took above min
        [first, world.probes(&Request::page().no_wait())]
    });
    // At low: all three, twice; at min: node 0, then node 1. As published, the marks of low hide
    // node 1 until the second look.
    assert_eq!(probes[0], [3 + 3 + 2, 1 + 3 + 2]);
    assert_eq!(probes[1..], [[3 + 3 + 1 + 2, 1 + 3 + 1 + 2]; 3]);
}

/// Node 0 without a frame, node 1 with every second one free, node 2 untouched.
fn fragmented(mode: ZonelistCache) -> World {
    let config = Config { zonelist_cache: mode, ..with_min(300) };
    let world = one_cpu(&[2048, 4096, 1 << 16], ZoneKind::Normal).build(&config);
    world.take_node(0);
    let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
    let all = world.take_all(&Request::page().policy(&policy).this_node().no_wait());
    world.free(all.into_iter().filter(|block| block.first.get() % 2 == 0));
    world.allocator.drain_pagesets();
    world.allocator.set_zonelist_cache(mode);
    world
}

#[test]
fn a_large_request_sends_small_ones_away_only_as_published() {
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
fn small_frees_keep_the_marks_of_large_requests() {
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
fn disallowed_zones_are_skipped_but_never_marked() {
    for mode in MODES {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 2048], ZoneKind::Normal).build(&config);
        world.take_node(0);
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
fn in_2006_a_first_zone_that_the_cpuset_leaves_out_set_the_cache_up() {
    for mode in PUBLISHED {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 4096], ZoneKind::Normal).build(&config);
        world.take_node(1);
        let mask: NodeMask = [node(1), node(2)].into_iter().collect();
        let request = Request::page().allowed(&mask);
        assert_eq!(world.server(&request), 2);
        let (server, events) = world.during(|| world.server(&request));
        // Node 1 is the first that may serve, and marked.
        let probes = if mode == ZonelistCache::Original { 1 } else { 2 };
        assert_eq!((server, events.probes), (2, probes), "{mode:?}");
        world.controls.advance_ms(1001);
        let (_, events) = world.during(|| world.server(&request));
        assert_eq!((events.probes, events.wipes), (2, 1), "{mode:?}");
        // Requests that the first zone may serve do not look at marks before it.
        let all: NodeMask = [node(0), node(1), node(2)].into_iter().collect();
        world.controls.advance_ms(1001);
        let (server, events) = world.during(|| world.server(&Request::page().allowed(&all)));
        assert_eq!((server, events.wipes), (0, 0), "{mode:?}");
        // Nor do those that are above all cpusets.
        let (server, events) = world.during(|| world.server(&request.urgency(Urgency::Atomic)));
        assert_eq!((server, events.wipes), (0, 0), "{mode:?}");
    }
}

#[test]
fn in_2006_lists_of_a_binding_policy_had_no_cache() {
    for &mode in &MODES[..4] {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 2048, 4096], ZoneKind::Normal).build(&config);
        (0..3).for_each(|id| drop(world.take_node(id)));
        let bound = Policy::bind(&world.allocator, (1..4).map(node).collect()).unwrap();
        let request = Request::page().policy(&bound);
        assert_eq!(world.probes(&request), 3);
        let (server, events) = world.during(|| world.server(&request));
        let original = mode == ZonelistCache::Original;
        assert_eq!((server, events.probes), (3, if original { 3 } else { 2 }), "{mode:?}");
        assert_eq!(world.allocator.events().marks == 0, original, "{mode:?}");
        // Other requests have one.
        world.probes(&Request::page());
        assert!(world.probes(&Request::page()) < 3, "{mode:?}");
    }
}

/// The node that is to serve: the first in fallback order that is allowed and has a frame.
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
        // So many frames that no pageset holds all of a zone.
        let mut plan = one_cpu(&vec![512; nodes], ZoneKind::Normal);
        // Sparse ids, distances at random, memory on most.
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
        empty.iter().for_each(|&id| drop(world.take_node(id)));
        for mode in MODES {
            world.allocator.set_zonelist_cache(mode);
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
    for mode in MODES {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        for world in [
            one_cpu(&[2048], ZoneKind::Normal).build(&config),
            one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config),
        ] {
            let strict = Request::page().this_node().no_wait();
            let mut held = world.take_all(&strict);
            held.extend(world.take_all(&strict));
            let events = world.allocator.events();
            assert_eq!((events.marks, events.wipes), (0, 0), "{mode:?}");
            assert!(held.iter().all(|block| block.node == node(0)));
            world.free(held.drain(..500));
            assert_eq!(world.server(&strict), 0, "{mode:?}: found at once");
        }
    }
}

#[test]
fn marks_go_when_lists_are_rebuilt() {
    for (mode, rebuild) in PUBLISHED.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 4096, 1024], ZoneKind::Normal).build(&config);
        world.take_node(0);
        let near = world.take_node(1);
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

/// A history of pages taken and freed; who got one. Frees are by age, so that they are the same
/// whoever serves.
fn history(seed: u64, mode: ZonelistCache) -> Vec<bool> {
    // Marks so close together lie within the counters' drift: checks are exact.
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
fn the_mode_never_decides_who_succeeds() {
    for seed in 1..20 {
        let outcomes = MODES.map(|mode| history(seed * 0x9E37_79B9, mode));
        assert!(outcomes[0].contains(&false) && outcomes[0].contains(&true));
        assert!(outcomes.iter().all(|mode| *mode == outcomes[0]), "seed {seed}");
    }
}

#[test]
fn what_fails_with_the_cache_fails_without() {
    for (seed, &mode) in (1..10).flat_map(|seed| MODES[..4].iter().map(move |mode| (seed, mode))) {
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
                world.allocator.set_zonelist_cache(ZonelistCache::Off);
                assert!(world.allocator.alloc(&request).is_err(), "the cache hid a block");
                world.allocator.set_zonelist_cache(mode);
                let at = random.below(held.len() as u64) as usize;
                world.free([held.swap_remove(at)]);
            }
            world.controls.advance_ms(random.below(20));
        }
        assert!(failures > 100);
        world.check();
    }
}
