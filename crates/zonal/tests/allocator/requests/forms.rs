//! Tests of requests with limits, nodes and policies that the CPU's pageset can serve without a scan.

use crate::common::scenarios::with_min;
use crate::common::{Plan, World, node, order, run_on};
use zonal::mempolicy::Policy;
use zonal::request::Block;
use zonal::units::{NodeId, ZoneKind};
use zonal::{Config, NodeMask, Request};

const FRAMES: u64 = 1 << 14;

fn world(nodes: u16) -> World {
    run_on(0);
    Plan::even(nodes, 1, FRAMES).build(&Config::default())
}

/// Requests with limits, nodes and policies use the CPU's pageset if it suits them. While node 0 is full, this is a pageset
/// of node 1, which serves only requests that begin at node 0.
#[test]
fn every_form_is_served_and_counted_as_a_scan_would() {
    for is_full in [false, true] {
        let world = world(3);
        let a = &world.allocator;
        run_on(0);
        let all = || a.alloc(&Request::page().this_node().no_wait()).ok();
        let mut held: Vec<Block> = if is_full { std::iter::from_fn(all).collect() } else { Vec::new() };
        held.extend((0..200).map(|_| a.alloc(&Request::page()).unwrap()));
        assert_eq!(held.last().unwrap().node, node(u16::from(is_full)));
        let masks = [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]]
            .map(|ids| ids.iter().map(|&id| node(id)).collect::<NodeMask>());
        for nodes in &masks {
            let bind = Policy::bind(a, *nodes).unwrap();
            let order: Vec<NodeId> = nodes.iter().collect();
            let prefer = Policy::preferred_many(a, &order).unwrap();
            let first = Policy::preferred(a, order[0]).unwrap();
            let page = Request::page().no_wait();
            let forms = [
                (page.allowed(nodes), true),
                (page.policy(&bind).zone_limit(ZoneKind::Normal), true),
                (page.policy(&bind).allowed(&masks[5]), true),
                (page.policy(&prefer), false),
                (page.policy(&first), false),
            ];
            for (at, (request, is_strict)) in forms.iter().enumerate() {
                let before = a.locality();
                let blocks: Vec<Block> = (0..40).map_while(|_| a.alloc(request).ok()).collect();
                let (first, is_served) =
                    (order[0], !is_full || nodes.contains(node(1)) || nodes.contains(node(2)));
                assert_eq!(
                    blocks.len(),
                    if is_served || !is_strict { 40 } else { 0 },
                    "{nodes:?}, form {at}"
                );
                assert!(!is_strict || blocks.iter().all(|block| nodes.contains(block.node)));
                let from = |id| blocks.iter().filter(|block| block.node == id).count() as u64;
                let hits = a.locality().hit - before.hit;
                if !is_full {
                    assert_eq!((from(first), hits), (40, 40), "{nodes:?}, form {at}");
                } else if at != 3 {
                    // While it is tried, each node of `preferred_many` counts as the preferred node.
                    assert_eq!(hits, from(first), "{nodes:?}, form {at}");
                    assert_eq!(
                        a.locality().foreign - before.foreign,
                        40 * u64::from(is_served || !is_strict) - hits
                    );
                }
                assert_eq!(a.locality().other + a.locality().local, a.locality().hit + a.locality().miss);
                blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
            }
        }
        held.iter().for_each(|block| a.free(block.first, block.order).unwrap());
        a.verify().unwrap();
    }
}

/// A request with a zone limit begins at the highest zone that the limit permits, even while the CPU's pageset slot
/// belongs to a lower zone of the same node.
#[test]
fn a_lower_zone_of_the_node_serves_no_request_that_begins_at_a_higher_one() {
    run_on(0);
    let mut plan = Plan {
        nodes: vec![(0, vec![0]), (1, vec![])],
        distances: vec![vec![10, 20], vec![20, 10]],
        ..Plan::default()
    };
    for (at, kind, frames) in
        [(1, ZoneKind::Dma32, FRAMES), (2, ZoneKind::Normal, FRAMES), (3, ZoneKind::Movable, 16 * FRAMES)]
    {
        plan.zones.push((0, kind, at * FRAMES, frames, vec![(at * FRAMES, frames)]));
    }
    plan.zones.push((1, ZoneKind::Normal, 1 << 20, FRAMES, vec![(1 << 20, FRAMES)]));
    let world = plan.build(&with_min(64));
    let a = &world.allocator;
    let kind_of = |block: &Block| a.zones().find(|zone| zone.id == block.zone).unwrap().kind;
    let mut held = vec![a.alloc(&Request::page()).unwrap()];
    while kind_of(held.last().unwrap()) != ZoneKind::Dma32 {
        held.push(a.alloc(&Request::page().no_wait()).unwrap());
    }
    held.extend((0..5).map(|_| a.alloc(&Request::page()).unwrap())); // the pageset of `Dma32` becomes the CPU's slot
    assert_eq!(kind_of(held.last().unwrap()), ZoneKind::Dma32);
    let limited = Request::page().zone_limit(ZoneKind::Normal);
    let before = kind_of(&a.alloc(&limited.below(zonal::units::Pfn::new(1 << 30))).unwrap());
    for _ in 0..20 {
        let block = a.alloc(&limited).unwrap();
        assert_eq!(kind_of(&block), before, "the zone at which a scan begins");
        held.push(block);
    }
}

/// The block of order 4 to 8 that a CPU allocated last stays in its pageset when it is freed, also if it came from there.
#[test]
fn the_last_block_of_a_middle_order_stays_with_the_cpu() {
    let world = world(1);
    let a = &world.allocator;
    run_on(0);
    let free = |block: Block| {
        let before = a.accounting().in_pagesets;
        a.free(block.first, block.order).unwrap();
        a.accounting().in_pagesets != before
    };
    let of = |at| a.alloc(&Request::new(order(at))).unwrap();
    assert!(free(of(5)));
    assert!(free(of(6)));
    for round in 0..4 {
        assert!(free(of(5)), "{round}");
        assert!(free(of(6)), "{round}");
    }
    let first = of(6);
    let second = of(5);
    assert!(!free(first), "another block was allocated since");
    assert!(free(second));
}

/// Larger blocks that the pageset serves change the approximate numbers of allocated frames within the documented error.
#[test]
fn approximate_numbers_include_larger_blocks() {
    for at in [1, 3] {
        let world = world(1);
        let a = &world.allocator;
        run_on(0);
        let all = || -> Vec<Block> { (0..400).map(|_| a.alloc(&Request::new(order(at))).unwrap()).collect() };
        for _ in 0..3 {
            all().iter().for_each(|block| a.free(block.first, block.order).unwrap());
        }
        let held = all();
        let there_is = a.accounting().allocated.get();
        let [user, ..] = a.allocated_approximate();
        assert!(there_is.abs_diff(user.get()) <= 125 + (1 << at));
        held.iter().for_each(|block| a.free(block.first, block.order).unwrap());
        let [user, ..] = a.allocated_approximate();
        assert!(user.get() <= 125 + (1 << at));
    }
}
