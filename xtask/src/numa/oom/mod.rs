//! `cargo xtask numa --oom` drives Debian's kernels out of memory and keeps what each kernel logs.
//!
//! A guest runs many *cases*, one after the other. A case makes requests until the kernel refuses one, either with a kill
//! or with the message "page allocation failure". Each case ends with a log of its own in `target/numa/oom`. These logs
//! show how kernels report refused requests whose cause is known.
//!
//! Related files: `cases.rs` has the table of cases, `machines.rs` the machines, and `script.rs` the script that the
//! guest runs. `requester.rs` builds the kernel module that makes the requests that a process cannot make, and `logs.rs`
//! collects the logs.

mod cases;
mod logs;
mod machines;
mod requester;
mod script;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::boot::{Content, Guest};
use super::kernels::{self, Arch, Image, Origin, Series};
use super::programs::{self, Programs};
use super::{machine, print_seen};
use crate::skips;
use crate::steps::{Outcome, Step};
use cases::{Case, GROUPS};
use machines::Machine;

/// Time after which a guest is killed, which is several times its usual duration.
const TIME_LIMIT: Duration = Duration::from_secs(1800);
/// The program that uses up memory.
const PROGRAM: &str = "exhaust";
/// Prefix of skips, which occur if there is no kernel module.
const MAY_SKIP: &str = "oom ";

/// The cases to run, and what to do with their logs.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Words in the names of the cases to run; all cases if there are none.
    pub(super) words: Vec<String>,
    /// A folder into which the logs are copied as well.
    pub(super) keep: Option<PathBuf>,
}

impl Options {
    /// Checks that each word occurs in a case's name.
    pub(super) fn check(&self) -> Result<(), String> {
        let names: Vec<&str> = GROUPS.iter().flat_map(|(_, cases)| *cases).map(|case| case.name).collect();
        match self.words.iter().find(|word| !names.iter().any(|name| name.contains(word.as_str()))) {
            None => Ok(()),
            Some(word) => Err(format!("--case {word}: cases are {}", names.join(", "))),
        }
    }

    fn has(&self, case: &Case) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| case.name.contains(word.as_str()))
    }
}

/// Returns a step for each kernel.
pub(super) fn steps(series: &[Series], options: &Options, missing: fn(String) -> Outcome) -> Vec<Step> {
    let step = |&series: &Series| {
        let options = options.clone();
        Step::new(format!("kernel driven out of memory, Linux {}", series.name()), move |root| {
            run(root, series, &options, missing)
        })
    };
    series.iter().map(step).collect()
}

fn run(root: &Path, series: Series, options: &Options, missing: fn(String) -> Outcome) -> Outcome {
    if let Some(tool) = machine::missing_tool(Arch::X86_64).or_else(|| programs::missing_tool(Arch::X86_64)) {
        return missing(tool);
    }
    let image = match kernels::image(root, series, Arch::X86_64, Origin::Fetched) {
        Ok(image) => image,
        Err(why) => return missing(why),
    };
    match try_run(root, series, &image, options) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    }
}

fn try_run(root: &Path, series: Series, image: &Image, options: &Options) -> Result<(), String> {
    let programs = programs::build_only(root, PROGRAM)?;
    let requester = requester::built(root, &image.kernel);
    for (machine, cases) in GROUPS {
        let cases: Vec<&Case> = cases.iter().filter(|case| options.has(case)).collect();
        if !cases.is_empty() {
            boot(root, series, image, machine, &cases, &programs, requester.as_deref())?;
        }
    }
    logs::index(&logs::folder(root))?;
    match &options.keep {
        Some(folder) => logs::copy(&logs::folder(root), folder, series),
        None => Ok(()),
    }
}

/// Boots one machine, runs cases on it, and collects their logs.
fn boot(
    root: &Path,
    series: Series,
    image: &Image,
    machine: Machine,
    cases: &[&Case],
    programs: &Programs,
    requester: Result<&[u8], &String>,
) -> Result<(), String> {
    let label = format!("{}-oom-{}", series.name(), machine.name());
    let module = requester.ok().map(|module| (script::MODULE.to_owned(), module.to_vec()));
    let content = Content {
        arch: Arch::X86_64,
        script: script::script(cases, requester.err().map(String::as_str)),
        programs,
        files: module.into_iter().collect(),
    };
    let guest = Guest::new(root, &label, image, &content, |initramfs| machine.boot(image, initramfs))?;
    let seen = guest.run(TIME_LIMIT)?;
    for (name, why) in &seen.report.skipped {
        skips::add(root, &format!("guest {label}"), name, why)?;
    }
    print_seen(&label, &seen);
    let collected = logs::collect(&seen.log, &logs::folder(root), series, cases);
    let verdict = seen.report.verdict(&[MAY_SKIP]).and(collected);
    verdict.map_err(|why| format!("{why}; all it printed is in {}", seen.log.display()))
}
