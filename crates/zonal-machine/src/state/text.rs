//! Parsers for the smaller files: `buddyinfo`, `pagetypeinfo`, `vmstat` and `numastat`.

use std::collections::HashMap;

use super::{Counter, Locality, NAME_BYTES_MAX, ORDERS_MAX, Totals, ZoneSample};

/// Largest number of migrate types that is read for a zone.
const TYPES_MAX: usize = 16;

/// Takes `/proc/buddyinfo`: the free blocks of each order.
pub(super) fn buddyinfo(text: &str, zones: &mut [ZoneSample]) {
    let mut zones = by_name(zones);
    for line in text.lines() {
        let Some((node, rest)) = of_node(line) else { continue };
        let Some(rest) = rest.strip_prefix("zone") else { continue };
        let mut words = rest.split_ascii_whitespace();
        let kind = words.next().unwrap_or_default();
        if let Some(zone) = zones.get_mut(&(node, kind)) {
            *zone.all = words.take(ORDERS_MAX).map(number).collect();
        }
    }
}

/// Takes the first table of `/proc/pagetypeinfo`: the free blocks of each order by migrate type. Types without free
/// blocks, and those with longer names than a kernel has, are left out. The kernel prints `>100000` for long lists, which counts as 100000.
pub(super) fn pagetypeinfo(text: &str, zones: &mut [ZoneSample]) {
    let mut zones = by_name(zones);
    for line in text.lines() {
        let Some((node, rest)) = of_node(line) else { continue };
        let Some((kind, rest)) = rest.strip_prefix("zone").and_then(|rest| rest.split_once(", type")) else {
            continue;
        };
        let mut words = rest.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let blocks: Vec<u64> =
            words.take(ORDERS_MAX).map(|word| number(word.trim_start_matches('>'))).collect();
        let Some(zone) = zones.get_mut(&(node, kind.trim())) else { continue };
        let is_known = name.len() <= NAME_BYTES_MAX && zone.by_type.len() < TYPES_MAX;
        if is_known && blocks.iter().any(|&count| count > 0) {
            zone.by_type.push((name.to_owned(), blocks));
        }
    }
}

/// Takes the counters of `/proc/vmstat` that concern the page allocator.
pub(super) fn vmstat(text: &str) -> Totals {
    let mut totals = Totals::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let counter = match name {
            "pgfree" => Counter::Freed,
            "pgsteal_kswapd" | "pgsteal_khugepaged" | "pgsteal_proactive" => Counter::BackgroundReclaimed,
            "pgsteal_direct" => Counter::DirectReclaimed,
            "pageoutrun" => Counter::BackgroundWakes,
            "zone_reclaim_success" => Counter::NodeReclaimSuccesses,
            "zone_reclaim_failed" => Counter::NodeReclaims,
            "compact_stall" => Counter::CompactStalls,
            "compact_fail" => Counter::CompactFailures,
            "oom_kill" => Counter::OomKills,
            _ if name.starts_with("pgalloc_") => Counter::Allocated,
            _ if name.starts_with("allocstall_") => Counter::DirectStalls,
            _ => continue,
        };
        totals.add(counter, number(value));
    }
    // The kernel counts node reclaim that failed and that succeeded, and the counter has all attempts.
    if let Some(succeeded) = totals.get(Counter::NodeReclaimSuccesses) {
        totals.add(Counter::NodeReclaims, succeeded);
    }
    totals
}

/// Parses `/sys/devices/system/node/nodeN/numastat`.
pub(super) fn numastat(text: &str) -> Locality {
    let mut found = Locality::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let value = number(value);
        match name {
            "numa_hit" => found.hit = value,
            "numa_miss" => found.miss = value,
            "numa_foreign" => found.foreign = value,
            "interleave_hit" => found.interleave_hit = value,
            "local_node" => found.local = value,
            "other_node" => found.other = value,
            _ => {}
        }
    }
    found
}

/// Parses `Node 0, ` and returns the rest.
fn of_node(line: &str) -> Option<(u64, &str)> {
    let (node, rest) = line.strip_prefix("Node")?.split_once(',')?;
    Some((node.trim().parse().ok()?, rest.trim_ascii_start()))
}

/// The free blocks of a zone.
struct Blocks<'z> {
    all: &'z mut Vec<u64>,
    by_type: &'z mut Vec<(String, Vec<u64>)>,
}

/// Returns the free blocks of zones by node and kind.
fn by_name(zones: &mut [ZoneSample]) -> HashMap<(u64, &str), Blocks<'_>> {
    let entries = zones.iter_mut().map(|zone| {
        let blocks = Blocks { all: &mut zone.free_blocks, by_type: &mut zone.free_by_type };
        ((zone.node, zone.kind.as_str()), blocks)
    });
    entries.collect()
}

fn number(text: &str) -> u64 {
    text.trim_ascii().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones() -> Vec<ZoneSample> {
        ["DMA32", "Normal"].map(|kind| ZoneSample { kind: kind.into(), ..ZoneSample::default() }).into()
    }

    #[test]
    fn free_blocks_go_to_their_zones() {
        let mut zones = zones();
        buddyinfo(
            "Node 0, zone    DMA32      2      1\nNode 0, zone   Normal    721   9887 4492\nNode 1, zone Normal 5",
            &mut zones,
        );
        assert_eq!(zones[0].free_blocks, [2, 1]);
        assert_eq!(zones[1].free_blocks, [721, 9887, 4492]);
    }

    #[test]
    fn types_without_free_blocks_are_left_out() {
        let text = "Page block order: 9\n\n\
            Node    0, zone    DMA32, type    Unmovable      0      0\n\
            Node    0, zone   Normal, type      Movable >100000      7\n\
            Number of blocks type     Unmovable      Movable\nNode 0, zone   Normal 5 6\n";
        let mut zones = zones();
        pagetypeinfo(&format!("Node 0, zone Normal, type {} 1\n", "x".repeat(65)), &mut zones);
        pagetypeinfo(text, &mut zones);
        assert_eq!(zones[0].free_by_type, []);
        assert_eq!(zones[1].free_by_type, [("Movable".to_owned(), vec![100_000, 7])]);
    }

    #[test]
    fn counters_of_zones_are_summed() {
        let text = "pgalloc_dma 1\npgalloc_normal 20\npgfree 9\nallocstall_normal 3\nallocstall_movable 4\n\
                    pgsteal_kswapd 100\nzone_reclaim_success 2\nzone_reclaim_failed 5\nnr_dirty 7\n";
        let totals = vmstat(text);
        let get = |counter| totals.get(counter);
        assert_eq!((get(Counter::Allocated), get(Counter::Freed)), (Some(21), Some(9)));
        assert_eq!((get(Counter::DirectStalls), get(Counter::BackgroundReclaimed)), (Some(7), Some(100)));
        assert_eq!((get(Counter::NodeReclaims), get(Counter::NodeReclaimSuccesses)), (Some(7), Some(2)));
        assert_eq!(get(Counter::Refills), None);
    }

    #[test]
    fn locality_of_a_node() {
        let found = numastat(
            "numa_hit 5\nnuma_miss 4\nnuma_foreign 3\ninterleave_hit 2\nlocal_node 1\nother_node 9\n",
        );
        assert_eq!((found.hit, found.miss, found.foreign), (5, 4, 3));
        assert_eq!((found.interleave_hit, found.local, found.other), (2, 1, 9));
    }
}
