//! Checks that take too long for everyday use, or that need more than the standard toolchain. They are Miri,
//! sanitizers, the oldest compiler, licences, packaging, coverage, counts of instructions, mutants, virtual machines with
//! several nodes, and the kernel. They also include the long forms of checks whose short forms are among the tests.
//!
//! A step whose tool is missing is skipped, and prints how to install the tool. Related files: `plan.rs` has the
//! everyday checks, `mutants.rs` has the mutation tests, and `steps.rs` runs all of these steps.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::bench_guard;
use crate::claims;
use crate::deb;
use crate::kernel;
use crate::lift;
use crate::mutants;
use crate::numa;
use crate::planted;
use crate::proof;
use crate::python;
use crate::skips;
use crate::steps::{Outcome, Step, cargo, succeeds, target_folder};

/// The oldest supported compiler, which is also `rust-version` of the workspace.
const OLDEST: &str = "1.88";
/// The target of sanitizer builds. Because it is named explicitly, build scripts are built without the sanitizer flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Multithreaded tests of the core's public interface.
const THREADED: [&str; 5] =
    ["invalid_frees::races", "requests::owner_table", "hotplug::", "reclaim::reclaimers", "requests::bulk"];
/// Tests of the core that run for as long as the environment says.
const STRESS: [&str; 3] = ["requests::owner_table", "while_threads_allocate", "while_threads_use_them"];

/// Modules of `zonal-linux` that make no system call that Miri does not support.
const HOST_ROOMS: [&str; 3] = ["error::", "lock::", "wake_tests::"];
/// The profile of long runs: optimised, with the checks of debug builds.
const CHECKED: &str = "--profile=checked";
/// Seconds for which each fuzz target runs.
const FUZZ_SECONDS: u32 = 300;

/// Returns the steps whose names contain one of `words`; all steps if there are no words.
pub(crate) fn chosen(words: &[String]) -> Result<Vec<Step>, String> {
    let mut steps = all();
    let is_named = |step: &Step, word: &String| step.name().to_lowercase().contains(&word.to_lowercase());
    if let Some(word) = words.iter().find(|word| !steps.iter().any(|step| is_named(step, word))) {
        let names: Vec<_> = steps.iter().map(Step::name).collect();
        return Err(format!("no step of `deep` has `{word}` in its name; steps are: {}", names.join("; ")));
    }
    steps.retain(|step| words.is_empty() || words.iter().any(|word| is_named(step, word)));
    Ok(steps)
}

/// Returns the tests under Miri.
fn under_miri() -> Vec<Step> {
    vec![
        Step::new("Miri: unit tests of the core", |root| miri(root, &["-p", "zonal", "--lib"])),
        Step::new("Miri: concurrent tests of the core", |root| {
            miri(root, &["-p", "zonal", "--test=allocator", "--", "invalid_frees::races", "requests::bulk"])
        }),
        Step::new("Miri: unit tests of zonal-linux", |root| {
            miri(root, &[&["-p", "zonal-linux", "--lib", "--"][..], &HOST_ROOMS].concat())
        }),
    ]
}

