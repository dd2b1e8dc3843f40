//! Variables, files and limits that the program's starter does not choose well: the program runs, or stops with a message.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use zonal_testing::{copy_program, skipped};

use common::{Program, library, mib, preloaded, report_in, text};

/// The report needs memory, and the pool has none.
#[test]
fn the_report_of_a_full_pool_is_written() {
    let Some(program) = Program::build("full.c") else { return };
    let mut call = program.call(&["SIZE=64M", "FAKE_NODES=1", "WHEN_FULL=fail"]);
    program.checked(&call.arg("keep").output().unwrap());
    let report = std::fs::read_to_string(program.report()).unwrap();
    assert!(report.contains("node 0: arenas 64.0 MiB"), "{report}");
}

#[test]
fn the_report_is_only_written_to_regular_files() {
    let Some(program) = Program::build("full.c") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("target"), "kept").unwrap();
    symlink(path("target"), path("link")).unwrap();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    for odd in [path("link"), path("fifo"), folder.path().into(), "/dev/zero".into(), path("missing/file")] {
        let setting = report_in(&odd);
        let output = preloaded(Command::new(&program.path), &["SIZE=64M", &setting]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{setting}: {error}");
        assert!(error.contains("cannot be written: "), "{setting}: {error}");
    }
    assert_eq!(std::fs::read_to_string(path("target")).unwrap(), "kept");
}

/// The program exits with its own status, although a write of the report sends a signal.
#[test]
fn reports_that_cannot_be_written_do_not_end_the_program() {
    let Some(program) = Program::build("fork.c") else { return };
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -f 0 && exec \"$0\" child"]).arg(&program.path);
    let mut limited = preloaded(limited, &["SIZE=64M", &report_in(&program.report())]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = preloaded(Command::new(&program.path), &["SIZE=64M", "REPORT=stderr"]);
    for call in [&mut limited, unread.arg("child").stderr(writer)] {
        let output = call.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{call:?}: {}", output.status);
    }
}

/// Limits that leave nothing, and no variable that asks for a pool.
#[test]
fn programs_with_small_limits_run_without_a_pool() {
    let Some(program) = Program::build("fork.c") else { return };
    for limit in ["-d 4000", "-v 30000"] {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" child")]).arg(&program.path);
        let output = preloaded(shell, &[]).output().unwrap();
        assert_eq!(text(&output.stdout), "no pool\n", "{limit}: {}", text(&output.stderr));
    }
}

#[test]
fn programs_that_cannot_read_proc_run_without_a_pool() {
    let Some(program) = Program::build("fork.c") else { return };
    let mut hidden = Command::new("unshare");
    hidden.args(["--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" child"]);
    let output = preloaded(hidden, &["CHILDREN=yes"]).arg(&program.path).output().unwrap();
    let error = text(&output.stderr);
    if error.contains("unshare") || error.contains("mount") {
        return skipped!("programs without /proc: {}", error.trim());
    }
    assert_eq!((text(&output.stdout).as_str(), error.as_str()), ("no pool\n", ""));
}

#[test]
fn names_are_printed_without_control_characters() {
    let Some(program) = Program::build("full.c") else { return };
    let odd = program.path.with_file_name("a\u{1b}[31m\nb");
    copy_program(&program.path, &odd);
    let output = preloaded(Command::new(&odd), &["SIZE=256M", "REPORT=stderr"]).output().unwrap();
    assert!(
        text(&output.stderr).starts_with("zonal-malloc: a?[31m?b, process "),
        "{:?}",
        text(&output.stderr)
    );
    for setting in ["REPORT=/dev/null/\u{1b}[31m", "\u{1b}[31m=1", "NODES=\u{1b}[31m"] {
        let output = preloaded(Command::new(&odd), &["SIZE=64M", setting]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), error.contains('\u{1b}')), (Some(2), false), "{error:?}");
    }
}

