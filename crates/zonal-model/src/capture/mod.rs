//! Captures a Linux machine from its `/proc` and `/sys`, either live or from a copy in a directory.
//!
//! A missing file does not stop a capture: a note names each file that was not found, and the assumption made instead.
//! A capture fails for a tree without any memory figures and for a malformed `cpumap`. It also fails for files that a
//! machine cannot have, such as devices, FIFOs and links that lead out of the tree.
//!
//! Related files: `capture/tree.rs` reads files and collects the notes; `capture/nodes.rs`, `capture/zoneinfo.rs` and
//! `capture/kernel_log.rs` parse them.

mod kernel_log;
mod nodes;
mod tree;
mod zoneinfo;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use zonal::settings::Setting;

use crate::error::MachineError;
use crate::file::{FileMachine, FileNode, FileObserved, FileRow, FileSchema, FileSettings, FileZone};
use crate::input::Limit;
use crate::kernel::{KernelVersion, Rules};
use crate::model::{MachineModel, Settings};
use crate::pageset_limits::HighRule;

use kernel_log::Log;
use nodes::Topology;
use tree::Tree;
use zoneinfo::ZoneInfo;

/// A captured machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Capture {
    /// The machine.
    pub model: MachineModel,
    /// Files that were not found, and the assumptions made instead, one line each.
    pub notes: Vec<String>,
    /// Whether the zones are at the frames that the kernel reported. Interleaved zones and zones of unknown size are not.
    pub has_positions: bool,
}

/// Captures the machine whose `proc` and `sys` are under `root`, and its `dmesg` or `var/log/dmesg` if present.
///
/// # Errors
/// - [`MachineError::NoTree`] if neither directory exists
/// - [`MachineError::NoMemory`] if no file states the memory
/// - [`MachineError::Malformed`] for an invalid CPU mask and for more CPUs than a machine can have
/// - [`MachineError::Read`] for a `root` that is not a readable directory, and for a file that is not a regular file, is too large,
///   makes all files together too large, or is a link that leads out of the tree
/// - the errors of [`MachineModel::read`]
pub fn capture(root: &Path) -> Result<Capture, MachineError> {
    root.read_dir().map_err(|source| MachineError::Read { path: root.to_owned(), source })?;
    let tree = Tree::new(root);
    tree.or_unreadable(capture_tree(&tree, Log::in_tree))
}

/// Captures the running machine, and the part of its kernel log that this process may read.
///
/// # Errors
/// The errors of [`capture`], and [`MachineError::NoTree`] if neither `/proc` nor `/sys` is mounted.
pub fn capture_live() -> Result<Capture, MachineError> {
    let tree = Tree::new(Path::new("/"));
    tree.or_unreadable(capture_tree(&tree, Log::of_running_kernel))
}

fn capture_tree(tree: &Tree, log: impl Fn(&Tree, &str) -> Log) -> Result<Capture, MachineError> {
    let info = zone_info(tree)?;
    if info.is_none() && !tree.has("sys/devices/system/node") && !tree.has("proc/meminfo") {
        return Err(MachineError::NoTree(tree.root().to_owned()));
    }
    let mut topology = Topology::read(tree)?;
    if let Some(info) = &info {
        topology.add_nodes(&info.node_ids(), tree);
    }
    let release = release(tree);
    let rules = Rules::of(kernel(&release).unwrap_or(KernelVersion::NEWEST));
    let mut observed = FileObserved { kernel: Some(release.clone()), ..FileObserved::default() };
    if kernel(&release).is_none() {
        tree.note("the kernel's version is unknown (proc/sys/kernel/osrelease, proc/version)");
        observed.kernel = None;
    }
    let mut has_positions = false;
    let (page_bytes, zones, names) = match &info {
        Some(info) => {
            observed.zones = info.observed_zones(rules.high);
            let zones = info.zones();
            has_positions = !overlap(&zones);
            let zones = if has_positions { zones } else { disjoint(&zones, tree) };
            (tree.page_bytes(info.managed()), zones, info.kind_names())
        }
        None => {
            tree.note("proc/zoneinfo is missing: zones are assumed from each node's size");
            (tree.page_bytes(None), topology.made_up_zones(tree), Vec::new())
        }
    };
    if zones.is_empty() {
        return Err(MachineError::NoMemory(tree.root().to_owned()));
    }
    let log = log(tree, &release);
    let known: BTreeSet<u64> = topology.known_ids();
    let orders = log.fallback_orders(zones.iter().map(|zone| zone.kind));
    observed.fallback_order = orders.into_iter().filter(|(from, to)| known_all(&known, *from, to)).collect();
    if observed.fallback_order.is_empty() {
        tree.note("no kernel log with fallback orders was found: they cannot be checked");
    }
    observed.cpu_penalty = Some(log.rebuilt_after_boot());
    let settings = settings(tree, &names, &rules);
    forget_unfounded(&mut observed, &settings, &topology, &rules);
    let file = FileMachine {
        schema: FileSchema::V1,
        name: tree.name(),
        page_bytes,
        nodes: file_nodes(&topology, tree),
        possible_offline: topology.possible_offline(),
        zones,
        settings,
        observed: Some(observed),
    };
    let model = MachineModel::resolve(file, &tree.root().display().to_string())?;
    Ok(Capture { model, notes: tree.notes(), has_positions })
}

