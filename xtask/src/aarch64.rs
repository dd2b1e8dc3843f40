//! Checks the assembled restartable sequences for aarch64 on machines of other architectures.
//!
//! The library is built but not linked, so only the standard library of the target is needed. A test of `zonal-linux`
//! reads the library's instructions. Related files: `plan.rs` includes this step.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::bare::is_installed;
use crate::skips;
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
    match test_program(root) {
        Ok(program) => {
            let mut test = Command::new(program);
            let folder = root.join("crates/zonal-linux");
            test.args(["--ignored", "--nocapture"]).current_dir(folder).env("ZONAL_LIBRARY", library);
            succeeds(test.env(skips::VARIABLE, skips::file(root)))
        }
        Err(why) => Outcome::Failed(why),
    }
}

/// Returns the path of the test program `instructions`.
///
/// Cargo is called for all tests, because any other selection has other features of dependencies and rebuilds the
/// workspace.
fn test_program(root: &Path) -> Result<PathBuf, String> {
    let arguments = ["test", "-q", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = cargo(root, arguments).stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cargo test did not start: {error}"))?;
    if !built.status.success() {
        return Err(format!("cargo test --no-run ended with {}", built.status));
    }
    let messages = String::from_utf8_lossy(&built.stdout);
    let mut artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    artifacts
        .find_map(|artifact| {
            let is_test = artifact["target"]["name"] == "instructions" && artifact["profile"]["test"] == true;
            artifact["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
        })
        .ok_or_else(|| "cargo names no program for the test `instructions`".to_owned())
}

/// Whether the toolchain can build for [`TARGET`]. Adds the target if possible.
pub(crate) fn is_there() -> bool {
    is_installed(TARGET) || installs(TARGET)
}

/// Adds a target to the toolchain if rustup manages the toolchain. Returns whether it succeeded.
fn installs(target: &str) -> bool {
    let added = Command::new("rustup").args(["target", "add", target]).status();
    added.is_ok_and(|status| status.success()) && is_installed(target)
}
