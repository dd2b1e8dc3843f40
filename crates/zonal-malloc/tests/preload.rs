//! Builds the programs in `tests/programs`, and runs them with the library preloaded.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use zonal_testing::skipped;

use common::{Program, mib, preloaded, text};

#[test]
fn every_function_serves_from_the_pool() {
    let Some(program) = Program::build("calls.c") else { return };
    let (_, report) = program.run(&["SIZE=512M"]);
    assert!(report.starts_with("zonal-malloc: program, process "), "{report}");
    assert!(report.contains("mimalloc 3."), "{report}");
    assert_eq!(mib(&report, "pool:", " MiB, "), 512.0);
}

#[test]
fn operators_of_cpp_serve_from_the_pool_and_throw_when_it_is_full() {
    let Some(program) = Program::build("objects.cpp") else { return };
    program.run(&["SIZE=512M", "WHEN_FULL=fail"]);
    let full = program.call(&["SIZE=64M", "FAKE_NODES=1", "WHEN_FULL=fail"]).arg("full").output().unwrap();
    program.checked(&full);
}

#[test]
fn threads_free_blocks_of_other_threads() {
    let Some(program) = Program::build("threads.c") else { return };
    program.run(&["SIZE=512M"]);
    program.run(&["SIZE=512M", "PREFAULT=yes", "WHEN_FULL=fail", "HUGE_PAGES=never"]);
}

#[test]
fn children_have_copies_and_programs_that_are_started_have_no_pool() {
    let Some(program) = Program::build("fork.c") else { return };
    let (out, report) = program.run(&["SIZE=256M"]);
    assert_eq!(out, "no pool\n0 failures\n");
    assert_eq!(report.matches("zonal-malloc: program").count(), 1, "{report}");
    let (out, report) = program.run(&["SIZE=256M", "CHILDREN=yes"]);
    assert_eq!(out, "a pool\n0 failures\n");
    // That of the first run, that of the shell, if it does not become the program, and those of both programs.
    assert_eq!(report.matches("zonal-malloc: program").count(), 3, "{report}");
}

/// Returns the functions that `src/exports.rs` exports.
fn exports() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (functions, table) = source.split_once("forward! {").unwrap();
    let (table, more) = table.split_once("\n}").unwrap();
    let names = table.lines().filter_map(|line| line.trim().split_once('(').map(|(name, _)| name));
    let separate =
        [functions, more].map(|part| part.split("#[unsafe(no_mangle)]").skip(1).collect::<Vec<_>>());
    let separate = separate.concat().into_iter().map(|part| {
        let (_, name) = part.split_once("fn ").unwrap();
        name.split_once('(').unwrap().0
    });
    // The macro's own function has a variable in place of the name.
    separate.chain(names).filter(|name| !name.starts_with('$')).map(String::from).collect()
}

#[test]
fn children_may_call_every_function_while_threads_allocate() {
    let Some(program) = Program::build("fork_threads.c") else { return };
    let exports = exports();
    assert!(exports.len() > 20, "{exports:?}");
    program.checked(&program.call(&["SIZE=512M"]).args(&exports).output().unwrap());
}

/// glibc aborts most of these programs. Without checks, they may also go unnoticed, but not hang.
#[test]
fn programs_that_free_twice_end() {
    let Some(program) = Program::build("double_free.c") else { return };
    let kinds = text(&program.call(&["SIZE=256M"]).output().unwrap().stdout);
    assert!(kinds.lines().count() >= 4, "{kinds}");
    for kind in kinds.lines() {
        for (bytes, thread) in [("16", "main"), ("16", "thread"), ("1000", "main"), ("1000", "thread")] {
            let output = program.call(&["SIZE=256M"]).args([kind, bytes, thread]).output().unwrap();
            let is_aborted = output.status.signal() == Some(libc::SIGABRT);
            assert!(
                is_aborted || output.status.success() && !cfg!(feature = "secure"),
                "{kind} {bytes} {thread}: {}",
                output.status
            );
            let error = text(&output.stderr);
            assert_eq!(is_aborted, error.contains("was freed twice"), "{kind} {bytes} {thread}: {error}");
        }
    }
}

#[test]
fn large_blocks_that_are_hardly_written_stay_so_when_they_move() {
    let Some(program) = Program::build("sparse.c") else { return };
    program.run(&["SIZE=3G", "HUGE_PAGES=never", "FAKE_NODES=2"]);
    program.checked(&program.call(&["SIZE=3G"]).arg("huge").output().unwrap());
}

#[test]
fn odd_arguments_have_the_results_of_the_c_library() {
    let Some(program) = Program::build("odd.c") else { return };
    let plain = Command::new(&program.path).output().unwrap();
    assert!(plain.status.success());
    let ours = program.call(&["SIZE=512M"]).output().unwrap();
    assert_eq!(text(&ours.stdout), text(&plain.stdout));
}

