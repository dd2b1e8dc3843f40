//! The report of a run as text, with one subject per line and with units.

use zonal::snapshot::Accounting;
use zonal_bench::PoolReport;
use zonal_linux::{Placement, Pool};
use zonal_machine::Bytes;

use crate::layout::Width;
use crate::values::Nodes;

/// Maximum number of nodes whose names are printed. If there are more nodes, only their number is printed.
const NODES_MAX: usize = 8;

pub(super) fn render(pool: &Pool, report: &PoolReport, width: Width) -> String {
    let mut text = width.labelled("", &heading(pool, report));
    let lines = [
        ("speed", speed(report)),
        ("latency", latency(report)),
        ("failed", failed(report)),
        ("locality", locality(report)),
        ("zonelist", zonelist(report)),
        ("reclaim", reclaim(report)),
        ("pagesets", pagesets(report)),
        ("metadata", format!("{:.3} bytes per frame", report.metadata_bytes_per_frame)),
        ("accounting", format!("{} ({})", accounting(&report.accounting), verdict(report))),
    ];
    for (label, line) in lines.iter().filter(|(_, line)| !line.is_empty()) {
        text.push_str(&width.labelled(&format!("  {label:<12}"), line));
    }
    text
}

fn heading(pool: &Pool, report: &PoolReport) -> String {
    let plan = &report.plan;
    let nodes: Vec<_> = pool.topology().nodes().iter().map(|node| node.id).collect();
    let nodes = match nodes.len() {
        count if count > NODES_MAX => format!("{count} nodes"),
        _ => Nodes(nodes).to_string(),
    };
    let placement = match report.placement {
        Placement::OnNodes => "memory bound to its node",
        Placement::NotBound => "memory not bound to nodes",
        Placement::Emulated => "emulated",
    };
    let seconds = report.measured.elapsed.as_secs_f64();
    let bytes = pool.frames().get() * pool.page_bytes() as u64;
    format!(
        "{}: {} for {seconds:.1} s on a pool of {}, {nodes} ({placement}), seed {}",
        plan.workload.name(),
        counted(plan.threads.get() as u64, "thread"),
        Bytes(bytes),
        plan.seed
    )
}

fn speed(report: &PoolReport) -> String {
    let measured = &report.measured;
    let each = match measured.ns_per_pair() {
        Some(ns) => format!("{} per pair", time(ns)),
        None => "no pair completed".into(),
    };
    format!("{} pairs/s, {each}", si(measured.pairs_per_second()))
}

fn latency(report: &PoolReport) -> String {
    let latency = &report.measured.latency;
    if latency.samples == 0 {
        return "no operation timed".into();
    }
    let [p50, p99, p999, max] =
        [latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns].map(|ns| time(ns as f64));
    let samples = si(latency.samples as f64);
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, max {max} (one allocation or free; {samples} timed)")
}

fn failed(report: &PoolReport) -> String {
    match report.measured.failed {
        0 => String::new(),
        failed => format!("{} found no free block", counted(failed, "request")),
    }
}

fn locality(report: &PoolReport) -> String {
    let locality = &report.locality;
    let served = (locality.hit + locality.miss).max(1) as f64;
    format!(
        "{:.2} % from the preferred node (hit {}, miss {}, foreign {}), local {}, other {}",
        100.0 * locality.hit as f64 / served,
        si(locality.hit as f64),
        si(locality.miss as f64),
        si(locality.foreign as f64),
        si(locality.local as f64),
        si(locality.other as f64)
    )
}

fn zonelist(report: &PoolReport) -> String {
    let events = &report.events;
    let (marks, wipes) = (si(events.marks as f64), times(events.wipes));
    format!("{} probed, {marks} marked full, full bits cleared {wipes}", plural(events.probes, "zone"))
}

fn reclaim(report: &PoolReport) -> String {
    let events = &report.events;
    let mut line = format!(
        "background reclaim woken {}, direct reclaim {}",
        times(events.background_wakes),
        times(events.direct_stalls)
    );
    let node = [
        ("not scanned", events.node_reclaim_no_scan),
        ("full", events.node_reclaim_full),
        ("some freed", events.node_reclaim_some),
        ("enough freed", events.node_reclaim_success),
    ];
    if node.iter().any(|(_, count)| *count > 0) {
        let node = node.map(|(outcome, count)| format!("{outcome} {count}")).join(", ");
        line.push_str(&format!("; node reclaim: {node}"));
    }
    line
}

fn pagesets(report: &PoolReport) -> String {
    let (refills, drains) = (report.events.refills, report.events.drains);
    let high = report.pageset_high;
    format!("refilled {}, drained {}; largest pageset.high {high} frames", times(refills), times(drains))
}

/// Formats the accounting equation with its numbers.
pub(crate) fn accounting(accounting: &Accounting) -> String {
    let Accounting { managed, free, in_pagesets, allocated } = accounting;
    format!("{managed} managed = {free} free + {in_pagesets} in pagesets + {allocated} allocated")
}

fn verdict(report: &PoolReport) -> &'static str {
    if report.is_balanced() { "balanced" } else { "NOT BALANCED" }
}

/// Formats a number with an SI-like suffix.
pub(super) fn si(number: f64) -> String {
    let scales = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")];
    match scales.iter().find(|(from, _)| number >= *from) {
        // Numbers below ten thousand are printed in full.
        Some(&(1e4, unit)) => format!("{:.1}{unit}", number / 1e3),
        Some((scale, unit)) => format!("{:.1}{unit}", number / scale),
        None => format!("{number:.0}"),
    }
}

fn times(count: u64) -> String {
    plural(count, "time")
}

/// Formats a count with an SI-like suffix, and its noun.
fn plural(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", si(count as f64), if count == 1 { "" } else { "s" })
}

fn time(ns: f64) -> String {
    let scales = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    match scales.iter().find(|(scale, _)| ns >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", ns / scale),
        None if ns < 100.0 && ns.fract() > 0.0 => format!("{ns:.1} ns"),
        None => format!("{ns:.0} ns"),
    }
}

/// Formats a count and its noun: `1 thread`, `2 threads`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_suitable_units() {
        assert_eq!(
            [0.0, 9999.0, 12_345.0, 34_500_000.0, 7.1e9].map(si),
            ["0", "9999", "12.3 k", "34.5 M", "7.1 G"]
        );
        assert_eq!(
            [0.0, 9.5, 120.0, 1500.0, 4e6, 2e9].map(time),
            ["0 ns", "9.5 ns", "120 ns", "1.5 us", "4.0 ms", "2.0 s"]
        );
        assert_eq!([counted(1, "thread"), counted(0, "thread")], ["1 thread", "0 threads"]);
        assert_eq!([times(1), times(2), times(12_345)], ["1 time", "2 times", "12.3 k times"]);
    }
}
