//! The report of a run as one JSON document, for scripts. Its keys and their order are a promise.
//!
//! Latencies are in nanoseconds, counts of frames and events have no unit. `ns_per_pair` is null
//! when no pair was done. `reclaim.background` counts how often a worker was woken,
//! `reclaim.direct` the requests that had to reclaim by themselves.

use serde::Serialize;
use zonal_linux::Placement;
use zonal_linux::workload::PoolReport;

#[derive(Serialize)]
struct Document {
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
    books: Books,
    bound_to_nodes: bool,
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
    marks: u64,
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
struct Books {
    managed: u64,
    free: u64,
    in_pagesets: u64,
    allocated: u64,
    balanced: bool,
}

/// The document and a line break.
pub(super) fn render(report: &PoolReport) -> String {
    let text = serde_json::to_string(&document(report));
    text.expect("numbers and names are always JSON") + "\n"
}

fn document(report: &PoolReport) -> Document {
    let (measured, locality, events) = (&report.measured, &report.locality, &report.events);
    let (latency, books) = (&measured.latency, &report.books);
    Document {
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
        zonelist: Zonelist { probes: events.probes, marks: events.marks, wipes: events.wipes },
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
        books: Books {
            managed: books.managed.get(),
            free: books.free.get(),
            in_pagesets: books.in_pagesets.get(),
            allocated: books.allocated.get(),
            balanced: report.is_balanced(),
        },
        bound_to_nodes: report.placement == Placement::OnNodes,
    }
}
