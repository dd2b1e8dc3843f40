//! Where the pages of a pool lie, compared with where the pool says they lie.
//!
//! Neighbours: `kernel.rs` queries the places; `placement.rs` and `policies.rs` say which places are right.

use std::collections::BTreeMap;

use zonal::NodeMask;
use zonal::units::{NodeId, PageCount};
use zonal_linux::{Frames, Pool, PoolBuilder, PoolRequest};

use super::kernel::{PagePlace, page_places, touch};
use super::verdict::{ensure, text};

pub(super) const MIB: u64 = 1 << 20;
/// Pages of the kernel in one query.
const QUERY_PAGES: usize = 16384;
/// Bytes of a page of the kernel, as pools here use them.
pub(super) const PAGE_BYTES: usize = 4096;

/// Number of pages by the node they lie on.
pub(super) type Tally = BTreeMap<u16, u64>;

/// Whether this machine has several nodes with memory; otherwise why checks are skipped.
pub(super) fn lacks_nodes() -> Option<String> {
    match super::kernel::memory_nodes() {
        Ok(nodes) if nodes.len() > 1 => None,
        Ok(nodes) => Some(format!("memory is on {} node; two are needed", nodes.len())),
        Err(error) => Some(error),
    }
}

/// Ends a check as skipped where the machine has no two nodes with memory.
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

/// Builds a pool over the live machine that has nothing to warn of.
pub(super) fn flawless(builder: PoolBuilder<'_>) -> Result<Pool, String> {
    let pool = builder.build().map_err(text)?;
    ensure!(pool.warnings().is_empty(), "warnings: {:?}", pool.warnings());
    let placement = pool.placement();
    ensure!(placement == zonal_linux::Placement::OnNodes, "placement is {placement:?}");
    Ok(pool)
}

/// Allocates single frames until there are none that `request` may have without waiting.
pub(super) fn take_all(pool: &Pool, request: &PoolRequest<'_>) -> Vec<Frames> {
    let request = request.no_wait();
    std::iter::from_fn(|| pool.alloc(&request).ok()).collect()
}

/// Allocates `count` blocks.
pub(super) fn take(pool: &Pool, request: &PoolRequest<'_>, count: usize) -> Result<Vec<Frames>, String> {
    (0..count).map(|_| pool.alloc(request).map_err(text)).collect()
}

/// Stores to each page of `held` and compares the node it then lies on with the node that the pool said
/// served it. Returns how many lie on each.
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

/// Stores to every page of a pool without allocations and compares the node it then lies on with the node of
/// its zone. Returns how many lie on each.
pub(super) fn every_page_on_its_node(pool: &Pool) -> Result<Tally, String> {
    compare(&touch_everything(pool))
}

/// Stores to every page of a pool without allocations. Returns the address and the node of each.
pub(super) fn touch_everything(pool: &Pool) -> Vec<(*const u8, u16)> {
    let mut pages = Vec::new();
    for zone in pool.ranges() {
        for at in 0..zone.frames.count.get() {
            let frame = zone.frames.start.plus(PageCount::new(at));
            let address = pool.ptr_of(frame).expect("a frame of the pool").as_ptr();
            // SAFETY: mapped, and the frame is not allocated.
            unsafe { touch(address.cast()) };
            pages.push((address.cast_const(), zone.node.get()));
        }
    }
    pages
}

/// Compares the place of each address with the node beside it.
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

/// Returns the place of each page.
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

/// Returns how many of the blocks are of each node.
pub(super) fn served_by(held: &[Frames]) -> Tally {
    let mut tally = Tally::new();
    for frames in held {
        *tally.entry(frames.node().get()).or_default() += 1;
    }
    tally
}

/// Returns the nodes of the blocks in the order in which they first served.
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

/// Returns the fallback order of a node, as numbers.
pub(super) fn fallback_order(pool: &Pool, of: u16) -> Vec<u16> {
    pool.fallback_order(node(of)).into_iter().map(NodeId::get).collect()
}

/// Walks a pool in which nothing should be allocated.
pub(super) fn all_free(pool: &Pool) -> Result<(), String> {
    let accounting = pool.verify().map_err(text)?;
    ensure!(accounting.balance(), "the accounting does not balance: {accounting:?}");
    ensure!(accounting.allocated == PageCount::ZERO, "{} frames are still allocated", accounting.allocated);
    Ok(())
}
