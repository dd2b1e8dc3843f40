//! Every check of the workspace as one command; CI and people call the same one.
//!
//! Vocabulary: a *step* is one check with a name, a time and an outcome; a step whose tools this
//! machine lacks is *skipped*, visibly. Neighbours: `steps.rs` runs them, `plan.rs` lists them,
//! `bare.rs` shows that the core stands without std, `bench_guard.rs` counts instructions, `style.rs`
//! and `arrows.rs` read the sources.

mod arrows;
mod bare;
mod bench_guard;
mod plan;
mod steps;
mod style;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name, what it does, and the steps it runs.
type Command = (&'static str, &'static str, fn(&Path) -> Vec<steps::Step>);

const COMMANDS: [Command; 5] = [
    ("test", "every check: format, lints, style, tests, documentation, the bare core, examples", plan::all),
    ("style", "only the house rules that no compiler checks", plan::style),
    ("bare", "only the proof that the core builds and runs without std and without a heap", plan::bare),
    ("bench-guard", "instructions of a pair against the golden file; takes minutes", bench_guard::compare),
    ("bench-guard --bless", "instructions of a pair into the golden file", bench_guard::bless),
];

fn main() -> ExitCode {
    let wanted = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if matches!(wanted.as_str(), "" | "help" | "--help" | "-h") {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some((_, _, steps)) = COMMANDS.iter().find(|(name, ..)| *name == wanted) else {
        eprintln!("xtask: no command `{wanted}`; there are: {}", COMMANDS.map(|(name, ..)| name).join(", "));
        return ExitCode::from(2);
    };
    let root = workspace_root();
    if steps::run_all(&root, steps(&root)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for (name, does, _) in COMMANDS {
        text.push_str(&format!("  {name:<21}{does}\n"));
    }
    text
}

fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in a folder of the workspace").to_path_buf()
}
