//! The rows of a bench as text: a table for each workload, followed by remarks.

use std::num::NonZeroUsize;

use zonal_bench::{Bench, Report, Row, Skipped};
use zonal_machine::Bytes;

use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};
use crate::run::text::counted;

/// Minimum number of failed requests per pair for which a remark is printed.
const FAILED_MIN: f64 = 0.01;

pub(super) fn render(bench: &Bench, report: &Report, width: Width) -> String {
    let mut text = heading(bench, width);
    let groups = report.rows.chunk_by(|a, b| (a.workload, a.threads) == (b.workload, b.threads));
    for rows in groups {
        let first = &rows[0];
        let threads = counted_threads(first.threads);
        let title = format!("{}, {threads}: {}", first.workload.name(), first.workload.summary());
        text += "\n";
        text += &width.labelled("", &title);
        text += &table(rows, width);
    }
    let remarks = remarks(report);
    if !remarks.is_empty() {
        text.push('\n');
    }
    remarks.iter().fold(text, |text, line| text + &width.labelled("", line))
}

/// Returns the parameters of a bench as one line.
pub(super) fn plan(bench: &Bench) -> String {
    format!(
        "Pools of {}, {} of {:.3} s after a warm-up of {:.3} s, seed {}, threads not pinned",
        Bytes(bench.frames.get() * super::PAGE_BYTES),
        counted(bench.rounds.get() as u64, "round"),
        bench.round_time.as_secs_f64(),
        bench.warm_up.as_secs_f64(),
        bench.seed,
    )
}

/// Returns a number of threads as text.
pub(super) fn counted_threads(threads: NonZeroUsize) -> String {
    counted(threads.get() as u64, "thread")
}

fn heading(bench: &Bench, width: Width) -> String {
    let plan = plan(bench);
    let columns = "ns: CPU time per pair, the median over the rounds; x zonal, x floor, x exact: medians of \
                   the ratios within a round; the floor is floor-rseq, for zonal-locked floor-spin; exact is \
                   floor-exact";
    width.labelled("", &plan) + &width.paragraph("", "", columns)
}

fn table(rows: &[Row], width: Width) -> String {
    let numbers = ["ns", "min", "max", "wall ns", "instructions", "x zonal", "x floor", "x exact"];
    let columns = [("allocator", Text), ("version", Text)];
    let mut grid = Grid::new(1, columns.into_iter().chain(numbers.map(|title| (title, Numbers))));
    for row in rows {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        grid.row([
            row.contender.clone(),
            row.version.clone(),
            ns(row.cpu_ns.median),
            ns(row.cpu_ns.min),
            ns(row.cpu_ns.max),
            ns(row.wall_ns.median),
            row.instructions.map_or_else(|| "-".into(), |count| format!("{count:.0}")),
            ratio(row.ratio_to_zonal),
            ratio(row.ratio_to_floor),
            ratio(row.ratio_to_exact),
        ]);
    }
    grid.render("  ", width)
}

pub(super) fn ns(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// Returns remarks about unexpected conditions of the measurement, one remark per line.
pub(super) fn remarks(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(
        report.instructions_missing.as_ref().map(|why| format!("instructions are not counted: {why}")),
    );
    for row in report.rows.iter().filter(|row| row.failed >= FAILED_MIN) {
        lines.push(format!(
            "{} on {}: {:.2} requests per pair found no free block",
            row.contender,
            row.workload.name(),
            row.failed
        ));
    }
    lines.extend(skipped(&report.skipped));
    lines
}

/// Returns the contenders that were skipped, with one line for each workload and reason.
fn skipped(all: &[Skipped]) -> impl Iterator<Item = String> {
    let groups = all.chunk_by(|a, b| (a.workload, &a.reason) == (b.workload, &b.reason));
    groups.map(|group| {
        let names: Vec<&str> = group.iter().map(|skipped| &*skipped.contender).collect();
        format!("skipped on {}: {}: {}", group[0].workload.name(), names.join(", "), group[0].reason)
    })
}
