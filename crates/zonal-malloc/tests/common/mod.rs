//! Programs of `tests/programs`, run with the library preloaded.

// Each test file uses a part of this module.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;
use zonal_testing::skipped;

/// Returns the library of these sources.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let features: &[_] = if cfg!(feature = "secure") { &["secure"] } else { &[] };
    LIBRARY.get_or_init(|| {
        zonal_testing::built_library(env!("CARGO_MANIFEST_DIR"), features, "libzonal_malloc.so")
    })
}

/// A program from `tests/programs` in its own folder.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    folder: TempDir,
}

impl Program {
    /// Builds a program, or reports the skip if the compiler is missing.
    pub(crate) fn build(source: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        if let Err(error) = Self::compile(source, &["-lpthread", "-ldl"], &path) {
            skipped!("{source}: {error}");
            return None;
        }
        Some(Self { path, folder })
    }

    /// Compiles a source to a file, or returns why no compiler can be started.
    pub(crate) fn compile(source: &str, flags: &[&str], to: &Path) -> Result<(), String> {
        let (compiler, standard) =
            if source.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
        let mut call = Command::new(compiler);
        call.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fno-builtin"]);
        call.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source));
        let output = call.args(flags).arg("-o").arg(to).output();
        let output = output.map_err(|error| format!("no {compiler}: {error}"))?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        Ok(())
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.folder.path().join("report")
    }

    /// Returns a call with the library, the variables of `settings` such as `SIZE=1G`, and a report.
    pub(crate) fn call(&self, settings: &[&str]) -> Command {
        preloaded(Command::new(&self.path), &[settings, &[&report_in(&self.report())]].concat())
    }

    /// Runs the program, which must report no failures, and returns its output and the report.
    pub(crate) fn run(&self, settings: &[&str]) -> (String, String) {
        let output = self.call(settings).output().unwrap();
        (self.checked(&output), std::fs::read_to_string(self.report()).unwrap())
    }

    /// Returns the output of a run that reported no failures.
    pub(crate) fn checked(&self, output: &Output) -> String {
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.ends_with("0 failures\n"), "{}: {out}{error}", output.status);
        assert_eq!(error, "");
        out
    }
}

pub(crate) fn report_in(file: &Path) -> String {
    format!("REPORT={}", file.display())
}

/// Adds the library and variables to a call.
pub(crate) fn preloaded(mut call: Command, settings: &[&str]) -> Command {
    let inherited: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    for name in inherited.iter().filter(|name| name.to_string_lossy().starts_with("ZONAL_MALLOC_")) {
        call.env_remove(name);
    }
    for setting in settings {
        let (name, value) = setting.split_once('=').unwrap();
        call.env(format!("ZONAL_MALLOC_{name}"), value);
    }
    call.env("LD_PRELOAD", library());
    call
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the MiB before `after` in the report line that begins with `line`.
pub(crate) fn mib(report: &str, line: &str, after: &str) -> f64 {
    let found = report.lines().find(|found| found.trim_start().starts_with(line));
    let found = found.unwrap_or_else(|| panic!("no line {line} in {report}"));
    let (before, _) = found.split_once(after).unwrap_or_else(|| panic!("no {after} in {found}"));
    before.rsplit([' ', ',']).find(|part| !part.is_empty()).unwrap().parse().unwrap()
}
