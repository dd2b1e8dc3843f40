//! Compares the predictions of `zonal-machine` with all values that the running kernel reports.
//!
//! A kernel computes watermarks, pageset limits and reserves at boot, before its zones have all their memory. When a
//! setting is written, the kernel computes these values again, and from then on each must equal its prediction.

use zonal_machine::{KernelVersion, Report, Rules, capture_live, explain};

use super::kernel::{read, write};
use super::verdict::{Found, Verdict, ensure, text};

/// Settings that make the kernel recompute the values when they are written, even if the setting does not change.
const SETTINGS: [&str; 2] = ["watermark_scale_factor", "lowmem_reserve_ratio"];

fn report() -> Result<(String, Report), String> {
    let (release, captured) = (read("/proc/sys/kernel/osrelease")?, capture_live().map_err(text)?);
    let version: KernelVersion = release.parse().map_err(text)?;
    Ok((release, explain(&captured.model, &Rules::of(version))))
}

/// Checks every value that the kernel reports. Before the settings are written, it must equal the prediction or the
/// value that the kernel computed at boot. Afterwards it must equal the prediction.
pub(super) fn all_values() -> Verdict {
    let (release, at_first) = report()?;
    let differing = |report: &Report| -> Vec<String> {
        let differs = report.checks.iter().filter(|check| check.differs());
        differs
            .map(|check| format!("{}: {:?}, not {:?}", check.what, check.observed, check.predicted))
            .collect()
    };
    let wrong = differing(&at_first);
    ensure!(wrong.is_empty(), "at boot: {}", wrong.join("; "));
    for name in SETTINGS {
        let file = format!("/proc/sys/vm/{name}");
        write(&file, read(&file)?)?;
    }
    let (_, report) = report()?;
    ensure!(!report.checks.is_empty(), "the kernel reported nothing");
    let same = report.checks.iter().filter(|check| check.same).count();
    ensure!(
        same == report.checks.len(),
        "{same} of {}: {}",
        report.checks.len(),
        differing(&report).join("; ")
    );
    let first = at_first.checks.iter().filter(|check| check.same).count();
    Ok(Found::Holds(format!(
        "kernel {release}: {first} of {} at first and the others as at boot, {same} of {same} once settings were written",
        at_first.checks.len()
    )))
}
