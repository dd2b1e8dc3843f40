//! `cargo xtask kernel` boots the kernel in `kernel/` on machines that QEMU emulates, with 1, 2 and 4 nodes.
//!
//! The kernel races over its memory for some seconds and checks every frame. It reports faults, and its exit status
//! says whether it passed. Its files in the formats of Linux are then read with `zonal machine --sysfs`. Related files:
//! `kernel/machine.rs` has the machines, `kernel/run.rs` runs QEMU and evaluates the output, and `kernel/faults.rs`
//! plants faults in a copy of the sources, which the kernel must detect. `kernel/guide.rs` follows the pages about
//! embeddings, `kernel/compare.rs` compares instructions with those of Linux, and `kernel/size.rs` measures the smallest kernel.

mod compare;
mod faults;
mod guide;
mod machine;
mod run;
pub(crate) mod size;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::steps::{Outcome, Selection, Step, cargo, outcome, program, succeeds, target_folder};
use machine::{MACHINES, Shape};
use run::Ended;

/// Manifest of the kernel, relative to the root.
pub(crate) const MANIFEST: &str = "kernel/Cargo.toml";
/// Target of the kernel, which is a part of its program's path.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Seconds of a race: by default, in the everyday checks and with a planted fault, and in the long checks.
const SECONDS: u64 = 20;
const SHORT_SECONDS: u64 = 5;
const LONG_SECONDS: u64 = 600;

