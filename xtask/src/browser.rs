//! The check of the `zonal serve` page in Chromium: updates, keyboard, narrow screens, accessibility, errors.
//!
//! The step needs Node.js 20 or later with npm, which obtains Playwright and axe, and Chromium. Related files:
//! `crates/zonal-live/browser` has the checks, and `plan.rs` includes the step.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Outcome, Step, build_all, is_ok, passes, target_folder};

/// The checks, relative to the root.
const CHECKS: &str = "crates/zonal-live/browser";
const FILES: [&str; 3] = ["package.json", "package-lock.json", "check.mjs"];
/// Places of Chromium, and of browsers that are built from it.
const BROWSERS: [&str; 4] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome-stable",
    "/usr/bin/google-chrome",
];

/// Returns the check of the everyday plan.
pub(crate) fn every_day() -> Step {
    Step::new("page of zonal serve in Chromium", |root| {
        check(root).map_or_else(|outcome| outcome, |()| Outcome::Passed)
    })
}

fn check(root: &Path) -> Result<(), Outcome> {
    let skipped = |why: &str| Err(Outcome::Skipped(why.to_owned()));
    let Some(browser) = BROWSERS.iter().find(|path| Path::new(path).exists()) else {
        return skipped("no Chromium (apt-get install chromium)");
    };
    let recent = "process.exit(process.versions.node.split('.')[0] < 20 ? 1 : 0)";
    if !is_ok(Command::new("node").args(["-e", recent])) {
        return skipped("no Node.js of version 20 or later (apt-get install nodejs npm)");
    }
    let folder = std::path::absolute(target_folder(root).join("browser")).unwrap_or_default();
    copy(&root.join(CHECKS), &folder)
        .map_err(|why| Outcome::Failed(format!("{}: {why}", folder.display())))?;
    if !is_ok(
        Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder),
    ) {
        return skipped("npm cannot install playwright-core and axe-core");
    }
    build_all(root)?;
    let program = program(root);
    passes(Command::new("node").arg("check.mjs").arg(program).arg(browser).current_dir(&folder))
}

/// Copies the checks to a folder of build output, where npm may write.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    FILES.iter().try_for_each(|file| std::fs::copy(from.join(file), to.join(file)).map(drop))
}

fn program(root: &Path) -> PathBuf {
    let program = target_folder(root).join("debug/zonal");
    std::path::absolute(&program).unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_are_copied() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("browser");
        copy(&root.join(CHECKS), &to).unwrap();
        assert!(FILES.iter().all(|file| to.join(file).exists()));
    }
}
