//! The memory that a pool can have: the machine's available memory or, if less, the memory that control groups allow.
//!
//! All paths are relative to a root directory, so that tests and captured trees can stand in for the running machine.
//! Both versions of control groups (cgroups) are read, from the process's own group up to the root of the hierarchy.
//! Related files: `pool/builder.rs` refuses pools that exceed the limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Limit, PoolError};

/// Available memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    pub(crate) limited_by: Limit,
}

/// Returns the bytes that this machine and its control groups can provide now.
///
/// # Errors
/// [`PoolError::Unreadable`] if the system does not report its available memory.
pub fn available_bytes() -> Result<u64, PoolError> {
    available(Path::new("/")).map(|available| available.bytes)
}

/// Reads the available memory from the files below `root`, which is `/` for the running machine.
pub(crate) fn available(root: &Path) -> Result<Available, PoolError> {
    let machine = Available { bytes: machine_bytes(root)?, limited_by: Limit::Machine };
    Ok(match group_bytes(root) {
        Some(bytes) if bytes < machine.bytes => Available { bytes, limited_by: Limit::ControlGroup },
        _ => machine,
    })
}

/// Returns the value of a field in a file like `/proc/meminfo`, in bytes.
pub(super) fn meminfo_field(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().any(|word| word.strip_suffix(':') == Some(field)))?;
    let kib: u64 = line.rsplit(':').next()?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn machine_bytes(root: &Path) -> Result<u64, PoolError> {
    let path = root.join("proc/meminfo");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(PoolError::Unreadable { path, source }),
    };
    meminfo_field(&text, "MemAvailable").or_else(|| meminfo_field(&text, "MemFree")).ok_or_else(|| {
        PoolError::Unreadable { path, source: io::Error::new(io::ErrorKind::InvalidData, "no MemAvailable") }
    })
}

/// File names and a field name of the memory controller, which differ between the versions of control groups.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Field of `memory.stat` that counts inactive file pages, which the kernel can reclaim at once.
    inactive: &'static str,
}

const UNIFIED: Files = Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file" };
const LEGACY: Files =
    Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", inactive: "total_inactive_file" };

/// Returns the least memory left in any group of the process, or `None` if no group limits memory.
fn group_bytes(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    groups.lines().filter_map(|line| least_bytes_left(root, line, &mounts)).min()
}

/// Returns the least memory left in the group that a line of `/proc/self/cgroup` names, or in its ancestors.
fn least_bytes_left(root: &Path, group: &str, mounts: &str) -> Option<u64> {
    let mut parts = group.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let files = match controllers {
        "" => UNIFIED,
        _ if controllers.split(',').any(|one| one == "memory") => LEGACY,
        _ => return None,
    };
    let (top, below) = mounts.lines().find_map(|line| mounted_at(line, group, controllers.is_empty()))?;
    let top = root.join(top.strip_prefix("/").unwrap_or(&top));
    let own = top.join(below);
    own.ancestors().take_while(|dir| dir.starts_with(&top)).filter_map(|dir| bytes_left(dir, &files)).min()
}

/// Parses a line of `/proc/self/mountinfo`. If it mounts the hierarchy that contains `group`, returns the mount point
/// and the path of the group below it.
fn mounted_at(mount: &str, group: &str, unified: bool) -> Option<(PathBuf, PathBuf)> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (filesystem, options) = (kind.next()?, kind.nth(1)?);
    let fits = if unified {
        filesystem == "cgroup2"
    } else {
        filesystem == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    let mut fields = place.split(' ').skip(3);
    let (mounted, point) = (fields.next()?, fields.next()?);
    // In a container, the group's path may be outside the mounted part. The mount point is then the process's own
    // group.
    let below = Path::new(group).strip_prefix(mounted).unwrap_or(Path::new(""));
    let outside = below.components().any(|part| part.as_os_str() == "..");
    fits.then(|| (point.into(), if outside { PathBuf::new() } else { below.into() }))
}

/// Returns the bytes left in one group, or `None` if the group sets no limit.
fn bytes_left(dir: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(files.limit)?; // the file contains `max` if there is no limit
    let usage = number(files.usage)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let inactive =
        stat.lines().find_map(|line| line.strip_prefix(files.inactive)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(usage.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A directory tree that is removed when dropped.
    pub(crate) struct Tree(pub(crate) PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = tempfile::Builder::new().prefix(name).tempdir().unwrap().keep();
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n");

    fn read(name: &str, files: &[(&str, &str)]) -> Available {
        available(&Tree::new(name, files).0).unwrap()
    }

    #[test]
    fn machine_limits_without_cgroups() {
        let found = read("alone", &[MEMINFO]);
        assert_eq!(found, Available { bytes: 8000 * 1024, limited_by: Limit::Machine });
        assert!(matches!(available(Path::new("/nonexistent")), Err(PoolError::Unreadable { .. })));
        let live = available(Path::new("/")).unwrap();
        assert!(live.bytes > 1 << 20);
    }

    #[test]
    fn limit_of_a_parent_cgroup_v2_applies() {
        let found = read(
            "unified",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/a/b\n"),
                (
                    "proc/self/mountinfo",
                    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
                ),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.current", "5\n"),
                ("sys/fs/cgroup/a/memory.max", "1000000\n"),
                ("sys/fs/cgroup/a/memory.current", "600000\n"),
                ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n"),
            ],
        );
        assert_eq!(found, Available { bytes: 500_000, limited_by: Limit::ControlGroup });
    }

    #[test]
    fn container_reads_limit_of_its_cgroup_v1() {
        let found = read(
            "legacy",
            &[
                MEMINFO,
                ("proc/self/cgroup", "4:cpu,memory:/docker/x\n2:cpuset:/docker/x\n0::/\n"),
                ("proc/self/mountinfo", "1 2 0:1 /docker/x /cg ro - cgroup cgroup rw,cpu,memory\n"),
                ("cg/memory.limit_in_bytes", "400000"),
                ("cg/memory.usage_in_bytes", "100000"),
            ],
        );
        assert_eq!(found, Available { bytes: 300_000, limited_by: Limit::ControlGroup });
    }
}
