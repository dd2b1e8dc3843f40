//! Checks that the command, the C library, the packages and the changelog have the version of the workspace.
//!
//! Related files: `install_c.rs` installs the library that is checked, `deb.rs` builds the package that is checked, and
//! `release.rs` checks the versions in which packages of the workspace depend on each other.

use std::fs;
use std::path::Path;
use std::process::Command;

use toml::Table;

use crate::install_c;
use crate::steps::{Outcome, target_folder};

/// A place, and the version there.
type Place = (&'static str, Result<String, String>);

fn table(root: &Path, file: &str) -> Result<Table, String> {
    read(root, file)?.parse().map_err(|error: toml::de::Error| format!("{file}: {error}"))
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Returns the version of the workspace.
pub(crate) fn of_workspace(root: &Path) -> Result<String, String> {
    let table = table(root, "Cargo.toml")?;
    let version = table.get("workspace").and_then(|workspace| workspace.get("package"));
    let version = version.and_then(|package| package.get("version")).and_then(toml::Value::as_str);
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml has no workspace.package.version".to_owned())
}

/// Compares the versions. The program and the C library are those that earlier steps built, and `package` is the
/// Debian package, if it was built.
pub(crate) fn agree(root: &Path, package: Option<&Path>) -> Outcome {
    let version = match of_workspace(root) {
        Ok(version) => version,
        Err(why) => return Outcome::Failed(why),
    };
    let mut places: Vec<Place> = vec![
        ("CHANGELOG.md", read(root, "CHANGELOG.md").and_then(|text| newest(&text))),
        ("the Python package", python(root, &version)),
    ];
    let mut missing = Vec::new();
    let program = target_folder(root).join("debug/zonal");
    if program.exists() {
        let printed = printed(Command::new(&program).arg("--version"));
        places.push(("zonal --version", printed.map(|text| text.replace("zonal ", ""))));
    } else {
        missing.push("the program (cargo build -p zonal-cli)");
    }
    let prefix = install_c::checked_prefix(root);
    if prefix.join("lib/libzonal.so").exists() {
        let pc = prefix.join("lib/pkgconfig/zonal.pc");
        let pc = fs::read_to_string(&pc).map_err(|error| format!("{}: {error}", pc.display()));
        places.push(("zonal.pc", pc.and_then(|text| after(&text, "Version: "))));
        places.push(("zonal_version()", of_library(&prefix)));
    } else {
        missing.push("the C library, which its own check installs");
    }
    if let Some(file) = package {
        let field = printed(Command::new("dpkg-deb").arg("-f").arg(file).arg("Version"));
        places.push(("the Debian package", field));
    }
    match (differences(&version, &places), missing.as_slice()) {
        (None, []) => Outcome::Passed,
        (None, missing) => Outcome::Skipped(format!("not there: {}", missing.join("; "))),
        (Some(why), _) => Outcome::Failed(why),
    }
}

/// Returns the places with another version than `version`.
fn differences(version: &str, places: &[Place]) -> Option<String> {
    let wrong = |(place, found): &Place| match found {
        Ok(found) if found == version => None,
        Ok(found) => Some(format!("{place} has {found}")),
        Err(why) => Some(format!("{place}: {why}")),
    };
    let wrong: Vec<String> = places.iter().filter_map(wrong).collect();
    (!wrong.is_empty()).then(|| format!("the workspace has version {version}; {}", wrong.join("; ")))
}

fn printed(command: &mut Command) -> Result<String, String> {
    let ran = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) }
}

fn after(text: &str, prefix: &str) -> Result<String, String> {
    let found = text.lines().find_map(|line| line.strip_prefix(prefix));
    found.map(|rest| rest.trim().to_owned()).ok_or_else(|| format!("no line `{prefix}`"))
}

/// Returns the version in a changelog's newest section: the one that the unreleased section announces with `This will
/// be VERSION`, or the newest released one.
fn newest(changelog: &str) -> Result<String, String> {
    let mut sections = changelog.split("\n## [").skip(1);
    let newest = sections.next().ok_or("no section `## [...]`")?;
    let version = match newest.strip_prefix("Unreleased]") {
        None => newest.split(']').next(),
        Some(text) => text.lines().find_map(|line| line.strip_prefix("This will be ")).map_or_else(
            || sections.next().and_then(|released| released.split(']').next()),
            |rest| rest.split([',', ' ']).next(),
        ),
    };
    let version = version.map(|version| version.trim_end_matches('.').to_owned());
    version.ok_or_else(|| "the section [Unreleased] has no line `This will be VERSION`".to_owned())
}