fn zone_info(tree: &Tree) -> Result<Option<ZoneInfo>, MachineError> {
    const FILE: &str = "proc/zoneinfo";
    let info = tree.read(FILE, Limit::ZoneInfo).map(|text| ZoneInfo::parse(&text)).transpose();
    info.map_err(|problem| MachineError::Malformed { path: tree.root().join(FILE), problem })
}

/// Drops a value that the kernel reported if its prediction would depend on a guess. A difference would then show
/// nothing about the kernel.
fn forget_unfounded(
    observed: &mut FileObserved,
    settings: &FileSettings,
    topology: &Topology,
    rules: &Rules,
) {
    let is_known = |setting| settings.has(setting) || !rules.has(setting);
    let marks = is_known(Setting::MinFreeKbytes);
    let gaps = marks && is_known(Setting::WatermarkScaleFactor);
    let cpus = topology.knows_cpus();
    let fraction = is_known(Setting::PercpuPagelistHighFraction);
    let pagesets = cpus && fraction;
    // Six batches follow from the zone's size alone.
    let fixed = fraction && (rules.high == HighRule::SixBatches || (cpus && gaps));
    for zone in &mut observed.zones {
        zone.min = zone.min.filter(|_| marks);
        zone.low = zone.low.filter(|_| gaps);
        zone.high = zone.high.filter(|_| gaps);
        zone.protection = zone.protection.take().filter(|_| is_known(Setting::LowmemReserveRatio));
        zone.pageset_high = zone.pageset_high.filter(|_| fixed);
        zone.pageset_high_min = zone.pageset_high_min.filter(|_| gaps && pagesets);
        zone.pageset_high_max = zone.pageset_high_max.filter(|_| pagesets);
        zone.stat_threshold = zone.stat_threshold.filter(|_| cpus);
    }
    if !topology.knows_distances() {
        observed.fallback_order.clear();
    }
}

/// Whether all nodes are known, and none occurs twice in the order.
fn known_all(known: &BTreeSet<u64>, from: u64, order: &[u64]) -> bool {
    let mut seen = BTreeSet::new();
    known.contains(&from) && order.iter().all(|to| known.contains(to) && seen.insert(to))
}

fn kernel(release: &str) -> Option<KernelVersion> {
    release.parse().ok()
}

/// Returns the kernel's release, or an empty string if it is unknown.
fn release(tree: &Tree) -> String {
    let from_version = || {
        let text = tree.read("proc/version", Limit::Setting)?;
        text.strip_prefix("Linux version ")?.split_whitespace().next().map(str::to_owned)
    };
    let release = tree.read("proc/sys/kernel/osrelease", Limit::Setting).map(|text| text.trim().to_owned());
    release.or_else(from_version).unwrap_or_default()
}

