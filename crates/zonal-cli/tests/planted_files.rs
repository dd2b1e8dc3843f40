//! Checks files and links that already exist where a command would write. Links are not followed, files of other
//! programs are not changed, and zonal's own files are replaced as a whole.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use crate::common::paths::{PathArgument, paths};
use tempfile::TempDir;
use zonal_testing::skipped;

const PRECIOUS: &str = "something that somebody else wrote\n";

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).output().unwrap()
}

/// A command that writes a file or a tree below a folder.
struct Writer {
    name: &'static str,
    /// The path to write to, relative to the folder.
    to: &'static str,
    /// One of the files that the command writes there.
    file: &'static str,
    arguments: &'static [&'static str],
}

/// Commands whose input or rights this file does not have; `trace.rs` checks what they replace.
const ELSEWHERE: [&str; 2] = ["record", "import"];

/// A writer for every other command that writes; `common/paths.rs` finds those that are missing.
const WRITERS: [Writer; 11] = [
    Writer {
        name: "machine file",
        to: "machine.json",
        file: "machine.json",
        arguments: &["machine", "--preset", "desktop", "--export"],
    },
    Writer {
        name: "page of a machine",
        to: "machine.html",
        file: "machine.html",
        arguments: &["machine", "--preset", "desktop", "--html"],
    },
    Writer {
        name: "page of a trace",
        to: "trace.html",
        file: "trace.html",
        arguments: &["trace", "info", TRACE, "--html"],
    },
    Writer {
        name: "events of a trace",
        to: "trace.csv",
        file: "trace.csv",
        arguments: &["trace", "export", TRACE, "--to", "csv", "--out"],
    },
    Writer { name: "capture", to: "now.json", file: "now.json", arguments: &["capture"] },
    Writer { name: "manual", to: "man1", file: "man1/zonal-lab-run.1", arguments: &["man"] },
    Writer { name: "page", to: "out", file: "out/small/report.html", arguments: LAB },
    Writer { name: "results", to: "out", file: "out/small/result.json", arguments: LAB },
    Writer { name: "picture of results", to: "out", file: "out/small/bars-hog.svg", arguments: LAB },
    Writer {
        name: "chart",
        to: "chart.svg",
        file: "chart.svg",
        arguments: &[
            "bench",
            "pair",
            "--peer",
            "none",
            "--pool",
            "16MiB",
            "--rounds",
            "1",
            "--seconds",
            "0.001",
            "--warm-up",
            "0.001",
            "--svg",
        ],
    },
    Writer {
        name: "tree",
        to: "tree",
        file: "tree/proc/zoneinfo",
        arguments: &[
            "run",
            "pair",
            "--pool",
            "16MiB",
            "--threads",
            "1",
            "--seconds",
            "0.01",
            "--export-tree",
        ],
    },
];

/// A trace, in the test data of its crate.
const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../zonal-trace/tests/data/small.trace");

/// An experiment without published figures, in the folder of the lab's test data.
const LAB: &[&str] = &[
    "lab",
    "run",
    concat!(env!("CARGO_MANIFEST_DIR"), "/../zonal-lab/tests/data/small.toml"),
    "--case",
    "case=one",
    "--out",
];

/// Returns the writer with a name.
fn writer(name: &str) -> &'static Writer {
    WRITERS.iter().find(|writer| writer.name == name).unwrap()
}

impl Writer {
    fn write(&self, folder: &TempDir, more: &[&str]) -> (i32, String) {
        let to = folder.path().join(self.to);
        let output = zonal(&[self.arguments, &[to.to_str().unwrap()], more].concat());
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn path(&self, folder: &TempDir) -> PathBuf {
        folder.path().join(self.file)
    }

    /// Creates a folder in which the command has not written yet. The parent folder of its file exists.
    fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(self.path(&folder).parent().unwrap()).unwrap();
        folder
    }

    /// Fails unless the command refuses to write and its error names the file. The exit code must be that of bad
    /// input, except for the picture of results.
    fn is_refused(&self, folder: &TempDir, more: &[&str]) -> String {
        let (code, errors) = self.write(folder, more);
        assert!(
            code == 2 || code == 1 && self.name == "picture of results",
            "{}: {code} {errors}",
            self.name
        );
        assert!(errors.contains("cannot write ") && errors.contains(self.to), "{}: {errors}", self.name);
        errors
    }
}

/// Whether a temporary file with the extension `.new` is left in a folder or below it.
fn left_over(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        path.extension().is_some_and(|ending| ending == "new") || path.is_dir() && left_over(&path)
    })
}

