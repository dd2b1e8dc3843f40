//! Checks every command that reads a tree of `/proc` and `/sys` with trees that lead out, that hold what is not a
//! regular file, and that are far larger than any machine's. No command may hang, use more than 1 GiB of memory, or
//! show anything from outside the tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::common::paths::{PathArgument, paths};
use crate::common::readers;
use tempfile::TempDir;

/// A number that is only in files outside the tree.
const SECRET: &str = "31337";

const NODE: &str = "sys/devices/system/node/node0";

/// The files of a small tree that some command reads.
const FILES: [(&str, &str); 11] = [
    (
        "proc/zoneinfo",
        "Node 0, zone Normal\n pages free 70\n spanned 90\n present 90\n managed 90\n cpu: 0\n",
    ),
    ("proc/buddyinfo", "Node 0, zone Normal 3 2\n"),
    ("proc/pagetypeinfo", "Node 0, zone Normal, type Movable 3 2\n"),
    ("proc/vmstat", "pgfree 12\n"),
    ("proc/meminfo", "MemTotal: 360 kB\n"),
    ("proc/sys/vm/min_free_kbytes", "4\n"),
    ("proc/sys/kernel/hostname", "tree\n"),
    ("sys/devices/system/node/online", "0\n"),
    ("sys/devices/system/node/node0/cpulist", "0\n"),
    ("sys/devices/system/node/node0/numastat", "numa_hit 4\n"),
    ("sys/devices/system/node/node0/distance", "10\n"),
];

fn put(tree: &Path, file: &str, text: &str) {
    let path = tree.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Creates a small tree in a folder that also has the file `outside`.
fn tree() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    FILES.iter().for_each(|(file, text)| put(&folder.path().join("tree"), file, text));
    let text = format!(
        "Node 0, zone Normal\n pages free {SECRET}\n managed {SECRET}\n{SECRET}\nnuma_hit {SECRET}\nMemTotal: {SECRET} kB\n"
    );
    put(folder.path(), "outside/cpulist", SECRET);
    put(folder.path(), "outside/file", &text);
    folder
}

/// Fails unless the command ended in an orderly way, and returns whether it refused the tree.
fn is_refused(path: &PathArgument, folder: &TempDir, what: &str) -> bool {
    let (code, text) = readers::run(path, &folder.path().join("tree"), folder.path());
    let about = text.chars().take(1000).collect::<String>();
    assert!(code == 0 || code == 2 && text.lines().count() == 1, "{path:?}, {what}: {code}: {about}");
    assert!(!text.contains(SECRET), "{path:?} shows what is outside the tree, {what}: {about}");
    if code == 2 {
        assert!(text.contains("tree"), "{path:?}, {what}: {about}");
    }
    code == 2
}

#[test]
fn a_small_tree_is_read() {
    for path in paths("tree") {
        assert!(!is_refused(&path, &tree(), "no attack"));
    }
}

