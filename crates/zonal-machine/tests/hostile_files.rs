//! Tests machine files and captured trees with special files in place of regular ones. No read may block or continue
//! without end, and the error must say what kind of file was found.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use zonal_machine::{MachineModel, capture};
use zonal_testing::{skipped, within_patience};

const ZONEINFO: &str =
    "Node 0, zone   Normal\n        spanned  4096\n        present  4096\n        managed  4000\n";

fn machine_error(path: &Path) -> String {
    let path = path.to_owned();
    within_patience("reading", move || MachineModel::read(&path).unwrap_err().to_string())
}

/// Returns the outcome of a capture: the error, or the machine's name and the notes.
fn captured(root: &TempDir) -> Result<(String, Vec<String>), String> {
    let root = root.path().to_owned();
    within_patience("reading", move || match capture(&root) {
        Ok(captured) => Ok((captured.model.name, captured.notes)),
        Err(error) => Err(error.to_string()),
    })
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Creates a file of `mib` MiB that takes no disk space.
fn sparse(path: &Path, mib: u64) {
    File::create(path).unwrap().set_len(mib << 20).unwrap();
}

/// Kinds of entries that may replace a regular file, in the words of the error.
const KINDS: [&str; 5] = ["a FIFO", "a directory", "a socket", "a character device", "larger than"];

/// Creates an entry of a kind. Returns whether this process may create it.
fn plant(kind: &str, path: &Path) -> bool {
    match kind {
        "a FIFO" => fifo(path),
        "a directory" => fs::create_dir(path).unwrap(),
        "a socket" => drop(UnixListener::bind(path).unwrap()),
        "a character device" => {
            let made = Command::new("mknod").arg(path).args(["c", "1", "5"]).stderr(Stdio::null()).status();
            if !made.unwrap().success() {
                skipped!("{}: {kind}: making devices is not permitted", path.display());
                return false;
            }
        }
        _ => sparse(path, 1024),
    }
    true
}

#[test]
fn a_machine_file_is_a_regular_file() {
    for kind in KINDS {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.json");
        if !plant(kind, &path) {
            continue;
        }
        let error = machine_error(&path);
        let cure = if kind == "larger than" { "64 MiB" } else { "regular file" };
        assert!(error.contains("machine.json: ") && error.contains(kind) && error.contains(cure), "{error}");
    }
    assert!(machine_error(Path::new("/dev/zero")).contains("a character device"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("loop.json");
    symlink("loop.json", &path).unwrap();
    assert!(machine_error(&path).contains("symbolic links"));
}

#[test]
fn a_link_to_a_machine_file_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/linux-6.1-quad-node2-cpuonly.json");
    let link = directory.path().join("link.json");
    symlink(oracle, &link).unwrap();
    assert!(MachineModel::read(&link).is_ok());
}

fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// Returns a tree with `sys/devices/system/node` and all folders that contain files of a capture.
fn full_tree() -> TempDir {
    tree(&[
        ("proc/zoneinfo", ZONEINFO),
        ("proc/meminfo", "MemTotal: 16384 kB\n"),
        ("proc/self/maps", ""),
        ("proc/sys/kernel/osrelease", "6.1.0\n"),
        ("proc/sys/vm/swappiness", "60\n"),
        ("sys/devices/system/node/online", "0\n"),
        ("sys/devices/system/node/node0/distance", "10\n"),
        ("sys/devices/system/cpu/present", "0\n"),
    ])
}

#[test]
fn a_captured_file_is_a_regular_file() {
    let files = [
        "proc/zoneinfo",
        "proc/sys/kernel/hostname",
        "proc/sys/kernel/osrelease",
        "proc/sys/vm/min_free_kbytes",
        "proc/self/auxv",
        "dmesg",
        "sys/devices/system/node/online",
        "sys/devices/system/node/possible",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/node/node0/distance",
    ];
    for file in files {
        for kind in KINDS {
            let root = full_tree();
            let path = root.path().join(file);
            let _ = fs::remove_file(&path);
            if !plant(kind, &path) {
                continue;
            }
            let error = captured(&root).unwrap_err();
            assert!(error.contains(file) && error.contains(kind), "{file}, {kind}: {error}");
        }
    }
}

#[test]
fn unreadable_files_are_not_reported_as_missing() {
    for kind in KINDS {
        let root = tree(&[("proc/version", "Linux version 6.1.0\n")]);
        if !plant(kind, &root.path().join("proc/zoneinfo")) {
            continue;
        }
        let error = captured(&root).unwrap_err();
        assert!(error.contains("proc/zoneinfo") && !error.contains("neither"), "{kind}: {error}");
    }
}

#[test]
fn no_link_leads_out_of_a_captured_tree() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "hunter2\n").unwrap();
    for file in ["proc/sys/kernel/hostname", "sys/devices/system/node/node0/cpumap", "proc/zoneinfo"] {
        let root = full_tree();
        let path = root.path().join(file);
        let _ = fs::remove_file(&path);
        symlink(&secret, &path).unwrap();
        let error = captured(&root).unwrap_err();
        assert!(error.contains(file) && error.contains("leads out of"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    // A folder that is a link is an error too.
    let root = full_tree();
    fs::remove_dir_all(root.path().join("sys/devices/system/node")).unwrap();
    symlink(outside.path(), root.path().join("sys/devices/system/node")).unwrap();
    assert!(captured(&root).unwrap_err().contains("leads out of"));
    // Links within the tree are allowed, because machines have them.
    let root = full_tree();
    fs::rename(root.path().join("proc/zoneinfo"), root.path().join("proc/real")).unwrap();
    symlink("real", root.path().join("proc/zoneinfo")).unwrap();
    assert!(captured(&root).is_ok());
}

#[test]
fn a_loop_of_links_is_named() {
    let root = full_tree();
    fs::remove_file(root.path().join("proc/zoneinfo")).unwrap();
    symlink("zoneinfo", root.path().join("proc/zoneinfo")).unwrap();
    let error = captured(&root).unwrap_err();
    assert!(error.contains("proc/zoneinfo") && error.contains("symbolic links"), "{error}");
}

#[test]
fn endless_zoneinfo_is_refused() {
    let mut text = ZONEINFO.to_owned();
    for node in 0..20_000 {
        text += &format!("Node {node}, zone    DMA32\n");
    }
    let root = tree(&[("proc/zoneinfo", &text)]);
    let error = captured(&root).unwrap_err();
    assert!(error.contains("proc/zoneinfo") && error.contains("zones"), "{error}");
}
