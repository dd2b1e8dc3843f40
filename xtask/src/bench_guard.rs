//! Compares the instructions per pair with a golden file. Unlike times, these counts do not vary with the machine's
//! load.
//!
//! The processor counts the instructions if it has counters. Otherwise callgrind counts them if it is installed, and
//! else the step is skipped. The golden file has a table for each processor architecture. Counts differ between
//! compilers, so the file must be regenerated for each new compiler. Related files:
//! `crates/zonal-bench/examples/instructions.rs` does the work, and `steps.rs` runs these steps.

use std::path::Path;
use std::process::Command;

use toml::Table;

use crate::steps::{self, Outcome, Step, cargo, target_folder};

/// The golden file, relative to the root.
const GOLDEN: &str = "crates/zonal-bench/instructions.toml";
/// Allowed difference between a count and the golden count, in percent.
const TOLERANCE_PERCENT: f64 = 5.0;
/// Maximum number of runs for a workload. A first run may count too many instructions, because adaptive settings have
/// not settled.
const TRIES: usize = 3;

/// What is done with the counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Compare,
    Bless,
}

/// Counts the instructions and compares them with the golden file.
pub(crate) fn compare(_root: &Path) -> Vec<Step> {
    vec![Step::new("instructions per pair", |root| guard(root, Purpose::Compare))]
}

/// Counts the instructions and rewrites the golden file.
pub(crate) fn bless(_root: &Path) -> Vec<Step> {
    vec![Step::new("instructions per pair", |root| guard(root, Purpose::Bless))]
}

fn guard(root: &Path, purpose: Purpose) -> Outcome {
    let build = ["build", "--profile", "dist", "-p", "zonal-bench", "--example", "instructions"];
    match steps::succeeds(&mut cargo(root, build)) {
        Outcome::Passed => {}
        other => return other,
    }
    let counted = || -> Result<Outcome, String> {
        let program = target_folder(root).join("dist/examples/instructions");
        let golden = read_golden(root)?;
        let Some(way) = Way::find(&program)? else {
            return Ok(Outcome::Skipped("neither instruction counters nor valgrind are available".into()));
        };
        println!("counted by {}", way.name());
        match purpose {
            Purpose::Compare => compare_all(&program, way, &golden),
            Purpose::Bless => bless_all(&program, way, golden).and_then(|golden| write_golden(root, &golden)),
        }
    };
    counted().unwrap_or_else(Outcome::Failed)
}

fn compare_all(program: &Path, way: Way, golden: &Table) -> Result<Outcome, String> {
    let Some(golden) = golden.get(std::env::consts::ARCH).and_then(|table| table.as_table()) else {
        return Ok(Outcome::Skipped(format!("{GOLDEN} has no counts for {}", std::env::consts::ARCH)));
    };
    let workloads = workloads(program)?;
    if let Some(missing) = golden.keys().find(|counted| !workloads.contains(counted)) {
        return Err(format!("{GOLDEN} has a count for {missing}, which is no workload; run with --bless"));
    }
    let mut worse = Vec::new();
    for workload in workloads {
        let golden = golden.get(&workload).and_then(toml::Value::as_float);
        let golden =
            golden.ok_or_else(|| format!("{GOLDEN} has no count for {workload}; run with --bless"))?;
        let count = least(program, way, &workload, golden * (1.0 + TOLERANCE_PERCENT / 100.0))?;
        let verdict = verdict(count, golden);
        println!("{workload:<14}{count:>9.1}{golden:>9.1}  {}", verdict.unwrap_or_default());
        if verdict == Some(WORSE) {
            worse.push(workload);
        }
    }
    if worse.is_empty() {
        return Ok(Outcome::Passed);
    }
    Ok(Outcome::Failed(format!("more instructions than in {GOLDEN}: {}", worse.join(", "))))
}

const WORSE: &str = "worse";
const BETTER: &str = "fewer than recorded; run with --bless";

/// Returns a remark on a count, if one is needed.
fn verdict(count: f64, golden: f64) -> Option<&'static str> {
    let percent = (count / golden - 1.0) * 100.0;
    match percent {
        _ if percent > TOLERANCE_PERCENT => Some(WORSE),
        _ if percent < -TOLERANCE_PERCENT => Some(BETTER),
        _ => None,
    }
}

