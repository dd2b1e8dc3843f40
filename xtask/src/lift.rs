//! Lifts the machine code of the restartable sequences, and compares it with the contract.
//!
//! For another processor, the library is built but not linked, so only the standard library of the target is needed.
//!
//! Related files: `crates/zonal-verify/src/lift/` has the check; `plan.rs`, `proof.rs` and `deep.rs` include these
//! steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bare::is_there;
use crate::steps::{Outcome, Selection, Step, cargo, outcome, passes, program, target_folder};

/// The target that stands for all aarch64 machines.
pub(crate) const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// The target that stands for all x86-64 machines.
const X86_64: &str = "x86_64-unknown-linux-gnu";
/// Packages with a library that contains sequences of all kinds, and its file name. The command `zonal` does not fit: it
/// also contains the sequences of the floor that `zonal bench` measures, which have another contract.
const OPTIMISED: [(&str, &str); 2] = [("zonal-c", "libzonal_c.a"), ("zonal-malloc", "libzonal_malloc.so")];

/// Returns the step of the everyday plan. Tests of `zonal-verify` lift the host's sequences.
pub(crate) fn every_day() -> Step {
    library(AARCH64, Selection::Workspace)
}

/// Returns a step for each processor that has sequences.
pub(crate) fn both() -> [Step; 2] {
    [X86_64, AARCH64].map(|target| library(target, Selection::Package))
}

/// Returns the step for optimised libraries of this machine's processor.
pub(crate) fn optimised() -> Step {
    Step::new("assembly of the sequences, optimised libraries", |root| {
        let build = |(package, file)| {
            passes(&mut cargo(root, ["build", "--quiet", "--profile=dist", "--package", package]))?;
            Ok(target_folder(root).join("dist").join(file))
        };
        outcome(
            OPTIMISED
                .into_iter()
                .map(build)
                .collect::<Result<Vec<_>, _>>()
                .and_then(|paths| lift(root, &paths, Selection::Package)),
        )
    })
}

/// Returns a step that lifts the sequences in the library of `zonal-linux` for a target.
fn library(target: &'static str, selection: Selection) -> Step {
    Step::new(format!("assembly of the sequences, {target}"), move |root| {
        if !is_there(target) {
            return Outcome::Skipped(format!("target not installed (rustup target add {target})"));
        }
        let mut build = cargo(root, ["build", "--package=zonal-linux", "--lib", "--target", target]);
        let library = target_folder(root).join(target).join("debug/libzonal_linux.rlib");
        outcome(passes(&mut build).and_then(|()| lift(root, &[library], selection)))
    })
}

/// Checks the sequences of these files, each of which must contain all kinds.
fn lift(root: &Path, paths: &[PathBuf], selection: Selection) -> Result<(), Outcome> {
    let program = program(root, "zonal-verify", "lift", selection)?;
    passes(Command::new(program).arg("--quiet").args(paths).current_dir(root))
}
