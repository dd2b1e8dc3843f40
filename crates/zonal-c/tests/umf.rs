//! Builds the provider for the Unified Memory Framework (UMF), and programs that use it, against the library of UMF, and
//! runs them.
//!
//! The library comes from the Python package `umf`, which pip installs into the target folder once. The tests are skipped
//! where pip cannot get it. `programs.rs` tests the C interface itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use zonal_testing::skipped;

/// Packages of Python: UMF, and the allocator that its scalable pool loads.
const PACKAGES: [&str; 2] = ["umf==1.2.*", "tbb>=2022"];
const LIBRARIES: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the static library of these sources.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| zonal_testing::built_library(env!("CARGO_MANIFEST_DIR"), &[], "libzonal_c.a"))
}

/// Installs UMF into the target folder, if it is not there yet.
fn install_umf() -> Result<PathBuf, String> {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("umf-1.2");
    let library = |prefix: &Path| prefix.join("lib/libumf.so");
    if library(&prefix).exists() {
        return Ok(prefix);
    }
    // Installed elsewhere and then renamed, so that the folder is complete if it exists.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    let unfinished = folder.path().join("prefix");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--ignore-installed", "--only-binary", ":all:"]);
    pip.args(["--no-warn-script-location", "--retries", "1", "--prefix"]).arg(&unfinished).args(PACKAGES);
    let output = pip.output().map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() || !library(&unfinished).exists() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pip has no umf 1.2: {}", error.trim().lines().last().unwrap_or("no library")));
    }
    // Another process may have been faster.
    match std::fs::rename(&unfinished, &prefix) {
        Err(error) if !library(&prefix).exists() => Err(error.to_string()),
        _ => Ok(prefix),
    }
}

/// Returns where UMF is installed, or why it is not.
fn umf() -> &'static Result<PathBuf, String> {
    static UMF: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    UMF.get_or_init(install_umf)
}

/// Builds a program with the provider in `folder`, and returns its path.
fn build(umf: &Path, source: &Path, folder: &Path, more: &[&str]) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let lib = umf.join("lib").display().to_string();
    let bridge = crate_folder().join("bridges/umf");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"]).args(more);
    compile.arg("-I").arg(crate_folder().join("include")).arg("-I").arg(&bridge);
    compile.arg("-I").arg(umf.join("include")).arg(source).arg(bridge.join("zonal_umf.c")).arg(library());
    compile.args(["-L", &lib, "-lumf"]).args(LIBRARIES);
    // The old tag is also searched for the libraries that libumf.so needs.
    compile.arg(format!("-Wl,--disable-new-dtags,-rpath,{lib},-rpath-link,{lib}")).arg("-o").arg(&program);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    program
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a program of `tests/programs`, and reports what it skips.
fn run(program: &mut Command) {
    let output = program.output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{}: {text}", output.status);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.ends_with("0 failures\n"), "{text}");
    for why in out.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        skipped!("{why}");
    }
}

/// Builds and runs a program of `tests/programs` with compiler flags and arguments.
fn build_and_run(name: &str, flags: &[&str], arguments: &[&str]) {
    let umf = match umf() {
        Ok(umf) => umf,
        Err(why) => return skipped!("{why}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let source = crate_folder().join("tests/programs").join(name);
    // Records of threads live as long as the process.
    run(Command::new(build(umf, &source, folder.path(), flags))
        .args(arguments)
        .env("ASAN_OPTIONS", "detect_leaks=0"));
}

#[test]
fn operations_of_the_provider_work() {
    build_and_run("umf.c", &[], &[]);
}

#[test]
fn threads_split_and_merge_at_random() {
    build_and_run("umf_parts.c", &[], &["4", "20000"]);
}

#[test]
fn pools_of_umf_work_on_the_provider() {
    build_and_run("umf_pools.c", &[], &[]);
}

#[test]
fn another_process_maps_an_allocation() {
    build_and_run("umf_ipc.c", &[], &[]);
}

/// The sanitizers check the provider and the programs. The library is not instrumented.
#[test]
fn the_provider_works_under_sanitizers() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    build_and_run("umf.c", &flags, &[]);
    build_and_run("umf_parts.c", &flags, &["3", "8000"]);
    build_and_run("umf_ipc.c", &flags, &[]);
}

#[test]
fn the_measurement_runs() {
    let umf = match umf() {
        Ok(umf) => umf,
        Err(why) => return skipped!("{why}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let source = crate_folder().join("bridges/umf/measure.c");
    let output = Command::new(build(umf, &source, folder.path(), &[])).args(["1", "20"]).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success() && text.matches(" os ").count() == 18, "{text}");
}

/// The program of the page is complete, and does what the page says.
#[test]
fn the_program_of_the_page_runs() {
    let umf = match umf() {
        Ok(umf) => umf,
        Err(why) => return skipped!("{why}"),
    };
    let page = std::fs::read_to_string(crate_folder().join("../../docs/umf.md")).unwrap();
    let part = |language: &str| {
        let (_, text) = page.split_once(&format!("```{language}\n")).expect("the page has it");
        text.split_once("```\n").expect("it ends").0
    };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    std::fs::write(&source, part("c")).unwrap();
    let output = Command::new(build(umf, &source, folder.path(), &[])).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), part("text"));
}

#[test]
fn check_block_accepts_what_free_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("check_block");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I"])
        .arg(crate_folder().join("include"));
    compile.arg(crate_folder().join("tests/programs/check_block.c")).arg(library()).args(LIBRARIES);
    let output = compile.arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    run(&mut Command::new(program));
}
