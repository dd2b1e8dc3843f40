//! Runs steps one after another. Prints their names, output and times, and a summary at the end.
//!
//! Each time is followed by the step's processor time, which says more where other work runs.
//! A failed step does not stop the others, so one run reports all failures. The last line begins with `N passed, N
//! failed`, for scripts. It continues with `, N steps skipped` if this machine lacks tools that steps need, and with `,
//! N tests skipped: ...` if tests skipped checks (`skips.rs`). Related files: `plan.rs` lists the steps.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::skips;

/// The outcome of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The check passed.
    Passed,
    /// The check failed. Contains the cause or where to find it.
    Failed(String),
    /// This machine lacks something that the check needs. Contains what is missing.
    Skipped(String),
}

/// One check.
pub(crate) struct Step {
    name: String,
    work: Box<dyn FnOnce(&Path) -> Outcome>,
}

impl Step {
    /// Creates a step that calls `work` with the workspace's root.
    pub(crate) fn new(name: impl Into<String>, work: impl FnOnce(&Path) -> Outcome + 'static) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }

    /// Returns the name of the check.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Runs all steps and prints the summary. Returns whether there are steps and none failed.
pub(crate) fn run_all(root: &Path, steps: Vec<Step>) -> bool {
    let mut done = Vec::new();
    let is_empty = steps.is_empty();
    for step in steps {
        println!("\n=== {}", step.name);
        let (start, used) = (Instant::now(), processor_time());
        let outcome = (step.work)(root);
        let times = Times { elapsed: start.elapsed(), processor: processor_time().saturating_sub(used) };
        done.push((step.name, times, outcome));
    }
    println!();
    let skipped = skips::take(root).unwrap_or_else(|why| {
        done.push(("skips of tests".to_owned(), Times::default(), Outcome::Failed(why)));
        BTreeSet::new()
    });
    for (name, time, outcome) in &done {
        println!("{}", summary_line(name, *time, outcome));
    }
    for (name, why) in &skipped {
        println!("skipped             {name}: {why}");
    }
    let processor = done.iter().map(|(_, times, _)| times.processor).sum::<Duration>();
    println!("{:.1} minutes of processor time", processor.as_secs_f64() / 60.0);
    let outcomes = done.into_iter().map(|(_, _, outcome)| outcome).collect::<Vec<_>>();
    println!("{}{}", last_line(&outcomes), skips::in_summary(&skipped));
    !is_empty && !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_)))
}

/// Returns the line with the numbers of steps that passed, failed and were skipped.
fn last_line(outcomes: &[Outcome]) -> String {
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = match count(|outcome| matches!(outcome, Outcome::Skipped(_))) {
        0 => String::new(),
        1 => ", 1 step skipped".to_owned(),
        several => format!(", {several} steps skipped"),
    };
    format!("{passed} passed, {failed} failed{skipped}")
}

/// What a step took.
#[derive(Clone, Copy, Default)]
struct Times {
    elapsed: Duration,
    /// Processor time of the step and its programs.
    processor: Duration,
}

/// Returns the processor time of this program and of all that it has started and that have ended; zero where `/proc` does not
/// say.
fn processor_time() -> Duration {
    /// Ticks of the times in `stat`, which are always these on Linux (`USER_HZ`).
    const PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain spaces; the fields after it begin with the third, and these are 14 to 17.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / PER_SECOND)
}

fn summary_line(name: &str, times: Times, outcome: &Outcome) -> String {
    let (word, why) = match outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(why) => ("FAILED", why.as_str()),
        Outcome::Skipped(why) => ("skipped", why.as_str()),
    };
    let (elapsed, processor) = (times.elapsed.as_secs_f64(), times.processor.as_secs_f64());
    let colon = if why.is_empty() { "" } else { ": " };
    format!("{word:<8}{elapsed:>7.1} s {processor:>7.1} s  {name}{colon}{why}")
}

/// Returns a call of the cargo that runs this program, in the root of the workspace.
pub(crate) fn cargo<I: IntoIterator<Item: AsRef<OsStr>>>(root: &Path, arguments: I) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments).env(skips::VARIABLE, skips::file(root));
    command
}

/// Returns the folder where cargo puts build output.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(chosen)
}

/// Runs a command with its output passed through. One that runs tests (`cargo test`) must run some, and some for each filter
/// after `--`: a filter may name tests that have another name now.
pub(crate) fn succeeds(command: &mut Command) -> Outcome {
    if command.get_args().any(|argument| argument == "test") {
        tests_pass(command)
    } else {
        exits_successfully(command)
    }
}

/// Runs a command with its output passed through; if it runs tests, there may be none.
pub(crate) fn exits_successfully(command: &mut Command) -> Outcome {
    judge(command, Command::status)
}

fn judge(command: &mut Command, run: impl FnOnce(&mut Command) -> io::Result<ExitStatus>) -> Outcome {
    match run(command) {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{} ended with {status}", name_of(command))),
        Err(error) => Outcome::Failed(format!("{} did not start: {error}", name_of(command))),
    }
}

