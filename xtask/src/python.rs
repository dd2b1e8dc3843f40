//! The checks of the Python package: its tests run in an empty environment where the package is installed.
//!
//! Every day the extension is built together with the other tests; `deep` builds and installs a wheel. The steps need
//! Python 3.11 or later, and pip, which obtains the libraries that the tests use, and maturin. Related files: `plan.rs` and
//! `deep.rs` include the steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skips;
use crate::steps::{Outcome, Step, build_all, is_ok, outcome, passes, target_folder};

/// The crate, relative to the root.
const CRATE: &str = "crates/zonal-python";
/// What the tests need.
const NEEDED: [&str; 3] = ["pytest", "numpy", "mypy"];
/// What builds a wheel.
const MATURIN: &str = "maturin>=1.16,<2";
/// What some tests need, which are skipped without.
const USED: [&str; 6] = ["pyarrow", "pandas", "polars", "joblib", "dask[distributed]", "matplotlib"];

/// Returns the check of the everyday plan.
pub(crate) fn every_day() -> Step {
    Step::new("Python package: tests, types", |root| outcome(check(root, copy)))
}

/// Returns the check with a wheel.
pub(crate) fn deep() -> Step {
    Step::new("Python package: wheel, tests, types", |root| outcome(check(root, install_wheel)))
}

/// Tests the package in an empty environment, into which `install` installs it.
fn check(root: &Path, install: fn(&Path, &Environment) -> Result<(), Outcome>) -> Result<(), Outcome> {
    let environment = Environment::make(root)?;
    install(root, &environment)?;
    let mut tests = Command::new(&environment.python);
    tests
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests"])
        .current_dir(root.join(CRATE));
    // What the tests compile stays outside the sources, for the programs that they start.
    let output = tests.env("PYTHONPYCACHEPREFIX", environment.folder.join("compiled")).output();
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

/// A Python environment.
struct Environment {
    folder: PathBuf,
    python: PathBuf,
}

impl Environment {
    /// Makes an environment with what the tests need and nothing else.
    fn make(root: &Path) -> Result<Self, Outcome> {
        let folder = target_folder(root).join("python");
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
        if !is_ok(Command::new("python3").args(["-c", recent])) {
            return Err(Outcome::Skipped("no python3 of version 3.11 or later".to_owned()));
        }
        if !is_ok(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)) {
            let why = "python3 has no module venv (apt-get install python3-venv)";
            return Err(Outcome::Skipped(why.to_owned()));
        }
        let this = Self { python: folder.join("bin/python"), folder };
        if !is_ok(this.pip().args(NEEDED).args(USED)) {
            this.require(&NEEDED)?;
            for library in USED {
                is_ok(this.pip().arg(library)); // without it, tests are skipped
            }
        }
        Ok(this)
    }

    fn require(&self, packages: &[&str]) -> Result<(), Outcome> {
        let is_there = is_ok(self.pip().args(packages));
        let missing = || Outcome::Skipped(format!("pip cannot install {}", packages.join(", ")));
        is_there.then_some(()).ok_or_else(missing)
    }

    /// Returns a call that installs packages without compiling them, because the tests import few of their modules.
    fn pip(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]);
        command
    }
}

/// Copies the package into an environment, with the extension that is built with the tests.
fn copy(root: &Path, environment: &Environment) -> Result<(), Outcome> {
    build_all(root)?;
    let place = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let place = Command::new(&environment.python).args(["-c", place]).output();
    let place = place.map_err(|error| Outcome::Failed(format!("python: {error}")))?.stdout;
    let place = PathBuf::from(String::from_utf8_lossy(&place).trim());
    if !place.starts_with(&environment.folder) {
        return Err(Outcome::Failed(format!("packages of the environment are in {}", place.display())));
    }
    let package = place.join("zonal");
    passes(Command::new("cp").arg("-r").arg(root.join(CRATE).join("python/zonal")).arg(&package))?;
    let extension = target_folder(root).join("debug/lib_zonal.so");
    passes(Command::new("cp").arg(extension).arg(package.join("_zonal.abi3.so")))
}

/// Builds a wheel, and installs it into an environment.
fn install_wheel(root: &Path, environment: &Environment) -> Result<(), Outcome> {
    environment.require(&[MATURIN])?;
    let wheels = environment.folder.join("wheels");
    let mut build = Command::new(environment.folder.join("bin/maturin"));
    build.args(["build", "-q", "--profile", "dev", "-i"]).arg(&environment.python).arg("-o").arg(&wheels);
    // With a named target, the tests would run code of another machine.
    build.env("CARGO_TARGET_DIR", target_folder(root)).env_remove("CARGO_BUILD_TARGET");
    passes(build.current_dir(root.join(CRATE)))?;
    passes(environment.pip().args(["--no-deps", "--no-index", "--find-links"]).arg(&wheels).arg("zonal"))
}

/// Returns the place and the reason of a line in which pytest reports a skip.
fn skipped(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    rest.split_once(": ")
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
