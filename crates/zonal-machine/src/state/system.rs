//! The page allocator of a Linux system, from `/proc` and `/sys`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zonal_model::input::{self, Budget, Folder, Limit};
use zonal_model::{Excerpt, ids};

use super::{NODES_MAX, Node, Sample, text, zoneinfo};

/// Why a state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read.
    #[error("cannot read {path}: {why}", path = Excerpt::name(.path.display()))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// A file has no zones.
    #[error("{path} has no zone with memory; it must be /proc/zoneinfo of Linux", path = Excerpt::name(.0.display()))]
    NoZones(PathBuf),
}

/// The time since a source was opened, and since 1970.
#[derive(Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts a clock at 0 seconds.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Sets the times of a sample.
    pub fn stamp(&self, sample: &mut Sample) {
        sample.seconds = self.0.elapsed().as_secs_f64();
        sample.unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    }
}

/// How often `/proc/pagetypeinfo` is read. Reading it walks the free lists under the locks of the zones.
const TYPES_EVERY: Duration = Duration::from_secs(10);
/// Limit for the bytes of all node files: their lists of CPUs have each CPU once, and their counters take a few hundred
/// bytes each.
const NODES_BYTES: u64 = 16 << 20;

/// This system, or a captured tree of another one.
///
/// `/proc/zoneinfo` must be readable. What else cannot be read is listed in [`Sample::missing`].
#[derive(Debug)]
pub struct SystemState {
    root: Folder,
    page_bytes: u64,
    clock: Clock,
    /// The text of `pagetypeinfo`, and when it was read.
    types: Option<(Instant, Result<String, String>)>,
}

impl SystemState {
    /// Opens this system.
    #[must_use]
    pub fn live() -> Self {
        Self::new(Path::new("/"), rustix::param::page_size() as u64)
    }

    /// Opens a tree with `proc` and `sys`, as `zonal machine --sysfs` reads it. Its pages have 4096 bytes.
    #[must_use]
    pub fn tree(root: &Path) -> Self {
        Self::new(root, 4096)
    }

    fn new(root: &Path, page_bytes: u64) -> Self {
        Self { root: Folder::new(root), page_bytes, clock: Clock::start(), types: None }
    }

    fn text(&self, path: &str, limit: Limit, budget: &Budget) -> Result<String, StateError> {
        let bytes = self.root.read_within(Path::new(path), limit, budget);
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        text.map_err(|why| StateError::File { path: self.root.path().join(path), why })
    }

    /// Reads a file that may be missing, and says why it is.
    ///
    /// # Errors
    /// For a file that neither a system nor a copy of one can have.
    fn optional(
        &self,
        path: &str,
        limit: Limit,
        budget: &Budget,
        missing: impl FnOnce(StateError),
    ) -> Result<Option<String>, StateError> {
        match self.text(path, limit, budget) {
            Err(StateError::File { path, why }) if input::is_foreign(&why) => {
                Err(StateError::File { path, why })
            }
            read => Ok(read.map_err(missing).ok()),
        }
    }

    /// Returns the nodes that are online, or those of the zones if the kernel has no nodes.
    fn nodes(&self, sample: &Sample) -> Result<Vec<Node>, StateError> {
        let budget = Budget::new(NODES_BYTES);
        let online = self.optional("sys/devices/system/node/online", Limit::List, &budget, drop)?;
        let ids = match online.and_then(|list| ids::parse(&list, NODES_MAX as u64)) {
            Some(ids) => ids,
            None => {
                let ids: BTreeSet<u64> = sample.zones.iter().map(|zone| zone.node).collect();
                ids.into_iter().collect()
            }
        };
        let node = |id: u64| {
            let folder = format!("sys/devices/system/node/node{id}");
            let cpus = self.optional(&format!("{folder}/cpulist"), Limit::List, &budget, drop)?;
            let locality = self.optional(&format!("{folder}/numastat"), Limit::Setting, &budget, drop)?;
            Ok(Node {
                id,
                cpus: cpus.map(|list| list.trim().to_owned()),
                locality: locality.map(|text| text::numastat(&text)),
                ..Node::default()
            })
        };
        ids.into_iter().map(node).collect()
    }

    fn take_types(&mut self, sample: &mut Sample, budget: &Budget) -> Result<(), StateError> {
        let is_old = |(at, _): &(Instant, _)| at.elapsed() >= TYPES_EVERY;
        if self.types.as_ref().is_none_or(is_old) {
            let mut why = String::new();
            let missing = |error| why = readable_only_by_root(&error);
            let read = self.optional("proc/pagetypeinfo", Limit::Document, budget, missing)?;
            self.types = Some((Instant::now(), read.ok_or(why)));
        }
        match &self.types {
            Some((_, Ok(types))) => text::pagetypeinfo(types, &mut sample.zones),
            Some((_, Err(why))) => sample.missing.push(why.clone()),
            None => {}
        }
        Ok(())
    }
}

