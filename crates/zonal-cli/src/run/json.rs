//! The report of a run as one JSON document, for scripts. The keys of the document and their order are stable.
//!
//! Latencies are in nanoseconds; counts of frames and events have no unit. `ns_per_pair` is null if no pair was
//! completed. `reclaim.background` is the number of times that a reclaim worker was woken. `reclaim.direct` is the
//! number of requests that had to reclaim directly. Settings that exist in Linux have their Linux names. Zones have
//! the same keys as in `zonal machine --json`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;
use zonal::Config;
use zonal::settings::Setting;
use zonal::snapshot::ZoneSnapshot;
use zonal_bench::PoolReport;
use zonal_linux::{Placement, Pool};

use super::allocator::OPTIONS;
use crate::values::rules::Counters;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    workload: &'static str,
    threads: usize,
    seconds: f64,
    pairs: u64,
    ns_per_pair: Option<f64>,
    latency_ns: Latency,
    locality: Locality,
    zonelist: Zonelist,
    reclaim: Reclaim,
    pageset: Pageset,
    metadata_bytes_per_frame: f64,
    accounting: Accounting,
    bound_to_nodes: bool,
    #[serde(serialize_with = "in_order")]
    settings: Vec<(&'static str, Value)>,
    /// Fallback order by node.
    fallback_order: BTreeMap<u16, Vec<u16>>,
    zones: Vec<Zone>,
}

#[derive(Serialize)]
struct Zone {
    node: u16,
    kind: &'static str,
    managed: u64,
    min: u64,
    low: u64,
    high: u64,
    /// Reserve against each kind of request, by the highest zone of the request: DMA, DMA32, Normal, Movable, Device.
    protection: Vec<u64>,
    batch: u64,
    pageset_high_min: u64,
    pageset_high_max: u64,
    stat_threshold: u8,
}

#[derive(Serialize)]
struct Latency {
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

#[derive(Serialize)]
struct Locality {
    hit: u64,
    miss: u64,
    foreign: u64,
    local: u64,
    other: u64,
}

#[derive(Serialize)]
struct Zonelist {
    probes: u64,
    full_bits_set: u64,
    wipes: u64,
}

#[derive(Serialize)]
struct Reclaim {
    background: u64,
    direct: u64,
    node: NodeReclaim,
}

#[derive(Serialize)]
struct NodeReclaim {
    no_scan: u64,
    full: u64,
    some: u64,
    success: u64,
}

#[derive(Serialize)]
struct Pageset {
    refills: u64,
    drains: u64,
    high_final: u64,
}

#[derive(Serialize)]
pub(super) struct Accounting {
    managed: u64,
    free: u64,
    in_pagesets: u64,
    allocated: u64,
    balanced: bool,
}

impl Accounting {
    pub(super) fn new(accounting: &zonal::snapshot::Accounting, balanced: bool) -> Self {
        Self {
            managed: accounting.managed.get(),
            free: accounting.free.get(),
            in_pagesets: accounting.in_pagesets.get(),
            allocated: accounting.allocated.get(),
            balanced,
        }
    }
}

/// Returns the document, followed by a line break.
pub(super) fn render(pool: &Pool, report: &PoolReport) -> String {
    let text = serde_json::to_string(&document(pool, report));
    text.expect("numbers and names are always JSON") + "\n"
}

/// Returns the names and values of settings. The values have the form that the options accept.
fn settings(config: &Config) -> Vec<(&'static str, Value)> {
    let setting = |setting: Setting| {
        let key = if setting == Setting::PagesetTuning { "tuning" } else { setting.info().name };
        let value = config.get(setting);
        (key, value.number().map_or_else(|| value.to_string().into(), Value::from))
    };
    let [options @ .., last] = &OPTIONS;
    let counters = ("counters", Counters(config.counters).to_string().into());
    let options = options.iter().map(|option| setting(option.setting));
    options.chain([counters, setting(Setting::StatInterval), setting(last.setting)]).collect()
}

/// Writes pairs as a map in their order.
fn in_order<S: Serializer>(pairs: &[(&str, Value)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

fn zone(zone: &ZoneSnapshot) -> Zone {
    let (marks, limits) = (zone.watermarks, zone.pageset_limits);
    // The column for device memory repeats the last column, as in Linux.
    let columns = zone.reserve.iter().chain(zone.reserve.last());
    Zone {
        node: zone.node.get(),
        kind: zone.kind.name(),
        managed: zone.managed.get(),
        min: marks.min.get(),
        low: marks.low.get(),
        high: marks.high.get(),
        protection: columns.map(|pages| pages.get()).collect(),
        batch: limits.batch.get(),
        pageset_high_min: limits.high_min.get(),
        pageset_high_max: limits.high_max.get(),
        stat_threshold: zone.stat_threshold,
    }
}

fn fallback_orders(pool: &Pool) -> BTreeMap<u16, Vec<u16>> {
    let order = |node| pool.fallback_order(node).iter().map(|node| node.get()).collect();
    pool.topology().nodes().iter().map(|node| (node.id.get(), order(node.id))).collect()
}

fn document(pool: &Pool, report: &PoolReport) -> Document {
    let (measured, locality, events) = (&report.measured, &report.locality, &report.events);
    let latency = &measured.latency;
    Document {
        schema: "zonal.run.v1",
        workload: report.plan.workload.name(),
        threads: report.plan.threads.get(),
        seconds: measured.elapsed.as_secs_f64(),
        pairs: measured.pairs,
        ns_per_pair: measured.ns_per_pair(),
        latency_ns: Latency {
            p50: latency.p50_ns,
            p99: latency.p99_ns,
            p999: latency.p999_ns,
            max: latency.max_ns,
        },
        locality: Locality {
            hit: locality.hit,
            miss: locality.miss,
            foreign: locality.foreign,
            local: locality.local,
            other: locality.other,
        },
        zonelist: Zonelist { probes: events.probes, full_bits_set: events.marks, wipes: events.wipes },
        reclaim: Reclaim {
            background: events.background_wakes,
            direct: events.direct_stalls,
            node: NodeReclaim {
                no_scan: events.node_reclaim_no_scan,
                full: events.node_reclaim_full,
                some: events.node_reclaim_some,
                success: events.node_reclaim_success,
            },
        },
        pageset: Pageset {
            refills: events.refills,
            drains: events.drains,
            high_final: report.pageset_high.get(),
        },
        metadata_bytes_per_frame: report.metadata_bytes_per_frame,
        accounting: Accounting::new(&report.accounting, report.is_balanced()),
        bound_to_nodes: report.placement == Placement::OnNodes,
        settings: settings(&pool.settings()),
        fallback_order: fallback_orders(pool),
        zones: pool.zones().map(|found| zone(&found)).collect(),
    }
}