/// Returns all steps.
fn all() -> Vec<Step> {
    let mut steps = under_miri();
    steps.push(Step::new("malloc with the checks of mimalloc", malloc_with_checks));
    for sanitizer in ["thread", "address"] {
        steps.push(Step::new(format!("{sanitizer} sanitizer: core"), move |root| {
            let unit_tests = sanitize(root, sanitizer, &["test", "-p", "zonal", "--lib"]);
            if unit_tests != Outcome::Passed {
                return unit_tests;
            }
            sanitize(
                root,
                sanitizer,
                &[&["test", "-p", "zonal", "--test=allocator", "--"][..], &THREADED].concat(),
            )
        }));
        steps.push(Step::new(format!("{sanitizer} sanitizer: pools and a short soak"), move |root| {
            sanitize(
                root,
                sanitizer,
                &["test", "-p", "zonal-linux", "-p", "zonal-verify", "--test=pool", "--test=soak"],
            )
        }));
    }
    steps.extend(longer_tests());
    steps.push(Step::new("stress of the core by its own tests, one minute each", stress_of_the_core));
    steps.push(Step::new("stress and random histories, one minute each", |root| {
        let packages = ["-p", "zonal-linux", "-p", "zonal-verify"];
        let tests = ["sequences", "signals", "interrupted_steps", "histories"];
        let tests = tests.map(|test| format!("--test={test}"));
        let tests = tests.each_ref().map(String::as_str);
        further(root, CHECKED, &packages, &tests, ("ZONAL_STRESS_SECONDS", "60"))
    }));
    steps.push(Step::new(
        "table of transitions: tests, histories and a soak of checked builds",
        checked_builds,
    ));
    steps.extend(proof::steps(Path::new(".")));
    steps.push(Step::new("pinned races of pagesets, three minutes each", |root| {
        let test = ["--test=remote_drains"];
        further(root, CHECKED, &["-p", "zonal-linux"], &test, ("ZONAL_STRESS_SECONDS", "180"))
    }));
    steps.push(lift::optimised());
    for target in
        ["operations", "machine_file", "captured_tree", "experiment_file", "trace_file", "c_interface"]
    {
        steps.push(Step::new(format!("fuzz: {target}"), move |root| fuzz(root, target)));
    }
    steps.push(Step::new("coverage of the core", coverage));
    steps.extend(bench_guard::compare(Path::new(".")));
    steps.extend(with_faults());
    steps.push(Step::new(format!("Rust {OLDEST}"), oldest));
    steps.push(Step::new("licences, sources and duplicates", licences));
    steps.extend([Step::new("packages", packages), python::deep()]);
    steps.extend(deb::checks(Path::new(".")));
    steps.extend(deb::deep());
    steps.extend(numa::deep());
    steps.extend(kernel::deep());
    steps.push(deaths());
    steps.extend([histories_with_deaths(), worlds_with_deaths()]);
    steps.push(soak_with_deaths());
    steps.extend(soak(&["--minutes".into(), "60".into()]));
    steps
}

/// Returns the long forms of everyday tests.
fn longer_tests() -> [Step; 5] {
    [
        Step::new("tests of the allocator, with more repetitions", |root| {
            further(root, CHECKED, &["-p", "zonal"], &["--test=allocator"], ("ZONAL_DEEPER", "1"))
        }),
        Step::new("interleavings, 40 times as many", |root| {
            let tests = ["--test=loom_interleavings", "--test=shuttle_interleavings", "--test=wake_ups"];
            further(root, CHECKED, &["-p", "zonal-verify"], &tests, ("ZONAL_INTERLEAVINGS", "40"))
        }),
        Step::new("all programs of the C interface under valgrind", |root| {
            further(root, "--release", &["-p", "zonal-c"], &["--test=programs"], ("ZONAL_DEEPER", "1"))
        }),
        Step::new("experiment of a new user, with its spread", |root| {
            let test = ["test", "--release", "-p", "zonal-cli", "--test=commands"];
            let filter = ["--", "--nocapture", "an_experiment_of_a_new_user"];
            succeeds(cargo(root, test).args(filter).env("ZONAL_DEEPER", "1"))
        }),
        Step::new("histories of small worlds, one operation longer", |root| {
            further(root, CHECKED, &["-p", "zonal-verify"], &["--test=exhaustive"], ("ZONAL_DEEPER", "1"))
        }),
    ]
}

/// Returns the steps that show which faults the tests notice.
fn with_faults() -> Vec<Step> {
    let unread = |problem| vec![Step::new("planted faults", |_| Outcome::Failed(problem))];
    let mut steps = vec![claims::step()];
    steps.extend(planted::steps(Path::new("."), &[]).unwrap_or_else(unread));
    steps.push(Step::new("mutants of the core, a sample", mutants::of_the_core));
    steps.push(Step::new("mutants around the core, a sample", mutants::around_the_core));
    steps
}

/// Returns the step that kills processes of a shared pool at every instruction. The build is one for use, without further checks;
/// the everyday tests have a sample.
fn deaths() -> Step {
    Step::new("deaths of processes at every instruction", |root| {
        let run = ["run", "--release", "-q", "-p", "zonal-verify", "--bin", "deaths"];
        succeeds(&mut cargo(root, run))
    })
}

/// Returns the step that runs random histories in which simulated processes die at any write.
fn histories_with_deaths() -> Step {
    Step::new("histories of processes that die at any write", |root| {
        let run = ["run", CHECKED, "-q", "-p", "zonal-verify", "--bin", "deaths", "--"];
        succeeds(cargo(root, run).args(["--histories", "20000", "--from", "100"]))
    })
}

