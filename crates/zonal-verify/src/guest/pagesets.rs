//! Holds the refills and drains that this kernel traced against those that the rule of its pagesets predicts.
//!
//! Related files: `zonal-trace` records, and `zonal_lab::replay` predicts.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use zonal_lab::replay::{Pair, replay_kernel};
use zonal_machine::output::Replace;
use zonal_trace::{RecordOptions, record};

use super::verdict::{Found, Verdict, ensure, text};

/// Largest error of a CPU's frames, and of those that all CPUs moved, in percent of what was traced.
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
        "pack() { for i in 1 2 3; do dd if=/dev/zero bs=1M count=24 | gzip -1 | gunzip > /tmp/$1; rm /tmp/$1; done; }; \
         pack a & pack b; wait",
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
        let flows = [
            ("refilled", replay.cpus.iter().map(|cpu| (cpu.cpu, cpu.refilled)).collect::<Vec<_>>()),
            ("drained", replay.cpus.iter().map(|cpu| (cpu.cpu, cpu.drained)).collect()),
        ];
        let refilled = sum(&flows[0].1).traced;
        let mut found = Vec::new();
        for (what, cpus) in &flows {
            let all = sum(cpus);
            let worst = cpus
                .iter()
                .filter(|(_, pair)| pair.traced >= FRAMES_MIN)
                .filter_map(|(cpu, pair)| Some((pair.error_percent()?, cpu)))
                .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
            let error = all.error_percent().unwrap_or(0.0);
            let mut text = format!("{name}: {} {what}, {error:+.1} %", all.traced);
            if let Some((error, cpu)) = worst {
                text.push_str(&format!(" (CPU {cpu} {error:+.1} %)"));
            }
            let is_counted = refilled >= REFILLED_MIN && all.traced >= FRAMES_MIN;
            let is_wrong = error.abs() > ERROR_MAX || worst.is_some_and(|(error, _)| error.abs() > ERROR_MAX);
            if is_counted && is_wrong {
                wrong.push(text.clone());
            }
            found.push(text);
        }
        let found = found.join(", ");
        seen.push(format!("{found}, {} lost", replay.lost));
    }
    ensure!(wrong.is_empty(), "errors above {ERROR_MAX} %: {}; all: {}", wrong.join("; "), seen.join("; "));
    Ok(Found::Holds(seen.join("; ")))
}

/// Returns the sum over all CPUs.
fn sum(cpus: &[(u32, Pair)]) -> Pair {
    let traced = cpus.iter().map(|(_, pair)| pair.traced).sum();
    Pair { traced, predicted: cpus.iter().map(|(_, pair)| pair.predicted).sum() }
}