#[test]
fn every_command_that_writes_is_here() {
    let is_here = |path: &PathArgument| !ELSEWHERE.iter().any(|name| path.command == ["trace", name]);
    for path in paths("writes").into_iter().filter(is_here) {
        let has = |writer: &Writer| {
            writer.arguments.starts_with(&path.command) && writer.arguments.last() == path.before().last()
        };
        assert!(WRITERS.iter().any(has), "no writer has {path:?}");
    }
}

/// Checks commands that write one file. Those that write into a directory create it.
#[test]
fn a_missing_directory_is_found_before_the_work() {
    let files = WRITERS.iter().filter(|writer| writer.to == writer.file);
    let files = files.map(|writer| (writer.name, writer.to, writer.arguments));
    for (name, to, arguments) in files.chain([("check-up", "checkup.json", &["--report"][..])]) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        for (place, problem) in [("missing", "No such file or directory"), ("file", "ot a directory")] {
            let to = folder.path().join(place).join(to);
            let output = zonal(&[arguments, &[to.to_str().unwrap()]].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{name}: {errors}");
            assert!(errors.contains("cannot write ") && errors.contains(problem), "{name}: {errors}");
        }
    }
}

#[test]
fn foreign_files_are_replaced_only_with_force() {
    for writer in &WRITERS {
        let folder = writer.folder();
        fs::write(writer.path(&folder), PRECIOUS).unwrap();
        let errors = writer.is_refused(&folder, &[]);
        assert!(errors.contains("--force"), "{errors}");
        assert_eq!(fs::read_to_string(writer.path(&folder)).unwrap(), PRECIOUS, "{}", writer.name);
        let (code, errors) = writer.write(&folder, &["--force"]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        assert_ne!(fs::read_to_string(writer.path(&folder)).unwrap(), PRECIOUS, "{}", writer.name);
    }
}

#[test]
fn links_are_never_followed() {
    for writer in &WRITERS {
        let folder = writer.folder();
        let target = folder.path().join("precious");
        let plant = || {
            fs::write(&target, PRECIOUS).unwrap();
            symlink(&target, writer.path(&folder)).unwrap();
        };
        plant();
        writer.is_refused(&folder, &[]);
        assert!(writer.path(&folder).is_symlink(), "{}", writer.name);
        let (code, errors) = writer.write(&folder, &["--force"]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        assert!(!writer.path(&folder).is_symlink(), "{}", writer.name);
        assert_eq!(fs::read_to_string(&target).unwrap(), PRECIOUS, "{}", writer.name);
        // A link to a path that does not exist must not create a file there.
        fs::remove_file(&target).unwrap();
        fs::remove_file(writer.path(&folder)).unwrap();
        symlink(&target, writer.path(&folder)).unwrap();
        writer.is_refused(&folder, &[]);
        let _ = writer.write(&folder, &["--force"]);
        assert!(!target.exists(), "{}", writer.name);
    }
}

#[test]
fn links_in_place_of_directories_are_not_followed() {
    for (name, link) in [("page", "out/small"), ("tree", "tree/proc"), ("tree", "tree/sys/devices")] {
        let writer = writer(name);
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let link = folder.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&elsewhere, &link).unwrap();
        for more in [&[][..], &["--force"]] {
            let (code, errors) = writer.write(&folder, more);
            assert!(code != 0 && errors.contains("cannot write "), "{code} {errors}");
            assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{}", writer.name);
        }
    }
}

#[test]
fn zonal_replaces_its_own_files_completely() {
    for writer in &WRITERS {
        let folder = tempfile::tempdir().unwrap();
        let (code, errors) = writer.write(&folder, &[]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        let first = fs::metadata(writer.path(&folder)).unwrap();
        // Readers of the old file are not disturbed. A hard link to the old file shows that it was not overwritten.
        let kept = folder.path().join("kept");
        fs::hard_link(writer.path(&folder), &kept).unwrap();
        let before = fs::read_to_string(&kept).unwrap();
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o4640)).unwrap();
        let (code, errors) = writer.write(&folder, &[]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        assert_ne!(fs::metadata(writer.path(&folder)).unwrap().ino(), first.ino(), "{}", writer.name);
        assert_eq!(fs::read_to_string(&kept).unwrap(), before);
        let mode = fs::metadata(writer.path(&folder)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o640, "{}", writer.name);
        assert!(!left_over(folder.path()), "{}", writer.name);
    }
}

/// Checks that a command that can write nothing, as on a full disk, or that is killed while it writes leaves the old file.
#[test]
fn files_that_cannot_be_written_whole_are_left_as_they_were() {
    for writer in &WRITERS {
        for (signal, is_killed) in [("trap '' XFSZ", false), ("true", true)] {
            let folder = tempfile::tempdir().unwrap();
            let (code, errors) = writer.write(&folder, &[]);
            assert_eq!(code, 0, "{}: {errors}", writer.name);
            let before = fs::read_to_string(writer.path(&folder)).unwrap();
            let script = format!("ulimit -f 0; {signal}; exec \"$@\"");
            let to = folder.path().join(writer.to);
            let command = [&["-c", &script, "sh", env!("CARGO_BIN_EXE_zonal")], writer.arguments].concat();
            let output = Command::new("sh").args(command).arg(to).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal().is_some(), is_killed, "{}: {errors}", writer.name);
            assert_eq!(fs::read_to_string(writer.path(&folder)).unwrap(), before, "{}", writer.name);
            if !is_killed {
                assert!(
                    !output.status.success() && errors.contains("cannot write "),
                    "{}: {errors}",
                    writer.name
                );
                assert!(!left_over(folder.path()), "{}", writer.name);
            }
        }
    }
}

