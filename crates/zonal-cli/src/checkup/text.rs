//! The check-up as text: the machine, the pool and its price without one, what zonal would gain, and what to run next.

use zonal_bench::PoolReport;
use zonal_machine::state::ZoneSample;
use zonal_machine::{Bytes, Severity};

use super::Checkup;
use super::report::processor;
use crate::layout::{Content::Numbers, Content::Text, Grid, Width};
use crate::machine::words;
use crate::run::text::accounting;

pub(super) fn render(checkup: &Checkup, width: Width) -> String {
    let mut out = String::new();
    for (label, line) in machine(checkup) {
        out += &width.labelled(&format!("{label:<10}"), &line);
    }
    out += "\n";
    out += &pool(checkup, width);
    out += "\n";
    out += &width.labelled("", &gain(checkup));
    out + "\n" + &next(checkup)
}

/// Returns the machine in five lines.
fn machine(checkup: &Checkup) -> [(&'static str, String); 5] {
    let Checkup { model, rules, report, sample, .. } = checkup;
    let processor = processor().map_or_else(String::new, |name| format!(", {name}"));
    let free: u64 = sample.zones.iter().map(|zone| zone.free).sum();
    let low: Vec<String> =
        sample.zones.iter().filter(|zone| zone.free < zone.low).map(ZoneSample::name).collect();
    let large = sample.large_order();
    let pieces: u64 = sample.zones.iter().map(|zone| blocks_from(&zone.free_blocks, large)).sum();
    let pressure =
        if low.is_empty() { "no zone is below low".into() } else { format!("below low: {}", low.join(", ")) };
    let warnings = report.advice.iter().filter(|advice| advice.severity == Severity::Warn).count();
    let advice = match report.advice.first() {
        None => "none".to_owned(),
        Some(first) if report.advice.len() == 1 => first.text.clone(),
        Some(first) => format!(
            "{} ({} more, {warnings} of all are warnings: zonal machine)",
            first.text,
            report.advice.len() - 1
        ),
    };
    let nodes = match words::filling(report) {
        Some(filling) => filling,
        None => "one node has all memory, so every request is served by it".to_owned(),
    };
    [
        ("machine", format!("{}{processor}", words::sizes(model, report))),
        ("kernel", format!("Linux {}: {}", rules.version, words::checks(report))),
        ("nodes", nodes),
        (
            "free now",
            format!(
                "{} of memory, {pieces} blocks of 2 MiB among it; {pressure}",
                Bytes(free * sample.page_bytes)
            ),
        ),
        ("advice", advice),
    ]
}

/// Returns how many blocks of `order` the free blocks hold.
fn blocks_from(free_blocks: &[u64], order: usize) -> u64 {
    let parts = |(at, &count): (usize, &u64)| count.saturating_mul(1 << (at - order).min(63));
    free_blocks.iter().enumerate().skip(order).map(parts).fold(0, u64::saturating_add)
}

fn pool(checkup: &Checkup, width: Width) -> String {
    let Checkup { pool, cleared, pool_bytes, .. } = checkup;
    let heads = [("a page, allocated, touched and freed", Text), ("ns of a CPU", Numbers), ("", Numbers)];
    let mut grid = Grid::new(1, heads);
    let own = pool.measured.cpu_ns_per_pair();
    let times = |ns: f64| format!("{:.1} x", ns / cleared.from_pool_ns);
    let mut row = |name: String, ns: Option<f64>, beside: String| {
        grid.row([name, ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}")), beside]);
    };
    row(format!("from a pool of {}", Bytes(*pool_bytes)), own, String::new());
    row("cleared by the pool".to_owned(), Some(cleared.from_pool_ns), String::new());
    for (name, ns) in
        [("mmap of 32 MiB at once", cleared.in_region_ns), ("mmap of each page", cleared.own_mapping_ns)]
    {
        row(name.to_owned(), Some(ns), times(ns));
    }
    grid.render("  ", width) + &balance(pool, width)
}

/// Returns the line with the accounting of the pool.
pub(super) fn balance(pool: &PoolReport, width: Width) -> String {
    let verdict = if pool.is_balanced() { "balanced" } else { "NOT BALANCED" };
    let accounting = format!("{} ({verdict})", accounting(&pool.accounting));
    width.labelled("  accounting of the pool: ", &accounting)
}

/// Returns what zonal would gain on this machine.
fn gain(checkup: &Checkup) -> String {
    let Checkup { cleared, report, .. } = checkup;
    let nodes = report.nodes.iter().filter(|node| node.managed > 0).count();
    let times = cleared.in_region_ns / cleared.from_pool_ns;
    let pages = if times > 1.5 {
        format!(
            "The kernel clears each page that it maps. From a pool, whose memory is mapped already, a cleared \
             page costs {times:.1} times less, and one that need not be cleared even less. "
        )
    } else {
        "Pages from a pool cost about as much as the kernel's here: there is nothing to gain from speed alone. ".to_owned()
    };
    let placement = match nodes {
        0 | 1 => "With one node, placement gains nothing.".to_owned(),
        _ => format!(
            "With {nodes} nodes, a pool binds its memory and says when a page comes from another node."
        ),
    };
    pages + &placement
}

fn next(checkup: &Checkup) -> String {
    let several = checkup.report.nodes.len() > 1;
    let last = if several { "zonal --report checkup.json" } else { "zonal mechanisms" };
    let about = if several {
        "figures of this machine to send: there are few of such machines"
    } else {
        "what each mechanism changes here"
    };
    let rows = [
        ("zonal explain", "which zones a request would try now, and why"),
        ("zonal machine --html machine.html", "this machine as a page with pictures"),
        (last, about),
    ];
    format!("Next:\n{}", crate::layout::entries(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_blocks_hold_several() {
        assert_eq!(blocks_from(&[5, 0, 3, 1], 2), 5);
        assert_eq!(blocks_from(&[5], 9), 0);
    }
}
