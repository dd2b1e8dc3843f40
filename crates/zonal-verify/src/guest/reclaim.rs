//! Node reclaim switched off and on, in a pool over real nodes and in the kernel beneath the pool.
//!
//! Related files: `crates/zonal/tests/allocator/mechanisms/m3_node_reclaim.rs` tests the rules of node reclaim. These
//! checks run with the distances, CPUs and memory of the machine.

use std::sync::{Arc, Mutex, PoisonError};

use zonal::config::NodeReclaim;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::PageCount;
use zonal_linux::{Config, Frames, HugePages, Pool, PoolRequest};

use super::kernel::{memory_nodes, nodes_with_cpus, on_cpu, read, write};
use super::pages::{
    MIB, all_free, every_page_on_its_node, fallback_order, flawless, mask, needs_nodes, node, on_their_nodes,
    served_by, take, take_all,
};
use super::verdict::{Found, Verdict, ensure, text};

const POOL_BYTES: u64 = 48 * MIB;
/// Frames that are requested while the nearest node is full.
const WANTED: usize = 200;
const KERNEL_MODE: &str = "/proc/sys/vm/zone_reclaim_mode";

/// Frames that node reclaim may free, and that reclaim for any other reason may not.
#[derive(Default)]
struct Cache(Mutex<Vec<Frames>>);

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = kept.iter().filter(|frames| frames.node() == request.node).count();
        PageCount::new(if request.reason == ReclaimReason::Node { of_node as u64 } else { 0 })
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason != ReclaimReason::Node {
            return PageCount::ZERO;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (given, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut *kept).into_iter().partition({
            let mut wanted = request.target.get();
            move |frames| {
                let gives = frames.node() == request.node && wanted > 0;
                wanted -= u64::from(gives);
                gives
            }
        });
        *kept = rest;
        drop(kept);
        PageCount::new(given.len() as u64)
    }
}

/// Checks that with node reclaim, a node that is full of cache frees frames for its own CPUs. Without node reclaim, the
/// next node must serve.
pub(super) fn near_node() -> Verdict {
    needs_nodes!();
    let with_memory = memory_nodes()?;
    let with_cpus = nodes_with_cpus()?;
    let (of, cpu) = *with_cpus.iter().find(|(of, _)| with_memory.contains(of)).ok_or("no node has both")?;
    let served = |mode: NodeReclaim| {
        // With the watermarks of Linux, background reclaim rarely has the turn that node reclaim needs.
        let builder = Pool::builder().size(POOL_BYTES).config(Config::default());
        let pool = flawless(builder.huge_pages(HugePages::Never))?;
        pool.set_node_reclaim(mode);
        on_cpu(cpu, || {
            let cache = Arc::new(Cache::default());
            let registration = pool.register_reclaimer(&cache);
            let own = pool.bind(mask([of])).map_err(text)?;
            let filling = take_all(&pool, &PoolRequest::page().policy(&own));
            cache.0.lock().unwrap_or_else(PoisonError::into_inner).extend(filling);
            let mut held = take(&pool, &PoolRequest::page(), WANTED)?;
            on_their_nodes(&mut held)?;
            let (served, events) = (served_by(&held), pool.events());
            drop((held, registration, cache));
            all_free(&pool)?;
            Ok((served, events.node_reclaim_success, fallback_order(&pool, of)))
        })
    };
    let (off, none, order) = served(NodeReclaim::OFF)?;
    ensure!(
        none == 0 && off.keys().eq([&order[1]]),
        "off: {none} reclaims, served by {off:?}, order {order:?}"
    );
    let (on, some, _) = served(NodeReclaim::ON)?;
    ensure!(some > 0 && on.keys().eq([&of]), "on: {some} reclaims, served by {on:?} for node {of}");
    Ok(Found::Holds(format!("off {off:?}, on {on:?} by {some} reclaims")))
}

/// Checks that the kernel's own node reclaim does not change the nodes of a pool's pages.
pub(super) fn of_the_kernel() -> Verdict {
    needs_nodes!();
    let usual = read(KERNEL_MODE)?;
    let placed = |mode: u32| {
        write(KERNEL_MODE, mode)?;
        let pool = flawless(Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never))?;
        every_page_on_its_node(&pool)?;
        let last = *memory_nodes()?.last().ok_or("no node has memory")?;
        let policy = pool.preferred(node(last)).map_err(text)?;
        on_their_nodes(&mut take(&pool, &PoolRequest::page().policy(&policy), WANTED)?)
    };
    let found: Result<Vec<_>, String> = [0, 1, 7].into_iter().map(placed).collect();
    write(KERNEL_MODE, usual)?;
    Ok(Found::Holds(format!("modes 0, 1, 7: {:?}", found?)))
}
