//! Tests the cost of a request, in accesses to cells, when the nearest nodes are full or not allowed. The cost does not
//! depend on the number of full nodes, except for one word of full bits for each 64 nodes. With a cpuset, a scan makes a
//! few accesses for each allowed node or for each excluded node, whichever are fewer, and the requests after it make one
//! access for each 64 nodes.

use std::cell::Cell;

use crate::common::scenarios::{one_cpu, order, with_min};
use crate::common::watched::Access;
use crate::common::watching::{WatchedAllocator, Watcher};
use crate::common::{node, repeats};
use zonal::config::ZonelistCache;
use zonal::units::{Order, ZoneKind};
use zonal::{Block, Config, NodeMask, Policy, Request};

thread_local! {
    static ACCESSES: Cell<u64> = const { Cell::new(0) };
}

/// Counts the accesses of this thread.
struct Count;

impl Watcher for Count {
    fn before(&self, _access: Access) {
        ACCESSES.set(ACCESSES.get() + 1);
    }
}

/// Builds `full` nodes that are down to their watermark, followed by a large node that serves.
fn filled(full: u16, mode: ZonelistCache) -> WatchedAllocator {
    let mut frames = vec![128; full.into()];
    frames.push(1 << 14);
    let past = zonal_history::PAST;
    let config = Config { zonelist_cache: mode, past, ..with_min(8 * u64::from(full) + 64) };
    let world = one_cpu(&frames, ZoneKind::Normal).build_watched(&config, &Count).allocator;
    while world.alloc(&Request::page()).unwrap().node != node(full) {}
    world
}

/// Returns the probes and accesses of `count` requests for `order` blocks, served by the node `full`.
fn costs(world: &WatchedAllocator, full: u16, order: Order, count: usize) -> (u64, u64) {
    costs_of(world, &Request::new(order), full, count)
}

/// Returns the probes and accesses of `count` requests, served by the node `server`.
fn costs_of(world: &WatchedAllocator, request: &Request<'_>, server: u16, count: usize) -> (u64, u64) {
    let (probes, accesses) = (world.events().probes, ACCESSES.get());
    let blocks: Vec<Block> = (0..count).map(|_| world.alloc(request).unwrap()).collect();
    let accesses = ACCESSES.get() - accesses;
    assert!(accesses > 0, "no access was counted");
    let probes = world.events().probes - probes;
    assert!(blocks.iter().all(|block| block.node == node(server)));
    blocks.iter().for_each(|block| world.free(block.first, block.order).unwrap());
    (probes, accesses)
}

#[test]
fn requests_cost_the_same_however_many_nodes_are_full() {
    const REQUESTS: usize = 200;
    for (mode, order) in [ZonelistCache::On, ZonelistCache::Published]
        .into_iter()
        .flat_map(|mode| [0, 3, 9].map(|at| (mode, order(at))))
    {
        let mut one_full = None;
        for full in [1, 2, 63, 15, 1023, 255].into_iter().step_by(repeats(2, 1) as usize) {
            let world = filled(full, mode);
            let requests = if order == Order::new(9).unwrap() { 10 } else { REQUESTS };
            costs(&world, full, order, requests); // sets the full bits for this order
            let (probes, accesses) = costs(&world, full, order, requests);
            let requests = requests as u64;
            assert!(probes <= 3 * requests, "{full} full nodes, {mode:?}, {order}: {probes} probes");
            let words = requests * u64::from(full / 64);
            let most = words + *one_full.get_or_insert(accesses) * 11 / 10;
            assert!(accesses <= most, "{full} full nodes, {mode:?}, {order}: {accesses} accesses, {most}");
        }
    }
}

/// Node count of the machine on which the tests use cpusets.
const NODES: u16 = 1024;
const REQUESTS: u64 = 10;

