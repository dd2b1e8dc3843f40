//! `cargo xtask deb` builds a Debian package of the command `zonal`, with its manual and its completions.
//!
//! The manual and the completions are printed by the program that is packaged. The same sources give the same bytes:
//! dates come from `SOURCE_DATE_EPOCH`, or from the last commit. Related files: `deb/texts.rs` writes the texts of the
//! package, `deb/clean_root.rs` installs it into a minimal Debian, and `versions.rs` compares versions.

mod clean_root;
mod texts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::{Outcome, Step, cargo, succeeds, target_folder};
use crate::versions;

pub(crate) use clean_root::deep;

/// The programs that build a package, with the Debian packages that contain them.
const TOOLS: [(&str, &str); 4] =
    [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils"), ("gzip", "gzip")];
/// The shells, and where Debian keeps their completions of `zonal`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/zonal"),
    ("zsh", "usr/share/zsh/vendor-completions/_zonal"),
    ("fish", "usr/share/fish/vendor_completions.d/zonal.fish"),
];

/// Returns the step of `cargo xtask deb`.
pub(crate) fn steps(_root: &Path) -> Vec<Step> {
    vec![Step::new("Debian package", |root| {
        let built = missing_tool().map_or(Ok(()), Err).and_then(|()| {
            expect(&mut cargo(root, ["build", "-q", "-p", "zonal-cli", "--profile", "dist"]))?;
            build(root, &target_folder(root).join("dist/zonal"), &target_folder(root).join("debian"))
        });
        built.map_or_else(Outcome::Failed, |package| {
            println!("{}", package.display());
            Outcome::Passed
        })
    })]
}

/// Returns the checks: the package of the unoptimised program, and its version among the others.
pub(crate) fn checks(_root: &Path) -> Vec<Step> {
    vec![
        Step::new("Debian package: the same twice, manual and completions", |root| {
            if let Some(missing) = missing_tool() {
                return Outcome::Skipped(missing);
            }
            check(root).map_or_else(Outcome::Failed, |()| Outcome::Passed)
        }),
        Step::new("version of the package", |root| versions::agree(root, checked_package(root).as_deref())),
    ]
}

/// Returns what is missing to build packages.
fn missing_tool() -> Option<String> {
    let is_there = |tool: &str| {
        let mut command = Command::new(tool);
        let ran = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    let missing = TOOLS.iter().find(|(tool, _)| !is_there(tool));
    missing.map(|(tool, package)| format!("no {tool} (apt-get install {package})"))
}

fn expect(command: &mut Command) -> Result<(), String> {
    match succeeds(command) {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) | Outcome::Skipped(why) => Err(why),
    }
}

/// Returns what a command prints.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let ran = command.stderr(Stdio::inherit()).output().map_err(|e| format!("{name} did not start: {e}"))?;
    if ran.status.success() { Ok(ran.stdout) } else { Err(format!("{name} ended with {}", ran.status)) }
}

fn line(command: &mut Command) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&output(command)?).trim().to_owned())
}

/// Returns the time of all files in the package, in seconds since 1970.
fn epoch(root: &Path) -> Result<String, String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) if !epoch.is_empty() && epoch.bytes().all(|digit| digit.is_ascii_digit()) => Ok(epoch),
        Ok(epoch) => Err(format!("SOURCE_DATE_EPOCH is {epoch}; it must be the seconds since 1970")),
        Err(_) => line(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"])),
    }
}