/// Reads the settings under `proc/sys/vm` that a kernel with these rules has. `names` are the kinds of zone that the kernel
/// has. The columns of `lowmem_reserve_ratio` have this order too.
fn settings(tree: &Tree, names: &[String], rules: &Rules) -> FileSettings {
    let number = |name: &str| -> Option<u64> {
        let text = tree.note_missing(&format!("proc/sys/vm/{name}"))?;
        let value = text.trim().parse().ok();
        if value.is_none() {
            tree.note(&format!("proc/sys/vm/{name} is not a number: its default is assumed"));
        }
        value
    };
    let ratios = || {
        let text = tree.note_missing("proc/sys/vm/lowmem_reserve_ratio")?;
        let Ok(given) = text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>() else {
            tree.note("proc/sys/vm/lowmem_reserve_ratio is not a list of numbers below 2^32: its default is assumed");
            return None;
        };
        let ratio = |kind: &str| {
            let at = names.iter().position(|name| name == kind);
            u64::from(at.and_then(|at| given.get(at)).copied().unwrap_or(0))
        };
        (!names.is_empty()).then(|| zoneinfo::KINDS.map(ratio).to_vec())
    };
    // Kernels without NUMA have no settings for node reclaim.
    let numa = tree.has("sys/devices/system/node");
    // Linux 5.14 renamed it.
    let old_fraction = rules.high == HighRule::SixBatches || tree.has("proc/sys/vm/percpu_pagelist_fraction");
    let numbers = |setting: Setting| {
        let name = match setting {
            Setting::LowmemReserveRatio => return ratios(),
            Setting::ZoneReclaimMode | Setting::MinUnmappedRatio if !numa => return None,
            Setting::PercpuPagelistHighFraction if old_fraction => "percpu_pagelist_fraction",
            _ => setting.info().name,
        };
        let values = setting.info().values;
        let is_allowed = |number| values.range().is_none_or(|range| range.contains(&number));
        let number = match number(name)? {
            // Kernels accept and ignore further bits.
            mode if setting == Setting::ZoneReclaimMode && u32::try_from(mode).is_ok() => mode & 7,
            number => number,
        };
        if !is_allowed(number) && setting != Setting::MinFreeKbytes {
            tree.note(&format!("proc/sys/vm/{name} is {number}, not {values}: its default is assumed"));
            return None;
        }
        Some(vec![number])
    };
    let known = Settings::ALL.into_iter().filter(|&setting| rules.has(setting));
    FileSettings(known.filter_map(|setting| Some((setting, numbers(setting)?))).collect())
}

fn file_nodes(topology: &Topology, tree: &Tree) -> Vec<FileNode> {
    let ids: Vec<u64> = topology.online_ids();
    let mut taken = BTreeSet::new();
    let mut nodes = Vec::with_capacity(ids.len());
    for &id in &ids {
        let row = topology.distances(id, tree);
        let mut cpus = topology.cpus(id);
        let listed = cpus.len();
        cpus.retain(|&cpu| taken.insert(cpu));
        if cpus.len() < listed {
            tree.note(&format!(
                "node {id} lists CPUs of other nodes (emulated NUMA?): these CPUs stay on the other nodes"
            ));
        }
        let row: BTreeMap<u64, i64> = ids.iter().copied().zip(row).collect();
        nodes.push(FileNode { id, cpus, distances: FileRow(row.into_iter().collect()) });
    }
    nodes
}

/// Whether zones span each other's memory, as those of interleaved nodes do.
fn overlap(zones: &[FileZone]) -> bool {
    let mut spans: Vec<_> = zones.iter().map(|zone| (zone.start, zone.spanned)).collect();
    spans.sort_unstable();
    spans.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0)
}

/// Lays overlapping zones out consecutively, because the positions of their frames are unknown. No prediction depends on
/// these positions.
fn disjoint(zones: &[FileZone], tree: &Tree) -> Vec<FileZone> {
    tree.note("zones overlap (interleaved nodes): they are assumed to follow one another");
    let mut next = 0;
    let mut moved = zones.to_vec();
    moved.sort_by_key(|zone| zone.start);
    for zone in &mut moved {
        // A zone without present memory must also span at least one frame.
        (zone.start, zone.spanned) = (next, zone.present.max(1));
        next = next.saturating_add(zone.spanned);
    }
    moved
}
