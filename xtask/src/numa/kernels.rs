//! Debian's kernels for guests, which are installed on this machine or downloaded by apt.
//!
//! apt uses its own folders below the target folder, so nothing else on the machine changes. It checks downloads
//! against Debian's signatures. Only the files that are needed to boot are extracted from a package.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::target_folder;

/// A series of kernels that Debian packages for cloud machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Series(&'static str);

/// The series to boot.
pub(super) const SERIES: [Series; 2] = [Series("6.1"), Series("6.12")];

impl Series {
    /// The newest of [`SERIES`].
    pub(crate) const NEWEST: Self = SERIES[SERIES.len() - 1];
    /// The series that guests of [`Arch::Aarch64`] boot.
    pub(super) const AARCH64: Self = Self::NEWEST;

    /// Returns the name, as in `6.12`.
    pub(super) const fn name(self) -> &'static str {
        self.0
    }

    /// Whether a release such as `6.12.117+deb12-cloud-amd64` belongs to this series.
    fn has(self, release: &str) -> bool {
        release.strip_prefix(self.0).is_some_and(|rest| rest.starts_with(['.', '-']))
    }
}

/// An architecture of guests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// Returns the name in Rust and QEMU.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the name in Debian.
    const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    const fn is_native(self) -> bool {
        matches!(
            (self, cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")),
            (Self::X86_64, true, _) | (Self::Aarch64, _, true)
        )
    }
}

/// Whether missing files may be downloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Uses only files that are already on this machine.
    Present,
    /// Downloads missing files.
    Fetched,
}

/// The files that a guest boots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    /// A statically linked busybox.
    pub(super) busybox: PathBuf,
}

/// Returns the kernel and the busybox that guests boot.
pub(super) fn image(root: &Path, series: Series, arch: Arch, origin: Origin) -> Result<Image, String> {
    match origin {
        Origin::Fetched => fetched(root, series, arch),
        Origin::Present => present(root, series, arch).ok_or_else(not_there),
    }
}

/// Returns a message on how to get the files that guests boot.
fn not_there() -> String {
    let busybox = if system_busybox().is_none() { "apt-get install busybox-static and " } else { "" };
    format!("no kernel for guests ({busybox}cargo xtask numa --fetch)")
}

/// Returns the files to boot if they are on this machine, downloaded before or installed.
pub(super) fn present(root: &Path, series: Series, arch: Arch) -> Option<Image> {
    found_in(&folder(root, series, arch), series, arch)
}

/// Returns the files to boot if they are in a folder of downloads or installed on this machine.
fn found_in(folder: &Path, series: Series, arch: Arch) -> Option<Image> {
    let installed = || if arch.is_native() { newest_in(Path::new("/boot"), series) } else { None };
    let kernel = newest_in(folder, series).or_else(installed)?;
    let own = folder.join("busybox");
    let busybox = if own.exists() { own } else { system_busybox().filter(|_| arch.is_native())? };
    Some(Image { kernel, busybox })
}

/// Returns the files to boot, and downloads them if they are not on this machine.
pub(crate) fn fetched(root: &Path, series: Series, arch: Arch) -> Result<Image, String> {
    if let Some(image) = present(root, series, arch) {
        return Ok(image);
    }
    let folder = folder(root, series, arch);
    let apt = Apt::new(&folder.with_file_name("apt"), arch)?;
    let kernel = apt.newest_kernel(series)?;
    apt.unpack(&kernel, "./boot/vmlinuz-*", &folder)?;
    if !(arch.is_native() && system_busybox().is_some()) {
        apt.unpack(&format!("busybox-static:{}", arch.debian()), "./bin/busybox", &folder)?;
    }
    drop(apt);
    present(root, series, arch).ok_or_else(|| format!("{kernel} holds no kernel of {}", series.name()))
}

/// Returns the absolute path of the download folder.
fn folder(root: &Path, series: Series, arch: Arch) -> PathBuf {
    let below = target_folder(root).join("numa").join(format!("{}-{}", series.name(), arch.name()));
    std::path::absolute(&below).unwrap_or(below)
}

/// Returns the newest kernel of a series in a folder, according to its name `vmlinuz-RELEASE`.
fn newest_in(folder: &Path, series: Series) -> Option<PathBuf> {
    let names =
        std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let kernels =
        names.filter(|name| name.strip_prefix("vmlinuz-").is_some_and(|release| series.has(release)));
    kernels.max_by_key(|name| numbers(name)).map(|name| folder.join(name))
}

/// Returns the numbers in a name. Versions are compared by these numbers.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn system_busybox() -> Option<PathBuf> {
    ["/usr/bin/busybox", "/bin/busybox"].iter().map(PathBuf::from).find(|path| is_static(path))
}

/// Whether a program is statically linked, which means that it has no interpreter.
fn is_static(path: &Path) -> bool {
    let Ok(data) = std::fs::read(path) else { return false };
    super::initramfs::needed(&data).is_ok_and(|(loader, _)| loader.is_none())
}

/// An apt with lists and packages in a folder of its own. Dropping it removes the folder.
pub(super) struct Apt {
    folder: PathBuf,
    arch: Arch,
}

