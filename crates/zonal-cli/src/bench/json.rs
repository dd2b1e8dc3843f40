//! The rows of a bench as one JSON document, for scripts. The keys of the document and their order are stable.
//!
//! Times are CPU times in nanoseconds. `instructions_per_pair` is null if instructions cannot be counted. A ratio is
//! null if the allocator or floor to compare with was not measured.

use serde::Serialize;
use zonal_bench::{Report, Row};

#[derive(Serialize)]
struct Line<'a> {
    workload: &'static str,
    threads: usize,
    allocator: &'a str,
    version: &'a str,
    ns_per_pair_median: f64,
    ns_per_pair_min: f64,
    ns_per_pair_max: f64,
    instructions_per_pair: Option<f64>,
    ratio_to_zonal: Option<f64>,
    ratio_to_floor: Option<f64>,
    ratio_to_floor_exact: Option<f64>,
    rounds: usize,
}

/// Returns the document, followed by a line break.
pub(super) fn render(report: &Report) -> String {
    let lines: Vec<Line<'_>> = report.rows.iter().map(line).collect();
    serde_json::to_string(&lines).expect("numbers and names are always JSON") + "\n"
}

fn line(row: &Row) -> Line<'_> {
    Line {
        workload: row.workload.name(),
        threads: row.threads.get(),
        allocator: &row.contender,
        version: &row.version,
        ns_per_pair_median: row.cpu_ns.median,
        ns_per_pair_min: row.cpu_ns.min,
        ns_per_pair_max: row.cpu_ns.max,
        instructions_per_pair: row.instructions,
        ratio_to_zonal: row.ratio_to_zonal,
        ratio_to_floor: row.ratio_to_floor,
        ratio_to_floor_exact: row.ratio_to_exact,
        rounds: row.rounds,
    }
}
