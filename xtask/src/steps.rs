//! Running steps one after another: name, output as it comes, time, and a summary at the end.
//!
//! A failed step does not stop the others: one run tells everything that is wrong. The last line
//! printed begins with `N passed, N failed`, for scripts; `, N tests skipped: ...` follows where tests
//! left something out (`skips.rs`). Neighbours: `plan.rs` makes the steps.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::skips;

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The check holds.
    Passed,
    /// The check does not hold; says what to look at.
    Failed(String),
    /// This machine lacks what the check needs; says what.
    Skipped(String),
}

/// One check.
pub(crate) struct Step {
    name: String,
    work: Box<dyn FnOnce(&Path) -> Outcome>,
}

impl Step {
    /// A step that does `work` in the workspace's root.
    pub(crate) fn new(name: impl Into<String>, work: impl FnOnce(&Path) -> Outcome + 'static) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }

    /// What is checked.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Runs all steps and prints the summary; whether none failed.
pub(crate) fn run_all(root: &Path, steps: Vec<Step>) -> bool {
    let mut done = Vec::new();
    for step in steps {
        println!("\n=== {}", step.name);
        let start = Instant::now();
        let outcome = (step.work)(root);
        done.push((step.name, start.elapsed(), outcome));
    }
    println!();
    for (name, time, outcome) in &done {
        println!("{}", summary_line(name, *time, outcome));
    }
    let count = |wanted: fn(&Outcome) -> bool| done.iter().filter(|(_, _, outcome)| wanted(outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = skips::take(root);
    for (name, why) in &skipped {
        println!("skipped             {name}: {why}");
    }
    let passed = count(|outcome| *outcome == Outcome::Passed);
    println!("{passed} passed, {failed} failed{}", skips::in_summary(&skipped));
    failed == 0
}

fn summary_line(name: &str, time: Duration, outcome: &Outcome) -> String {
    let (word, why) = match outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(why) => ("FAILED", why.as_str()),
        Outcome::Skipped(why) => ("skipped", why.as_str()),
    };
    format!("{word:<8}{:>7.1} s  {name}{}{why}", time.as_secs_f64(), if why.is_empty() { "" } else { ": " })
}

/// A call of the cargo that runs this program, in the workspace's root.
pub(crate) fn cargo<I: IntoIterator<Item: AsRef<OsStr>>>(root: &Path, arguments: I) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments).env(skips::VARIABLE, skips::file(root));
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(chosen)
}

/// Runs a command with its output passed through.
pub(crate) fn succeeds(command: &mut Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{} ended with {status}", name_of(command))),
        Err(error) => Outcome::Failed(format!("{} did not start: {error}", name_of(command))),
    }
}

fn name_of(command: &Command) -> String {
    let first = command.get_args().next().unwrap_or_default().to_string_lossy();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    format!("{program} {first}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_run_and_the_others_still_run() {
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = |outcome: Outcome| {
            let seen = seen.clone();
            Step::new("step", move |_| {
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed); // one thread
                outcome
            })
        };
        let root = Path::new(".");
        assert!(run_all(root, vec![count(Outcome::Passed), count(Outcome::Skipped("tool".into()))]));
        assert!(!run_all(root, vec![count(Outcome::Failed("why".into())), count(Outcome::Passed)]));
        assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 4);
    }

    #[test]
    fn a_command_that_fails_is_a_failed_step() {
        assert_eq!(succeeds(&mut Command::new("true")), Outcome::Passed);
        assert!(matches!(succeeds(&mut Command::new("false")), Outcome::Failed(_)));
        assert!(matches!(succeeds(&mut Command::new("/no/such/program")), Outcome::Failed(_)));
    }
}
