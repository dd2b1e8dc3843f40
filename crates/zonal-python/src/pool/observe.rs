//! The state of a pool as dicts, tables and texts.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zonal_linux::{Accounting, NodeSnapshot, PagesetSnapshot, Pool, ZoneSnapshot};

use super::errors::invalid;
use super::table::of;
use crate::table::Table;

/// Returns a dict of numbers.
pub(crate) fn dict<'py>(py: Python<'py>, numbers: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, number) in numbers {
        dict.set_item(name, number)?;
    }
    Ok(dict)
}

/// Returns the accounting, in pages: `managed = free + in_pagesets + allocated`.
pub(crate) fn accounting(accounting: &Accounting) -> [(&'static str, u64); 4] {
    [
        ("managed", accounting.managed.get()),
        ("free", accounting.free.get()),
        ("in_pagesets", accounting.in_pagesets.get()),
        ("allocated", accounting.allocated.get()),
    ]
}

/// Returns how often events occurred, and how many blocks were on the preferred node.
pub(crate) fn statistics(pool: &Pool) -> Vec<(&'static str, u64)> {
    let (events, locality) = (pool.events(), pool.locality());
    vec![
        ("hits", locality.hit),
        ("misses", locality.miss),
        ("foreign", locality.foreign),
        ("interleave_hits", locality.interleave_hit),
        ("local", locality.local),
        ("other", locality.other),
        ("zone_probes", events.probes),
        ("zone_marks", events.marks),
        ("background_wakes", events.background_wakes),
        ("background_rounds", events.background_rounds),
        ("background_reclaimed", events.background_reclaimed),
        ("direct_stalls", events.direct_stalls),
        ("direct_reclaimed", events.direct_reclaimed),
        ("direct_ns", events.direct_ns),
        ("node_reclaim_success", events.node_reclaim_success),
        ("node_reclaim_some", events.node_reclaim_some),
        ("node_reclaim_full", events.node_reclaim_full),
        ("node_reclaim_no_scan", events.node_reclaim_no_scan),
        ("failures", events.failures),
        ("refills", events.refills),
        ("drains", events.drains),
        ("remote_drains", events.remote_drains),
        ("bad_frames", events.bad_frames),
        ("retired", events.retired),
        ("metadata_bytes", pool.metadata_bytes()),
        ("reclaimer_panics", pool.reclaimer_panics()),
    ]
}

/// Returns a table with a row for each zone.
pub(crate) fn zones(pool: &Pool) -> Table {
    let zones: Vec<ZoneSnapshot> = pool.zones().collect();
    let numbers = |zone: &ZoneSnapshot| {
        [
            ("id", zone.id.index() as u64),
            ("node", u64::from(zone.node.get())),
            ("first_frame", zone.span.start.get()),
            ("spanned", zone.span.count.get()),
            ("present", zone.present.get()),
            ("managed", zone.managed.get()),
            ("free", zone.free.get()),
            ("in_pagesets", zone.in_pagesets.get()),
            ("watermark_min", zone.watermarks.min.get()),
            ("watermark_low", zone.watermarks.low.get()),
            ("watermark_high", zone.watermarks.high.get()),
            ("hits", zone.locality.hit),
            ("misses", zone.locality.miss),
            ("foreign", zone.locality.foreign),
        ]
    };
    of(&zones, |zone| [("kind", zone.kind.name().to_owned())], numbers)
}

/// Returns a table with a row for each node.
pub(crate) fn nodes(pool: &Pool) -> Table {
    let nodes: Vec<NodeSnapshot> = pool.nodes().collect();
    let numbers = |node: &NodeSnapshot| {
        let ([user, cache, kernel], [background, direct, by_node]) = (node.allocated, node.reclaimed);
        [
            ("node", u64::from(node.id.get())),
            ("allocated_user", user.get()),
            ("allocated_cache", cache.get()),
            ("allocated_kernel", kernel.get()),
            ("reclaimed_in_background", background.get()),
            ("reclaimed_directly", direct.get()),
            ("reclaimed_for_node", by_node.get()),
        ]
    };
    of(&nodes, |_| [], numbers)
}

/// Returns a table with a row for each pageset that is or was in use.
pub(crate) fn pagesets(pool: &Pool) -> Table {
    let pagesets: Vec<PagesetSnapshot> = pool.pagesets().collect();
    let numbers = |pageset: &PagesetSnapshot| {
        [
            ("zone", pageset.zone.index() as u64),
            ("cpu", u64::from(pageset.cpu.get())),
            ("count", pageset.count.get()),
            ("high", pageset.high.get()),
            ("refills", pageset.refills),
            ("drains", pageset.drains),
            ("remote_drains", pageset.remote_drains),
        ]
    };
    of(&pagesets, |_| [], numbers)
}

/// Returns the state as a text in one of the formats.
pub(crate) fn snapshot(pool: &Pool, format: &str) -> PyResult<String> {
    let snapshot = pool.snapshot();
    Ok(match format {
        "json" => pool.snapshot_json(),
        "zoneinfo" => snapshot.zoneinfo().to_string(),
        "buddyinfo" => snapshot.buddyinfo().to_string(),
        "vmstat" => snapshot.vmstat().to_string(),
        "fallback_lists" => snapshot.fallback_lists().to_string(),
        "numastat" => {
            let of = |node| snapshot.numastat(node).map(|text| format!("node {node}\n{text}"));
            snapshot.node_ids().filter_map(of).collect()
        }
        other => {
            return Err(invalid(format_args!(
                "format is \"{other}\"; allowed: json, zoneinfo, buddyinfo, vmstat, fallback_lists, numastat"
            )));
        }
    })
}
