//! Tests the zonelist cache of 2006 where it differs from that of 2.6.31 to 3.0, and what both share against the present
//! form. A model has the published rule.

use crate::common::scenarios::{Scripted, one_cpu, with_min};
use crate::common::{Random, World, node, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::units::ZoneKind;
use zonal::{Block, Config, NodeMask, Policy, Request};

const OF_2006: ZonelistCache = ZonelistCache::Jackson2006;
const LATER: [ZonelistCache; 3] =
    [ZonelistCache::Original, ZonelistCache::CacheFirst, ZonelistCache::Published];
const NODES: usize = 5;
const LIMITS: [ZoneKind; 3] = [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];

/// The scan of 2.6.20, transcribed from the description of its rule: each zone limit has a list with a cache, which is set
/// up after the first zone that fails and is then respected, except in a second pass.
struct Model {
    bits: [[bool; NODES]; LIMITS.len()],
    wiped_ms: u64,
    now_ms: u64,
    probes: u64,
    marks: u64,
    wipes: u64,
}

impl Model {
    /// Scans `zones`; `cache` is the limit whose full bits the list has, if it has any. Returns the zone that serves.
    fn scan(&mut self, cache: Option<usize>, zones: &[usize], full: &[bool; NODES]) -> Option<usize> {
        let (mut is_set_up, mut is_active) = (false, false);
        loop {
            for &zone in zones {
                if is_active && cache.is_some_and(|limit| self.bits[limit][zone]) {
                    continue;
                }
                self.probes += 1;
                if !full[zone] {
                    return Some(zone);
                }
                if let Some(limit) = cache {
                    self.marks += u64::from(!std::mem::replace(&mut self.bits[limit][zone], true));
                }
                if !is_set_up {
                    (is_set_up, is_active) = (true, true);
                    if cache.is_some() && self.now_ms - self.wiped_ms > 1000 {
                        // In this allocator, a wipe clears the bits for all limits: they share a clock.
                        self.bits = Default::default();
                        self.wiped_ms = self.now_ms;
                        self.wipes += 1;
                    }
                }
            }
            if !is_active {
                return None;
            }
            is_active = false;
        }
    }
}

/// The lists that a request may walk.
#[derive(Clone, Copy, Debug)]
enum List {
    Fallback,
    ThisNode,
    Bound,
}

fn history(seed: u64) {
    let config = Config { zonelist_cache: OF_2006, ..with_min(300) };
    let world = one_cpu(&[2048; NODES], ZoneKind::Dma32).build(&config);
    run_on(0);
    let mut held: Vec<Vec<Block>> = (0..NODES as u16).map(|id| world.alloc_node(id)).collect();
    world.allocator.set_zonelist_cache(OF_2006).unwrap();
    let bound: NodeMask = [1, 3, 4].map(node).into_iter().collect();
    let bound = Policy::bind(&world.allocator, bound).unwrap();
    let (mut random, mut full, mut failures) = (Random(seed), [true; NODES], 0);
    let mut model =
        Model { bits: Default::default(), wiped_ms: 0, now_ms: 5000, probes: 0, marks: 0, wipes: 0 };
    for step in 0..400 {
        model.now_ms += random.below(300);
        world.controls.set_ms(model.now_ms);
        if random.once_in(80) {
            let node = random.below(NODES as u64) as usize;
            world.free(held[node].drain(..));
            world.allocator.drain_pagesets();
            full[node] = false;
        }
        let limit = random.below(LIMITS.len() as u64) as usize;
        let list =
            random.pick(&[List::Fallback, List::Fallback, List::Fallback, List::ThisNode, List::Bound]);
        let request = Request::page().zone_limit(LIMITS[limit]).no_wait();
        let (request, cache, zones) = match list {
            List::Fallback => (request, Some(limit), &[0, 1, 2, 3, 4][..]),
            List::ThisNode => (request.this_node(), Some(limit), &[0][..]),
            List::Bound => (request.policy(&bound), None, &[1, 3, 4][..]),
        };
        (model.probes, model.marks, model.wipes) = (0, 0, 0);
        // A request scans at `low`, at `min`, and a last time.
        let expected = (0..3).find_map(|_| model.scan(cache, zones, &full));
        let (found, events) = world.during(|| world.allocator.alloc(&request).ok());
        let context = format!("seed {seed}, step {step}: {list:?} {limit}");
        assert_eq!(found.map(|block| block.node.index()), expected, "{context}");
        assert_eq!((events.marks, events.wipes), (model.marks, model.wipes), "{context}");
        // The CPU's pageset of its own node serves without a probe.
        assert!(events.probes == model.probes || expected == Some(0), "{context}: {}", events.probes);
        failures += u64::from(found.is_none());
        world.free(found);
        world.allocator.drain_pagesets();
    }
    assert!(failures > 10, "seed {seed} tests too little");
    world.check();
}

#[test]
fn scans_follow_the_rule_of_2006_step_by_step() {
    (1..20).for_each(history);
}

/// Builds node 0 below its watermarks, and node 1 with plenty of free frames, with node reclaim on.
fn near_full(mode: ZonelistCache, frames: &[u64], near: usize) -> World {
    let config = Config { zonelist_cache: mode, node_reclaim: NodeReclaim::ON, ..with_min(600) };
    let world = one_cpu(frames, ZoneKind::Normal).build(&config);
    run_on(0);
    (0..near as u16).for_each(|id| drop(world.leave_free(id, 5)));
    world.allocator.set_zonelist_cache(mode).unwrap();
    world
}

#[test]
fn in_2006_a_zone_whose_reclaim_freed_enough_served_although_below_the_watermark() {
    for (mode, expected) in [(OF_2006, 0), (LATER[0], 1), (LATER[1], 1), (LATER[2], 1)] {
        for (freed, server) in [(1, expected), (0, 1)] {
            let world = near_full(mode, &[2048, 1 << 16], 1);
            // The reclaimers free `freed` frames, which do not lift the node above its watermark.
            world.controls.set_reclaimer(Scripted::new(1 << 20, move |_, _| freed));
            let (found, events) = world.during(|| world.server(&Request::page()));
            assert_eq!((found, events.node_reclaim_success), (server, freed), "{mode:?}, {freed} freed");
            assert_eq!(events.marks, u64::from(server == 1), "{mode:?}, {freed} freed");
        }
    }
}

#[test]
fn in_2006_a_zone_whose_reclaim_did_not_run_was_marked_full() {
    for (mode, marks) in [(OF_2006, 2), (LATER[0], 0), (LATER[1], 0), (LATER[2], 0)] {
        let world = near_full(mode, &[2048, 2048, 1 << 16], 2);
        world.controls.set_reclaimer(Scripted::new(1 << 20, |_, _| 0));
        let (server, events) = world.during(|| world.server(&Request::page().no_wait()));
        assert_eq!((server, events.node_reclaim_no_scan), (2, 2), "{mode:?}");
        assert_eq!(events.marks, marks, "{mode:?}");
    }
}

#[test]
fn in_2006_one_node_had_a_cache_too() {
    for (mode, uses) in [(OF_2006, true), (LATER[0], false), (LATER[1], false), (LATER[2], false)] {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048], ZoneKind::Normal).build(&config);
        world.alloc_node(0);
        world.controls.set_ms(5000);
        world.allocator.set_zonelist_cache(mode).unwrap();
        let (_, events) = world.during(|| world.allocator.alloc(&Request::page().no_wait()).unwrap_err());
        // Three scans, each of them twice if the cache hid something.
        assert_eq!((events.marks > 0, events.wipes > 0), (uses, uses), "{mode:?}");
        assert_eq!(events.probes, if uses { 6 } else { 3 }, "{mode:?}");
    }
}