#[test]
fn trees_do_not_lead_out_of_themselves() {
    for (file, _) in FILES.into_iter().chain([(NODE, "")]) {
        let mut refusals = 0;
        for path in paths("tree") {
            let folder = tree();
            let (planted, outside) = (folder.path().join("tree").join(file), folder.path().join("outside"));
            if file == NODE {
                fs::remove_dir_all(&planted).unwrap();
                symlink(outside, &planted).unwrap();
            } else {
                fs::remove_file(&planted).unwrap();
                symlink(outside.join("file"), &planted).unwrap();
            }
            let is_refused = is_refused(&path, &folder, file);
            assert!(is_refused || file != "proc/zoneinfo", "{path:?} reads {file}");
            refusals += u32::from(is_refused);
        }
        assert!(refusals > 0, "no command reads {file}");
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    for (file, _) in FILES {
        for kind in ["FIFO", "folder", "device"] {
            let mut refusals = 0;
            for path in paths("tree") {
                let folder = tree();
                let planted = folder.path().join("tree").join(file);
                fs::remove_file(&planted).unwrap();
                match kind {
                    "FIFO" => assert!(Command::new("mkfifo").arg(&planted).status().unwrap().success()),
                    "folder" => fs::create_dir(&planted).unwrap(),
                    _ => symlink("/dev/zero", &planted).unwrap(),
                }
                refusals += u32::from(is_refused(&path, &folder, &format!("{kind} as {file}")));
            }
            assert!(refusals > 0, "no command refuses a {kind} as {file}");
        }
    }
}

/// Paths of another kind than the command needs, with the exit code of bad input; no command waits for ever.
#[test]
fn paths_of_another_kind_are_refused() {
    let folder = tree();
    let [fifo, socket] = ["FIFO", "socket"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _listener = UnixListener::bind(&socket).unwrap();
    let file = folder.path().join("outside/file");
    let device = Path::new("/dev/zero");
    let kinds = [(&*fifo, "FIFO"), (&*socket, "socket"), (device, "device"), (&*file, "file")];
    let kinds = kinds.into_iter().chain([(folder.path(), "folder")]);
    let uses = ["reads", "tree", "socket"].into_iter();
    let all = uses.flat_map(|used| paths(used).into_iter().map(move |path| (used, path)));
    // Some commands wait for a while.
    thread::scope(|scope| {
        for (used, path) in all {
            for (at, what) in kinds.clone() {
                let path = path.clone();
                scope.spawn(move || {
                    let output = tempfile::tempdir().unwrap();
                    let (code, text) = readers::run(&path, at, output.path());
                    // A socket at which nothing answers is a failure.
                    let expected = if (used, what) == ("socket", "socket") { 1 } else { 2 };
                    assert_eq!((code, text.lines().count()), (expected, 1), "{path:?}, {what}: {text}");
                });
            }
        }
    });
}

#[test]
fn large_trees_are_read_or_refused_in_time() {
    let zones = |count: usize, pagesets: usize| -> String {
        let pagesets = "    cpu: 0\n count: 1\n high: 9\n".repeat(pagesets);
        let zone = |at: usize| {
            let frames = " pages free 7\n spanned 9\n present 9\n managed 9\n";
            format!(
                "Node {}, zone {}\n{frames}{pagesets}",
                at / 4,
                ["DMA", "DMA32", "Normal", "Movable"][at % 4]
            )
        };
        (0..count).map(zone).collect()
    };
    let types = (0..400_000).map(|at| format!("Node {}, zone Normal, type a{at} 1\n", at % 256));
    // The last zone's pagesets are those of many CPUs, each of which is a table column.
    let wide = |zones_before: usize, cpus: usize| -> String {
        let lines = (0..cpus).map(|cpu| format!("cpu: {cpu}\n"));
        let more = lines.filter(|line| !line.contains(SECRET));
        zones(zones_before, 0)
            + "Node 1000, zone Normal\n pages free 7\n managed 9\n"
            + &more.collect::<String>()
    };
    // Each of these bytes is written out as several ones.
    let escapes = "\u{1b}".repeat(8 << 20);
    let cpus: Vec<String> = (0..200_000).map(|at| (2 * at).to_string()).collect();
    for (what, files) in [
        ("zones of many nodes", vec![("proc/zoneinfo", zones(2048, 2))]),
        ("too many zones", vec![("proc/zoneinfo", zones(60_000, 0))]),
        ("empty zones", vec![("proc/zoneinfo", zones(60_000, 1).replace("managed 9", "managed 0"))]),
        ("a zone again and again", vec![("proc/zoneinfo", zones(1, 1).repeat(60_000))]),
        ("pagesets of all zones", vec![("proc/zoneinfo", zones(512, 200))]),
        ("too many pagesets", vec![("proc/zoneinfo", zones(1, 1_050_000))]),
        ("CPUs of few zones", vec![("proc/zoneinfo", wide(63, 300_000))]),
        ("zones and CPUs", vec![("proc/zoneinfo", wide(1000, 200_000))]),
        ("a long kind", vec![("proc/zoneinfo", FILES[0].1.replace("Normal", &escapes))]),
        ("a long type", vec![("proc/pagetypeinfo", FILES[2].1.replace("Movable", &escapes))]),
        ("types", vec![("proc/zoneinfo", zones(1024, 0)), ("proc/pagetypeinfo", types.collect())]),
        ("CPUs of a node", vec![("sys/devices/system/node/node0/cpulist", cpus.join(","))]),
        ("one long line", vec![("proc/zoneinfo", FILES[0].1.to_owned() + &"protection: (".repeat(1 << 20))]),
        (
            "columns",
            vec![("proc/zoneinfo", FILES[0].1.to_owned() + " protection: (" + &"1,".repeat(8 << 20))],
        ),
    ] {
        for path in paths("tree") {
            let folder = tree();
            files.iter().for_each(|(file, text)| put(&folder.path().join("tree"), file, text));
            is_refused(&path, &folder, what);
        }
    }
}

/// Each node's list is a link to the same file in the tree.
#[test]
fn links_to_one_file_count_each_time() {
    for (file, bytes) in [("cpulist", 1 << 20), ("numastat", 4 << 10), ("meminfo", 1 << 20)] {
        let folder = tree();
        let tree = folder.path().join("tree");
        put(&tree, "sys/devices/system/node/online", "0-1023\n");
        put(&tree, "list", &"0,".repeat(bytes / 2));
        for node in 0..1024 {
            let place = tree.join(format!("sys/devices/system/node/node{node}"));
            fs::create_dir_all(&place).unwrap();
            let _ = fs::remove_file(place.join(file));
            symlink("../../../../../list", place.join(file)).unwrap();
        }
        // The commands only read it.
        paths("tree").iter().for_each(|path| {
            is_refused(path, &folder, file);
        });
    }
}
