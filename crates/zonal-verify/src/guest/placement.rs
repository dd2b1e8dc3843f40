//! Checks that every pool page is on its zone's node, whichever CPU touches it first.
//!
//! Related files: `policies.rs` checks which nodes serve, and `pages.rs` compares the nodes of pages.

use std::collections::BTreeMap;

use zonal::error::PolicyError;
use zonal_linux::{HugePages, Pool, PoolError, PoolRequest, Prefault};

use super::kernel::{interleave_thread, log, memory_nodes, nodes_with_cpus, on_cpu};
use super::pages::{
    MIB, Tally, all_free, every_page_on_its_node, fallback_order, flawless, mask, needs_nodes, node,
    on_their_nodes, take,
};
use super::verdict::{Found, Verdict, ensure, text};

/// Size of each pool, over all nodes.
const POOL_BYTES: u64 = 48 * MIB;

/// Checks ordinary pages. In each pass a CPU of another node is the first to touch them.
pub(super) fn ordinary_pages() -> Verdict {
    every_page(HugePages::Never)
}

/// Makes the checks of [`ordinary_pages`] in pools for which the kernel may use transparent huge pages.
pub(super) fn transparent_pages() -> Verdict {
    every_page(HugePages::Transparent)
}

fn every_page(huge_pages: HugePages) -> Verdict {
    needs_nodes!();
    let mut found = String::new();
    for (of, cpu) in nodes_with_cpus()? {
        for prefault in [Prefault::OnUse, Prefault::AtOnce] {
            let tally = on_cpu(cpu, || by_this_cpu(huge_pages, prefault))
                .map_err(|why| format!("{prefault:?}, touched by node {of}: {why}"))?;
            found = format!("pages by node {tally:?}");
        }
    }
    Ok(Found::Holds(found))
}

/// Makes the checks of [`ordinary_pages`] in pools that processes share: their files must be bound before they have pages.
pub(super) fn shared_pages() -> Verdict {
    needs_nodes!();
    let folder = tempfile::tempdir().map_err(text)?;
    let path = folder.path().join("pool");
    let builder = || Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never);
    let mut found = String::new();
    for builder in [builder().shared(&path), builder().shared_by_descriptor()] {
        let pool = flawless(builder)?;
        let tally = every_page_on_its_node(&pool)?;
        ensure!(tally.keys().eq(&memory_nodes()?), "pages on nodes {tally:?}");
        found = format!("pages by node {tally:?}");
    }
    Ok(Found::Holds(found))
}

/// Compares every page's node with its zone's, in a pool that this CPU builds and touches.
fn by_this_cpu(huge_pages: HugePages, prefault: Prefault) -> Result<Tally, String> {
    let pool = flawless(Pool::builder().size(POOL_BYTES).huge_pages(huge_pages).prefault(prefault))?;
    let tally = every_page_on_its_node(&pool)?;
    let (seen, all) = (tally.keys().copied().collect::<Vec<_>>(), memory_nodes()?);
    ensure!(seen == all, "pages on nodes {seen:?}, memory is on nodes {all:?}");
    all_free(&pool).map(|()| tally)
}

/// Checks that a memory policy of the thread, such as one set by `numactl --interleave`, does not override the pool's
/// binding.
pub(super) fn process_policy() -> Verdict {
    needs_nodes!();
    interleave_thread(true)?;
    let pool = flawless(Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never));
    let tally = pool.and_then(|pool| every_page_on_its_node(&pool));
    interleave_thread(false)?;
    Ok(Found::Holds(format!("pages by node {:?}", tally?)))
}

/// Checks nodes without memory and nodes without CPUs. CPUs of a node without memory must be served by the first node
/// in its fallback order. A policy that prefers a node without memory must be refused, and so must a pool of that node
/// alone. A node without CPUs must serve requests like any other node.
pub(super) fn odd_nodes() -> Verdict {
    needs_nodes!();
    let (with_memory, with_cpus) = (memory_nodes()?, nodes_with_cpus()?);
    let without_memory: Vec<_> = with_cpus.iter().filter(|(of, _)| !with_memory.contains(of)).collect();
    let without_cpus: Vec<u16> =
        with_memory.iter().copied().filter(|of| with_cpus.iter().all(|(other, _)| other != of)).collect();
    if without_memory.is_empty() || without_cpus.is_empty() {
        return Ok(Found::Skipped("every node has memory, or every node has CPUs".into()));
    }
    let pool = flawless(Pool::builder().size(POOL_BYTES))?;
    for &&(of, cpu) in &without_memory {
        let first = fallback_order(&pool, of)[0];
        on_cpu(cpu, || {
            let mut held = take(&pool, &PoolRequest::page(), 100)?;
            ensure!(held.iter().all(|frames| frames.node().get() == first), "not all frames of node {first}");
            on_their_nodes(&mut held)
        })?;
        let refused = pool.preferred(node(of)).map(drop).unwrap_err();
        ensure!(matches!(refused, PolicyError::NoMemory), "preferred:{of} is refused with {refused:?}");
        let refused = Pool::builder().nodes([node(of)]).build().map(drop);
        ensure!(
            matches!(refused, Err(PoolError::NodeWithoutMemory { .. })),
            "a pool of node {of}, which has no memory, gives {refused:?}"
        );
    }
    for &of in &without_cpus {
        let (alone, bind) = (mask([of]), pool.bind(mask([of])).map_err(text)?);
        let mut held = take(&pool, &PoolRequest::page().policy(&bind).allowed(&alone), 100)?;
        on_their_nodes(&mut held)?;
        let of_one = flawless(Pool::builder().size(POOL_BYTES / 4).nodes([node(of)]))?;
        let tally = every_page_on_its_node(&of_one)?;
        ensure!(tally.keys().eq([&of]), "a pool of node {of} alone lies on {tally:?}");
    }
    all_free(&pool)?;
    Ok(Found::Holds(format!("without memory {without_memory:?}, without CPUs {without_cpus:?}")))
}

/// Checks that the pool's fallback orders equal those that the kernel printed last, without the nodes that have no
/// memory.
pub(super) fn fallback_order_of_the_kernel() -> Verdict {
    needs_nodes!();
    let mut printed: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for line in log()?.lines() {
        let Some((_, rest)) = line.split_once("Fallback order for Node ") else { continue };
        let Some((of, order)) = rest.split_once(": ") else { continue };
        let order = order.split_whitespace().filter_map(|node| node.parse().ok()).collect();
        printed.insert(of.parse().map_err(text)?, order);
    }
    if printed.is_empty() {
        return Ok(Found::Skipped("the kernel's log has no fallback orders".into()));
    }
    let with_memory = memory_nodes()?;
    let pool = flawless(Pool::builder().size(POOL_BYTES))?;
    for (&of, order) in &mut printed {
        order.retain(|node| with_memory.contains(node));
        let ours = fallback_order(&pool, of);
        ensure!(ours == *order, "node {of}: the pool falls back on {ours:?}, the kernel on {order:?}");
    }
    Ok(Found::Holds(format!("{printed:?}")))
}