#[test]
fn an_idle_process_returns_memory_that_was_freed() {
    let Some(program) = Program::build("idle.c") else { return };
    program.run(&["SIZE=512M", "FAKE_NODES=1"]);
    // Programs that another one starts have no pool, and no thread.
    let output = program.call(&["OWNER=1"]).arg("large").output().unwrap();
    program.checked(&output);
}

/// With a short delay, memory is returned many times.
#[test]
fn memory_that_is_being_returned_is_waited_for() {
    let Some(program) = Program::build("purge.c") else { return };
    for when_full in ["WHEN_FULL=kernel", "WHEN_FULL=fail"] {
        let mut call = program.call(&["SIZE=512M", "FAKE_NODES=1", when_full]);
        program.checked(&call.env("MIMALLOC_PURGE_DELAY", "10").output().unwrap());
    }
}

#[test]
fn threads_with_large_thread_locals_end() {
    let Some(program) = Program::build("locals.c") else { return };
    let library = program.path.with_file_name("library.so");
    Program::compile("locals.c", &["-shared", "-fPIC", "-DLIBRARY"], &library).unwrap();
    program.checked(&program.call(&["SIZE=1G"]).arg(library).output().unwrap());
}

/// The C library calls `malloc` and `free` while it holds locks of its own, so a function that acquires one of these may wait
/// forever, and each was reviewed for that. `pthread_create` is called only by requests, which the C library makes without the locks that it needs; `fputs` only
/// with `MIMALLOC_VERBOSE` or `MIMALLOC_SHOW_ERRORS`; `pthread_atfork` and `realpath`, which allocates, only at the start.
#[test]
fn functions_of_the_c_library_that_are_called_were_reviewed() {
    const REVIEWED: &str = "\
        abort bcmp clock_gettime environ fputs free getauxval getenv getpid getrusage madvise memcmp memcpy memmove memset mmap \
        mprotect munmap nanosleep pathconf prctl pthread_atfork pthread_attr_destroy pthread_attr_init pthread_attr_setdetachstate \
        pthread_attr_setstacksize pthread_create pthread_key_create pthread_key_delete pthread_mutex_destroy pthread_mutex_lock \
        pthread_mutex_unlock pthread_setname_np pthread_setspecific pthread_sigmask realpath sched_getcpu sigaddset sigemptyset \
        sigfillset sigismember sigpending sigtimedwait sleep stderr stdout strlen strtol syscall sysconf sysinfo write";
    let compiled = Path::new(env!("OUT_DIR")).join("libzonal_mimalloc.a");
    let Ok(output) = Command::new("nm").arg("-u").arg(compiled).output() else {
        return skipped!("functions of the C library: no nm");
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let known: Vec<_> = REVIEWED.split_whitespace().collect();
    let symbols = text(&output.stdout);
    let called: Vec<_> = symbols.lines().filter_map(|line| line.trim().strip_prefix("U ")).collect();
    assert!(called.contains(&"pthread_create"), "{symbols}");
    // The compiler's own functions begin with an underscore.
    let new: Vec<_> = called.iter().filter(|name| !name.starts_with('_') && !known.contains(name)).collect();
    assert!(new.is_empty(), "which locks do these acquire: {new:?}");
}

#[test]
fn a_process_that_becomes_another_program_keeps_its_pool() {
    let Some(program) = Program::build("fork.c") else { return };
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" child"]).arg(&program.path);
    let output = preloaded(shell, &["SIZE=256M"]).output().unwrap();
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("a pool\n", ""));
}

#[test]
fn a_full_pool_continues_with_memory_of_the_kernel_or_fails() {
    let Some(program) = Program::build("full.c") else { return };
    // One emulated node has one zone, so that arenas have all of the size.
    let counts =
        |out: &str| -> Vec<u32> { out.split(' ').filter_map(|word| word.trim().parse().ok()).collect() };
    let (out, _) = program.run(&["SIZE=64M", "FAKE_NODES=1"]);
    let [inside, outside, failed] = counts(out.lines().next().unwrap())[..] else { panic!("{out}") };
    assert!(inside > 40 && outside > 40 && failed == 0, "{out}");
    let (out, _) = program.run(&["SIZE=64M", "FAKE_NODES=1", "WHEN_FULL=fail"]);
    let [inside, outside, failed] = counts(out.lines().next().unwrap())[..] else { panic!("{out}") };
    assert!(inside > 40 && outside == 0 && failed > 40, "{out}");
}

