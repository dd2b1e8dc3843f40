//! Compares the node of each pool page, as the kernel reports it, with the node that the pool reports.
//!
//! Related files: `kernel.rs` queries the kernel for the nodes of pages. `placement.rs` and `policies.rs` check which
//! node is right.

use std::collections::BTreeMap;

use zonal::NodeMask;
use zonal::units::{NodeId, PageCount};
use zonal_linux::{Frames, Pool, PoolBuilder, PoolRequest};

use super::kernel::{PagePlace, page_places, touch};
use super::verdict::{ensure, text};

pub(super) const MIB: u64 = 1 << 20;
/// Maximum number of pages in one kernel query.
const QUERY_PAGES: usize = 16384;
/// Size of a base page in bytes, for all pools of these checks.
pub(super) const PAGE_BYTES: usize = 4096;

/// Number of pages on each node.
pub(super) type Tally = BTreeMap<u16, u64>;

/// Returns the reason to skip checks on a machine that has fewer than two nodes with memory, otherwise `None`.
pub(super) fn lacks_nodes() -> Option<String> {
    match super::kernel::memory_nodes() {
        Ok(nodes) if nodes.len() > 1 => None,
        Ok(nodes) => Some(format!("memory is on {} node; two are needed", nodes.len())),
        Err(error) => Some(error),
    }
}

/// Ends the calling check as skipped if fewer than two nodes have memory.
macro_rules! needs_nodes {
    () => {
        if let Some(why) = $crate::guest::pages::lacks_nodes() {
            return Ok($crate::guest::verdict::Found::Skipped(why));
        }
    };
}
pub(super) use needs_nodes;

/// Returns a node by its number.
pub(super) fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("a node of this machine")
}

/// Returns a set of nodes by their numbers.
pub(super) fn mask(ids: impl IntoIterator<Item = u16>) -> NodeMask {
    ids.into_iter().map(node).collect()
}

/// Builds a pool over the live machine. A pool that has warnings or whose memory is not bound to nodes is an error.
pub(super) fn flawless(builder: PoolBuilder<'_>) -> Result<Pool, String> {
    let pool = builder.build().map_err(text)?;
    ensure!(pool.warnings().is_empty(), "warnings: {:?}", pool.warnings());
    let placement = pool.placement();
    ensure!(placement == zonal_linux::Placement::OnNodes, "placement is {placement:?}");
    Ok(pool)
}

/// Allocates blocks with `request`, without waiting, until the pool has no more for it.
pub(super) fn take_all(pool: &Pool, request: &PoolRequest<'_>) -> Vec<Frames> {
    let request = request.no_wait();
    std::iter::from_fn(|| pool.alloc(&request).ok()).collect()
}

/// Allocates `count` blocks.
pub(super) fn take(pool: &Pool, request: &PoolRequest<'_>, count: usize) -> Result<Vec<Frames>, String> {
    (0..count).map(|_| pool.alloc(request).map_err(text)).collect()
}

/// Stores to each page of `held` and compares its node with the node that, according to the pool, served it. Returns
/// the number of pages on each node.
pub(super) fn on_their_nodes(held: &mut [Frames]) -> Result<Tally, String> {
    let mut pages = Vec::new();
    for frames in held {
        for at in (0..frames.len()).step_by(PAGE_BYTES) {
            frames[at] = 1;
            pages.push((frames[at..].as_ptr(), frames.node().get()));
        }
    }
    compare(&pages)
}

/// Stores to every page of a pool without allocations and compares the page's node with its zone's. Returns the number
/// of pages on each node.
pub(super) fn every_page_on_its_node(pool: &Pool) -> Result<Tally, String> {
    compare(&touch_everything(pool))
}

/// Stores to every page of a pool without allocations. Returns the address of each page and its zone's node.
pub(super) fn touch_everything(pool: &Pool) -> Vec<(*const u8, u16)> {
    let mut pages = Vec::new();
    for zone in pool.ranges() {
        for at in 0..zone.frames.count.get() {
            let frame = zone.frames.start.plus(PageCount::new(at));
            let address = pool.ptr_of(frame).expect("a frame of the pool").as_ptr();
            // SAFETY: the frame is mapped memory of the pool, and it is not allocated, so no other thread uses it.
            unsafe { touch(address.cast()) };
            pages.push((address.cast_const(), zone.node.get()));
        }
    }
    pages
}

/// Compares the node of the page at each address with the expected node, the second field of the pair.
fn compare(pages: &[(*const u8, u16)]) -> Result<Tally, String> {
    let places = places(pages)?;
    let elsewhere =
        |((_, expected), place): &(&(*const u8, u16), &PagePlace)| **place != PagePlace::Node(*expected);
    let mut wrong = pages.iter().zip(&places).filter(elsewhere);
    if let Some((&(address, expected), place)) = wrong.next() {
        return Err(format!(
            "{} of {} pages lie elsewhere; the first, {address:p}, is of node {expected} and lies on {place:?}",
            wrong.count() + 1,
            pages.len()
        ));
    }
    Ok(tally(&places))
}

/// Returns the place of each page, as the kernel reports it.
pub(super) fn places(pages: &[(*const u8, u16)]) -> Result<Vec<PagePlace>, String> {
    let mut places = Vec::new();
    for part in pages.chunks(QUERY_PAGES) {
        let addresses: Vec<*const u8> = part.iter().map(|(address, _)| *address).collect();
        places.extend(page_places(&addresses)?);
    }
    Ok(places)
}

/// Returns the number of pages on each node.
pub(super) fn tally(places: &[PagePlace]) -> Tally {
    let mut tally = Tally::new();
    for place in places {
        if let PagePlace::Node(node) = place {
            *tally.entry(*node).or_default() += 1;
        }
    }
    tally
}

/// Returns the number of blocks from each node.
pub(super) fn served_by(held: &[Frames]) -> Tally {
    let mut tally = Tally::new();
    for frames in held {
        *tally.entry(frames.node().get()).or_default() += 1;
    }
    tally
}

/// Returns the blocks' nodes in the order of their first appearance.
pub(super) fn order_of_appearance(held: &[Frames]) -> Vec<u16> {
    let mut order = Vec::new();
    for frames in held {
        let node = frames.node().get();
        if !order.contains(&node) {
            order.push(node);
        }
    }
    order
}

/// Returns the fallback order of a node, as node numbers.
pub(super) fn fallback_order(pool: &Pool, of: u16) -> Vec<u16> {
    pool.fallback_order(node(of)).into_iter().map(NodeId::get).collect()
}

/// Verifies a pool, in which no frame may be allocated.
pub(super) fn all_free(pool: &Pool) -> Result<(), String> {
    let accounting = pool.verify().map_err(text)?;
    ensure!(accounting.balance(), "the accounting does not balance: {accounting:?}");
    ensure!(accounting.allocated == PageCount::ZERO, "{} frames are still allocated", accounting.allocated);
    Ok(())
}
