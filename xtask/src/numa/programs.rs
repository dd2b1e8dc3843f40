//! Builds the programs of guests with cargo, and finds the resulting files.
//!
//! The programs are built in the profile of the tests, which has debug assertions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::initramfs::Tools;
use super::kernels::Arch;
use super::script::Form;
use crate::bare::is_there;
use crate::lift::AARCH64;
use crate::steps::cargo;

/// The C compiler that links for aarch64, and its package.
const LINKER: (&str, &str) = ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu");
const LINKER_VARIABLE: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";

/// A program of a guest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Program {
    /// The path in the guest, without a leading slash.
    pub(super) place: String,
    /// The path on the host.
    pub(super) file: PathBuf,
}

/// The programs of a guest, in order.
pub(super) struct Programs(Vec<Program>);

impl Programs {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Program> {
        self.0.iter()
    }

    /// Returns the paths in the guest of the programs in a folder.
    pub(super) fn in_folder<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|program| program.place.as_str()).filter(move |place| place.starts_with(folder))
    }

    #[cfg(test)]
    pub(super) fn of(places: &[&str]) -> Self {
        let program = |place: &&str| Program { place: (*place).to_owned(), file: PathBuf::new() };
        Self(places.iter().map(program).collect())
    }
}

/// Returns a tool that building programs of `arch` needs and this machine lacks, and how to install it.
pub(super) fn missing_tool(arch: Arch) -> Option<String> {
    if arch == Arch::X86_64 {
        return cfg!(not(target_arch = "x86_64")).then(|| "guests for x86-64 are built on x86-64".into());
    }
    let answers = Command::new(LINKER.0).arg("--version").stdout(Stdio::null()).status();
    if !answers.is_ok_and(|status| status.success()) {
        return Some(format!("no {} (apt-get install {})", LINKER.0, LINKER.1));
    }
    (!is_there(AARCH64)).then(|| format!("target not installed (rustup target add {AARCH64})"))
}

/// Returns the tools for programs of `arch`.
pub(super) fn tools(arch: Arch, scratch: &Path) -> Tools {
    let scratch = scratch.to_owned();
    match arch {
        Arch::X86_64 => Tools {
            strip: "strip",
            libraries: &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"],
            scratch,
        },
        Arch::Aarch64 => {
            Tools { strip: "aarch64-linux-gnu-strip", libraries: &["/usr/aarch64-linux-gnu/lib"], scratch }
        }
    }
}

/// Builds the programs for a form of guest.
pub(super) fn build(root: &Path, form: Form) -> Result<Programs, String> {
    let bins: &[&str] = &["build", "-p", "zonal-verify", "-p", "zonal-cli", "--bins"];
    let examples: &[&str] = &["build", "-p", "zonal-linux", "--examples"];
    let tests: &[&str] = &["test", "--no-run", "-p", "zonal-linux"];
    let calls: &[&[&str]] = match form {
        Form::Placement => &[bins],
        Form::Everything => &[bins, examples],
        Form::Tests | Form::TestsOnAarch64 => &[tests],
    };
    from_cargo(root, calls, form)
}

/// Builds a single program of `zonal-verify` for a guest on this machine's architecture.
pub(super) fn build_only(root: &Path, bin: &str) -> Result<Programs, String> {
    from_cargo(root, &[&["build", "-p", "zonal-verify", "--bin", bin]], Form::Placement)
}

/// Returns the programs that calls of cargo build.
fn from_cargo(root: &Path, calls: &[&[&str]], form: Form) -> Result<Programs, String> {
    let mut found = Vec::new();
    for call in calls {
        let mut command = cargo(root, *call);
        command.args(["--message-format", "json-render-diagnostics"]);
        if form.arch() == Arch::Aarch64 {
            command.args(["--target", AARCH64]).env(LINKER_VARIABLE, LINKER.0);
        }
        let built = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
        if !built.status.success() {
            return Err(format!("cargo {} ended with {}", call[0], built.status));
        }
        found.extend(String::from_utf8_lossy(&built.stdout).lines().filter_map(|line| built_by(line, form)));
    }
    found.sort();
    found.dedup();
    if found.is_empty() { Err("cargo built nothing for the guest".into()) } else { Ok(Programs(found)) }
}

/// Returns the program that a line of cargo's messages reports.
fn built_by(line: &str, form: Form) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let (target, name) = (&message["target"], message["target"]["name"].as_str()?);
    let is_test = message["profile"]["test"].as_bool()?;
    let kind = target["kind"][0].as_str()?;
    let file = message["executable"].as_str().or_else(|| message["filenames"][0].as_str())?;
    let wants_tests = matches!(form, Form::Tests | Form::TestsOnAarch64);
    let place = match kind {
        _ if wants_tests && is_test => format!("tests/deps/{name}"),
        // A test loads this library, which must be next to the folder of the tests.
        "example" if wants_tests && target["crate_types"][0] == "cdylib" => {
            format!("tests/examples/{}", Path::new(file).file_name()?.to_str()?)
        }
        "bin" if !wants_tests && message["executable"].is_string() => format!("bin/{name}"),
        "example" if !wants_tests && message["executable"].is_string() => format!("examples/{name}"),
        _ => return None,
    };
    Some(Program { place, file: file.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool, executable: bool) -> String {
        let types = if executable { "bin" } else { "cdylib" };
        let executable = if executable { format!("\"/t/{name}\"") } else { "null".into() };
        format!(
            r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"crate_types":["{types}"],"name":"{name}"}},
               "profile":{{"test":{test}}},"filenames":["/t/lib{name}.so"],"executable":{executable}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn each_form_takes_its_programs() {
        let place = |line: &str, form| built_by(line, form).map(|program| program.place);
        let (bin, lib) = (message("bin", "guest", false, true), message("lib", "zonal", false, false));
        assert_eq!(place(&bin, Form::Placement).as_deref(), Some("bin/guest"));
        assert_eq!(place(&lib, Form::Everything), None);
        let example = message("example", "buffer_pool", false, true);
        assert_eq!(place(&example, Form::Everything).as_deref(), Some("examples/buffer_pool"));
        let test = message("test", "pool", true, true);
        assert_eq!(place(&test, Form::TestsOnAarch64).as_deref(), Some("tests/deps/pool"));
        let library = message("example", "unloading_library", false, false);
        assert_eq!(place(&library, Form::Tests).as_deref(), Some("tests/examples/libunloading_library.so"));
        assert_eq!(place("{\"reason\":\"build-finished\"}", Form::Tests), None);
        assert_eq!(place("no json", Form::Tests), None);
    }
}