impl SystemState {
    /// Returns the folder of the files; `/` is this system.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Reads the state now.
    ///
    /// # Errors
    /// If `/proc/zoneinfo` cannot be read or has no zone with memory, or a file is not one that a system can have. A later
    /// call may succeed.
    pub fn read(&mut self) -> Result<Sample, StateError> {
        const ZONEINFO: &str = "proc/zoneinfo";
        let mut sample = Sample { page_bytes: self.page_bytes, ..Sample::default() };
        let budget = Budget::of_tree();
        let path = || self.root.path().join(ZONEINFO);
        let zoneinfo = zoneinfo::parse(&self.text(ZONEINFO, Limit::ZoneInfo, &budget)?)
            .map_err(|why| StateError::File { path: path(), why: io::Error::other(why) })?;
        self.clock.stamp(&mut sample);
        if zoneinfo.zones.is_empty() {
            return Err(StateError::NoZones(path()));
        }
        (sample.zones, sample.pagesets) = (zoneinfo.zones, zoneinfo.pagesets);
        let missing = |error: StateError| sample.missing.push(error.to_string());
        if let Some(text) = self.optional("proc/buddyinfo", Limit::Document, &budget, missing)? {
            text::buddyinfo(&text, &mut sample.zones);
        }
        let missing = |error: StateError| sample.missing.push(error.to_string());
        if let Some(text) = self.optional("proc/vmstat", Limit::List, &budget, missing)? {
            sample.totals = text::vmstat(&text);
        }
        self.take_types(&mut sample, &budget)?;
        sample.nodes = self.nodes(&sample)?;
        Ok(sample)
    }
}

fn readable_only_by_root(error: &StateError) -> String {
    match error {
        StateError::File { path, why } if why.kind() == io::ErrorKind::PermissionDenied => {
            let path = Excerpt::name(path.display());
            format!("{path} is readable only by root: free blocks are not shown by migrate type")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::state::Counter;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_tree_with_all_files() {
        let root = tempfile::tempdir().unwrap();
        let zoneinfo = "Node 1, zone Normal\n pages free 7\n managed 90\n numa_hit 3\n cpu: 2\n count: 5\n";
        put(root.path(), "proc/zoneinfo", zoneinfo);
        put(root.path(), "proc/buddyinfo", "Node 1, zone Normal 3 2\n");
        put(root.path(), "proc/pagetypeinfo", "Node 1, zone Normal, type Movable 3 2\n");
        put(root.path(), "proc/vmstat", "pgfree 12\n");
        put(root.path(), "sys/devices/system/node/online", "0-1\n");
        put(root.path(), "sys/devices/system/node/node0/cpulist", "0-1\n");
        put(root.path(), "sys/devices/system/node/node1/numastat", "numa_hit 4\n");
        let sample = SystemState::tree(root.path()).read().unwrap();
        assert_eq!(sample.missing, [""; 0]);
        assert_eq!(sample.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(sample.nodes[0].cpus.as_deref(), Some("0-1"));
        assert_eq!(sample.locality_of(&sample.nodes[1]).map(|locality| locality.hit), Some(4), "of the node");
        assert_eq!((sample.zones[0].free, sample.zones[0].in_pagesets, sample.zones[0].used()), (7, 5, 78));
        assert_eq!(sample.zones[0].free_blocks, [3, 2]);
        assert_eq!(sample.zones[0].free_by_type.len(), 1);
        assert_eq!(sample.totals.get(Counter::Freed), Some(12));
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().unwrap();
        let mut source = SystemState::tree(root.path());
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains("proc/zoneinfo"), "{error}");
        put(root.path(), "proc/zoneinfo", "nothing\n");
        assert!(source.read().unwrap_err().to_string().contains("no zone with memory"));
        put(root.path(), "proc/zoneinfo", "Node 3, zone Normal\n pages free 7\n managed 90\n");
        let sample = source.read().unwrap();
        assert_eq!(sample.nodes[0].id, 3, "without /sys, the nodes of the zones");
        let missing = sample.missing.join("; ");
        assert!(
            ["buddyinfo", "vmstat", "pagetypeinfo"].iter().all(|name| missing.contains(name)),
            "{missing}"
        );
    }

    #[test]
    fn names_of_files_that_only_root_can_read_are_harmless() {
        let error = |kind: io::ErrorKind| StateError::File {
            path: "\u{1b}[31m/pagetypeinfo".into(),
            why: kind.into(),
        };
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound] {
            let text = readable_only_by_root(&error(kind));
            assert!(text.contains("/pagetypeinfo") && !text.contains('\u{1b}'), "{text:?}");
            assert_eq!(text.contains("only by root"), kind == io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn this_system() {
        let sample = SystemState::live().read().unwrap();
        assert!(!sample.zones.is_empty() && !sample.nodes.is_empty());
        assert!(sample.zones.iter().all(|zone| zone.free <= zone.managed));
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!(ids::parse("0-2,5\n", NODES_MAX as u64), Some(vec![0, 1, 2, 5]));
        assert_eq!(ids::parse("1,0,0-1", NODES_MAX as u64), Some(vec![0, 1]));
        for wrong in ["", "x", "3-1", "0-99999999", "1,", "1024"] {
            assert_eq!(ids::parse(wrong, NODES_MAX as u64), None, "{wrong}");
        }
    }
}
