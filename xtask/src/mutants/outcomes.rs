//! Parses the `cargo mutants` file with the phases of each mutant, for results that its lists do not have.
//!
//! The list contains time-outs of builds and tests. A mutant whose tests die by a signal is in no list. Related files:
//! `mutants.rs` uses the results.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// The file with the phases.
const FILE: &str = "outcomes.json";
/// Signals by which a terminal or another process ends a process, which do not depend on the mutant: `SIGHUP`,
/// `SIGINT`, `SIGQUIT` and `SIGTERM`.
const FROM_OUTSIDE: [u64; 4] = [1, 2, 3, 15];

/// Returns the names of mutants whose build timed out, from a folder that `cargo mutants` wrote.
pub(super) fn builds_out_of_time(lists: &Path) -> Result<BTreeSet<String>, String> {
    mutants_with(lists, |phase| phase["phase"] != "Test" && phase["process_status"] == "Timeout")
}

/// Returns the names of mutants whose tests died by a signal.
pub(super) fn died_by_signals(lists: &Path) -> Result<BTreeSet<String>, String> {
    mutants_with(lists, |phase| {
        let signal = phase["process_status"]["Signalled"].as_u64();
        phase["phase"] == "Test" && signal.is_some_and(|signal| !FROM_OUTSIDE.contains(&signal))
    })
}

/// Returns the number of mutants to be tested.
pub(super) fn total(lists: &Path) -> Result<usize, String> {
    let total = read(lists)?["total_mutants"].as_u64();
    total.map(|total| total as usize).ok_or_else(|| error(lists, "has no `total_mutants`"))
}

/// Returns the names of mutants with a phase that `is_wanted` accepts.
fn mutants_with(lists: &Path, is_wanted: impl Fn(&Value) -> bool) -> Result<BTreeSet<String>, String> {
    let all = read(lists)?;
    let outcomes = all["outcomes"].as_array().ok_or_else(|| error(lists, "has no list of outcomes"))?;
    let has_one =
        |outcome: &&Value| outcome["phase_results"].as_array().is_some_and(|all| all.iter().any(&is_wanted));
    let name = |outcome: &Value| outcome["scenario"]["Mutant"]["name"].as_str().map(str::to_owned);
    Ok(outcomes.iter().filter(has_one).filter_map(name).collect())
}

fn read(lists: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(lists.join(FILE)).map_err(|why| error(lists, why))?;
    serde_json::from_str(&text).map_err(|why| error(lists, why))
}

fn error(lists: &Path, why: impl std::fmt::Display) -> String {
    format!("{}: {why}", lists.join(FILE).display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, build: &str, test: &str) -> String {
        let phases = [("Build", build), ("Test", test)].map(|(phase, status)| {
            format!(r#"{{"phase": "{phase}", "duration": 1.5, "process_status": {status}, "argv": []}}"#)
        });
        let scenario = format!(r#"{{"Mutant": {{"name": "{name}", "package": "p"}}}}"#);
        format!(
            r#"{{"scenario": {scenario}, "summary": "Timeout", "phase_results": [{}]}}"#,
            phases.join(",")
        )
    }

    #[test]
    fn what_lists_lack_is_read_from_outcomes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let outcomes = [
            r#"{"scenario": "Baseline", "summary": "Timeout", "phase_results": []}"#.to_owned(),
            outcome("tests", r#""Success""#, r#""Timeout""#),
            outcome("build", r#""Timeout""#, r#"{"Failure": 101}"#),
            outcome("caught", r#""Success""#, r#"{"Failure": 101}"#),
            outcome("aborted", r#""Success""#, r#"{"Signalled": 6}"#),
            outcome("interrupted", r#""Success""#, r#"{"Signalled": 2}"#),
            outcome("compiler died", r#"{"Signalled": 9}"#, r#""Other""#),
        ];
        let text = format!(r#"{{"outcomes": [{}], "total_mutants": 6}}"#, outcomes.join(","));
        std::fs::write(folder.join("outcomes.json"), text).unwrap();
        let (built, died) = (builds_out_of_time(folder), died_by_signals(folder));
        assert_eq!(total(folder), Ok(6));
        std::fs::remove_file(folder.join("outcomes.json")).unwrap();
        assert_eq!(built.unwrap(), BTreeSet::from(["build".to_owned()]));
        assert_eq!(died.unwrap(), BTreeSet::from(["aborted".to_owned()]));
        assert!(builds_out_of_time(folder).is_err_and(|why| why.contains("outcomes.json")));
    }
}
