//! `zonal bench --forms`: the time of a pair for each request form, beside the plain request and the fastest peer.

use std::sync::atomic::AtomicBool;

use serde::Serialize;
use zonal_bench::{Bench, FormRow};

use super::{judge, text};
use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};
use crate::outcome::{Failure, print, print_message};
use crate::progress::ProgressLine;

/// Measures the forms with each number of threads, and prints them.
pub(super) fn run(bench: &Bench, json: bool, interrupted: &AtomicBool) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let mut output = if json { String::new() } else { heading(bench, Width::of_output()) };
    for &threads in &bench.threads {
        let progress = ProgressLine::begin();
        let measured = zonal_bench::forms(bench, threads, interrupted, |now| {
            progress.show_steps(now.contender, now.done as u64, now.total as u64);
        });
        drop(progress);
        let (rows, report) =
            measured.map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
        text::remarks(&report).iter().for_each(|line| print_message(format_args!("note: {line}")));
        if json {
            lines.extend(rows.iter().map(|row| line(row, threads.get())));
        } else {
            output += &format!("\n{}\n", text::counted_threads(threads));
            output += &table(&rows, Width::of_output());
        }
        judge(&report, interrupted)?;
    }
    print(&if json {
        serde_json::to_string(&lines).expect("numbers and names are always JSON") + "\n"
    } else {
        output
    })
}

/// A form for scripts. The keys of this struct and their order are stable.
#[derive(Serialize)]
struct Line {
    form: String,
    threads: usize,
    ns_per_pair_median: f64,
    instructions_per_pair: Option<f64>,
    ratio_to_plain: Option<f64>,
    fastest_peer: Option<String>,
    ratio_to_fastest_peer: Option<f64>,
    rounds: usize,
}

fn line(row: &FormRow, threads: usize) -> Line {
    let (fastest_peer, ratio_to_fastest_peer) = row.fastest_peer.clone().unzip();
    Line {
        form: row.form.clone(),
        threads,
        ns_per_pair_median: row.cpu_ns.median,
        instructions_per_pair: row.instructions,
        ratio_to_plain: row.ratio_to_plain,
        fastest_peer,
        ratio_to_fastest_peer,
        rounds: row.rounds,
    }
}

fn heading(bench: &Bench, width: Width) -> String {
    let plan = text::plan(bench);
    let columns = "ns: CPU time of one block out and one back, the median over the rounds; x plain: the median of the \
                   ratios within a round; x peer: the same to the fastest peer that has blocks of this order";
    width.labelled("", &plan) + &width.paragraph("", "", columns)
}

fn table(rows: &[FormRow], width: Width) -> String {
    let numbers = ["ns", "min", "max", "instructions", "x plain", "x peer"];
    let columns = [("form", Text)].into_iter().chain(numbers.map(|title| (title, Numbers)));
    let mut grid = Grid::new(1, columns.chain([("fastest peer", Text)]));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for row in rows {
        let peer = row.fastest_peer.as_ref();
        grid.row([
            row.form.clone(),
            text::ns(row.cpu_ns.median),
            text::ns(row.cpu_ns.min),
            text::ns(row.cpu_ns.max),
            or_dash(row.instructions.map(|count| format!("{count:.0}"))),
            or_dash(row.ratio_to_plain.map(|ratio| format!("{ratio:.2}"))),
            or_dash(peer.map(|(_, ratio)| format!("{ratio:.2}"))),
            or_dash(peer.map(|(name, _)| name.clone())),
        ]);
    }
    grid.render("  ", width)
}
