//! Divides a pool's size among its topology's zones.
//!
//! Nodes share the pool in units of 2 MiB, so that huge pages can back it. If the pool has fewer units of 2 MiB than
//! nodes, nodes share it in units of 64 frames. A node's zones share the node's part in units of one frame. Pools in
//! huge pages of 1 GiB are divided in whole GiB, also among the zones of a node.
//!
//! Related files: `memory/split.rs` computes shares, and `memory/zones.rs` maps the planned zones.

use zonal::units::{NodeId, Order, PageCount, ZoneKind};

use super::page_sizes::HUGE_PAGE_BYTES;
use super::split::split;
use crate::error::PoolError;
use crate::topology::{Topology, ZoneShare};

/// Smallest order of the blocks to which zones are aligned. A zone's metadata in the allocator begins at a multiple of
/// such a block.
const ALIGN_ORDER: u8 = 12;

/// Returns a multiple of the largest block's bytes, to which zones are aligned.
pub(super) const fn block_bytes(max_order: Order, page_bytes: u32) -> usize {
    let order = if max_order.get() > ALIGN_ORDER { max_order.get() } else { ALIGN_ORDER };
    (page_bytes as usize) << order
}

/// Number of frames in the smaller unit that nodes share.
const SMALL_PIECE: u64 = 64;

/// One zone's share of a pool, which is never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ZonePlan {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) frames: PageCount,
    /// The first frames, which are online when the pool is built.
    pub(crate) online: PageCount,
}

/// Splits `asked` bytes, rounded down to whole units, among the zones of `topology` whose weight is not zero.
///
/// The result is in the topology's order and counts frames of `page_bytes`. `unit_bytes` is the size of the largest
/// huge pages.
pub(crate) fn plan(
    topology: &Topology,
    asked: u64,
    page_bytes: u32,
    unit_bytes: usize,
) -> Result<Vec<ZonePlan>, PoolError> {
    let page_bytes = u64::from(page_bytes);
    let small = page_bytes * SMALL_PIECE;
    let large = (unit_bytes as u64).max(small);
    let weight = |zones: &[ZoneShare]| zones.iter().fold(0, |sum: u64, zone| sum.saturating_add(zone.weight));
    let weights: Vec<u64> = topology.nodes().iter().map(|node| weight(&node.zones)).collect();
    let in_pieces = |piece: u64| split(asked / piece, &weights).map(|parts| (piece, parts));
    let is_gigantic = unit_bytes > HUGE_PAGE_BYTES;
    let least = if is_gigantic { large } else { small };
    let parts = in_pieces(large).or_else(|| in_pieces(least));
    let (piece, parts) = parts.ok_or_else(|| {
        let nodes = weights.iter().filter(|&&weight| weight > 0).count();
        PoolError::TooSmall { asked, needed: least * nodes.max(1) as u64, nodes }
    })?;
    let mut plans = Vec::new();
    for (node, pieces) in topology.nodes().iter().zip(parts) {
        let weights: Vec<u64> = node.zones.iter().map(|zone| zone.weight).collect();
        let frames = piece / page_bytes;
        let frames = if is_gigantic {
            split_or_largest(pieces, &weights).into_iter().map(|pieces| pieces * frames).collect()
        } else {
            split(pieces * frames, &weights).unwrap_or_default()
        };
        let zones = node.zones.iter().zip(frames).filter(|(_, frames)| *frames > 0);
        plans.extend(zones.map(|(zone, frames)| ZonePlan {
            node: node.id,
            kind: zone.kind,
            frames: PageCount::new(frames),
            online: PageCount::new(frames),
        }));
    }
    Ok(plans)
}

/// Splits `pieces` like [`split`], or assigns them all to the largest weight if they are fewer than the weights.
fn split_or_largest(pieces: u64, weights: &[u64]) -> Vec<u64> {
    split(pieces, weights).unwrap_or_else(|| {
        let largest = (0..weights.len()).max_by_key(|&at| weights[at]);
        (0..weights.len()).map(|at| if Some(at) == largest { pieces } else { 0 }).collect()
    })
}

