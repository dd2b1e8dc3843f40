//! Advice on nodes, distances and fallback orders.

use zonal::rules::fallback_order::NodeLoad;
use zonal::units::{NodeId, PageCount};
use zonal_model::{NodeModel, Presence, Rules};

use super::{View, info, list_first, warn};
use crate::predict;
use crate::report::{Advice, balance, ordinal};

/// The largest distance of a node that `zone_reclaim_mode` reclaims before requests fall back to a farther node.
const RECLAIM_DISTANCE: u8 = 30;

/// Warns if the kernel resets node loads between lists although accumulated loads would make the lists more even.
pub(super) fn node_load_defect(view: &View<'_>) -> Option<Advice> {
    if view.rules.node_load != NodeLoad::Assign {
        return None;
    }
    let repaired = Rules { node_load: NodeLoad::Accumulate, ..*view.rules };
    let repaired = balance(view.model, &predict::orders(view.model, &repaired));
    // The spread at a list position is the difference between the largest and the smallest count there.
    let spread = |balance: &[crate::Balance], nth: usize| {
        let counts = balance.iter().filter_map(|node| node.times_nth.get(nth));
        let (least, most) = (counts.clone().min()?, counts.max()?);
        Some(most - least)
    };
    let places = view.balance.first()?.times_nth.len();
    let gain = |nth: usize| Some(spread(view.balance, nth)?.saturating_sub(spread(&repaired, nth)?));
    let nth = (0..places).rev().max_by_key(|&nth| gain(nth))?;
    if gain(nth)? == 0 {
        return None;
    }
    let worst = view.balance.iter().max_by_key(|node| node.times_nth[nth])?;
    let (node, times) = (worst.node, worst.times_nth[nth]);
    let then = repaired.iter().find(|other| other.node == node)?.times_nth[nth];
    warn(format!(
        "kernel {} resets node load for each list: node {node} is the {} fallback of {times} other nodes \
         (of {then} with the fix of 5.18), and memory pressure fills it first",
        view.rules.version,
        ordinal(nth + 1)
    ))
}

pub(super) fn shared_first_fallback(view: &View<'_>) -> Option<Advice> {
    let others = view.model.online_nodes().count() as u32 - 1;
    let node = view.balance.iter().max_by_key(|node| node.times_nth.first())?;
    let times = *node.times_nth.first()?;
    // If a node is first in at least three lists and in more than half of them, this is not a coincidence.
    if times < 3 || 2 * times <= others {
        return None;
    }
    let managed = NodeId::new(node.node).map_or(PageCount::ZERO, |id| view.model.managed_of(id));
    warn(format!(
        "node {} is the first fallback of {times} of the {} other nodes, which share its {}",
        node.node,
        others,
        view.size(managed)
    ))
}

pub(super) fn asymmetric_distances(view: &View<'_>) -> Option<Advice> {
    let nodes = &view.model.nodes;
    let online = |place: usize| nodes[place].presence == Presence::Online;
    let mut pairs = Vec::new();
    for from in (0..nodes.len()).filter(|&place| online(place)) {
        for to in (from + 1..nodes.len()).filter(|&place| online(place)) {
            let (there, back) = (nodes[from].distances[to], nodes[to].distances[from]);
            if there != back {
                pairs.push(format!("{} to {} is {there}, but {back} back", nodes[from].id, nodes[to].id));
            }
        }
    }
    if pairs.is_empty() {
        return None;
    }
    info(format!(
        "distances differ by direction ({} pairs: {}); this is rarely true of hardware and often a firmware error",
        pairs.len(),
        list_first(&pairs)
    ))
}

fn has_memory(view: &View<'_>, node: &NodeModel) -> bool {
    view.model.managed_of(node.id) > PageCount::ZERO
}

pub(super) fn without_memory(view: &View<'_>) -> Option<Advice> {
    let memoryless = view.model.nodes.iter().enumerate().filter(|(_, node)| {
        node.presence == Presence::Online && !node.cpus.is_empty() && !has_memory(view, node)
    });
    let served: Vec<String> = memoryless
        .map(|(place, node)| {
            let first = view.prediction.orders[place].iter().find(|&&id| id != node.id);
            let first = first.and_then(|&id| Some((id, view.model.place(id)?)));
            let by = first.map_or("by no node".to_owned(), |(id, to)| {
                format!("by node {id} first, at distance {}", node.distances[to])
            });
            format!("node {} ({} CPUs, served {by})", node.id, node.cpus.len())
        })
        .collect();
    if served.is_empty() {
        return None;
    }
    info(format!("CPUs on nodes without memory always allocate remotely: {}", list_first(&served)))
}

pub(super) fn without_cpus(view: &View<'_>) -> Option<Advice> {
    let far = view.model.online_nodes().filter(|node| node.cpus.is_empty() && has_memory(view, node));
    let far: Vec<String> = far
        .map(|node| {
            let near = view.model.nodes.iter().enumerate().filter(|(_, other)| !other.cpus.is_empty());
            let near = near.map(|(place, _)| node.distances[place]).min();
            let distance = near.map_or(String::new(), |near| format!(", {near} from the nearest CPU"));
            format!("node {} ({}{distance})", node.id, view.size(view.model.managed_of(node.id)))
        })
        .collect();
    if far.is_empty() {
        return None;
    }
    info(format!(
        "memory on nodes without CPUs is used only as a fallback or by policy: {}",
        list_first(&far)
    ))
}

/// Returns the smallest and largest distance between different online nodes.
fn remote_distances(view: &View<'_>) -> Option<(u8, u8)> {
    let nodes = &view.model.nodes;
    let online = |node: &NodeModel| node.presence == Presence::Online;
    let remote = nodes.iter().enumerate().filter(|(_, node)| online(node)).flat_map(|(place, node)| {
        let others = nodes.iter().zip(&node.distances).enumerate();
        others
            .filter(move |(to, (other, _))| *to != place && online(other))
            .map(|(_, (_, &distance))| distance)
    });
    let least = remote.clone().min()?;
    Some((least, remote.max()?))
}

pub(super) fn node_reclaim_on(view: &View<'_>) -> Option<Advice> {
    let (least, most) = remote_distances(view)?;
    let mode = view.model.settings.zone_reclaim_mode;
    if mode == 0 {
        return None;
    }
    if most <= RECLAIM_DISTANCE {
        return warn(format!(
            "zone_reclaim_mode is {mode}, but no node is farther than {most}, and reclaim is worth it only beyond \
             {RECLAIM_DISTANCE}: page cache is discarded although remote memory is nearly as fast; set it to 0"
        ));
    }
    info(format!(
        "zone_reclaim_mode is {mode}: nodes within {RECLAIM_DISTANCE} are reclaimed before farther ones serve \
         (distances here {least} to {most}); this suits programs that fit on one node, not file servers"
    ))
}

pub(super) fn node_reclaim_off(view: &View<'_>) -> Option<Advice> {
    let (_, most) = remote_distances(view)?;
    if view.model.settings.zone_reclaim_mode != 0 || most <= RECLAIM_DISTANCE {
        return None;
    }
    info(format!(
        "distances reach {most}, more than {RECLAIM_DISTANCE}, and zone_reclaim_mode is 0: programs partitioned by node may \
         gain from mode 1, which reclaims unmapped page cache before it allocates from such distances"
    ))
}