/// Returns the step in which simulated processes die at each write of their operations; the everyday tests have a sample.
fn worlds_with_deaths() -> Step {
    Step::new("deaths at every write of small worlds", |root| {
        let run = ["run", CHECKED, "-q", "-p", "zonal-verify", "--bin", "deaths", "--", "--worlds"];
        succeeds(&mut cargo(root, run))
    })
}

/// Returns the step that uses a shared pool in processes of which one is killed five times a second.
fn soak_with_deaths() -> Step {
    Step::new("soak of processes that are killed", |root| {
        let run = ["run", CHECKED, "-q", "-p", "zonal-verify", "--bin", "soak", "--"];
        succeeds(cargo(root, run).args(["--processes", "6", "--minutes", "30"]))
    })
}

/// Returns a soak test that takes the given number of minutes.
pub(crate) fn soak(arguments: &[String]) -> Vec<Step> {
    let arguments = arguments.to_vec();
    vec![Step::new("soak", move |root| {
        let run = ["run", CHECKED, "-q", "-p", "zonal-verify", "--bin", "soak", "--"];
        succeeds(cargo(root, run).args(&arguments))
    })]
}

/// Runs tests under Miri. Leaks are ignored, because tests leak metadata on purpose.
fn miri(root: &Path, tests: &[&str]) -> Outcome {
    if !answers(&mut of_toolchain(root, "nightly", &["miri", "--version"])) {
        return Outcome::Skipped(
            "no Miri: rustup toolchain install nightly --component miri,rust-src".into(),
        );
    }
    let mut run = of_toolchain(root, "nightly", &["miri", "test"]);
    run.args(tests).env("CARGO_TARGET_DIR", target_folder(root).join("miri"));
    succeeds(run.env("MIRIFLAGS", "-Zmiri-ignore-leaks -Zmiri-disable-isolation"))
}

/// Runs tests with a variable that makes them run longer.
fn further(
    root: &Path,
    profile: &str,
    packages: &[&str],
    tests: &[&str],
    (variable, value): (&str, &str),
) -> Outcome {
    let run = [&["test", profile][..], packages, tests, &["--", "--nocapture"]].concat();
    succeeds(cargo(root, run).env(variable, value))
}

/// Runs programs with the library that aborts them for invalid frees.
fn malloc_with_checks(root: &Path) -> Outcome {
    let run = ["test", "-p", "zonal-malloc", "--features=secure", "--test=preload", "--"];
    let tests = ["free_twice", "children", "threads", "odd_arguments", "large_blocks"];
    succeeds(cargo(root, run).args(tests))
}

/// Runs tests of the core that use it from several threads.
fn stress_of_the_core(root: &Path) -> Outcome {
    let run = [&["test", CHECKED, "-p", "zonal", "--test=allocator", "--"][..], &STRESS].concat();
    succeeds(cargo(root, run).env("ZONAL_STRESS_SECONDS", "60"))
}

/// Runs tests in builds whose pagesets check at each change that their lock is held.
fn checked_builds(root: &Path) -> Outcome {
    let runs: [&[&str]; 3] = [
        &["test", "-p", "zonal", "--lib", "--test=allocator"],
        &["test", "-p", "zonal-linux", "--test=pool", "--test=sequences", "--test=remote_drains"],
        &["test", "-p", "zonal-verify", "--test=exhaustive", "--test=histories", "--test=soak"],
    ];
    // A folder of its own, so that the flag does not rebuild everything else.
    let folder = target_folder(root).join("transitions");
    let run = |arguments: &&[&str]| {
        let mut tests = cargo(root, arguments.iter().copied());
        succeeds(tests.env("RUSTFLAGS", "--cfg zonal_transitions").env("CARGO_TARGET_DIR", &folder))
    };
    let failed = runs.iter().map(run).find(|outcome| !matches!(outcome, Outcome::Passed));
    failed.unwrap_or(Outcome::Passed)
}

/// Fuzzes a target. The run starts from a copy of the target's corpus.
fn fuzz(root: &Path, target: &str) -> Outcome {
    if !answers(&mut of_toolchain(root, "nightly", &["fuzz", "--version"])) {
        return Outcome::Skipped("no cargo-fuzz: cargo install cargo-fuzz".into());
    }
    let found = target_folder(root).join("fuzz-corpus").join(target);
    if let Err(error) = std::fs::create_dir_all(&found) {
        return Outcome::Failed(format!("{}: {error}", found.display()));
    }
    let kept = root.join("crates/zonal-verify/corpus").join(target);
    let folders = [found, kept].into_iter().filter(|folder| folder.exists());
    let mut run = of_toolchain(root, "nightly", &["fuzz", "run", target]);
    run.args(folders).args(["--", &format!("-max_total_time={FUZZ_SECONDS}")]);
    succeeds(run.current_dir(root.join("fuzz")))
}

