//! Tests of requests with limits, nodes and policies that the CPU's pageset can serve without a scan.

use crate::common::{Plan, World, node, run_on};
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
