//! Installs, uses and purges the Debian package in a minimal Debian, and runs the static program in an empty root.
//!
//! Both need root, because they mount /proc and /sys there. Everything is mounted in a namespace that ends with the
//! step. Related files: `../deb.rs` builds the package.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{build, expect, line, missing_tool};
use crate::deep::answers;
use crate::steps::{Outcome, Step, cargo, target_folder};

/// Mounts /proc and /sys below the folder `root`.
const MOUNTS: &str = "set -eu\nmount -t proc proc root/proc\nmount --rbind /sys root/sys\n";
/// What a program of each kind must do.
const JOBS: &str = "run pair --pool 64MiB --threads 2 --seconds 0.2";

/// Returns the steps of `cargo xtask deep`.
pub(crate) fn deep() -> Vec<Step> {
    vec![
        Step::new("Debian package in a minimal Debian", |root| {
            in_debian(root).unwrap_or_else(Outcome::Failed)
        }),
        Step::new("static program in an empty root", |root| alone(root).unwrap_or_else(Outcome::Failed)),
    ]
}

fn missing_root() -> Result<Option<String>, String> {
    let user = line(Command::new("id").arg("-u"))?;
    Ok((user != "0").then(|| format!("user {user} cannot mount; run as root")))
}

fn fresh(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn in_namespace(folder: &Path, script: &str) -> Result<(), String> {
    let script = format!("{MOUNTS}{script}");
    expect(Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(folder))
}

fn in_debian(root: &Path) -> Result<Outcome, String> {
    if let Some(missing) = missing_root()?.or_else(missing_tool) {
        return Ok(Outcome::Skipped(missing));
    }
    if !answers(Command::new("mmdebstrap").arg("--version")) {
        return Ok(Outcome::Skipped("no mmdebstrap (apt-get install mmdebstrap)".into()));
    }
    let folder = target_folder(root).join("debian-root");
    fresh(&folder)?;
    expect(&mut cargo(root, ["build", "-q", "-p", "zonal-cli", "--profile", "dist"]))?;
    let package = build(root, &target_folder(root).join("dist/zonal"), &folder)?;
    let codename = line(Command::new("sh").args(["-c", ". /etc/os-release; echo $VERSION_CODENAME"]))?;
    let mut strap = Command::new("mmdebstrap");
    strap.args(["--quiet", "--variant=minbase", "--include=man-db", &codename, "root"]);
    expect(strap.current_dir(&folder))?;
    let copied = fs::copy(&package, folder.join("root/zonal.deb"));
    copied.map_err(|error| format!("{}: {error}", package.display()))?;
    // Logs, the manual's index and copies of dpkg's state do not belong to a package.
    let list = "(cd root && find . -xdev -path ./proc -prune -o -path ./sys -prune -o -path ./var/cache/man -prune \\\n\
        -o -path ./var/log -prune -o -name '*-old' -prune -o -print | sort)";
    let script = format!(
        "{list} >before\n\
         in_root() {{ chroot root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \"$@\"; }}\n\
         in_root dpkg -i /zonal.deb\n\
         in_root zonal --version\n\
         in_root zonal {JOBS} | tee run.log\n\
         grep -q balanced run.log\n\
         in_root man zonal-run | grep -q 'EXIT STATUS'\n\
         in_root apropos zonal | tee apropos.log\n\
         test \"$(grep -c ^zonal apropos.log)\" = \"$(in_root zonal man --list | wc -l)\"\n\
         in_root dpkg --verify zonal\n\
         in_root dpkg --purge zonal\n\
         {list} >after\n\
         diff before after\n"
    );
    in_namespace(&folder, &script)?;
    fs::remove_dir_all(folder.join("root")).map_err(|error| error.to_string())?;
    lint(&package)
}

/// Checks the package with lintian, without exceptions.
fn lint(package: &Path) -> Result<Outcome, String> {
    if !answers(Command::new("lintian").arg("--version")) {
        return Ok(Outcome::Skipped("package works, but no lintian (apt-get install lintian)".into()));
    }
    let mut lint = Command::new("lintian");
    expect(lint.args(["--allow-root", "--fail-on", "error,warning"]).arg(package)).map(|()| Outcome::Passed)
}

/// Builds the static program as `docs/install.md` describes, and runs it where there is nothing else.
fn alone(root: &Path) -> Result<Outcome, String> {
    if let Some(missing) = missing_root()? {
        return Ok(Outcome::Skipped(missing));
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut compile = cargo(root, ["build", "-q", "-p", "zonal-cli", "--release", "--target", &target]);
    expect(compile.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let folder = target_folder(root).join("static-root");
    fresh(&folder)?;
    for inside in ["proc", "sys"] {
        fresh(&folder.join("root").join(inside))?;
    }
    let program = target_folder(root).join(&target).join("release/zonal");
    fs::copy(&program, folder.join("root/zonal")).map_err(|e| format!("{}: {e}", program.display()))?;
    let script = format!(
        "for job in '{JOBS}' 'machine' 'lab list' '--version'; do chroot root /zonal $job >job.log; done\n\
         chroot root /zonal {JOBS} | tee run.log\n\
         grep -q balanced run.log\n"
    );
    in_namespace(&folder, &script)?;
    Ok(Outcome::Passed)
}