#[test]
fn lists_without_a_cache_are_scanned_twice_in_all_past_forms() {
    for mode in LATER {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048], ZoneKind::Normal).build(&config);
        world.alloc_node(0);
        let strict = Request::page().this_node().no_wait();
        let (_, events) = world.during(|| world.allocator.alloc(&strict).unwrap_err());
        assert_eq!((events.probes, events.marks, events.wipes), (6, 0, 0), "{mode:?}");
    }
}

#[test]
fn requests_that_ignore_watermarks_skip_full_zones_only_in_past_forms() {
    for (mode, probes) in [(OF_2006, 2), (LATER[0], 2), (LATER[1], 2), (LATER[2], 2), (ZonelistCache::On, 3)]
    {
        let config = Config { zonelist_cache: mode, ..with_min(300) };
        let world = one_cpu(&[2048, 2048, 4096], ZoneKind::Normal).build(&config);
        run_on(0);
        world.alloc_node(0);
        world.alloc_node(1);
        world.allocator.set_zonelist_cache(mode).unwrap();
        assert_eq!(world.probes(&Request::page()), 3, "{mode:?}");
        world.allocator.drain_pagesets();
        let reserve = Request::page().urgency(zonal::request::Urgency::Reserve);
        let (server, events) = world.during(|| world.server(&reserve));
        assert_eq!((server, events.probes), (2, probes), "{mode:?}");
    }
}