#[test]
fn threads_get_memory_of_their_node_and_later_of_another() {
    let Some(program) = Program::build("nodes.c") else { return };
    let output = program.call(&["SIZE=512M", "FAKE_NODES=2", "WHEN_FULL=fail"]).output().unwrap();
    if text(&output.stdout) == "one CPU\n" {
        return skipped!("this process may use only one CPU");
    }
    program.checked(&output);
    let report = std::fs::read_to_string(program.report()).unwrap();
    assert!(report.contains("nodes emulated"), "{report}");
    assert_eq!([mib(&report, "node 0:", " MiB,"), mib(&report, "node 1:", " MiB,")], [256.0; 2], "{report}");
}

#[test]
fn the_report_separates_populated_pages_from_others() {
    let Some(program) = Program::build("full.c") else { return };
    let run = |prefault: &str| {
        let mut call = program.call(&["SIZE=512M", "FAKE_NODES=1", "HUGE_PAGES=never", prefault]);
        program.checked(&call.arg("keep").output().unwrap());
        let report = std::fs::read_to_string(program.report()).unwrap();
        std::fs::remove_file(program.report()).unwrap();
        report
    };
    let report = run("PREFAULT=no");
    if report.contains("pages: unknown") {
        return skipped!("the kernel does not report nodes of pages: {report}");
    }
    let [used, present, absent] =
        ["MiB; pages", "MiB on node", "MiB not populated"].map(|after| mib(&report, "node 0:", after));
    assert!(used >= 128.0 && (128.0..140.0).contains(&present), "{report}");
    assert_eq!(present + absent, 512.0, "{report}");
    assert_eq!(mib(&report, "huge pages:", " MiB, explicit"), 0.0, "{report}");
    let report = run("PREFAULT=yes");
    assert_eq!(mib(&report, "node 0:", "MiB on node"), 512.0, "{report}");
    assert!((128.0..140.0).contains(&mib(&report, "node 0:", "MiB; pages")), "{report}");
}

/// Programs such as `ls` close their standard error before the report is written.
#[test]
fn the_report_is_written_although_the_program_closes_its_standard_error() {
    let mut call = Command::new("ls");
    call.args(["-d", "/"]);
    let output = preloaded(call, &["SIZE=256M", "REPORT=stderr"]).output().unwrap();
    assert_eq!(text(&output.stdout), "/\n");
    assert!(text(&output.stderr).starts_with("zonal-malloc: ls, process "), "{}", text(&output.stderr));
}

#[test]
fn wrong_variables_stop_the_program_before_it_starts() {
    let Some(program) = Program::build("full.c") else { return };
    for (setting, message) in [
        ("SIZE=8GB", "ZONAL_MALLOC_SIZE is \"8GB\"; right is bytes, "),
        ("SIZE=900T", "900 TiB was requested"),
        ("SIZE=4M", "ZONAL_MALLOC_SIZE must be larger"),
        ("NODES=none", "ZONAL_MALLOC_NODES is \"none\"; right is "),
        ("NODES=1000", "ZONAL_MALLOC_NODES is 1000"),
        ("HUGE_PAGES=4m", "ZONAL_MALLOC_HUGE_PAGES is \"4m\"; right is transparent, "),
        ("PREFAULT=on", "ZONAL_MALLOC_PREFAULT is \"on\"; right is yes or no"),
        ("WHEN_FULL=die", "ZONAL_MALLOC_WHEN_FULL is \"die\"; right is kernel or fail"),
        ("REPORT=/dev/null/x", "ZONAL_MALLOC_REPORT is \"/dev/null/x\", which cannot be written: "),
        ("CHILDREN=1", "ZONAL_MALLOC_CHILDREN is \"1\"; right is yes or no"),
        ("FAKE_NODES=99999", "the pool cannot be built: "),
        ("SZIE=1G", "ZONAL_MALLOC_SZIE is not a variable of this library"),
    ] {
        let Output { status, stdout, stderr } =
            preloaded(Command::new(&program.path), &[setting]).output().unwrap();
        let error = text(&stderr);
        assert_eq!((status.code(), text(&stdout).as_str()), (Some(2), ""), "{setting}: {error}");
        assert!(error.starts_with("zonal-malloc: ") && error.contains(message), "{setting}: {error}");
        assert_eq!(error.lines().count(), 1, "{setting}: {error}");
    }
}

#[test]
fn explicit_huge_pages_are_used_or_refused() {
    let Some(program) = Program::build("full.c") else { return };
    let call = || program.call(&["SIZE=64M", "FAKE_NODES=1", "HUGE_PAGES=2m"]).output().unwrap();
    let output = call();
    if output.status.code() == Some(2) {
        let error = text(&output.stderr);
        assert!(
            error.contains("huge pages of 2 MiB requested") && error.contains("vm.nr_hugepages"),
            "{error}"
        );
        return skipped!("explicit huge pages: {}", error.trim());
    }
    assert!(output.status.success());
    let report = std::fs::read_to_string(program.report()).unwrap();
    assert_eq!(mib(&report, "huge pages:", " MiB; swapped"), 64.0, "{report}");
}
