//! `proof --z3 PROGRAM [--cvc5 PYTHON] [--short]` proves what holds always in the table of transitions, and runs the table in
//! small worlds. If anything fails, the program says what and exits with code 1. Related files: `proof/` has the table and the proof.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use zonal_verify::proof::check::{self, ProofError};
use zonal_verify::proof::scenarios;
use zonal_verify::proof::solver::Solver;
use zonal_verify::proof::table::Table;

/// Proves the table of transitions, and runs it in worlds.
#[derive(Parser)]
struct Options {
    /// The solver Z3.
    #[arg(long)]
    z3: PathBuf,
    /// A Python interpreter with the module `cvc5`, for a second answer to every question.
    #[arg(long)]
    cvc5: Option<PathBuf>,
    /// Leaves out the mutants and the worlds.
    #[arg(long)]
    short: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proof: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), ProofError> {
    let table = Table::read()?;
    println!("{} rows, {} invariants", table.rows.len(), table.invariants.len());
    let z3 = Solver::Z3(options.z3.clone());
    for solver in std::iter::once(z3.clone()).chain(options.cvc5.clone().map(Solver::Cvc5)) {
        let begin = Instant::now();
        let proved = check::prove(&table, &solver)?;
        println!("{}: {proved} questions proved in {:.1} s", solver.name(), begin.elapsed().as_secs_f64());
        let (tests, impossible) = check::check_litmus(&solver)?;
        println!("{}: {tests} litmus tests, of which {impossible} cannot end badly", solver.name());
    }
    if options.short {
        return Ok(());
    }
    worlds(&table, "small worlds", &scenarios::small(), true)?;
    print!("the known defect:\n{}", check::find_defect(Some(&z3))?);
    let begin = Instant::now();
    let mutated = check::check_mutants(&table, &z3)?;
    println!(
        "mutants: {} refuted, {} known to be harmless, in {:.1} s",
        mutated.refuted,
        mutated.harmless,
        begin.elapsed().as_secs_f64()
    );
    worlds(&table, "large worlds", &scenarios::large(), false)
}

fn worlds(
    table: &Table,
    name: &str,
    list: &[(String, zonal_verify::proof::worlds::Size)],
    all_rows: bool,
) -> Result<(), ProofError> {
    let begin = Instant::now();
    let found = check::run_worlds(table, list, all_rows)?;
    println!(
        "{} {name}: {} states from {} beginnings, {} steps, in {:.1} s",
        found.worlds,
        found.states,
        found.beginnings,
        found.steps,
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}
