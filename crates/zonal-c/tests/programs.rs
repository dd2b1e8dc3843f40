//! Builds the programs in `tests/programs` with the C and the C++ compiler against the static library, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the static library of these sources.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| zonal_testing::built_library(env!("CARGO_MANIFEST_DIR"), &[], "libzonal_c.a"))
}

/// Builds a program of `tests/programs` in `folder`, and returns its path.
fn build(compiler: &str, standard: &str, source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    build_file(compiler, standard, &sources.join(source), folder, more)
}

fn build_file(compiler: &str, standard: &str, source: &Path, folder: &Path, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = source.file_name().unwrap().to_str().unwrap();
    let program = folder.join(name.replace('.', "-"));
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g"])
        .args(more)
        .arg("-I")
        .arg(root.join("include"))
        .arg(source)
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(program: &mut Command) {
    let output = program.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    assert!(out.ends_with("0 failures\n"), "{out}{err}");
    let mut skipped: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("skipped: ")).collect();
    skipped.dedup();
    skipped.into_iter().for_each(|why| zonal_testing::skipped!("{why}"));
}

/// The programs in C, each of which checks part of the interface.
const PROGRAMS: [&str; 5] = ["interface.c", "placement.c", "callbacks.c", "contexts.c", "processes.c"];

#[test]
fn the_interface_works_from_c() {
    let folder = tempfile::tempdir().unwrap();
    for program in PROGRAMS {
        run(&mut Command::new(build("cc", "-std=gnu11", program, folder.path(), &[])));
    }
}

#[test]
fn children_use_pools_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(&mut Command::new(build("cc", "-std=gnu11", "fork.c", folder.path(), &[])));
}

/// The program replaces `malloc`, as sanitizers and valgrind do.
#[test]
fn only_the_named_functions_need_the_heap() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("cc", "-std=gnu11", "heap.c", folder.path(), &[]);
    run(&mut Command::new(&program));
    let output = Command::new(&program).arg("--needs-heap").output().unwrap();
    let mut needing: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    needing.sort_unstable();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/c.md")).unwrap();
    let (_, rule) = page.split_once("- **Heap**").expect("docs/c.md has the rule");
    let (rule, _) = rule.split_once("\n- ").expect("the rule ends");
    let (named, _) = rule.split_once(". ").expect("the first sentence names them");
    let mut named: Vec<_> = named.split('`').filter(|name| name.starts_with("zonal_")).collect();
    named.sort_unstable();
    assert_eq!(named, needing, "docs/c.md, tests/programs/functions.h");
}

#[test]
fn the_interface_works_from_cpp() {
    let folder = tempfile::tempdir().unwrap();
    run(&mut Command::new(build("c++", "-std=c++11", "interface.cpp", folder.path(), &[])));
}

/// The C library puts thread locals into the stack of each thread, also of those that the pool starts.
#[test]
fn programs_with_large_thread_locals_have_pools() {
    let folder = tempfile::tempdir().unwrap();
    run(&mut Command::new(build("cc", "-std=gnu11", "thread_locals.c", folder.path(), &[])));
}

/// The sanitizers of the C compiler check the program. The library is not instrumented.
#[test]
fn the_interface_works_under_sanitizers() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for program in PROGRAMS {
        let program = build("cc", "-std=gnu11", program, folder.path(), &flags);
        // Records of threads live as long as the process. A child of several threads may not use the sanitizer's heap.
        run(Command::new(program).arg("--no-fork").env("ASAN_OPTIONS", "detect_leaks=0"));
    }
}

#[test]
fn the_interface_works_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return zonal_testing::skipped!("no valgrind (apt-get install valgrind)");
    }
    let folder = tempfile::tempdir().unwrap();
    // All of them take a minute, which `cargo xtask deep` has.
    let all = std::env::var_os("ZONAL_DEEPER").is_some();
    for program in &PROGRAMS[..if all { PROGRAMS.len() } else { 1 }] {
        let program = build("cc", "-std=gnu11", program, folder.path(), &[]);
        // Children would run their checks under valgrind too, which takes long.
        run(Command::new("valgrind")
            .args(["-q", "--error-exitcode=9", "--fair-sched=yes"])
            .arg(program)
            .arg("--no-fork"));
    }
}

/// Builds the programs of a page, and compares the first lines that they print.
fn run_programs_of(page: &str, language: &str, compiler: &str, standard: &str, expected: &[&str]) {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let programs: Vec<_> = text.split(&format!("```{language}\n")).skip(1).collect();
    assert_eq!(programs.len(), expected.len(), "{page}: programs in {language}");
    for (at, (program, expected)) in programs.into_iter().zip(expected).enumerate() {
        let (program, _) = program.split_once("```\n").expect("the program ends");
        let source = folder.path().join(format!("page-{at}.{language}"));
        std::fs::write(&source, program).unwrap();
        let built = build_file(compiler, standard, &source, folder.path(), &[]);
        let output = Command::new(built).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.starts_with(expected), "{page}, {language} {at}: {out}");
    }
}

/// The programs of the pages are complete, and do what the pages say.
#[test]
fn programs_of_the_pages_run() {
    let c = ["2097152 bytes on node 0\nfreed twice: ", "node 0: ", "page is elsewhere\n"];
    run_programs_of("docs/c.md", "c", "cc", "-std=c11", &c);
    let cpp = ["12288 bytes on node 0\n", "the cache has "];
    run_programs_of("docs/c.md", "cpp", "c++", "-std=c++11", &cpp);
}

/// Returns the functions that the header declares.
fn declared() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/zonal.h")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut declared: Vec<_> = header
        .split('(')
        .filter_map(|before| before.rsplit(|c: char| !is_name(c)).next())
        .filter(|name| name.starts_with("zonal_") && !header.contains(&format!("(*{name})")))
        .collect();
    declared.sort_unstable();
    declared.dedup();
    declared
        .into_iter()
        .filter(|name| header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}(")))
        .map(str::to_owned)
        .collect()
}

/// The calls from callbacks, in children and without heap are those of all functions.
#[test]
fn every_function_is_called_in_every_context() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("cc", "-std=gnu11", "contexts.c", folder.path(), &[]);
    let output = Command::new(program).arg("--functions").output().unwrap();
    let mut called: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    called.sort_unstable();
    called.dedup();
    assert_eq!(called, declared(), "tests/programs/functions.h");
}

/// Every function of the header is exported, and nothing else.
#[test]
fn exported_symbols_are_those_of_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = std::fs::read_to_string(root.join("zonal.map")).unwrap();
    let mut exported: Vec<_> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';').filter(|name| name.starts_with("zonal_")))
        .collect();
    exported.sort_unstable();
    let declared = declared();
    assert_eq!(declared, exported);
    let page = std::fs::read_to_string(root.join("../../docs/c.md")).unwrap();
    let missing: Vec<_> = exported.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/c.md does not list {missing:?}");
}