fn bless_all(program: &Path, way: Way, mut golden: Table) -> Result<Table, String> {
    let mut counts = Table::new();
    for workload in workloads(program)? {
        let count = least(program, way, &workload, 0.0)?;
        println!("{workload:<14}{count:>9.1}");
        counts.insert(workload, ((count * 10.0).round() / 10.0).into());
    }
    golden.insert(std::env::consts::ARCH.into(), counts.into());
    Ok(golden)
}

/// Returns the smallest count of several runs. Stops at the first count that is at most `good_enough`.
fn least(program: &Path, way: Way, workload: &str, good_enough: f64) -> Result<f64, String> {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        least = least.min(way.count(program, workload)?);
        if least <= good_enough {
            break;
        }
    }
    Ok(least)
}

/// The way in which instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Counters,
    Callgrind,
}

impl Way {
    /// Returns the first way of counting that works on this machine.
    fn find(program: &Path) -> Result<Option<Self>, String> {
        let tried = output(Command::new(program).arg("--short"))?;
        if number(&tried, "instructions").is_some() {
            return Ok(Some(Self::Counters));
        }
        let valgrind = Command::new("valgrind").arg("--version").output();
        Ok(valgrind.is_ok_and(|ran| ran.status.success()).then_some(Self::Callgrind))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Counters => "the processor",
            Self::Callgrind => "callgrind",
        }
    }

    /// Returns the instructions per pair.
    fn count(self, program: &Path, workload: &str) -> Result<f64, String> {
        let missing = |what: &str| format!("{workload}: no {what} were reported");
        if self == Self::Counters {
            let reported = output(Command::new(program).arg(workload))?;
            return number(&reported, "instructions").ok_or_else(|| missing("instructions"));
        }
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let file = folder.path().join("profile");
        let mut command = Command::new("valgrind");
        // Threads take turns, because a pool does not adapt without its worker's ticks.
        command.args(["-q", "--fair-sched=yes", "--tool=callgrind", "--toggle-collect=*measured_part*"]);
        command.arg(format!("--callgrind-out-file={}", file.display()));
        let reported = output(command.arg(program).args([workload, "--simulated"]))?;
        let profile = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let pairs = number(&reported, "pairs").ok_or_else(|| missing("pairs"))?;
        let instructions = number(&profile, "totals:").ok_or_else(|| missing("instructions"))?;
        Ok(instructions / pairs)
    }
}

/// Returns the workloads that can be counted.
fn workloads(program: &Path) -> Result<Vec<String>, String> {
    Ok(output(Command::new(program).arg("--list"))?.lines().map(str::to_owned).collect())
}

/// Returns what a program printed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().map_err(|error| format!("{name} did not start: {error}"))?;
    if !ran.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Returns the number after `word` on a line of its own.
fn number(text: &str, word: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    rest.and_then(|rest| rest.trim().parse().ok())
}

fn read_golden(root: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(root.join(GOLDEN)).map_err(|error| format!("{GOLDEN}: {error}"))?;
    text.parse().map_err(|error: toml::de::Error| format!("{GOLDEN}: {error}"))
}

fn write_golden(root: &Path, golden: &Table) -> Result<Outcome, String> {
    let head = "# Instructions of a pair on one thread, by processor architecture and workload.\n\
                # `cargo xtask bench-guard` compares, `cargo xtask bench-guard --bless` rewrites this file.\n\n";
    let text = format!("{head}{golden}");
    std::fs::write(root.join(GOLDEN), text).map_err(|error| format!("{GOLDEN}: {error}"))?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_differ_by_more_than_the_tolerance_or_not() {
        assert_eq!(verdict(104.9, 100.0), None);
        assert_eq!(verdict(95.1, 100.0), None);
        assert_eq!(verdict(105.1, 100.0), Some(WORSE));
        assert_eq!(verdict(94.9, 100.0), Some(BETTER));
    }

    #[test]
    fn numbers_are_found_by_the_word_before_them() {
        let text = "version: 1\npairs 12\ninstructions 34.5\ntotals: 99\n";
        let found = ["pairs", "instructions", "totals:", "total", "missing"].map(|word| number(text, word));
        assert_eq!(found, [Some(12.0), Some(34.5), Some(99.0), None, None]);
    }

    #[test]
    fn the_golden_file_has_a_count_for_each_workload() {
        let golden = read_golden(&crate::workspace_root()).unwrap();
        for (architecture, counts) in golden {
            let counts = counts.as_table().unwrap();
            assert!(counts.values().all(|count| count.as_float().is_some_and(|count| count > 1.0)));
            assert!(counts.contains_key("pair") && counts.contains_key("fill"), "{architecture}");
        }
    }
}
