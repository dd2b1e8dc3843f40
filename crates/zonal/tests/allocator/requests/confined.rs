//! Tests of requests that a cpuset or a binding policy confines to nodes other than the CPU's own.

use crate::common::scenarios::with_min;
use crate::common::{Plan, node, run_on};
use zonal::mempolicy::Policy;
use zonal::units::ZoneKind;
use zonal::{NodeMask, Request};

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
