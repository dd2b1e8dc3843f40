//! The report of a run in several processes, as text and as one JSON document, whose keys and their order are stable.
//!
//! Related files: `run/text.rs` and `run/json.rs` have the reports of other runs.

use std::fmt::Write as _;

use serde::Serialize;
use zonal_linux::{Fault, Pool};
use zonal_machine::Bytes;

use super::json::Accounting;
use super::shared::SharedReport;
use super::text::{accounting, counted, si};
use crate::layout::Width;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    workload: &'static str,
    shared: Shared,
    /// In each process.
    threads: usize,
    seconds: f64,
    pairs: u64,
    failed: u64,
    metadata_bytes_per_frame: f64,
    accounting: Accounting,
    /// What verification of the whole pool found: frames lost or held twice, or counts that are wrong.
    fault: Option<String>,
}

#[derive(Serialize)]
struct Shared {
    processes: u8,
    killed: u64,
    recovered_frames: u64,
    recovery_ms_max: f64,
    frames_lost: u64,
    frames_twice: u64,
}

/// Returns the document, followed by a line break.
pub(super) fn json(pool: &Pool, report: &SharedReport) -> String {
    let document = Document {
        schema: "zonal.run.v1",
        workload: report.workload.name(),
        shared: Shared {
            processes: report.processes,
            killed: report.deaths,
            recovered_frames: report.given_back,
            recovery_ms_max: report.recovery.as_secs_f64() * 1e3,
            frames_lost: report.lost().get(),
            // The verification ends at the first.
            frames_twice: report.fault.map_or(0, |error| matches!(error.fault, Fault::FrameTwice(_)).into()),
        },
        threads: report.threads.get(),
        seconds: report.elapsed.as_secs_f64(),
        pairs: report.pairs,
        failed: report.failed,
        metadata_bytes_per_frame: metadata(pool),
        accounting: Accounting::new(&report.accounting, report.is_balanced()),
        fault: report.fault.map(|fault| fault.to_string()),
    };
    serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
}

/// Returns the report as text, with one subject in each line.
pub(super) fn text(pool: &Pool, report: &SharedReport, width: Width) -> String {
    let seconds = report.elapsed.as_secs_f64();
    let processes = match report.processes {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let heading = format!(
        "{}: {processes} with {} each for {seconds:.1} s on a shared pool of {}, seed {}",
        report.workload.name(),
        counted(report.threads.get() as u64, "thread"),
        Bytes(pool.frames().get() * pool.page_bytes() as u64),
        report.seed
    );
    let failed = match report.failed {
        0 => String::new(),
        failed => format!("{} found no free block", counted(failed, "request")),
    };
    let verified = match report.fault {
        Some(fault) => fault.to_string(),
        None if report.is_balanced() => "no frame lost, none held twice".to_owned(),
        None => "FRAMES ARE HELD THAT NO PROCESS USES".to_owned(),
    };
    let recovery = report.recovery.as_micros().div_ceil(1000);
    let mut deaths = format!("{} killed, about {} frames given back", report.deaths, report.given_back);
    if report.deaths > 0 {
        let _ = write!(deaths, " within {recovery} ms");
    }
    let lines = [
        ("speed", format!("{} pairs/s", si(report.pairs as f64 / seconds.max(1e-9)))),
        ("failed", failed),
        ("deaths", deaths),
        ("metadata", format!("{:.3} bytes per frame", metadata(pool))),
        ("accounting", accounting(&report.accounting)),
        ("verified", verified),
    ];
    let mut text = width.labelled("", &heading);
    for (label, line) in lines.iter().filter(|(_, line)| !line.is_empty()) {
        text.push_str(&width.labelled(&format!("  {label:<12}"), line));
    }
    text
}

fn metadata(pool: &Pool) -> f64 {
    pool.metadata_bytes() as f64 / pool.frames().get() as f64
}