/// Prints the lines, regions and functions of the core that its own tests cover.
fn coverage(root: &Path) -> Outcome {
    if !answers(cargo(root, ["llvm-cov", "--version"]).current_dir(root)) {
        return Outcome::Skipped("no cargo-llvm-cov: cargo install cargo-llvm-cov".into());
    }
    let tests = ["-p", "zonal", "--lib", "--tests"];
    let others = r"(zonal-|/tests|_tests|testing|rustlib|registry)";
    succeeds(cargo(root, ["llvm-cov"]).args(tests).args(["--ignore-filename-regex", others]))
}

/// Runs cargo with a sanitizer in all code, including the standard library.
fn sanitize(root: &Path, sanitizer: &str, arguments: &[&str]) -> Outcome {
    if !has_source_of_std(root) {
        return Outcome::Skipped(
            "no source of std: rustup toolchain install nightly --component rust-src".into(),
        );
    }
    let (command, arguments) = arguments.split_first().expect("a command of cargo");
    let mut run = of_toolchain(root, "nightly", &[command]);
    run.args(["-Zbuild-std", "--target", TARGET]).args(arguments);
    run.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    // Leaks are ignored, because tests leak metadata on purpose.
    run.env("ASAN_OPTIONS", "detect_leaks=0").env("TSAN_OPTIONS", "halt_on_error=1");
    succeeds(run.env("CARGO_TARGET_DIR", target_folder(root).join(format!("{sanitizer}-sanitizer"))))
}

fn has_source_of_std(root: &Path) -> bool {
    let mut ask = Command::new("rustup");
    let sysroot = ask.current_dir(root).args(["run", "nightly", "rustc", "--print", "sysroot"]).output();
    let sysroot =
        sysroot.map(|sysroot| String::from_utf8_lossy(&sysroot.stdout).trim().to_owned()).unwrap_or_default();
    !sysroot.is_empty() && Path::new(&sysroot).join("lib/rustlib/src/rust/library/std").is_dir()
}

/// Builds all published packages and their tests with the oldest compiler.
fn oldest(root: &Path) -> Outcome {
    if !answers(&mut of_toolchain(root, OLDEST, &["--version"])) {
        return Outcome::Skipped(format!("no Rust {OLDEST}: rustup toolchain install {OLDEST}"));
    }
    let mut check = of_toolchain(root, OLDEST, &["check", "--workspace", "--all-targets"]);
    succeeds(check.env("CARGO_TARGET_DIR", target_folder(root).join("oldest")))
}

/// Checks dependencies against `deny.toml`. Advisories are not checked, because they need an external database.
fn licences(root: &Path) -> Outcome {
    if !answers(cargo(root, ["deny", "--version"]).current_dir(root)) {
        return Outcome::Skipped("no cargo-deny: cargo install cargo-deny".into());
    }
    succeeds(&mut cargo(root, ["deny", "--log-level", "error", "check", "licenses", "bans", "sources"]))
}

/// Packages all published crates, and builds each of them from its published form.
pub(crate) fn packages(root: &Path) -> Outcome {
    let private = ["--exclude", "xtask", "--exclude", "zonal-verify"];
    succeeds(cargo(root, ["package", "--workspace", "--allow-dirty", "--quiet"]).args(private))
}

/// Returns a call of another toolchain's cargo, in the workspace's root.
fn of_toolchain(root: &Path, toolchain: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", toolchain, "cargo"]).args(arguments);
    command.env(skips::VARIABLE, skips::file(root));
    // Variables that the running cargo has set would override the cargo and rustc of the other toolchain.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Whether a command exists and succeeds.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_every_toolchain_report_what_they_skip() {
        let root = Path::new("/workspace");
        for command in [cargo(root, ["test"]), of_toolchain(root, "nightly", &["miri", "test"])] {
            let mut variables = command.get_envs();
            let file = variables.find(|(name, _)| *name == skips::VARIABLE).and_then(|(_, file)| file);
            assert_eq!(file.map(Path::new), Some(&*skips::file(root)), "{command:?}");
        }
    }
}
