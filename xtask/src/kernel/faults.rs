//! Checks that the race of the kernel detects faults. Each step plants one fault in a copy of the sources and boots it.
//!
//! A fault is a file of `xtask/kernel-mutants`, with the format of `planted.rs`. The copy is in
//! `target/kernel/faults/workspace`. The kernel must report the fault itself: a kernel that hangs, or that QEMU ends, has
//! not detected it.

use std::path::Path;

use super::run::{self, Ended};
use super::{MACHINES, SHORT_SECONDS, build, machine};
use crate::planted::{KERNEL_MUTANTS, Mutant, copy_with, mutants};
use crate::steps::{Outcome, Step, target_folder};

/// Returns a step for each fault, or for the named faults only.
///
/// # Errors
/// Returns an error if a name is unknown or a file cannot be read.
pub(super) fn steps(root: &Path, names: &[String]) -> Result<Vec<Step>, String> {
    let faults = mutants(root, KERNEL_MUTANTS)?;
    if let Some(name) = names.iter().find(|name| faults.iter().all(|fault| fault.name() != **name)) {
        let known: Vec<_> = faults.iter().map(Mutant::name).collect();
        return Err(format!("there is no fault `{name}`; faults are: {}", known.join(", ")));
    }
    let wanted =
        faults.into_iter().filter(|fault| names.is_empty() || names.iter().any(|n| n == fault.name()));
    let steps = wanted.map(|fault| {
        Step::new(format!("fault {} in the kernel", fault.name()), move |root| match judge(root, &fault) {
            Ok(outcome) => outcome,
            Err(why) => Outcome::Failed(why),
        })
    });
    Ok(steps.collect())
}

fn judge(root: &Path, fault: &Mutant) -> Result<Outcome, String> {
    if let Some(tool) = machine::missing_tool() {
        return Ok(Outcome::Skipped(tool));
    }
    println!("{}", fault.describe());
    let folder = target_folder(root).join("kernel/faults");
    let copy = folder.join("workspace");
    copy_with(root, &copy, fault)?;
    let program = build(&copy, &folder.join("build"))?;
    let [.., largest] = &MACHINES;
    let seen = run::run(&program, largest, SHORT_SECONDS, &folder.join(format!("{}.log", fault.name())))?;
    Ok(match seen.ended {
        Ended::Caught(why) => {
            println!("caught: {why}");
            Outcome::Passed
        }
        Ended::Passed => Outcome::Failed("NOT CAUGHT: the kernel passed".to_owned()),
        Ended::Broken(why) => Outcome::Failed(format!("NOT CAUGHT, but {why}")),
    })
}