fn tests_pass(command: &mut Command) -> Outcome {
    let filters =
        command.get_args().map(OsStr::to_string_lossy).skip_while(|argument| argument != "--").skip(1);
    let mut missing: BTreeSet<String> =
        filters.filter(|filter| !filter.starts_with('-')).map(std::borrow::Cow::into_owned).collect();
    let mut ran = 0;
    let outcome = judge(command, |command| {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        for line in BufReader::new(child.stdout.take().expect("a pipe")).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            ran += passed_in(&line);
            if let Some((test, _)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
                missing.retain(|filter| !test.contains(filter.as_str()));
            }
        }
        child.wait()
    });
    match outcome {
        Outcome::Passed if ran == 0 => Outcome::Failed(format!("{} ran no test", name_of(command))),
        Outcome::Passed if !missing.is_empty() => {
            Outcome::Failed(format!("{} ran no test of these names: {missing:?}", name_of(command)))
        }
        other => other,
    }
}

/// Returns the number of tests that passed, if a line is the report of a test program.
pub(crate) fn passed_in(line: &str) -> usize {
    let passed = line.strip_prefix("test result: ok. ").and_then(|line| line.split_once(" passed"));
    passed.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

fn name_of(command: &Command) -> String {
    let first = command.get_args().next().unwrap_or_default().to_string_lossy();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    format!("{program} {first}").trim_end().to_owned()
}

/// Whether a command succeeds. Its output is not shown.
pub(crate) fn is_ok(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs a command as a part of a step.
pub(crate) fn passes(command: &mut Command) -> Result<(), Outcome> {
    match succeeds(command) {
        Outcome::Passed => Ok(()),
        other => Err(other),
    }
}

/// Returns the outcome of a step whose parts return errors.
pub(crate) fn outcome(result: Result<(), Outcome>) -> Outcome {
    result.err().unwrap_or(Outcome::Passed)
}

/// The packages that a build selects. Each selection has its own features of dependencies, so another one builds most
/// packages again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All, as the tests do.
    Workspace,
    /// The package of the program, which is quicker if no tests were built.
    Package,
}

/// Builds a program of `package`, unless it is built; returns its path.
pub(crate) fn program(
    root: &Path,
    package: &str,
    name: &str,
    selection: Selection,
) -> Result<PathBuf, Outcome> {
    match selection {
        Selection::Workspace => build_all(root)?,
        Selection::Package => {
            let mut build = cargo(root, ["build", "--quiet", "--package", package, "--bin", name]);
            passes(build.env_remove("CARGO_BUILD_TARGET"))?; // as in `build_all`
        }
    }
    Ok(target_folder(root).join("debug").join(name))
}

/// Builds the tests, and with them all examples, programs and libraries, unless they are built.
pub(crate) fn build_all(root: &Path) -> Result<(), Outcome> {
    // With a named target, all would be in another folder.
    let mut build = cargo(root, ["build", "--workspace", "--all-targets"]);
    passes(build.env_remove("CARGO_BUILD_TARGET"))
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
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed); // Relaxed: one thread
                outcome
            })
        };
        let root = Path::new(".");
        assert!(run_all(root, vec![count(Outcome::Passed), count(Outcome::Skipped("tool".into()))]));
        assert!(!run_all(root, vec![count(Outcome::Failed("why".into())), count(Outcome::Passed)]));
        assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 4);
    }

    #[test]
    fn a_run_without_a_step_fails() {
        assert!(!run_all(Path::new("."), Vec::new()));
    }

    #[test]
    fn tests_must_run_and_have_the_names_of_all_filters() {
        let tests = |passed: u32, filters: &[&str]| {
            let mut command = Command::new("sh");
            let text = format!("test a::first ... ok\ntest result: ok. {passed} passed; 0 failed");
            succeeds(
                command.args(["-c", &format!("echo '{text}'"), "test", "--", "--nocapture"]).args(filters),
            )
        };
        assert_eq!(tests(2, &[]), Outcome::Passed);
        assert_eq!(tests(2, &["first"]), Outcome::Passed);
        let why = |outcome| if let Outcome::Failed(why) = outcome { why } else { panic!("{outcome:?}") };
        assert!(why(tests(0, &[])).ends_with("ran no test"));
        assert!(why(tests(2, &["first", "second"])).ends_with(r#"of these names: {"second"}"#));
        assert_eq!(exits_successfully(Command::new("true").arg("test")), Outcome::Passed);
    }

    #[test]
    fn skips_that_cannot_be_read_fail_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let step = |text: &'static [u8]| {
            Step::new("tests", move |root| {
                std::fs::create_dir_all(target_folder(root)).unwrap();
                std::fs::write(skips::file(root), text).unwrap();
                Outcome::Passed
            })
        };
        assert!(run_all(folder.path(), vec![step(b"SKIPPED: pool: huge: none\n")]));
        assert!(!run_all(folder.path(), vec![step(b"SKIPPED: pool: huge: \xff\n")]));
    }

    #[test]
    fn the_last_line_counts_skipped_steps() {
        let skipped = || Outcome::Skipped("no tool".into());
        assert_eq!(last_line(&[Outcome::Passed]), "1 passed, 0 failed");
        assert_eq!(last_line(&[Outcome::Passed, skipped()]), "1 passed, 0 failed, 1 step skipped");
        let outcomes = [skipped(), Outcome::Failed("why".into()), skipped()];
        assert_eq!(last_line(&outcomes), "0 passed, 1 failed, 2 steps skipped");
    }

    #[test]
    fn a_command_that_fails_is_a_failed_step() {
        assert_eq!(succeeds(&mut Command::new("true")), Outcome::Passed);
        assert!(matches!(succeeds(&mut Command::new("false")), Outcome::Failed(_)));
        assert!(matches!(succeeds(&mut Command::new("/no/such/program")), Outcome::Failed(_)));
    }
}
