//! Checks which node serves under each memory policy, and that every page is on the node that served it.
//!
//! The policies are those of [`PoolPolicy`], none of which prefers several nodes.
//!
//! Related files: `placement.rs` has the checks that do not depend on policies.

use zonal::NodeMask;
use zonal::error::AllocError;
use zonal::mempolicy::WeightTable;
use zonal::units::{NodeId, Order, Pfn};
use zonal_linux::{HugePages, LinuxPlatform, Pool, PoolPolicy, PoolRequest};

use super::kernel::{memory_nodes, nodes_with_cpus, on_cpu};
use super::pages::{
    MIB, Tally, all_free, fallback_order, flawless, mask, needs_nodes, node, on_their_nodes,
    order_of_appearance, served_by, take, take_all,
};
use super::verdict::{Found, Verdict, ensure, text};

/// Size of each pool, over all nodes.
const POOL_BYTES: u64 = 32 * MIB;
/// Frames of each node under policies that spread frames over nodes.
const SHARE: u64 = 300;

fn pool() -> Result<Pool, String> {
    flawless(Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never))
}

/// Allocates all frames of a pool, and checks that the nodes serve in the order `expected`.
fn used_up_in_order(pool: &Pool, request: &PoolRequest<'_>, expected: &[u16]) -> Result<Tally, String> {
    let mut held = take_all(pool, request);
    let order = order_of_appearance(&held);
    ensure!(order == expected, "nodes serve in the order {order:?} rather than {expected:?}");
    let tally = on_their_nodes(&mut held)?;
    drop(held);
    all_free(pool).map(|()| tally)
}

/// Checks the local policy: a thread on a CPU of each node must exhaust the pool in that node's fallback order.
pub(super) fn local() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let mut found = Vec::new();
    for (of, cpu) in nodes_with_cpus()? {
        let order = fallback_order(&pool, of);
        on_cpu(cpu, || used_up_in_order(&pool, &PoolRequest::page(), &order))
            .map_err(|why| format!("from node {of}: {why}"))?;
        found.push(format!("{of}: {order:?}"));
    }
    Ok(Found::Holds(found.join(", ")))
}

/// Checks that a preferred node serves first, and then the nodes of its fallback order, whichever CPU allocates.
pub(super) fn preferred() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    for preferred in memory_nodes()? {
        let policy = pool.preferred(node(preferred)).map_err(text)?;
        let order = fallback_order(&pool, preferred);
        for (of, cpu) in nodes_with_cpus()? {
            on_cpu(cpu, || used_up_in_order(&pool, &PoolRequest::page().policy(&policy), &order))
                .map_err(|why| format!("preferred {preferred} from node {of}: {why}"))?;
        }
    }
    Ok(Found::Holds(String::new()))
}

/// Checks that only the nodes of a set serve, in the fallback order of the calling CPU's node. Nodes of the set without
/// memory are skipped.
pub(super) fn bind() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let (nodes, cpus) = (memory_nodes()?, nodes_with_cpus()?);
    let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
    let bare = cpus.iter().map(|(of, _)| *of).find(|of| !nodes.contains(of)).unwrap_or(first);
    for set in [vec![last], vec![first, last], vec![nodes[1], bare], nodes.clone()] {
        let policy = pool.bind(mask(set.iter().copied())).map_err(text)?;
        for &(of, cpu) in &cpus {
            let mut order = fallback_order(&pool, of);
            order.retain(|node| set.contains(node));
            on_cpu(cpu, || used_up_in_order(&pool, &PoolRequest::page().policy(&policy), &order))
                .map_err(|why| format!("bound to {set:?} from node {of}: {why}"))?;
        }
    }
    Ok(Found::Holds(format!("last set {nodes:?}")))
}

/// Checks that every node in a set serves the same number of frames.
pub(super) fn interleave() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let nodes = memory_nodes()?;
    let of_all: Vec<u16> = pool.topology().nodes().iter().map(|node| node.id.get()).collect();
    for set in [nodes.clone(), of_all, vec![nodes[1], nodes[0]]] {
        let policy = pool.interleave(mask(set.iter().copied())).map_err(text)?;
        let equal = |node: &u16| set.contains(node).then_some((*node, SHARE));
        spread(&pool, &policy, &nodes.iter().filter_map(equal).collect())?;
    }
    all_free(&pool)?;
    Ok(Found::Holds(format!("{SHARE} pages of each of {nodes:?}")))
}

