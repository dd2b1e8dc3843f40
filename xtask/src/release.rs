//! Checks that must pass before a release, with the counts of instructions. They publish nothing.
//!
//! Related files: `CONTRIBUTING.md` describes the steps after these checks, and `deep.rs` has longer checks.

use std::path::Path;
use std::process::Command;

use toml::Table;

use crate::bench_guard;
use crate::deep;
use crate::plan;
use crate::steps::{Outcome, Step, cargo, succeeds};

/// Returns the steps of `release --dry-run`.
pub(crate) fn steps(root: &Path) -> Vec<Step> {
    let mut steps = vec![
        Step::new("versions", |root| verdict(versions(root))),
        Step::new("changelog", |root| verdict(changelog(root))),
        Step::new("public interface since the last release", semver),
        Step::new("documentation", plan::documentation),
        Step::new("packages", deep::packages),
    ];
    steps.extend(bench_guard::compare(root));
    steps
}

fn verdict(found: Result<(), String>) -> Outcome {
    found.map_or_else(Outcome::Failed, |()| Outcome::Passed)
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Returns the version of the workspace.
fn version(manifest: &Table) -> Result<&str, String> {
    let version = manifest.get("workspace").and_then(|w| w.get("package")).and_then(|p| p.get("version"));
    version
        .and_then(toml::Value::as_str)
        .ok_or_else(|| "Cargo.toml: no `workspace.package.version`".to_owned())
}

fn manifest(root: &Path) -> Result<Table, String> {
    read(root, "Cargo.toml")?.parse().map_err(|error: toml::de::Error| format!("Cargo.toml: {error}"))
}

/// Checks that the packages of the workspace depend on each other in the workspace's version.
fn versions(root: &Path) -> Result<(), String> {
    versions_of(&manifest(root)?)
}

fn versions_of(manifest: &Table) -> Result<(), String> {
    let version = version(manifest)?;
    let used = manifest.get("workspace").and_then(|w| w.get("dependencies")).and_then(toml::Value::as_table);
    for (name, dependency) in used.into_iter().flatten() {
        let (Some(_), Some(named)) =
            (dependency.get("path"), dependency.get("version").and_then(toml::Value::as_str))
        else {
            continue;
        };
        if named != version {
            return Err(format!(
                "Cargo.toml: `{name}` is required in version {named}; the workspace has {version}"
            ));
        }
    }
    Ok(())
}

/// Checks that the changelog has a non-empty section for the version.
fn changelog(root: &Path) -> Result<(), String> {
    let manifest = manifest(root)?;
    has_section(&read(root, "CHANGELOG.md")?, version(&manifest)?)
}

fn has_section(changelog: &str, version: &str) -> Result<(), String> {
    let heading = format!("## [{version}]");
    let mut lines = changelog.lines();
    if !lines.any(|line| line.starts_with(&heading)) {
        return Err(format!(
            "CHANGELOG.md has no section `{heading} - YYYY-MM-DD`: move the unreleased entries there"
        ));
    }
    let has_entry = lines.take_while(|line| !line.starts_with("## ")).any(|line| line.starts_with("- "));
    if has_entry { Ok(()) } else { Err(format!("CHANGELOG.md: section `{heading}` has no entry")) }
}

/// Returns the tag `vX.Y.Z` of the newest release.
fn last_release(root: &Path) -> Option<String> {
    let describe = ["describe", "--tags", "--abbrev=0", "--match=v[0-9]*"];
    let ran = Command::new("git").current_dir(root).args(describe).output().ok()?;
    ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

fn semver(root: &Path) -> Outcome {
    let Some(tag) = last_release(root) else {
        return Outcome::Skipped("there is no release to compare with (no tag `v...`)".into());
    };
    if !deep::answers(&mut cargo(root, ["semver-checks", "--version"])) {
        return Outcome::Skipped("no cargo-semver-checks: cargo install cargo-semver-checks".into());
    }
    succeeds(cargo(root, ["semver-checks", "--workspace", "--baseline-rev"]).arg(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_packages_agree() {
        let manifest = |named: &str| {
            let text = format!(
                "[workspace.package]\nversion = \"0.2.0\"\n[workspace.dependencies]\nserde = \"1\"\n\
                 a = {{ path = \"a\" }}\nb = {{ path = \"b\", version = \"{named}\" }}"
            );
            text.parse::<Table>().unwrap()
        };
        assert_eq!(versions_of(&manifest("0.2.0")), Ok(()));
        let why = versions_of(&manifest("0.1.0")).unwrap_err();
        assert_eq!(why, "Cargo.toml: `b` is required in version 0.1.0; the workspace has 0.2.0");
        assert!(versions_of(&Table::new()).unwrap_err().contains("workspace.package.version"));
    }

    #[test]
    fn the_changelog_has_the_version() {
        let changelog =
            "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- all\n\n## [0.0.1]\n";
        assert_eq!(has_section(changelog, "0.1.0"), Ok(()));
        assert!(
            has_section(changelog, "0.2.0").unwrap_err().contains("no section `## [0.2.0] - YYYY-MM-DD`")
        );
        assert!(has_section(changelog, "0.0.1").unwrap_err().contains("no entry"));
    }
}