/// Writes a file with its folders, readable by everyone.
fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    let folder = file.parent().expect("files of the package are in folders");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, content));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns all files and folders below a folder, in order.
fn below(folder: &Path) -> Result<Vec<walkdir::DirEntry>, String> {
    let walk = walkdir::WalkDir::new(folder).sort_by_file_name();
    walk.into_iter().collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Builds the package of `program` in `folder`, and returns its path.
fn build(root: &Path, program: &Path, folder: &Path) -> Result<PathBuf, String> {
    let version = versions::of_workspace(root)?;
    let architecture = line(Command::new("dpkg").arg("--print-architecture"))?;
    let epoch = epoch(root)?;
    let stage = std::path::absolute(folder.join("stage")).map_err(|error| error.to_string())?;
    if stage.exists() {
        fs::remove_dir_all(&stage).map_err(|error| format!("{}: {error}", stage.display()))?;
    }
    let files = stage.join("debian/zonal");
    let installed = files.join("usr/bin/zonal");
    write(&installed, [])?;
    let strip = ["--strip-all", "--remove-section=.comment", "--remove-section=.note", "-o"];
    expect(Command::new("strip").args(strip).arg(&installed).arg(program))?;
    add_pages_and_completions(program, &files)?;
    let date = line(Command::new("date").args(["-u", "-R", "-d", &format!("@{epoch}")]).env("LC_ALL", "C"))?;
    let documents = files.join("usr/share/doc/zonal");
    let licence = fs::read_to_string(root.join("LICENSE-MIT")).map_err(|e| format!("LICENSE-MIT: {e}"))?;
    write(&documents.join("copyright"), texts::copyright(&licence))?;
    write(&documents.join("changelog"), texts::changelog(&version, &date))?;
    expect(Command::new("gzip").arg("-9n").arg(documents.join("changelog")))?;

    let (mut sums, mut bytes) = (String::new(), 0);
    for entry in below(&files)?.iter().filter(|entry| entry.file_type().is_file()) {
        let name = entry.path().strip_prefix(&files).expect("the file is below the folder");
        let sum = line(Command::new("md5sum").current_dir(&files).arg(name))?;
        sums += &format!("{sum}\n");
        bytes += entry.metadata().map_err(|error| error.to_string())?.len();
    }
    let depends = depends(&stage, &installed)?;
    let control = texts::control(&version, &architecture, &depends, bytes);
    write(&files.join("DEBIAN/control"), control)?;
    write(&files.join("DEBIAN/md5sums"), sums)?;
    set_modes(&files)?;
    let package = folder.join(format!("zonal_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]).args([&files, &package]);
    expect(pack.env("SOURCE_DATE_EPOCH", epoch).stdout(Stdio::null()))?;
    Ok(package)
}

/// Adds the compressed pages of the manual, and the completions.
fn add_pages_and_completions(program: &Path, files: &Path) -> Result<(), String> {
    let print = |arguments: &[&str]| output(Command::new(program).args(arguments));
    for page in String::from_utf8_lossy(&print(&["man", "--list"])?).lines() {
        let file = files.join(format!("usr/share/man/man1/{page}.1"));
        write(&file, print(&["man", page])?)?;
        expect(Command::new("gzip").arg("-9n").arg(&file))?;
    }
    COMPLETIONS.iter().try_for_each(|(shell, name)| write(&files.join(name), print(&["completions", shell])?))
}

/// Returns the packages whose libraries a program needs.
fn depends(stage: &Path, program: &Path) -> Result<String, String> {
    write(&stage.join("debian/control"), "Source: zonal\n\nPackage: zonal\nArchitecture: any\n")?;
    let found = line(Command::new("dpkg-shlibdeps").current_dir(stage).arg("-O").arg(program))?;
    let depends = found.strip_prefix("shlibs:Depends=").unwrap_or_default();
    if depends.is_empty() {
        return Err(format!("dpkg-shlibdeps found no libraries: {found}"));
    }
    Ok(depends.to_owned())
}

/// Sets the modes of files and folders, whatever the umask is.
fn set_modes(files: &Path) -> Result<(), String> {
    for entry in below(files)? {
        let is_program = entry.path().parent().is_some_and(|folder| folder.ends_with("usr/bin"));
        let mode = if entry.file_type().is_dir() || is_program { 0o755 } else { 0o644 };
        let set = fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode));
        set.map_err(|error| format!("{}: {error}", entry.path().display()))?;
    }
    Ok(())
}

fn check_folder(root: &Path) -> PathBuf {
    target_folder(root).join("debian-check")
}

/// Returns the package that [`check`] built.
fn checked_package(root: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(check_folder(root)).ok()?;
    files.flatten().map(|file| file.path()).find(|file| file.extension().is_some_and(|ext| ext == "deb"))
}

/// Builds the package twice, unpacks it, and uses what it contains.
fn check(root: &Path) -> Result<(), String> {
    let folder = check_folder(root);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    expect(&mut cargo(root, ["build", "-q", "-p", "zonal-cli"]))?;
    let program = target_folder(root).join("debug/zonal");
    let packages = [folder.clone(), folder.join("again")].map(|folder| build(root, &program, &folder));
    let [first, second] = packages;
    let package = first?;
    expect(Command::new("cmp").args([&package, &second?]))?;
    let script = "set -eu\n\
        dpkg-deb -x \"$PACKAGE\" unpacked\n\
        cd unpacked\n\
        ./usr/bin/zonal run pair --pool 16MiB --threads 1 --seconds 0.01 | grep -q balanced\n\
        test \"$(ls usr/share/man/man1 | sed 's/[.]1[.]gz$//' | sort)\" = \"$(./usr/bin/zonal man --list | sort)\"\n\
        if command -v groff >/dev/null; then\n  \
          for page in usr/share/man/man1/*.gz; do gzip -dc \"$page\" | groff -man -Tutf8 -ww 2>>../warnings >../page; done\n  \
          cat ../warnings && test ! -s ../warnings\n\
        fi\n\
        for shell in bash zsh fish; do ./usr/bin/zonal completions $shell >../$shell; done\n\
        cmp ../zsh usr/share/zsh/vendor-completions/_zonal\n\
        cmp ../fish usr/share/fish/vendor_completions.d/zonal.fish\n\
        if command -v bash >/dev/null; then bash -c 'set -e; . usr/share/bash-completion/completions/zonal\n  \
          COMP_WORDS=(zonal mach); COMP_CWORD=1; _zonal zonal mach zonal; test \"${COMPREPLY[*]}\" = machine'; fi\n";
    let package = std::path::absolute(package).map_err(|error| error.to_string())?;
    expect(Command::new("sh").args(["-c", script]).current_dir(&folder).env("PACKAGE", package))
}