/// The options on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    nodes: Option<usize>,
    seconds: u64,
    faults: Option<Vec<String>>,
    guide: bool,
    compare: bool,
    size: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options =
            Self { nodes: None, seconds: SECONDS, faults: None, guide: false, compare: false, size: false };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--nodes" => {
                    let wanted = words.next().unwrap_or_default();
                    let known = MACHINES.iter().map(|shape| shape.nodes);
                    let found = known.clone().find(|nodes| nodes.to_string() == wanted);
                    options.nodes = Some(found.ok_or_else(|| {
                        let known: Vec<_> = known.map(|nodes| nodes.to_string()).collect();
                        format!("--nodes {wanted}: there are machines with {} nodes", known.join(", "))
                    })?);
                }
                "--seconds" => {
                    let text = words.next().unwrap_or_default();
                    let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
                    options.seconds =
                        seconds.ok_or_else(|| format!("--seconds {text}: must be from 1 to 86400"))?;
                }
                "--guide" => options.guide = true,
                "--compare" => options.compare = true,
                "--size" => options.size = true,
                "--faults" => options.faults = Some(words.by_ref().map(str::to_owned).collect()),
                other => {
                    return Err(format!(
                        "kernel has no option `{other}`; it has --nodes, --seconds, --guide, --compare, --size and \
                         --faults [NAME...]"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// Returns the steps of `cargo xtask kernel`. A missing tool is a failure in these steps, because the user requested the
/// run.
pub(crate) fn steps(root: &Path, arguments: &[String]) -> Result<Vec<Step>, String> {
    let Options { nodes, seconds, faults, guide, compare, size } = Options::parse(arguments)?;
    if compare {
        return Ok(vec![compare::step()]);
    }
    if size {
        return Ok(vec![size::step(true)]);
    }
    if guide {
        return Ok(guide::steps(Outcome::Failed).collect());
    }
    if let Some(names) = faults {
        return faults::steps(root, &names);
    }
    let wanted = MACHINES.iter().filter(|shape| nodes.is_none_or(|nodes| nodes == shape.nodes));
    Ok(wanted.map(|shape| race(shape, seconds, Selection::Package, Outcome::Failed)).collect())
}

/// Returns the race of the everyday checks, on the largest machine. It is skipped if QEMU is missing.
pub(crate) fn every_day() -> Step {
    let [.., largest] = &MACHINES;
    race(largest, SHORT_SECONDS, Selection::Workspace, Outcome::Skipped)
}

/// Returns the steps of the long checks: all machines, the largest for ten minutes, and all planted faults.
pub(crate) fn deep() -> Vec<Step> {
    let [others @ .., largest] = &MACHINES;
    let mut steps: Vec<Step> =
        others.iter().map(|shape| race(shape, 60, Selection::Package, Outcome::Skipped)).collect();
    steps.push(race(largest, LONG_SECONDS, Selection::Package, Outcome::Skipped));
    steps.extend(guide::steps(Outcome::Skipped));
    let faults = faults::steps(&crate::workspace_root(), &[]);
    steps.extend(
        faults.unwrap_or_else(|why| vec![Step::new("faults in the kernel", |_| Outcome::Failed(why))]),
    );
    steps
}

/// Returns the race on a machine. What explains the kernel's files is built with all tests or alone: alone it has other features, so
/// where tests were built, it and all that it uses would be built again.
fn race(shape: &'static Shape, seconds: u64, selection: Selection, missing: fn(String) -> Outcome) -> Step {
    let name = format!("kernel with {} CPUs and {} for {seconds} s", shape.cpus, nodes_of(shape));
    Step::new(name, move |root| {
        if let Some(tool) = machine::missing_tool() {
            return missing(tool);
        }
        let race = |explainer: PathBuf| try_race(root, shape, seconds, &explainer).map_err(Outcome::Failed);
        outcome(program(root, "zonal-cli", "zonal", selection).and_then(race))
    })
}

fn nodes_of(shape: &Shape) -> String {
    if shape.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", shape.nodes) }
}

fn try_race(root: &Path, shape: &Shape, seconds: u64, explainer: &Path) -> Result<(), String> {
    let folder = target_folder(root).join("kernel");
    let kernel = build(root, &folder)?;
    let log = folder.join(format!("{}-nodes.log", shape.nodes));
    let seen = run::run(&kernel, shape, seconds, &log)?;
    for line in seen.lines.iter().filter(|line| run::is_summary(line)) {
        println!("{line}");
    }
    match seen.ended {
        Ended::Passed => {}
        Ended::Caught(why) | Ended::Broken(why) => {
            return Err(format!("{why}; all it printed is in {}", log.display()));
        }
    }
    explain(explainer, &seen.lines, &folder.join(format!("{}-nodes", shape.nodes)))
}

/// Returns a cargo call for the kernel of the workspace at `root`, with its output in `folder`.
fn cargo_in(root: &Path, command: &str, folder: &Path) -> Command {
    // The kernel's own configuration has the link arguments. It applies in the kernel's folder, and flags from the
    // environment would replace it.
    let mut call = cargo(&root.join("kernel"), [command, "-q", "--release", "--target-dir"]);
    call.arg(std::path::absolute(folder).unwrap_or(folder.to_path_buf())).env_remove("RUSTFLAGS");
    call
}

/// Runs clippy on the kernel.
pub(crate) fn lints(root: &Path) -> Outcome {
    let folder = target_folder(root).join("kernel");
    succeeds(cargo_in(root, "clippy", &folder).args(["--", "-D", "warnings"]))
}

/// Builds the kernel of the workspace at `root` and returns its program.
fn build(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    build_with(root, folder, &[])
}

/// Builds the kernel without assertions and overflow checks, as an embedder would ship it, and returns its program.
fn build_plain(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let unchecked = ["profile.release.debug-assertions=false", "profile.release.overflow-checks=false"];
    build_with(root, folder, &unchecked)
}

fn build_with(root: &Path, folder: &Path, settings: &[&str]) -> Result<PathBuf, String> {
    let mut call = cargo_in(root, "build", folder);
    for setting in settings {
        call.args(["--config", setting]);
    }
    match succeeds(&mut call) {
        Outcome::Passed => Ok(folder.join(TARGET).join("release/zonal-kernel")),
        Outcome::Failed(why) | Outcome::Skipped(why) => Err(format!("the kernel does not build: {why}")),
    }
}

/// Writes the kernel's files to a folder, and lets `zonal machine` explain and check them.
fn explain(explainer: &Path, lines: &[String], folder: &Path) -> Result<(), String> {
    run::write_files(lines, folder)?;
    let folder = std::path::absolute(folder).unwrap_or(folder.to_path_buf());
    let output = Command::new(explainer).args(["machine", "--check", "--sysfs"]).arg(&folder).output();
    let output = output.map_err(|error| format!("`zonal` does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = differences(&text).ok_or_else(|| {
        format!("`zonal machine` explains nothing: {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    text.lines().filter(|line| line.starts_with("Checks:")).for_each(|line| println!("{line}"));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} differs from what `zonal machine` predicts: {}",
            folder.display(),
            wrong.join("; ")
        )),
    }
}

/// Returns the lines of an explanation that report a difference from a prediction, or `None` if nothing was checked.
///
/// The stacks of pagesets have fewer slots than Linux allows frames, which bounds the metadata. Smaller maxima of
/// `pageset.high` are therefore not reported.
fn differences(text: &str) -> Option<Vec<&str>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("Checks:"));
    lines.next()?;
    let differing = lines.take_while(|line| !line.trim().is_empty()).skip(1).map(str::trim);
    Some(differing.filter(|line| !line.starts_with("pageset_high_max ")).collect())
}

/// Returns how long a race may take in all, in an emulated machine.
fn patience(seconds: u64) -> Duration {
    Duration::from_secs(180 + 3 * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn differences_are_those_that_matter() {
        let text = "Nodes\n\nChecks: 1 of 3 values\n  differs  predicted\n  pageset_high_max node 0  2  1\n  min node 0  2  1\n\nAdvice\n  x\n";
        assert_eq!(differences(text), Some(vec!["min node 0  2  1"]));
        assert_eq!(differences("Checks: 3 of 3 values\n\nAdvice\n"), Some(vec![]));
        assert_eq!(differences("Nodes\n"), None);
    }

    #[test]
    fn options_name_machines_times_and_faults() {
        assert_eq!(
            parse(&[]).unwrap(),
            Options {
                nodes: None,
                seconds: SECONDS,
                faults: None,
                guide: false,
                compare: false,
                size: false
            }
        );
        assert!(parse(&["--guide"]).unwrap().guide);
        let given = parse(&["--nodes", "2", "--seconds", "5"]).unwrap();
        assert_eq!((given.nodes, given.seconds), (Some(2), 5));
        assert_eq!(parse(&["--faults"]).unwrap().faults, Some(Vec::new()));
        assert_eq!(parse(&["--faults", "a"]).unwrap().faults, Some(vec!["a".to_owned()]));
        assert!(parse(&["--nodes", "3"]).unwrap_err().contains("1, 2, 4"));
        assert!(parse(&["--seconds", "0"]).unwrap_err().contains("1 to 86400"));
        assert!(parse(&["short"]).unwrap_err().contains("`short`"));
    }
}
