//! The steps of each command, ordered so that mistakes are found as early as possible.
//!
//! After the dependencies are downloaded, all steps run offline. They need no tools except the Rust toolchain and its
//! linker. Related files: `steps.rs` runs these steps.

use std::path::Path;
use std::process::Command;

use crate::steps::{Outcome, Step, build_all, cargo, outcome, passes, succeeds, target_folder};
use crate::{
    arrows, bare, browser, claims, core_numbers, folders, install_c, inventory, kernel, lift, numa, planted,
    proof, prose, python, style, sync_points, versions,
};

/// The environment variable that names the folder where tests and examples find libraries for programs of other languages
/// (`zonal-testing`).
const BUILT_FOLDER: &str = "ZONAL_BUILT_FOLDER";

/// The features are those of the documentation, so that dependencies are checked once.
const LINTS: [&str; 8] =
    ["clippy", "--workspace", "--all-targets", "--features", "zonal-adapters/all", "--", "-D", "warnings"];

/// Returns all everyday steps.
pub(crate) fn all(root: &Path) -> Vec<Step> {
    let mut steps = vec![Step::new("format", format), Step::new("lints", lints)];
    steps.extend(style(root));
    steps.push(Step::new("tests", tests));
    steps.push(lift::every_day());
    steps.push(proof::every_day());
    steps.push(numa::every_day());
    steps.push(kernel::every_day());
    steps.push(install_c::every_day());
    steps.push(Step::new("versions agree", |root| versions::agree(root, None)));
    steps.push(python::every_day());
    steps.push(browser::every_day());
    steps.push(Step::new("documentation", documentation));
    steps.extend(bare(root));
    steps.extend(examples(root));
    steps
}

/// Returns the style checks.
pub(crate) fn style(_root: &Path) -> Vec<Step> {
    vec![
        Step::new("house rules", |root| report(style::violations(root))),
        Step::new("arrows between crates", |root| report(arrows::violations(root))),
        Step::new("arrows between folders", |root| report(folders::violations(root))),
        Step::new("inventory of unsafe code", |root| report(inventory::violations(root))),
        Step::new("claims and their mutants", |root| report(claims::violations(root))),
        Step::new("places of planted faults", |root| report(planted::violations(root))),
        Step::new("sync points", |root| report(sync_points::violations(root))),
        Step::new("writes to atomics", |root| report(sync_points::writes::violations(root))),
        Step::new("numbers of the core", |root| report(core_numbers::differences(root))),
        Step::new("words and summaries", |root| report(prose::violations(root))),
        Step::new("chains of \"of\"", |root| report(prose::chains(root))),
        prose::subjects(),
    ]
}

/// Returns the checks of the core without std.
pub(crate) fn bare(_root: &Path) -> Vec<Step> {
    vec![
        Step::new("core without std: build, symbols, run", bare::proves_itself),
        kernel::size::step(false),
        Step::new(format!("core for {}", bare::KERNEL_TARGET), bare::builds_for_a_kernel),
    ]
}

fn format(root: &Path) -> Outcome {
    let own = |manifest| succeeds(cargo(root, ["fmt", "--check", "--manifest-path"]).arg(manifest));
    both(
        || succeeds(&mut cargo(root, ["fmt", "--all", "--check"])),
        || both(|| own(bare::MANIFEST), || own(kernel::MANIFEST)),
    )
}

fn lints(root: &Path) -> Outcome {
    both(
        || succeeds(&mut cargo(root, LINTS)),
        || {
            both(
                || succeeds(&mut bare::cargo(root, ["clippy"], &["--", "-D", "warnings"])),
                || kernel::lints(root),
            )
        },
    )
}

fn tests(root: &Path) -> Outcome {
    let folder = target_folder(root).join("debug");
    let run = |()| passes(cargo(root, ["test", "--workspace"]).env(BUILT_FOLDER, folder));
    outcome(build_all(root).and_then(run))
}

pub(crate) fn documentation(root: &Path) -> Outcome {
    let mut command = cargo(root, ["doc", "--no-deps", "--workspace", "--features", "zonal-adapters/all"]);
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Returns one step for each example, which is a file in an `examples` folder or a folder there with a `main.rs`.
///
/// Each example runs with `--short`, which makes it do the same work on less data.
fn examples(root: &Path) -> Vec<Step> {
    let mut found = Vec::new();
    for file in style::sources(root) {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let (["crates", package, "examples", example] | ["crates", package, "examples", example, "main.rs"]) =
            parts[..]
        else {
            continue;
        };
        let example = example.trim_end_matches(".rs").to_owned();
        found.push(Step::new(format!("example {package}/{example}"), move |root| {
            let folder = target_folder(root).join("debug");
            let mut call = Command::new(folder.join("examples").join(&example));
            call.arg("--short").current_dir(root).env(BUILT_FOLDER, folder);
            let run = |()| passes(&mut call);
            outcome(build_all(root).and_then(run))
        }));
    }
    found
}

fn both(first: impl FnOnce() -> Outcome, second: impl FnOnce() -> Outcome) -> Outcome {
    match (first(), second()) {
        (Outcome::Passed, other) => other,
        (failed, _) => failed,
    }
}

pub(crate) fn report(violations: Vec<String>) -> Outcome {
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} found, listed above")),
    }
}
