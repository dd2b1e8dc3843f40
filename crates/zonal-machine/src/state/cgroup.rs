//! The limits of this process's cgroup: memory, and the nodes and CPUs that it may use.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use zonal_model::input::{Folder, Limit};

/// The limits of a cgroup. What the kernel does not say is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupLimits {
    /// The smallest memory limit of the cgroup and those above it, in bytes; `None` without a limit.
    pub memory_max: Option<u64>,
    /// Bytes of memory that the cgroup uses.
    pub memory_current: Option<u64>,
    /// Nodes that the cgroup may use, as a list such as `0-1`.
    pub mems: Option<String>,
    /// CPUs that the cgroup may use, as a list.
    pub cpus: Option<String>,
}

/// Larger limits of version 1 are no limits.
const UNLIMITED: u64 = 1 << 62;

impl CgroupLimits {
    /// Reads the limits of this process under the folder `root`, which is `/` on a live system.
    ///
    /// Returns `None` if the process has no cgroup with files that can be read.
    #[must_use]
    pub fn read(root: &Path) -> Option<Self> {
        let root = Folder::new(root);
        let groups = root.read_text(Path::new("proc/self/cgroup"), Limit::Setting).ok()?;
        let mut limits = Self::default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (_, kinds, path) = (parts.next()?, parts.next()?, parts.next()?);
            let path = path.trim_start_matches('/');
            match kinds {
                "" => limits.take(&root, "sys/fs/cgroup", path, &V2),
                kinds if kinds.split(',').any(|kind| kind == "memory") => {
                    limits.take(&root, "sys/fs/cgroup/memory", path, &V1);
                }
                kinds if kinds.split(',').any(|kind| kind == "cpuset") => {
                    limits.take(&root, "sys/fs/cgroup/cpuset", path, &V1);
                }
                _ => {}
            }
        }
        (limits != Self::default()).then_some(limits)
    }

    /// Takes what is still unknown from the cgroup `path` of the hierarchy at `top`.
    fn take(&mut self, root: &Folder, top: &str, path: &str, names: &Names) {
        let text_in = |folder: &Path, name: &str| {
            let text = root.read_text(&folder.join(name), Limit::List).ok();
            text.map(|text| text.trim().to_owned())
        };
        let number = |text: String| text.parse::<u64>().ok();
        // In a container the path of the cgroup may not be visible; the top is then its own.
        let own = own_folder(Path::new(top), path).filter(|own| text_in(own, "cgroup.procs").is_some());
        let folder = own.unwrap_or_else(|| PathBuf::from(top));
        let text = |name: &str| text_in(&folder, name);
        let above = folder.ancestors().take_while(|above| above.starts_with(top));
        let limit = above
            .filter_map(|folder| text_in(folder, names.limit).and_then(number))
            .filter(|&limit: &u64| limit < UNLIMITED)
            .min();
        self.memory_max = self.memory_max.or(limit);
        self.memory_current = self.memory_current.or_else(|| text(names.usage).and_then(number));
        let list = |text: String| (!text.is_empty()).then_some(text);
        self.mems = self.mems.take().or_else(|| text(names.mems).and_then(list));
        self.cpus = self.cpus.take().or_else(|| text(names.cpus).and_then(list));
    }
}

/// Returns the folder of the cgroup `path` below `top`, unless the path leads out of it.
fn own_folder(top: &Path, path: &str) -> Option<PathBuf> {
    let stays = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    stays.then(|| top.join(path))
}

/// File names, which differ between the two versions of cgroups.
struct Names {
    limit: &'static str,
    usage: &'static str,
    mems: &'static str,
    cpus: &'static str,
}

const V2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    mems: "cpuset.mems.effective",
    cpus: "cpuset.cpus.effective",
};

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    mems: "cpuset.effective_mems",
    cpus: "cpuset.effective_cpus",
};

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "proc/self/cgroup", "0::/slice/unit\n");
        put(root, "sys/fs/cgroup/slice/memory.max", "4096\n");
        put(root, "sys/fs/cgroup/slice/unit/cgroup.procs", "");
        put(root, "sys/fs/cgroup/slice/unit/memory.max", "max\n");
        put(root, "sys/fs/cgroup/slice/unit/memory.current", "12\n");
        put(root, "sys/fs/cgroup/slice/unit/cpuset.mems.effective", "0-1\n");
        let limits = CgroupLimits::read(root).unwrap();
        assert_eq!((limits.memory_max, limits.memory_current), (Some(4096), Some(12)));
        assert_eq!((limits.mems.as_deref(), limits.cpus), (Some("0-1"), None));
    }

    #[test]
    fn version_1_has_a_hierarchy_for_each_kind() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "proc/self/cgroup", "5:cpuset:/\n4:memory:/job\n1:cpu:/\n0::/\n");
        put(root, "sys/fs/cgroup/memory/job/cgroup.procs", "");
        put(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
        put(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "70\n");
        put(root, "sys/fs/cgroup/cpuset/cpuset.effective_mems", "0\n");
        let limits = CgroupLimits::read(root).unwrap();
        assert_eq!((limits.memory_max, limits.memory_current), (None, Some(70)));
        assert_eq!(limits.mems.as_deref(), Some("0"));
    }

    #[test]
    fn no_path_leads_out_of_the_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "proc/self/cgroup", "0::/../../../etc\n");
        put(root.path(), "sys/fs/cgroup/memory.current", "5\n");
        assert_eq!(CgroupLimits::read(root.path()).unwrap().memory_current, Some(5));
        assert_eq!(CgroupLimits::read(Path::new("/nonexistent")), None);
    }
}