impl Apt {
    /// Downloads the package lists of an architecture from the sources configured on this machine.
    pub(super) fn new(folder: &Path, arch: Arch) -> Result<Self, String> {
        let make =
            |path: &Path| std::fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()));
        make(&folder.join("lists/partial"))?;
        make(&folder.join("cache/archives/partial"))?;
        let own = Self { folder: folder.to_owned(), arch };
        let (lists, cache) = (folder.join("lists"), folder.join("cache"));
        let config = format!(
            "Dir::State::Lists \"{}\";\nDir::Cache \"{}\";\nAPT::Architectures {{ \"{}\"; }};\n\
             APT::Architecture \"{}\";\nAPT::Sandbox::User \"\";\n",
            lists.display(),
            cache.display(),
            arch.debian(),
            arch.debian()
        );
        let file = own.config();
        std::fs::write(&file, config).map_err(|e| format!("{}: {e}", file.display()))?;
        own.said("apt-get", &["update", "-q"])?;
        Ok(own)
    }

    fn config(&self) -> PathBuf {
        self.folder.join("apt.conf")
    }

    /// Returns the output of an apt command.
    fn said(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder).env("APT_CONFIG", self.config());
        let output = command.output().map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
        Err(format!("{program} {} ended with {}: {last}", arguments.join(" "), output.status))
    }

    /// Returns the newest package with an unsigned cloud kernel of a series.
    fn newest_kernel(&self, series: Series) -> Result<String, String> {
        let pattern = format!("^linux-image-{}[.-].*-cloud-{}-unsigned$", series.0, self.arch.debian());
        let found = self.said("apt-cache", &["search", "--names-only", &pattern])?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        let of_series =
            names.filter(|name| name.strip_prefix("linux-image-").is_some_and(|name| series.has(name)));
        of_series.min_by_key(|name| Reverse(numbers(name))).map(str::to_owned).ok_or_else(|| {
            format!("apt offers no kernel {} for clouds; 6.12 is in bookworm-security and trixie", series.0)
        })
    }

    /// Downloads a package and returns its file, which is removed with this apt.
    pub(super) fn download(&self, package: &str) -> Result<PathBuf, String> {
        self.said("apt-get", &["download", "-q", package])?;
        let name = package.split(':').next().unwrap_or(package);
        let entries =
            std::fs::read_dir(&self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        let ours = |path: &PathBuf| {
            let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
        };
        let deb = entries.flatten().map(|entry| entry.path()).find(ours);
        deb.ok_or_else(|| format!("apt downloaded no file for {package}"))
    }

    /// Downloads a package and extracts the files that match `pattern` to `folder`, without the folders of the package.
    fn unpack(&self, package: &str, pattern: &str, folder: &Path) -> Result<(), String> {
        let deb = self.download(package)?;
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut opened = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(&deb)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("dpkg-deb: {error}"))?;
        let content = opened.stdout.take().ok_or("dpkg-deb has no output")?;
        let tar = Command::new("tar")
            .args(["-x", "--wildcards", "--transform", "s,.*/,,", "-C"])
            .arg(folder)
            .arg(pattern)
            .stdin(content)
            .status()
            .map_err(|error| format!("tar: {error}"))?;
        let opened = opened.wait().map_err(|error| format!("dpkg-deb: {error}"))?;
        if opened.success() && tar.success() {
            Ok(())
        } else {
            Err(format!("{} holds no {pattern}", deb.display()))
        }
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok(); // lists and packages are large, and downloaded anew next time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_belong_to_one_series_and_compare_by_number() {
        let [old, new] = SERIES;
        assert!(old.has("6.1.0-56-cloud-amd64") && !old.has("6.12.117+deb12-cloud-amd64"));
        assert!(new.has("6.12.117+deb12-cloud-amd64") && new.has("6.12-rc1") && !new.has("6.1.0-56"));
        assert!(numbers("vmlinuz-6.12.117+deb12") > numbers("vmlinuz-6.12.99+deb12"));
        assert_eq!(Series::NEWEST.name(), "6.12");
    }

    #[test]
    fn the_newest_kernel_of_a_series_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for release in ["6.1.0-9-cloud-amd64", "6.1.0-56-cloud-amd64", "6.12.3-cloud-amd64"] {
            std::fs::write(folder.join(format!("vmlinuz-{release}")), "").unwrap();
        }
        let newest = SERIES.map(|series| newest_in(folder, series));
        assert!(newest[0].as_ref().unwrap().ends_with("vmlinuz-6.1.0-56-cloud-amd64"));
        assert!(newest[1].as_ref().unwrap().ends_with("vmlinuz-6.12.3-cloud-amd64"));
        assert_eq!(newest_in(Path::new("/nonexistent"), SERIES[0]), None);
    }

    #[test]
    fn what_is_not_there_is_said_with_the_way_to_get_it() {
        let foreign = [Arch::X86_64, Arch::Aarch64].into_iter().find(|arch| !arch.is_native()).unwrap();
        assert_eq!(found_in(Path::new("/nonexistent"), Series::NEWEST, foreign), None);
        assert!(not_there().ends_with("cargo xtask numa --fetch)"));
    }
}