/// Checks that a superuser who replaces a file of another user does not change its owner.
#[test]
fn replaced_files_keep_their_owner() {
    for writer in &WRITERS {
        let folder = tempfile::tempdir().unwrap();
        let (code, errors) = writer.write(&folder, &[]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        if chown(writer.path(&folder), Some(12345), Some(23456)).is_err() {
            skipped!("{}: giving files away is not permitted", writer.name);
            return;
        }
        let (code, errors) = writer.write(&folder, &[]);
        assert_eq!(code, 0, "{}: {errors}", writer.name);
        let about = fs::metadata(writer.path(&folder)).unwrap();
        assert_eq!((about.uid(), about.gid()), (12345, 23456), "{}", writer.name);
    }
}

#[test]
fn a_file_of_one_kind_is_not_replaced_by_one_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let (code, errors) = writer("machine file").write(&folder, &[]);
    assert_eq!(code, 0, "{errors}");
    fs::rename(folder.path().join("machine.json"), folder.path().join("chart.svg")).unwrap();
    writer("chart").is_refused(&folder, &[]);
}

#[test]
fn non_regular_files_are_never_replaced() {
    for writer in &WRITERS {
        let folder = writer.folder();
        fs::create_dir(writer.path(&folder)).unwrap();
        for more in [&[][..], &["--force"]] {
            let (code, errors) = writer.write(&folder, more);
            assert!(code != 0 && errors.contains("cannot write "), "{}: {code} {errors}", writer.name);
        }
        assert!(writer.path(&folder).is_dir() && !left_over(folder.path()), "{}", writer.name);
        assert_eq!(fs::read_dir(writer.path(&folder)).unwrap().count(), 0);
    }
}

