//! Builds the kernel module that makes requests for a guest, against Debian's headers of the guest's kernel.
//!
//! The headers are downloaded by apt into the target folder and are not installed. Related files:
//! `requester/requester.c` is the module, and `kernels.rs` has the apt.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::kernels::{Apt, Arch};
use crate::steps::target_folder;

const SOURCE: &str = include_str!("requester/requester.c");
const MAKEFILE: &str = "obj-m := requester.o\n";

/// The place of headers in a package.
const HEADERS: &str = "usr/src";
/// A file in the headers of some kernels, for type information that the module does not need.
const TYPES: &str = "vmlinux";

/// Returns the module for a kernel. Downloads the headers if they are not on this machine.
pub(super) fn built(root: &Path, kernel: &Path) -> Result<Vec<u8>, String> {
    let release = release(kernel)?;
    let folder = target_folder(root).join("numa").join(format!("headers-{release}"));
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let headers = folder.join(HEADERS).join(format!("linux-headers-{release}"));
    if !headers.join("Makefile").exists() {
        fetch(&folder, &headers, release)?;
    }
    let module = folder.join("module");
    let to_text = |error: std::io::Error| format!("{}: {error}", module.display());
    std::fs::create_dir_all(&module).map_err(to_text)?;
    std::fs::write(module.join("requester.c"), SOURCE).map_err(to_text)?;
    std::fs::write(module.join("Makefile"), MAKEFILE).map_err(to_text)?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", module.display())).arg("modules");
    said(&mut make)?;
    let file = module.join("requester.ko");
    said(Command::new("strip").arg("--strip-debug").arg(&file))?;
    std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the release in the name of a kernel's file.
fn release(kernel: &Path) -> Result<&str, String> {
    let name = kernel.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix("vmlinuz-")
        .ok_or_else(|| format!("{}: the name is not vmlinuz-RELEASE", kernel.display()))
}

/// Downloads the headers of a release, and makes them refer to `folder` instead of `/`.
fn fetch(folder: &Path, headers: &Path, release: &str) -> Result<(), String> {
    let apt = Apt::new(&folder.with_file_name("apt-headers"), Arch::X86_64)?;
    let main = apt.download(&format!("linux-headers-{release}"))?;
    let depends = said(Command::new("dpkg-deb").arg("-f").arg(&main).arg("Depends"))?;
    let mut files = vec![main];
    for package in parts(&depends) {
        files.push(apt.download(package)?);
    }
    for file in &files {
        said(Command::new("dpkg-deb").arg("-x").arg(file).arg(folder))?;
    }
    let failed = |path: PathBuf| move |error: std::io::Error| format!("{}: {error}", path.display());
    let makefile = headers.join("Makefile");
    let text = std::fs::read_to_string(&makefile).map_err(failed(makefile.clone()))?;
    let types = headers.join(TYPES);
    if types.exists() {
        std::fs::remove_file(&types).map_err(failed(types))?;
    }
    let below = format!("{}/{HEADERS}/", folder.display());
    std::fs::write(&makefile, text.replace(&format!("/{HEADERS}/"), &below)).map_err(failed(makefile))
}

/// Returns the packages among dependencies that are parts of the headers.
fn parts(depends: &str) -> impl Iterator<Item = &str> {
    let names = depends.split(',').filter_map(|one| one.split_whitespace().next());
    names.filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"))
}

/// Returns the output of a command, or its last line if it fails.
fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let first = error.lines().find(|line| !line.is_empty()).unwrap_or_default();
    Err(format!("{program} ended with {}: {first}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_named_after_its_release() {
        assert_eq!(release(Path::new("/boot/vmlinuz-6.1.0-56-cloud-amd64")), Ok("6.1.0-56-cloud-amd64"));
        assert!(release(Path::new("/boot/initrd.img")).unwrap_err().contains("vmlinuz-RELEASE"));
    }

    #[test]
    fn headers_consist_of_several_packages() {
        let depends = "linux-headers-6.1.0-56-common (= 6.1.192-2), linux-kbuild-6.1 (>= 6.1.1), linux-compiler-gcc-12-x86\n";
        assert_eq!(parts(depends).collect::<Vec<_>>(), ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]);
        assert_eq!(parts("\n").count(), 0);
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let why =
            said(Command::new("sh").args(["-c", "echo first >&2; echo second >&2; exit 3"])).unwrap_err();
        assert!(why.starts_with("sh ended with ") && why.ends_with("3: first"), "{why}");
        assert!(said(&mut Command::new("/nonexistent")).unwrap_err().starts_with("/nonexistent: "));
    }
}
