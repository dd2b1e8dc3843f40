//! All checks of the workspace as one command, which CI and developers both use.
//!
//! A *step* is one check with a name, a time and an outcome. A step whose tools are missing on this machine is
//! *skipped*, and the summary lists it. Related files: `steps.rs` runs steps, and `plan.rs` lists them. `style.rs`,
//! `prose.rs`, `arrows.rs`, `folders.rs`, `sync_points.rs` and `inventory.rs` check the sources.
//! `bare.rs` builds the core without std, and `lift.rs` checks the machine code of restartable sequences. `numa/`
//! runs pools on emulated machines with several nodes, and `kernel/` boots the kernel on them. `planted.rs` checks that faults in the core are detected,
//! `claims.rs` that the test of each guarantee fails without it, and `skips.rs` lists the checks that tests skipped. `deep.rs` has the long checks, including `mutants.rs`.
//! `install_c.rs` installs the C library, `deb.rs` builds the Debian package, `versions.rs` compares versions, `proof.rs` proves the table of transitions, `python.rs` checks the Python package, `browser.rs` checks the live page in Chromium, `bench_guard.rs` counts instructions, `quick.rs` is for use between edits, and `release.rs` is for releases.

mod arrows;
mod bare;
mod bench_guard;
mod browser;
mod claims;
mod core_numbers;
mod deb;
mod deep;
mod folders;
mod install_c;
mod inventory;
mod kernel;
mod lift;
mod mutants;
mod numa;
mod opened_files;
mod plan;
mod planted;
mod proof;
mod prose;
mod python;
mod quick;
mod release;
mod skips;
mod source_code;
mod started_threads;
mod steps;
mod style;
mod sync_points;
mod test_calls;
mod versions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The commands that have arguments.
const PLANTED: &str = "planted";
const SOAK: &str = "soak";
const DEEP: &str = "deep";
const NUMA: &str = "numa";
const KERNEL: &str = "kernel";
const INSTALL_C: &str = "install-c";

/// Name, description, and the steps of a command.
type Command = (&'static str, &'static str, fn(&Path) -> Vec<steps::Step>);

const COMMANDS: [Command; 10] = [
    ("quick", "format, house rules, lints and unit tests of changed packages; under a minute", quick::steps),
    ("test", "every check: format, lints, style, tests, documentation, the bare core, examples", plan::all),
    ("style", "only the house rules", plan::style),
    (
        "proof",
        "proves the table of transitions with two solvers, runs it in worlds, and lifts the sequences",
        proof::steps,
    ),
    ("bare", "only the check that the core builds and runs without std and without a heap", plan::bare),
    (
        "bench-guard",
        "compares instructions per pair with the golden file; takes minutes",
        bench_guard::compare,
    ),
    ("bench-guard --bless", "writes instructions per pair to the golden file", bench_guard::bless),
    (
        "release --dry-run",
        "checks before a release: versions, changelog, public interface, packages, instructions per pair",
        release::steps,
    ),
    ("deb", "builds the Debian package of the command, with manual and completions", deb::steps),
    ("deb --check", "only the checks of the package and of all versions", deb::checks),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if matches!(arguments.first().map(String::as_str), None | Some("help" | "--help" | "-h")) {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let root = workspace_root();
    let steps = match steps(&root, &arguments) {
        Ok(steps) => steps,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            return ExitCode::from(2);
        }
    };
    if steps::run_all(&root, steps) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the steps of a command.
fn steps(root: &Path, arguments: &[String]) -> Result<Vec<steps::Step>, String> {
    if let Some((PLANTED, names)) = arguments.split_first().map(|(first, names)| (first.as_str(), names)) {
        return planted::steps(root, names);
    }
    if let Some((SOAK, options)) = arguments.split_first().map(|(first, options)| (first.as_str(), options)) {
        return Ok(deep::soak(options));
    }
    if let Some((DEEP, words)) = arguments.split_first().map(|(first, words)| (first.as_str(), words)) {
        return deep::chosen(words);
    }
    if let Some((NUMA, options)) = arguments.split_first().map(|(first, options)| (first.as_str(), options)) {
        return numa::steps(options);
    }
    if let Some((KERNEL, options)) = arguments.split_first().map(|(first, options)| (first.as_str(), options))
    {
        return kernel::steps(root, options);
    }
    if let Some((INSTALL_C, options)) =
        arguments.split_first().map(|(first, options)| (first.as_str(), options))
    {
        return install_c::steps(options);
    }
    let wanted = arguments.join(" ");
    let Some((_, _, steps)) = COMMANDS.iter().find(|(name, ..)| *name == wanted) else {
        let known = COMMANDS.map(|(name, ..)| name).join(", ");
        return Err(format!(
            "there is no command `{wanted}`; commands are: {known}, {PLANTED}, {SOAK}, {DEEP}, {NUMA}, {KERNEL}, \
             {INSTALL_C}"
        ));
    };
    Ok(steps(root))
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for (name, does, _) in COMMANDS {
        text.push_str(&format!("  {name:<21}{does}\n"));
    }
    let does = "only the check that the stress test detects faults planted in the core: all, or those named";
    text.push_str(&format!("  {:<21}{does}\n", format!("{PLANTED} [NAME...]")));
    let does = "long checks: Miri, sanitizers, fuzzing, mutants and more; takes hours; or only steps with these words";
    text.push_str(&format!("  {:<21}{does}\n", format!("{DEEP} [WORD...]")));
    let does =
        "pools in virtual machines with several nodes; --kernel 6.1|6.12, --short, or --fetch the kernels";
    text.push_str(&format!("  {:<21}{does}\n", format!("{NUMA} [OPTION...]")));
    let does = "drives kernels out of memory and keeps their logs; --kernel, --case WORD, --keep FOLDER";
    text.push_str(&format!("  {:<21}{does}\n", format!("{NUMA} --oom")));
    let does = "boots kernel/ under QEMU: --nodes 1|2|4, --seconds N; --guide; --compare; --size; --faults [NAME...]";
    text.push_str(&format!("  {:<21}{does}\n", format!("{KERNEL} [OPTION...]")));
    let does = "builds the C library, and installs it with header, pkg-config and CMake files";
    text.push_str(&format!("  {:<21}{does}\n", format!("{INSTALL_C} --prefix DIR")));
    let does = "all kinds of load at once on pools and simulated machines, for N minutes";
    text.push_str(&format!("  {:<21}{does}\n", format!("{SOAK} --minutes N")));
    text
}

fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in a folder of the workspace").to_path_buf()
}
