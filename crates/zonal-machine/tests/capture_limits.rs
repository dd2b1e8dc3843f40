//! Tests captured trees that are designed to exhaust memory. Each file has a limit, and so have all files together. The
//! error names the file, its size or count, and the limit.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use zonal_machine::{Capture, capture};
use zonal_testing::within_patience;

const NODES: &str = "sys/devices/system/node";
const ZONEINFO: &str =
    "Node 0, zone   Normal\n        spanned  4096\n        present  4096\n        managed  4000\n";

/// A tree of one node, which lists no CPUs.
fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("proc/zoneinfo", ZONEINFO),
        ("proc/sys/kernel/osrelease", "6.1.0\n"),
        ("proc/sys/vm/min_free_kbytes", "100\n"),
        ("sys/devices/system/node/online", "0\n"),
        ("sys/devices/system/node/node0/distance", "10\n"),
        ("sys/devices/system/node/node0/cpulist", "\n"),
    ] {
        put(&root, file, text);
    }
    root
}

fn put(root: &TempDir, file: &str, text: &str) {
    let path = root.path().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Creates node 1 and the following nodes as links to node 0.
fn alias_nodes(root: &TempDir, count: usize) {
    put(root, &format!("{NODES}/online"), &format!("0-{}\n", count - 1));
    for id in 1..count {
        symlink("node0", root.path().join(format!("{NODES}/node{id}"))).unwrap();
    }
}

fn captured(root: &TempDir) -> Result<Capture, String> {
    let root = root.path().to_owned();
    within_patience("capturing", move || capture(&root).map_err(|error| error.to_string()))
}

/// Whether this process has an address space limited to `mib` MiB, so that it must do the work of the test `name`. If
/// it does not, starts such a process and fails if that process fails.
fn has_memory(mib: u64, name: &str) -> bool {
    const CHILD: &str = "ZONAL_CAPTURE_LIMITS_CHILD";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    let limited =
        format!("ulimit -v {} && exec \"$0\" --exact capture_limits::{name} --nocapture", mib << 10);
    let mut child = Command::new("sh");
    child.arg("-c").arg(limited).arg(env::current_exe().unwrap()).env(CHILD, "1");
    let child = child.output().unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "{}: {text}", child.status);
    false
}

#[test]
fn cpus_of_all_nodes_together_have_a_limit() {
    // 1024 lists of a million ids would take 8 GiB.
    if !has_memory(2048, "cpus_of_all_nodes_together_have_a_limit") {
        return;
    }
    let root = tree();
    put(&root, &format!("{NODES}/node0/cpulist"), "0-1048575\n");
    assert_eq!(captured(&root).unwrap().model.online_cpus(), 1 << 20);
    alias_nodes(&root, 1024);
    let error = captured(&root).unwrap_err();
    assert!(error.contains("node1: it lists 1048576 CPUs, which makes 2097152 with"), "{error}");
    assert!(error.contains("at most 1048576"), "{error}");
}

#[test]
fn cpus_of_masks_and_links_have_a_limit() {
    let root = tree();
    fs::remove_file(root.path().join(NODES).join("node0/cpulist")).unwrap();
    put(&root, &format!("{NODES}/node0/cpumap"), &vec!["ffffffff"; 1 << 14].join(","));
    alias_nodes(&root, 2);
    assert_eq!(captured(&root).unwrap().model.online_cpus(), 1 << 19);
    symlink("node0", root.path().join(NODES).join("node2")).unwrap();
    put(&root, &format!("{NODES}/online"), "0-2\n");
    let error = captured(&root).unwrap_err();
    assert!(error.contains("node2: it lists 524288 CPUs, which makes 1572864 with"), "{error}");
}

#[test]
fn rows_of_distances_have_a_limit() {
    // 300 rows of 340000 distances would take 800 MB before they are found to be invalid.
    if !has_memory(700, "rows_of_distances_have_a_limit") {
        return;
    }
    let root = tree();
    put(&root, &format!("{NODES}/node0/distance"), &"10 ".repeat(340_000));
    alias_nodes(&root, 300);
    let Capture { model, notes, .. } = captured(&root).unwrap();
    assert_eq!(model.nodes.len(), 300);
    assert!(notes.iter().any(|note| note.contains("node299/distance is invalid")), "{notes:?}");
}

