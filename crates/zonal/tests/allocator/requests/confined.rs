//! Tests of requests that a cpuset or a binding policy confines to nodes other than the CPU's own.

use crate::common::scenarios::with_min;
use crate::common::{Plan, node, run_on};
use zonal::config::ZonelistCache;
use zonal::mempolicy::Policy;
use zonal::units::ZoneKind;
use zonal::{Config, NodeMask, Request};

/// The record of the nearest zone follows the set, the zone limit and the zonelists.
#[test]
fn the_nearest_zone_of_a_cpuset_is_looked_up_anew_when_anything_changes() {
    let world = Plan::even(4, 1, 4096).build(&with_min(64));
    run_on(0);
    let served = |allowed: &[u16], request: Request<'_>| {
        let mask: NodeMask = allowed.iter().copied().map(node).collect();
        let block = world.allocator.alloc(&request.allowed(&mask)).unwrap();
        world.free([block]);
        block.node
    };
    for round in 0..3 {
        assert_eq!(served(&[2, 3], Request::page()), node(2), "round {round}");
        assert_eq!(served(&[3], Request::page()), node(3), "round {round}");
        assert_eq!(served(&[1, 3], Request::page()), node(1), "round {round}");
        assert_eq!(served(&[0, 3], Request::page()), node(0), "round {round}");
    }
    let dma = Request::page().zone_limit(ZoneKind::Dma);
    let mask: NodeMask = [2, 3].map(node).into_iter().collect();
    assert!(
        world.allocator.alloc(&dma.no_wait().allowed(&mask)).is_err(),
        "no node has a zone within the limit"
    );
    let bound = Policy::bind(&world.allocator, [2, 3].map(node).into_iter().collect()).unwrap();
    assert_eq!(served(&[1, 3], Request::page().policy(&bound)), node(3), "the cpuset and the policy");
    let preferred = Policy::preferred(&world.allocator, node(2)).unwrap();
    assert_eq!(
        served(&[1, 2], Request::page().policy(&preferred)),
        node(2),
        "the policy chooses the first node"
    );
    assert_eq!(served(&[2, 3], Request::page()), node(2));
    // A change of the zonelists ends the record, so that the node that is nearest then serves.
    let zone = world.zone(2).span;
    world.allocator.offline_memory(zone).unwrap();
    assert_eq!(served(&[1], Request::page()), node(1), "another set takes the record");
    assert_eq!(served(&[2, 3], Request::page()), node(3));
    world.allocator.online_memory(zone).unwrap();
    assert_eq!(served(&[2, 3], Request::page()), node(2));
    world.check();
}

/// A scan that heeds full bits from its start skips the nearest zone, so that requests are not served from its pageset.
#[test]
fn a_full_bit_of_the_nearest_zone_counts_only_as_first_published() {
    for (mode, server) in [(ZonelistCache::Original, 2), (ZonelistCache::On, 1)] {
        let world = Plan::even(4, 1, 4096).build(&Config { zonelist_cache: mode, ..with_min(64) });
        run_on(0);
        let mask: NodeMask = [1, 2].map(node).into_iter().collect();
        let request = Request::page().allowed(&mask);
        let mut held = Vec::new();
        let past = loop {
            let block = world.allocator.alloc(&request).unwrap();
            if block.node == node(2) {
                break block;
            }
            held.push(block);
        };
        world.free(held.drain(..8)); // to the CPU's pageset of node 1
        let block = world.allocator.alloc(&request).unwrap();
        assert_eq!(block.node, node(server), "{mode:?}");
        world.free(held.into_iter().chain([past, block]));
        world.check();
    }
}
