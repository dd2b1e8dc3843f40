//! Checks that take less than a minute: the format, and lints and unit tests of the packages that changed.
//!
//! A package has changed if one of its files differs from the last commit or is not under version control. If there is
//! no such file, the packages that the last commit changed are checked. Packages that use a changed package are not
//! tested; `plan.rs` has every check.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::plan;
use crate::steps::{Outcome, Step, cargo, exits_successfully, succeeds};

/// Returns the quick steps.
pub(crate) fn steps(root: &Path) -> Vec<Step> {
    let mut steps = vec![Step::new("format", |root| succeeds(&mut cargo(root, ["fmt", "--all", "--check"])))];
    match changed(root) {
        Ok(packages) if packages.is_empty() => {
            steps.push(Step::new("lints and unit tests", |_| {
                Outcome::Skipped("no package has changed".into())
            }));
        }
        Ok(packages) => {
            let named = |packages: &BTreeSet<String>| {
                packages.iter().map(|package| format!("--package={package}")).collect::<Vec<_>>()
            };
            let list = packages.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let selected = named(&packages);
            steps.push(Step::new(format!("lints of {list}"), move |root| {
                let mut clippy = cargo(root, ["clippy", "--quiet", "--all-targets"]);
                succeeds(clippy.args(&selected).args(["--", "-D", "warnings"]))
            }));
            let selected = named(&packages);
            steps.push(Step::new(format!("unit tests of {list}"), move |root| {
                // A package may have no unit tests.
                exits_successfully(cargo(root, ["test", "--quiet", "--lib", "--bins"]).args(&selected))
            }));
        }
        Err(why) => steps.push(Step::new("packages that changed", move |_| Outcome::Failed(why))),
    }
    steps.extend(plan::style(root));
    steps
}

/// Returns the packages that have changed.
fn changed(root: &Path) -> Result<BTreeSet<String>, String> {
    let now = packages(&git(root, &["status", "--porcelain", "--untracked-files=all", "--no-renames"])?, 3);
    if !now.is_empty() {
        return Ok(now);
    }
    Ok(packages(&git(root, &["diff-tree", "--no-commit-id", "--name-only", "-r", "-m", "HEAD"])?, 0))
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let ran = Command::new("git").current_dir(root).args(arguments).output();
    let ran = ran.map_err(|error| format!("git did not start: {error}"))?;
    if !ran.status.success() {
        return Err(format!("git {}: {}", arguments[0], String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Returns the packages of the listed files. Each line has one file, after `skip` bytes that are ignored.
fn packages(listed: &str, skip: usize) -> BTreeSet<String> {
    let files = listed.lines().filter_map(|line| line.get(skip..));
    let package = |file: &str| {
        let mut parts = file.trim_matches('"').split('/');
        match (parts.next()?, parts.next()?) {
            ("crates", package) if parts.next().is_some() => Some(package.to_owned()),
            ("xtask", _) => Some("xtask".to_owned()),
            _ => None,
        }
    };
    files.filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_mapped_to_packages() {
        let status = " M crates/zonal/src/lib.rs\n?? crates/zonal-cli/tests/new.rs\nA  xtask/src/quick.rs\n M README.md\n\
                      ?? \"crates/zonal/src/a b.rs\"\n?? crates/stray.txt\n";
        let expected = ["xtask", "zonal", "zonal-cli"].map(str::to_owned);
        assert_eq!(packages(status, 3), BTreeSet::from(expected));
        assert_eq!(
            packages("docs/lab.md\ncrates/zonal-lab/src/lib.rs\n", 0),
            BTreeSet::from(["zonal-lab".to_owned()])
        );
        assert!(packages("", 3).is_empty());
    }
}
