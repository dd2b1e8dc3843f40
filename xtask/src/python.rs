//! The check of the Python package: a wheel is built and installed into an empty environment, where its tests run.
//!
//! The step needs Python 3.11 or later, and pip, which obtains maturin and the libraries that the tests use. Related file:
//! `plan.rs` includes the step.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skips;
use crate::steps::{Outcome, Step, is_ok, passes, target_folder};

/// The crate, relative to the root.
const CRATE: &str = "crates/zonal-python";
/// What the step needs.
const NEEDED: [&str; 4] = ["maturin>=1.16,<2", "pytest", "numpy", "mypy"];
/// What some tests need, which are skipped without.
const USED: [&str; 6] = ["pyarrow", "pandas", "polars", "joblib", "dask[distributed]", "matplotlib"];

/// Returns the check of the everyday plan.
pub(crate) fn every_day() -> Step {
    Step::new("Python package: wheel, tests, types", |root| {
        let folder = target_folder(root).join("python");
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        match environment(&folder).and_then(|python| check(root, &folder, &python)) {
            Ok(()) => Outcome::Passed,
            Err(outcome) => outcome,
        }
    })
}

/// Makes an empty environment with what the step needs, and returns its interpreter.
fn environment(folder: &Path) -> Result<PathBuf, Outcome> {
    let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !is_ok(Command::new("python3").args(["-c", recent])) {
        return Err(Outcome::Skipped("no python3 of version 3.11 or later".to_owned()));
    }
    if !is_ok(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder)) {
        return Err(Outcome::Skipped("python3 has no module venv (apt-get install python3-venv)".to_owned()));
    }
    let python = folder.join("bin/python");
    let mut install = pip(&python);
    if !is_ok(install.args(NEEDED)) {
        return Err(Outcome::Skipped(format!("pip cannot install {}", NEEDED.join(", "))));
    }
    for library in USED {
        is_ok(pip(&python).arg(library)); // without it, tests are skipped
    }
    Ok(python)
}

fn check(root: &Path, folder: &Path, python: &Path) -> Result<(), Outcome> {
    let source = root.join(CRATE);
    let wheels = folder.join("wheels");
    let mut build = Command::new(folder.join("bin/maturin"));
    // The profile of the other tests, whose dependencies are built already.
    build
        .args(["build", "-q", "--profile", "dev", "-i"])
        .arg(python)
        .arg("-o")
        .arg(&wheels)
        .current_dir(&source);
    // With a named target, the tests would run code of another machine.
    passes(
        build.env("CARGO_TARGET_DIR", folder.parent().unwrap_or(folder)).env_remove("CARGO_BUILD_TARGET"),
    )?;
    let mut install = pip(python);
    passes(install.args(["--no-deps", "--no-index", "--find-links"]).arg(&wheels).arg("zonal"))?;
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests"]).current_dir(&source);
    let output = tests.env("PYTHONDONTWRITEBYTECODE", "1").output();
    let output = output.map_err(|error| Outcome::Failed(format!("pytest: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        print!("{text}{}", String::from_utf8_lossy(&output.stderr));
        return Err(Outcome::Failed("tests of the Python package failed, see above".to_owned()));
    }
    for (test, why) in text.lines().filter_map(skipped) {
        skips::add(root, CRATE, test, why).map_err(Outcome::Failed)?;
    }
    Ok(())
}

/// Returns the place and the reason of a line in which pytest reports a skip.
fn skipped(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    rest.split_once(": ")
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_read_from_the_output() {
        let line = "SKIPPED [1] tests/test_pool_arrays.py:59: torch is not installed";
        assert_eq!(skipped(line), Some(("tests/test_pool_arrays.py:59", "torch is not installed")));
        assert_eq!(skipped("72 passed, 1 skipped in 4.68s"), None);
    }
}