/// Returns the maximum number of accesses that the cpuset `mask` adds to a request.
fn accesses_beside(world: &WatchedAllocator, mask: &NodeMask, server: u16) -> u64 {
    costs_of(world, &Request::page(), 0, 1); // refills the CPU's pageset
    // A policy that prefers another node makes a request leave the fast path.
    let scans = Policy::preferred(world, node(1)).unwrap();
    let (probes, free) = costs_of(world, &Request::page().policy(&scans), 1, REQUESTS as usize);
    assert_eq!(probes, REQUESTS);
    // The CPU's pageset serves requests for which its node is allowed. For all others, the first request scans, looks at no
    // other zone and refills the CPU's pageset of the serving zone. This pageset serves the rest.
    let scans = u64::from(!mask.contains(node(0)));
    let request = Request::page().allowed(mask);
    let (probes, allowed) = costs_of(world, &request, server, REQUESTS as usize);
    assert!(probes <= scans, "no disallowed zone is looked at: {probes} probes");
    let bound = Policy::bind(world, *mask).unwrap();
    assert_eq!(costs_of(world, &Request::page().policy(&bound), server, REQUESTS as usize).0, 0);
    let (_, again) = costs_of(world, &request, server, REQUESTS as usize);
    let most = REQUESTS * (2 * u64::from(NODES / 64) + 30);
    assert!(again <= most, "{again} accesses from the pageset of the serving zone, not {most}");
    allowed.saturating_sub(free) / REQUESTS
}

#[test]
fn a_cpuset_costs_no_more_than_the_fewer_of_its_nodes_and_the_others() {
    let frames = vec![4096; NODES.into()];
    let world = one_cpu(&frames, ZoneKind::Normal).build_watched(&with_min(64), &Count).allocator;
    for count in [1, 8, 9, 64, 512, 1023, 1024] {
        // The worst case: the allowed nodes are the farthest.
        let nearest = NODES - count;
        let mask: NodeMask = (nearest..NODES).map(node).collect();
        let accesses = accesses_beside(&world, &mask, nearest);
        let words = u64::from(NODES / 64);
        // The bound covers tests of the near positions, a few words of lists and masks, and the accesses to the serving
        // zone.
        let most = u64::from(count.min(nearest)) + 64 + 5 * words;
        assert!(accesses <= most, "{count} nodes allowed: {accesses} accesses more, not {most}");
        // The usual case: the nearest nodes are allowed.
        let mask: NodeMask = (0..count).map(node).collect();
        let accesses = accesses_beside(&world, &mask, 0);
        // The bound covers the mask words of nodes with memory, and the node at the first position of the list.
        assert!(accesses <= words + 4, "{count} nodes allowed, the nearest: {accesses} accesses more");
    }
    assert_eq!(world.events().marks, 0);
}

#[test]
fn full_nodes_of_a_cpuset_are_passed_like_others() {
    for mode in [ZonelistCache::On, ZonelistCache::Published] {
        // The nodes of one half are not allowed. In the other half, all nodes except the last are full.
        let (full, half) = (NODES - 1, NODES / 2);
        let world = filled(full, mode);
        let mask: NodeMask = (half..NODES).map(node).collect();
        let request = Request::page().allowed(&mask);
        costs_of(&world, &request, full, 1); // sets the full bits
        let (probes, accesses) = costs_of(&world, &request, full, REQUESTS as usize);
        assert!(probes <= 3 * REQUESTS, "{mode:?}: {probes} probes");
        let most = REQUESTS * (2 * u64::from(half) + 300);
        assert!(accesses <= most, "{mode:?}: {accesses} accesses, not {most}");
    }
}

#[test]
fn zones_above_the_limit_cost_nothing() {
    // Each node has a full zone below the zone limit, and a zone above it that has free frames.
    let (nodes, frames) = (512, 128);
    let mut plan = one_cpu(&vec![frames; nodes], ZoneKind::Dma32);
    plan.zones.last_mut().unwrap().3 = 1 << 13;
    plan.zones.last_mut().unwrap().4[0].1 = 1 << 13;
    let above = (0..nodes as u64).map(|id| {
        let start = (1 << 30) + id * 4096;
        (id as u16, ZoneKind::Movable, start, frames, vec![(start, frames)])
    });
    plan.zones.extend(above);
    plan.zones.sort_by_key(|zone| (zone.0, zone.1));
    let last = nodes as u16 - 1;
    let world = plan.build_watched(&with_min(8 * nodes as u64), &Count).allocator;
    let request = Request::page().zone_limit(ZoneKind::Normal);
    while world.alloc(&request).unwrap().node != node(last) {}
    let (probes, accesses) = costs_of(&world, &request, last, REQUESTS as usize);
    assert_eq!(probes, 2 * REQUESTS);
    let most = REQUESTS * (4 * (2 * nodes as u64 / 64) + 120);
    assert!(accesses <= most, "{accesses} accesses, not {most}");
}
