//! Checks every command that reads a tree of `/proc` and `/sys` with trees that lead out of themselves, that hold what is
//! not a regular file, and that are far larger than any machine's. No command may hang, use more than 1 GiB of memory, or
//! show anything from outside the tree.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use common::paths::{PathArgument, paths};
use tempfile::TempDir;
use zonal_testing::eventually;

/// Seconds after which a command is killed, and KiB of address space that it gets.
const LIMITS: &str = "ulimit -v 1048576; exec timeout -s KILL 120 \"$@\"";

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

/// Runs a command on the tree in a folder. Returns its exit code, or 0 for a server that answered, and all that it printed
/// or served.
fn read(path: &PathArgument, folder: &TempDir) -> (i32, String) {
    let is_server = path.command == ["serve"];
    let more: &[&str] = match path.command[..] {
        ["serve"] => &["--listen", "127.0.0.1:0", "--per-cpu-metrics"],
        ["top"] => &["--json", "--interval", "0.1"],
        _ => &[],
    };
    let arguments = ["-c", LIMITS, "sh", env!("CARGO_BIN_EXE_zonal")];
    let mut command = Command::new("sh");
    command.args(arguments).args(path.before()).arg(folder.path().join("tree")).args(more);
    // A pipe that is not read would stop the command.
    let [output, errors] = ["output", "errors"].map(|name| folder.path().join(name));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&output).unwrap())
        .stderr(File::create(&errors).unwrap());
    let mut child = command.spawn().unwrap();
    let mut answers = String::new();
    if is_server {
        let mut status = None;
        eventually("the server listens or ends", || {
            status = child.try_wait().unwrap();
            status.is_some() || fs::read_to_string(&errors).unwrap().contains('\n')
        });
        let text = fs::read_to_string(&errors).unwrap();
        if let Some(host) = text.lines().next().and_then(|url| url.strip_prefix("http://")) {
            let host = host.trim_end_matches('/');
            answers = ["/", "/snapshot.json", "/metrics"].map(|page| get(host, page)).concat();
            // `timeout` passes the signal on.
            assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        }
    }
    let code = child.wait().unwrap().code().unwrap_or(-1);
    let texts = [errors, output].map(|file| fs::read_to_string(file).unwrap());
    (code, texts.concat() + &answers)
}

fn get(host: &str, page: &str) -> String {
    let mut connection = TcpStream::connect(host).unwrap();
    write!(connection, "GET {page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{page}: {}", String::from_utf8_lossy(&answer));
    String::from_utf8(answer).unwrap()
}

/// Fails unless the command ended in an orderly way, and returns whether it refused the tree.
fn is_refused(path: &PathArgument, folder: &TempDir, what: &str) -> bool {
    let (code, text) = read(path, folder);
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
    let cpus: Vec<String> = (0..200_000).map(|at| (2 * at).to_string()).collect();
    for (what, files) in [
        ("zones of many nodes", vec![("proc/zoneinfo", zones(2048, 2))]),
        ("too many zones", vec![("proc/zoneinfo", zones(60_000, 0))]),
        ("empty zones", vec![("proc/zoneinfo", zones(60_000, 1).replace("managed 9", "managed 0"))]),
        ("a zone again and again", vec![("proc/zoneinfo", zones(1, 1).repeat(60_000))]),
        ("pagesets of all zones", vec![("proc/zoneinfo", zones(512, 200))]),
        ("too many pagesets", vec![("proc/zoneinfo", zones(1, 1_050_000))]),
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
        for path in paths("tree") {
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
            is_refused(&path, &folder, file);
        }
    }
}
