//! Holds the refills and drains that this kernel traced against those that the rule of its pagesets predicts.
//!
//! Related files: `zonal-trace` records, and `zonal_lab::replay` predicts.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use zonal_lab::replay::{Pair, replay_kernel};
use zonal_machine::output::Replace;
use zonal_trace::{RecordOptions, record};

use super::verdict::{Found, Verdict, ensure, text};

/// Largest error of a predicted figure, in percent of what was traced.
const ERROR_MAX: f64 = 25.0;
/// Frames that a CPU must have moved for its error to count: a single refill has up to 2016 frames.
const FRAMES_MIN: u64 = 8000;
/// Frames that a trace must have refilled.
const REFILLED_MIN: u64 = 20_000;

/// Programs for a shell, with what they do. Each runs for more than the first second, in which nothing is predicted.
const WORKLOADS: [(&str, &str); 6] = [
    (
        "page faults, 1 process",
        "for i in 1 2 3 4 5 6 7 8 9; do dd if=/dev/zero of=/dev/null bs=${i}0M count=1; done",
    ),
    (
        "page faults, 2 processes",
        "many() { for i in 1 2 3 4 5 6; do dd if=/dev/zero of=/dev/null bs=$((i * $1))M count=1; done; }; \
         many 11 & many 7; wait",
    ),
    (
        "files packed, unpacked and deleted",
        "mkdir /tmp/f; for i in $(seq 40); do dd if=/dev/zero of=/tmp/f/$i bs=1M count=1; done; \
         for i in 1 2 3; do tar -cf /tmp/f.tar -C /tmp f; mkdir /tmp/g; tar -xf /tmp/f.tar -C /tmp/g; \
         rm -r /tmp/g /tmp/f.tar; done; rm -r /tmp/f",
    ),
    (
        "files written on one CPU and deleted on another",
        "for i in 1 2 3 4; do taskset 1 dd if=/dev/zero of=/tmp/h bs=1M count=60; taskset 2 rm /tmp/h; done",
    ),
    (
        "compressors, 2 at a time",
        "pack() { for i in 1 2 3; do dd if=/dev/zero bs=1M count=24 | gzip -1 | gunzip | sort | wc -c; done; }; \
         pack & pack; wait",
    ),
    ("fork storm", "for i in $(seq 600); do (true); done; for i in $(seq 200); do /bin/busybox true; done"),
];

/// Checks every workload, and returns the largest errors of those with enough frames.
pub(super) fn predicted() -> Verdict {
    let folder = tempfile::tempdir().map_err(text)?;
    let (mut seen, mut wrong) = (Vec::new(), Vec::new());
    for (name, script) in WORKLOADS {
        let out = folder.path().join("trace");
        let command = ["sh", "-c", script].map(OsString::from);
        let options = RecordOptions {
            out: &out,
            replace: Replace::Own,
            duration: None,
            buffer_kib: None,
            command: &command,
        };
        let recorded = record(&options, &AtomicBool::new(false)).map_err(|why| format!("{name}: {why}"))?;
        let status = recorded.status.ok_or_else(|| format!("{name}: has no status"))?;
        ensure!(status.success(), "{name}: ended with {status}");
        let replay = replay_kernel(&out, |_| true).map_err(|why| format!("{name}: {why}"))?;
        let refilled: u64 = replay.cpus.iter().map(|cpu| cpu.refilled.traced).sum();
        let worst = replay
            .cpus
            .iter()
            .flat_map(|cpu| [(cpu.cpu, "refilled", cpu.refilled), (cpu.cpu, "drained", cpu.drained)])
            .filter(|(_, _, pair): &(u32, &str, Pair)| pair.traced >= FRAMES_MIN)
            .filter_map(|(cpu, what, pair)| Some((pair.error_percent()?, cpu, what, pair)))
            .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        let found = match worst {
            Some((error, cpu, what, Pair { predicted, traced })) => {
                let found =
                    format!("{name}: {error:+.1} % (CPU {cpu}, {traced} {what}, {predicted} predicted)");
                if refilled >= REFILLED_MIN && error.abs() > ERROR_MAX {
                    wrong.push(found.clone());
                }
                found
            }
            None => format!("{name}: no CPU moved {FRAMES_MIN} frames"),
        };
        seen.push(format!("{found}, {refilled} refilled, {} lost", replay.lost));
    }
    ensure!(wrong.is_empty(), "errors above {ERROR_MAX} %: {}; all: {}", wrong.join("; "), seen.join("; "));
    Ok(Found::Holds(seen.join("; ")))
}