/// Checks that `--force` does not write into these directories. A superuser could otherwise replace the system's own
/// links, such as `/dev/stdout`.
#[test]
fn files_are_not_written_to_device_or_kernel_directories() {
    for to in ["/dev/zonal-planted.json", "/proc/self/fd/1"] {
        let output = zonal(&["machine", "--preset", "desktop", "--export", to, "--force"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        let made = fs::remove_file("/dev/zonal-planted.json").is_ok();
        assert_eq!((output.status.code(), made), (Some(2), false), "{errors}");
        assert!(errors.contains(to) && errors.contains("files cannot be written there"), "{errors}");
    }
}

static TREE: LazyLock<&Writer> = LazyLock::new(|| writer("tree"));

/// Returns a folder in which a tree has been written.
fn written_tree() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (code, errors) = TREE.write(&folder, &[]);
    assert_eq!(code, 0, "{errors}");
    folder
}

#[test]
fn every_file_of_a_tree_is_checked_before_it_is_replaced() {
    for changed in
        ["proc/zoneinfo", "proc/sys/kernel/osrelease", "dmesg", "zonal-tree.txt", "notes", "proc/notes"]
    {
        let folder = written_tree();
        let path = folder.path().join("tree").join(changed);
        fs::write(&path, PRECIOUS).unwrap();
        let errors = TREE.is_refused(&folder, &[]);
        // Without its list of files, the tree is not recognized, so the error does not name this file.
        assert!(errors.contains(changed) || changed == "zonal-tree.txt", "{changed}: {errors}");
        assert!(errors.contains("--force"), "{errors}");
        assert_eq!(fs::read_to_string(&path).unwrap(), PRECIOUS, "{changed}");
        let (code, errors) = TREE.write(&folder, &["--force"]);
        assert_eq!(code, 0, "{errors}");
        let is_kept = fs::read_to_string(&path).unwrap() == PRECIOUS;
        assert_eq!(is_kept, changed.ends_with("notes"), "{changed}");
        assert!(!left_over(folder.path()), "{changed}");
        // Only a file that does not belong to the tree prevents the next write.
        let (code, errors) = TREE.write(&folder, &[]);
        assert_eq!(code == 0, !is_kept, "{errors}");
    }
}

#[test]
fn foreign_files_within_a_tree_are_kept() {
    for (name, is_in_the_way) in
        [("dmesg", true), ("proc/zoneinfo", true), ("proc/queue", false), ("queue", false)]
    {
        for kind in ["FIFO", "folder", "link"] {
            let folder = written_tree();
            let path = folder.path().join("tree").join(name);
            let _ = fs::remove_file(&path);
            match kind {
                "FIFO" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                "folder" => fs::create_dir_all(path.join("of/mine")).unwrap(),
                _ => symlink("/nonexistent", &path).unwrap(),
            }
            let before = fs::symlink_metadata(&path).unwrap().ino();
            assert!(TREE.is_refused(&folder, &[]).contains(name), "{name}");
            let (code, errors) = TREE.write(&folder, &["--force"]);
            assert_eq!(code != 0, is_in_the_way && kind != "link", "{name}: {errors}");
            if kind != "link" || !is_in_the_way {
                assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before, "{name}");
            }
            assert!(!left_over(folder.path()), "{name}");
        }
    }
}

/// Checks that files left by a killed run are reported and not removed, because the user may need them.
#[test]
fn leftovers_of_a_killed_run_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    // No process has this ID, because kernels assign no ID above 2^22.
    let left = folder.path().join(".zonal-4194305-0.new");
    fs::create_dir(&left).unwrap();
    let (code, errors) = TREE.write(&folder, &[]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains(".zonal-4194305-0.new was left by a run that was killed"), "{errors}");
    assert!(left.exists());
}

/// Checks that a process in the old directory sees the old tree or nothing, but never a part of the new tree.
#[test]
fn a_tree_is_replaced_completely() {
    let folder = written_tree();
    let tree = folder.path().join("tree");
    let old = fs::File::open(tree.join("proc")).unwrap();
    fs::set_permissions(tree.join("proc"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o700)).unwrap();
    let (code, errors) = TREE.write(&folder, &[]);
    assert_eq!(code, 0, "{errors}");
    let (new, mode) = (fs::metadata(tree.join("proc")).unwrap(), fs::metadata(&tree).unwrap().mode());
    assert_ne!(new.ino(), old.metadata().unwrap().ino());
    assert_eq!((new.mode() & 0o7777, mode & 0o7777), (0o750, 0o700));
}

#[test]
fn a_link_is_refused_as_the_directory_of_a_tree() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    symlink("elsewhere", folder.path().join("tree")).unwrap();
    for more in [&[][..], &["--force"]] {
        assert!(TREE.is_refused(&folder, more).contains("it is a symbolic link"));
        assert_eq!(fs::read_dir(folder.path().join("elsewhere")).unwrap().count(), 0);
    }
}

/// Checks that a directory that the user names may be a link, but the default directory must not be one.
#[test]
fn default_result_directory_must_not_be_a_link() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
        command.args(arguments).current_dir(folder.path()).output().unwrap()
    };
    let without_out = &LAB[..LAB.len() - 1];
    assert_eq!(run(without_out).status.code(), Some(0));
    assert!(folder.path().join("lab-results/small/report.html").is_file());
    fs::remove_dir_all(folder.path().join("lab-results")).unwrap();
    symlink("elsewhere", folder.path().join("lab-results")).unwrap();
    for more in [&[][..], &["--force"]] {
        let output = run(&[without_out, more].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("lab-results: it is a symbolic link"), "{errors}");
        assert_eq!(fs::read_dir(folder.path().join("elsewhere")).unwrap().count(), 0);
    }
    assert_eq!(run(&[LAB, &["lab-results"]].concat()).status.code(), Some(0));
    assert!(folder.path().join("elsewhere/small/report.html").is_file());
}