/// Returns the version of the Python package, which its build takes from the crate.
fn python(root: &Path, workspace: &str) -> Result<String, String> {
    let crate_table = table(root, "crates/zonal-python/Cargo.toml")?;
    let project = table(root, "crates/zonal-python/pyproject.toml")?;
    python_of(&crate_table, &project, workspace)
}

fn python_of(crate_table: &Table, project: &Table, workspace: &str) -> Result<String, String> {
    let project = project.get("project").ok_or("pyproject.toml has no [project]")?;
    if let Some(version) = project.get("version").and_then(toml::Value::as_str) {
        return Ok(version.to_owned());
    }
    let dynamic = project.get("dynamic").and_then(toml::Value::as_array);
    if !dynamic.is_some_and(|fields| fields.iter().any(|field| field.as_str() == Some("version"))) {
        return Err("pyproject.toml has neither `version` nor `dynamic = [\"version\"]`".to_owned());
    }
    match crate_table.get("package").and_then(|package| package.get("version")) {
        Some(toml::Value::String(version)) => Ok(version.clone()),
        Some(_) => Ok(workspace.to_owned()),
        None => Err("crates/zonal-python/Cargo.toml has no version".to_owned()),
    }
}

/// Returns what the installed C library says about itself.
fn of_library(prefix: &Path) -> Result<String, String> {
    let folder = prefix.parent().expect("the prefix is in the folder of the check");
    let source = folder.join("version.c");
    let text =
        "#include <stdio.h>\n#include <zonal.h>\nint main(void) { puts(zonal_version()); return 0; }\n";
    fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    let program = folder.join("version");
    let mut compile = Command::new("cc");
    compile.arg(&source).arg("-o").arg(&program).arg("-I").arg(prefix.join("include"));
    printed(compile.arg("-L").arg(prefix.join("lib")).arg("-lzonal"))?;
    printed(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_with_another_version_are_named() {
        let place = |found: &str| -> Place { ("zonal.pc", Ok(found.to_owned())) };
        assert_eq!(differences("0.2.0", &[place("0.2.0")]), None);
        let wrong = [place("0.2.0"), place("0.1.0"), ("zonal --version", Err("none".to_owned()))];
        let why = differences("0.2.0", &wrong).unwrap();
        assert_eq!(why, "the workspace has version 0.2.0; zonal.pc has 0.1.0; zonal --version: none");
    }

    #[test]
    fn the_newest_entry_is_announced_or_released() {
        let announced = "# C\n\n## [Unreleased]\n\nThis will be 0.2.0, the second.\n\n## [0.1.0] - 2026\n";
        assert_eq!(newest(announced).unwrap(), "0.2.0");
        assert_eq!(newest("# C\n\n## [Unreleased]\n\n- x\n\n## [0.1.0] - 2026\n").unwrap(), "0.1.0");
        assert_eq!(newest("# C\n\n## [0.3.0] - 2026\n\n## [0.1.0]\n").unwrap(), "0.3.0");
        assert!(newest("# C\n\n## [Unreleased]\n\n- x\n").unwrap_err().contains("This will be"));
        assert!(newest("# C\n").is_err());
    }

    #[test]
    fn the_python_package_has_the_version_of_its_crate() {
        let of = |crate_text: &str, project: &str| {
            python_of(&crate_text.parse().unwrap(), &project.parse().unwrap(), "0.2.0")
        };
        let (shared, dynamic) =
            ("[package]\nversion.workspace = true\n", "[project]\ndynamic = [\"version\"]\n");
        assert_eq!(of(shared, dynamic).unwrap(), "0.2.0");
        assert_eq!(of("[package]\nversion = \"0.1.0\"\n", dynamic).unwrap(), "0.1.0");
        assert_eq!(of(shared, "[project]\nversion = \"0.3.0\"\n").unwrap(), "0.3.0");
        assert!(of(shared, "[project]\n").unwrap_err().contains("dynamic"));
    }
}
