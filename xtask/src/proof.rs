//! The proof: `cargo xtask proof` proves the table of transitions with two solvers, checks its mutants, and runs it in
//! worlds. It also compares the machine code of the sequences with the contract that the proof assumes.
//!
//! The solvers are Python packages, which pip installs into an environment of their own. The step needs Python 3.9 or later.
//! Related files: `crates/zonal-verify/src/proof/` has the table, `docs/proof.md` explains it, and `lift.rs` has the steps
//! for the machine code.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lift;
use crate::steps::{Outcome, Selection, Step, is_ok, outcome, passes, program, target_folder};

/// The solvers, in versions that answer every question.
const Z3: &str = "z3-solver==5.4.1.0";
const CVC5: &str = "cvc5==1.4.2";

/// Returns the short form of the everyday plan: one solver. The tests run the small worlds.
pub(crate) fn every_day() -> Step {
    Step::new("proof of the table of transitions, short", |root| outcome(run(root, false)))
}

/// Returns the whole proof.
pub(crate) fn steps(_root: &Path) -> Vec<Step> {
    let mut steps = vec![Step::new("proof of the table of transitions", |root| outcome(run(root, true)))];
    steps.extend(lift::both());
    steps
}

fn run(root: &Path, whole: bool) -> Result<(), Outcome> {
    let folder = target_folder(root).join("proof");
    let python = environment(&folder, if whole { &[Z3, CVC5] } else { &[Z3] })?;
    let selection = if whole { Selection::Package } else { Selection::Workspace };
    let mut proof = Command::new(program(root, "zonal-verify", "proof", selection)?);
    proof.current_dir(root).arg("--z3").arg(folder.join("bin/z3"));
    if whole {
        proof.arg("--cvc5").arg(python)
    } else {
        proof.arg("--short")
    };
    passes(&mut proof)
}

/// Makes an environment with the solvers, unless there is one; returns its interpreter.
fn environment(folder: &Path, solvers: &[&str]) -> Result<PathBuf, Outcome> {
    let python = folder.join("bin/python");
    if !python.exists() && !is_ok(Command::new("python3").args(["-m", "venv"]).arg(folder)) {
        return Err(Outcome::Skipped("python3 has no module venv (apt-get install python3-venv)".to_owned()));
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]);
    if !is_ok(install.args(solvers)) {
        return Err(Outcome::Skipped(format!("pip cannot install {}", solvers.join(", "))));
    }
    Ok(python)
}