#[test]
fn fallback_orders_of_a_log_have_a_limit() {
    let root = tree();
    for text in ["Fallback order for Node 0: ", "mminit::zonelist general 0:Normal = "] {
        let entry = if text.starts_with('F') { "0 " } else { "0:Normal 1:Normal " };
        put(&root, "dmesg", &format!("{text}{}\n", entry.repeat(100_000)));
        let observed = captured(&root).unwrap().model.observed.unwrap();
        let longest = observed.fallback_order.values().map(Vec::len).max().unwrap_or(0);
        assert!(longest <= 1025, "{longest}");
    }
    // The number of fallback orders is limited by the node count.
    let orders = (0..200_000).map(|node| format!("Fallback order for Node {node}: 0\n"));
    put(&root, "dmesg", &orders.collect::<String>());
    assert_eq!(captured(&root).unwrap().model.observed.unwrap().fallback_order.len(), 1);
}

/// Each kind of file that exceeds its limit is an error that names the limit.
#[test]
fn each_kind_of_file_has_a_size_limit() {
    for (file, length, limit) in [
        ("proc/sys/kernel/hostname", 1 << 17, "4 KiB"),
        ("proc/sys/kernel/hostname", 5000, "4 KiB"),
        ("proc/sys/kernel/osrelease", 5000, "4 KiB"),
        ("proc/sys/vm/min_free_kbytes", 5000, "4 KiB"),
        ("proc/sys/vm/lowmem_reserve_ratio", 5000, "4 KiB"),
        ("proc/meminfo", (1 << 20) + 1, "1 MiB"),
        ("sys/devices/system/node/online", (1 << 20) + 1, "1 MiB"),
        ("sys/devices/system/node/possible", (1 << 20) + 1, "1 MiB"),
        ("sys/devices/system/node/node0/cpulist", (1 << 20) + 1, "1 MiB"),
        ("sys/devices/system/node/node0/distance", (1 << 20) + 1, "1 MiB"),
        ("dmesg", (64 << 20) + 1, "64 MiB"),
    ] {
        let root = tree();
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(&path).unwrap().set_len(length).unwrap();
        let error = captured(&root).unwrap_err();
        assert!(error.contains(file) && error.contains(&format!("larger than {limit}")), "{error}");
    }
}

#[test]
fn all_files_together_have_a_limit() {
    // All logs of other kernels are read, one after another.
    let root = tree();
    let filler = format!("Linux version 5.0.0 (other)\n{}", "\n".repeat(1 << 20));
    put(&root, "dmesg", &filler);
    grow(&root.path().join("dmesg"), 63 << 20);
    fs::create_dir_all(root.path().join("var/log")).unwrap();
    symlink("dmesg", root.path().join("dmesg.txt")).unwrap();
    symlink("../../dmesg", root.path().join("var/log/dmesg")).unwrap();
    assert!(captured(&root).is_ok());
    put(&root, &format!("{NODES}/node0/distance"), &"10 ".repeat(340_000));
    alias_nodes(&root, 300);
    let error = captured(&root).unwrap_err();
    assert!(error.contains("exceeds the limit of 384 MiB"), "{error}");
}

/// Extends a file by `length` zero bytes that take no disk space.
fn grow(path: &Path, length: u64) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(b"\n").unwrap();
    file.set_len(length).unwrap();
}

/// The tree has many links to one folder, which has many entries.
#[test]
fn directory_entries_count_towards_the_limit() {
    let root = tree();
    fs::remove_file(root.path().join(NODES).join("node0/cpulist")).unwrap();
    for name in 0..20_000 {
        File::create(root.path().join(format!("{NODES}/node0/{name:0>200}"))).unwrap();
    }
    alias_nodes(&root, 1024);
    let error = captured(&root).unwrap_err();
    assert!(error.contains("limit of 384 MiB") && error.contains(NODES), "{error}");
}

#[test]
fn columns_of_a_zone_have_a_limit() {
    // The text has 120 MiB, and its numbers would take 480 MiB.
    if !has_memory(700, "columns_of_a_zone_have_a_limit") {
        return;
    }
    let root = tree();
    put(&root, "proc/zoneinfo", &format!("{ZONEINFO}        protection: ("));
    let mut file = File::options().append(true).open(root.path().join("proc/zoneinfo")).unwrap();
    let columns = "0,".repeat(1 << 20);
    (0..60).for_each(|_| file.write_all(columns.as_bytes()).unwrap());
    assert_eq!(captured(&root).unwrap().model.zones.len(), 1);
}

#[test]
fn invalid_text_takes_no_more_memory() {
    let root = tree();
    let mut name = b"host\xff\xfe-1\n".to_vec();
    fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
    fs::write(root.path().join("proc/sys/kernel/hostname"), &name).unwrap();
    assert_eq!(captured(&root).unwrap().model.name, "host??-1");
    name.clear();
    name.extend("größe\n".bytes());
    fs::write(root.path().join("proc/sys/kernel/hostname"), &name).unwrap();
    assert_eq!(captured(&root).unwrap().model.name, "größe");
}