/// Checks that each node serves frames in proportion to its weight, and that new weights change the proportions.
pub(super) fn weighted() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let (nodes, weights) = (memory_nodes()?, WeightTable::<LinuxPlatform>::new());
    for (at, &of) in nodes.iter().enumerate() {
        weights.set(node(of), [3, 1, 0, 2][at % 4]);
    }
    let policy = pool.weighted_interleave(mask(nodes.iter().copied()), &weights).map_err(text)?;
    let expected = || -> Tally {
        let shares = nodes.iter().map(|&of| (of, u64::from(weights.get(node(of))) * SHARE / 3));
        shares.filter(|(_, share)| *share > 0).collect()
    };
    let found = expected();
    spread(&pool, &policy, &found)?;
    let changed = pool.weighted_interleave(mask(nodes.iter().copied()), &weights).map_err(text)?;
    weights.set(node(nodes[0]), 0);
    weights.set(node(nodes[1]), 2);
    spread(&pool, &changed, &expected())?;
    all_free(&pool)?;
    Ok(Found::Holds(format!("{found:?}")))
}

/// Allocates as many frames as `expected` has, and checks that each node served the expected number of them. Their
/// pages must be on the nodes that served them.
fn spread(pool: &Pool, policy: &PoolPolicy<'_>, expected: &Tally) -> Result<(), String> {
    let count: u64 = expected.values().sum();
    let mut held = take(pool, &PoolRequest::page().policy(policy), count as usize)?;
    let served = served_by(&held);
    ensure!(served == *expected, "nodes served {served:?} rather than {expected:?}");
    let lie = on_their_nodes(&mut held)?;
    ensure!(lie == *expected, "pages lie on {lie:?} rather than {expected:?}");
    Ok(())
}

/// Checks that all pages of a larger block are on the block's node, and that frames allocated in bulk are too.
pub(super) fn blocks_and_bulk() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let nodes = memory_nodes()?;
    let policy = pool.interleave(mask(nodes.iter().copied())).map_err(text)?;
    for order in [1, 3, 9] {
        let order = Order::new(order).expect("an order");
        let mut held = take(&pool, &PoolRequest::new(order).policy(&policy), nodes.len())?;
        let expected: Tally = nodes.iter().map(|&node| (node, order.pages().get())).collect();
        let lie = on_their_nodes(&mut held)?;
        ensure!(lie == expected, "blocks of order {order}: pages lie on {lie:?}");
    }
    for &of in &nodes {
        let bind = pool.bind(mask([of])).map_err(text)?;
        let mut frames = [Pfn::new(0); 200];
        let came = pool.alloc_bulk_raw(&PoolRequest::page().policy(&bind), &mut frames).map_err(text)?;
        let zones: Vec<_> = pool.ranges().filter(|zone| zone.node.get() == of).collect();
        let inside = |frame: &Pfn| {
            zones.iter().any(|zone| (zone.frames.start.get()..zone.frames.end().get()).contains(&frame.get()))
        };
        ensure!(frames[..came].iter().all(inside), "not all {came} frames in bulk are of node {of}");
        // SAFETY: the frames were allocated above, and no `Frames` owns them.
        unsafe { pool.free_bulk_raw(&frames[..came]) }.map_err(text)?;
    }
    all_free(&pool)?;
    Ok(Found::Holds(String::new()))
}

/// Checks that only the nodes that a request allows serve it, and that the request fails once these nodes have no free
/// frames.
pub(super) fn allowed_nodes() -> Verdict {
    needs_nodes!();
    let pool = pool()?;
    let nodes = memory_nodes()?;
    let allowed: NodeMask = mask([nodes[1], nodes[nodes.len() - 1]]);
    for (of, cpu) in nodes_with_cpus()? {
        on_cpu(cpu, || {
            let mut order = fallback_order(&pool, of);
            order.retain(|&one| allowed.contains(node(one)));
            used_up_in_order(&pool, &PoolRequest::page().allowed(&allowed), &order)?;
            let strict = pool.alloc_raw(&PoolRequest::page().allowed(&allowed).this_node().no_wait());
            match strict {
                Ok(block) if block.node == node(of) && allowed.contains(block.node) => {
                    // SAFETY: the block was allocated above, and no `Frames` owns it.
                    unsafe { pool.free_raw(block.first, block.order) }.map_err(text)
                }
                Err(AllocError::OutOfMemory(_)) if !allowed.contains(node(of)) => Ok(()),
                Err(error) if !nodes.contains(&of) => {
                    ensure!(!matches!(error, AllocError::OrderTooLarge { .. }), "{error}");
                    Ok(())
                }
                other => Err(format!("a request for node {of} alone gives {other:?}")),
            }
        })
        .map_err(|why| format!("from node {of}: {why}"))?;
    }
    Ok(Found::Holds(format!("nodes {:?}", allowed.iter().map(NodeId::get).collect::<Vec<_>>())))
}
