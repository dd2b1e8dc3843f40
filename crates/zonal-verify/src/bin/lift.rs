//! `lift PATH...` checks the restartable sequences of programs, libraries and objects against the contract, and prints
//! what they do. The exit code is 1 if a sequence breaks the contract, or if a file has none of some kind.
//!
//! Related files: `lift/` has the check.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use zonal_verify::lift::{Counts, Error, Lifted, sequences};

/// Checks the machine code of restartable sequences, for x86-64 and aarch64.
#[derive(Parser)]
struct Options {
    /// Programs, libraries, objects or archives of objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print only the numbers of sequences, and the sequences that break the contract
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let Options { paths, quiet } = Options::parse();
    let mut holds = true;
    for path in &paths {
        match check(path, quiet) {
            Ok(holds_here) => holds &= holds_here,
            Err(error) => {
                println!("{error}");
                holds = false;
            }
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the sequences of a file. Returns whether there are all kinds, and none that breaks the contract.
fn check(path: &Path, quiet: bool) -> Result<bool, Error> {
    let (mut counts, mut broken) = (Counts::default(), 0);
    for sequence in sequences(path)? {
        let lifted = sequence.lift();
        let kind = lifted.as_ref().map_err(Clone::clone).and_then(Lifted::kind);
        if !quiet || kind.is_err() {
            println!("{:#x} in {}:", sequence.start(), sequence.function());
            for event in lifted.iter().flat_map(Lifted::events) {
                println!("  {:#x}  {:<36}  {}", event.at, event.text, event.action);
            }
        }
        match kind {
            Ok(kind) => {
                counts.add(kind);
                if !quiet {
                    println!("  {kind}");
                }
            }
            Err(fault) => {
                println!("  {fault}");
                broken += 1;
            }
        }
    }
    println!("{}: {counts}, broken: {broken}", path.display());
    Ok(broken == 0 && counts.has_all_kinds())
}
