//! Checks the restartable sequences for aarch64 on machines of other architectures, as assembled.
//!
//! The library is built and not linked, so that only the target's standard library is needed; a test of
//! `zonal-linux` reads its instructions. Neighbours: `plan.rs` includes this step.

use std::path::Path;
use std::process::Command;

use crate::bare::is_installed;
use crate::steps::{Outcome, cargo, succeeds, target_folder};

/// The target to build for.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Builds the library of `zonal-linux` for [`TARGET`] and checks its sequences against the core's tables.
pub(crate) fn sequences(root: &Path) -> Outcome {
    if !is_there() {
        return Outcome::Skipped(format!("target not installed (rustup target add {TARGET})"));
    }
    match succeeds(&mut cargo(root, ["build", "-p", "zonal-linux", "--lib", "--target", TARGET])) {
        Outcome::Passed => {}
        other => return other,
    }
    let library = target_folder(root).join(TARGET).join("debug/libzonal_linux.rlib");
    // Of the whole workspace, because one package alone has other features of dependencies and rebuilds them.
    let test = ["test", "--workspace", "--test=instructions", "--", "--ignored", "--nocapture"];
    succeeds(cargo(root, test).env("ZONAL_LIBRARY", library))
}

/// Whether the toolchain can build for [`TARGET`]; adds the target if possible.
pub(crate) fn is_there() -> bool {
    is_installed(TARGET) || installs(TARGET)
}

/// Adds a target to the toolchain if rustup manages it; returns whether it succeeded.
fn installs(target: &str) -> bool {
    let added = Command::new("rustup").args(["target", "add", target]).status();
    added.is_ok_and(|status| status.success()) && is_installed(target)
}