/// Splits `max` bytes among the zones like [`plan`], of which `asked` bytes are online at first.
///
/// The online memory is rounded down to units of 2 MiB in each zone. The first zone has at least one unit.
pub(crate) fn plan_to_grow(
    topology: &Topology,
    asked: u64,
    max: u64,
    page_bytes: u32,
) -> Result<Vec<ZonePlan>, PoolError> {
    let mut plans = plan(topology, max, page_bytes, HUGE_PAGE_BYTES)?;
    let unit = (HUGE_PAGE_BYTES as u64 / u64::from(page_bytes)).max(1);
    for (at, plan) in plans.iter_mut().enumerate() {
        let share = u128::from(plan.frames.get()) * u128::from(asked) / u128::from(max);
        let least = if at == 0 { unit } else { 0 };
        let online = (share as u64 / unit * unit).max(least).min(plan.frames.get()); // at most `frames`
        plan.online = PageCount::new(online);
    }
    Ok(plans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologyNode;
    use zonal::units::CpuId;

    fn machine(nodes: &[&[(ZoneKind, u64)]]) -> Topology {
        let node = |(id, zones): (usize, &&[(ZoneKind, u64)])| TopologyNode {
            id: NodeId::new(id as u16).unwrap(),
            cpus: vec![CpuId::new(id as u32)],
            distances: vec![10; nodes.len()],
            zones: zones.iter().map(|&(kind, weight)| ZoneShare { kind, weight }).collect(),
        };
        Topology::emulated(nodes.iter().enumerate().map(node).collect()).unwrap()
    }

    #[test]
    fn nodes_get_whole_units_and_zones_share_them() {
        use ZoneKind::{Dma32, Normal};
        let topology = machine(&[&[(Dma32, 1), (Normal, 2)], &[], &[(Normal, 1)]]);
        let plans = plan(&topology, (8 << 20) + 4096, 4096, HUGE_PAGE_BYTES).unwrap();
        let found: Vec<_> = plans.iter().map(|one| (one.node.get(), one.kind, one.frames.get())).collect();
        assert_eq!(found, [(0, Dma32, 512), (0, Normal, 1024), (2, Normal, 512)]);
    }

    #[test]
    fn memory_that_is_online_at_first_is_divided_like_the_whole() {
        let topology = machine(&[&[(ZoneKind::Normal, 1)], &[(ZoneKind::Normal, 3)]]);
        let online = |asked| {
            let plans = plan_to_grow(&topology, asked, 1 << 40, 4096).unwrap();
            assert_eq!(plans.iter().map(|plan| plan.frames.get()).sum::<u64>(), 1 << 28);
            plans.iter().map(|plan| plan.online.get()).collect::<Vec<_>>()
        };
        assert_eq!(online(64 << 20), [4096, 12288]);
        assert_eq!(online(1 << 40), [1 << 26, 3 << 26]);
        assert_eq!(online(1), [512, 0]);
    }

    #[test]
    fn too_small_error_names_the_size_needed() {
        let topology = machine(&[&[(ZoneKind::Normal, 9)][..]; 3]);
        let error = plan(&topology, (768 << 10) - 1, 4096, HUGE_PAGE_BYTES).unwrap_err();
        assert!(matches!(error, PoolError::TooSmall { needed: 0xc_0000, nodes: 3, .. }));
        assert!(error.to_string().contains("too small for 3 nodes with memory"), "{error}");
        let one = plan(&machine(&[&[(ZoneKind::Normal, 9)][..]]), 0, 4096, HUGE_PAGE_BYTES).unwrap_err();
        assert!(one.to_string().contains("too small for 1 node with memory"), "{one}");
        let plan = |asked| plan(&topology, asked, 4096, HUGE_PAGE_BYTES);
        let frames = |asked| plan(asked).unwrap().iter().map(|zone| zone.frames.get()).sum::<u64>();
        assert_eq!([768 << 10, (1 << 20) + 1, 6 << 20].map(frames), [192, 256, 1536]);
        assert!(plan(0).is_err());
    }

    #[test]
    fn gigantic_pages_are_divided_as_whole_pages() {
        use ZoneKind::{Dma32, Normal};
        const GIB: u64 = 1 << 30;
        let topology = machine(&[&[(Dma32, 3), (Normal, 61)], &[(Normal, 64)]]);
        let found = |asked| {
            let plans = plan(&topology, asked, 4096, GIB as usize)?;
            Ok(plans.iter().map(|one| (one.node.get(), one.kind, one.frames.get() >> 18)).collect::<Vec<_>>())
        };
        let whole: Result<_, PoolError> = found(9 * GIB - 1);
        assert_eq!(whole.unwrap(), [(0, Dma32, 1), (0, Normal, 3), (1, Normal, 4)]);
        // A node with fewer pages than zones has them all in its largest zone.
        assert_eq!(found(2 * GIB).unwrap(), [(0, Normal, 1), (1, Normal, 1)]);
        let error = found(2 * GIB - 1).unwrap_err();
        assert!(matches!(error, PoolError::TooSmall { needed: 0x8000_0000, nodes: 2, .. }), "{error}");
    }
}