/// Each option of mimalloc is set to 1. Most options have their effect, none ends the program, and the report counts all pages
/// that are in use.
#[test]
fn no_option_of_mimalloc_ends_the_program_or_confuses_the_report() {
    let Some(program) = Program::build("full.c") else { return };
    let mut verbose = program.call(&["SIZE=256M"]);
    let options = text(&verbose.env("MIMALLOC_VERBOSE", "1").output().unwrap().stderr);
    let options: Vec<_> =
        options.lines().filter_map(|line| line.split_once("option '")?.1.split_once('\'')).collect();
    assert!(options.len() > 40, "{options:?}");
    for (option, _) in options {
        std::fs::remove_file(program.report()).unwrap();
        let name = format!("MIMALLOC_{}", option.to_uppercase());
        let mut call = program.call(&["SIZE=256M", "FAKE_NODES=1", "HUGE_PAGES=never"]);
        let output = call.args(["keep", "400000"]).env(&name, "1").output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success() && out.ends_with("0 failures\n"), "{name}: {}: {out}", output.status);
        let report = std::fs::read_to_string(program.report()).unwrap_or_default();
        assert!(report.contains("pool: 256.0 MiB"), "{name}: {report}");
        if !report.contains("pages: unknown") {
            let [used, present] = ["MiB; pages", "MiB on node"].map(|after| mib(&report, "node 0:", after));
            assert!(used >= present, "{name}: {report}");
        }
    }
}

#[test]
fn denied_system_calls_do_not_change_errno() {
    let Some(program) = Program::build("denied.c") else { return };
    let output = program.call(&["SIZE=512M"]).env("MIMALLOC_USE_NUMA_NODES", "2").output().unwrap();
    if text(&output.stdout) == "no seccomp\n" {
        return skipped!("errno after denied system calls: this process may not use seccomp");
    }
    program.checked(&output);
}

/// The loader ignores the library for such programs unless the administrator names it, here in the program itself.
#[test]
fn programs_with_set_user_id_ignore_the_variables() {
    if Program::build("fork.c").is_none() {
        return; // no compiler
    }
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return skipped!("set-user-id: only root can make a program of another user");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (linked, report) = (folder.path().join("linked"), folder.path().join("report"));
    copy_program(library(), folder.path().join("libzonal_malloc.so"));
    let mut build = Command::new("cc");
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/fork.c"));
    build.args([
        "-g",
        "-fno-builtin",
        "-Wl,--no-as-needed,--disable-new-dtags",
        "-lzonal_malloc",
        "-lpthread",
        "-ldl",
    ]);
    build.arg(format!("-Wl,-rpath,{}", folder.path().display())).arg("-L").arg(folder.path());
    assert!(build.arg("-o").arg(&linked).status().unwrap().success());
    let run = |mode| {
        std::fs::set_permissions(&linked, PermissionsExt::from_mode(mode)).unwrap();
        let mut call = preloaded(Command::new(&linked), &["SIZE=64M", &report_in(&report)]);
        call.arg("child")
            .env_remove("LD_PRELOAD")
            .env("MIMALLOC_VERBOSE", "1")
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap()
    };
    let output = run(0o755);
    assert_eq!(output.status.code(), Some(2), "the user may not write there: {}", text(&output.stderr));
    let output = run(0o4755);
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("no pool\n", ""));
    assert!(!report.exists());
}

#[test]
fn the_default_size_is_within_the_limits_of_the_process() {
    let Some(program) = Program::build("fork.c") else { return };
    for limit in ["-v", "-d"] {
        for kib in ["250000", "1000000", "4000000"] {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &format!("ulimit {limit} {kib} && exec \"$0\" child")]).arg(&program.path);
            let output = preloaded(shell, &["REPORT=stderr"]).output().unwrap();
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            let (pool, line) = match kib {
                "250000" => ("no pool\n", ": no pool, because less than 256 MiB are "),
                _ => ("a pool\n", "  pool: "),
            };
            assert!(out == pool && error.contains(line), "{limit} {kib}: {out}{error}");
        }
    }
}
