//! All parts of the proof, as one run with a report.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use thiserror::Error;

use crate::proof::defect;
use crate::proof::litmus;
use crate::proof::mutants::{mutants, survivors};
use crate::proof::scenarios;
use crate::proof::smt::{self, Question, Script};
use crate::proof::solver::{Answer, Solver, SolverError};
use crate::proof::table::{Table, TableError};
use crate::proof::worlds::{self, Size, TooLarge};

/// A proof that fails.
#[derive(Debug, Error)]
pub enum ProofError {
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A solver does not answer.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// A world is too large.
    #[error("world \"{name}\": {source}")]
    World {
        /// The world.
        name: String,
        /// Its limit.
        source: TooLarge,
    },
    /// Something does not hold: the text says what.
    #[error("{0}")]
    Wrong(String),
}

/// Asks a solver all questions of the table; returns their number.
///
/// # Errors
/// Returns an error that names each row and invariant that is not proved.
pub fn prove(table: &Table, solver: &Solver) -> Result<usize, ProofError> {
    let scripts = scripts(table);
    let answers = in_parallel(&scripts, |script| solver.ask(script))?;
    let questions = scripts.iter().flat_map(|script| &script.questions);
    let open: Vec<_> =
        questions.zip(answers.iter().flatten()).filter(|(_, answer)| **answer != Answer::Proved).collect();
    if open.is_empty() {
        return Ok(answers.iter().map(Vec::len).sum());
    }
    let line = |(question, answer): &(&Question, &Answer)| {
        let row = question.row.as_deref().unwrap_or("the initial states");
        format!("{}: {row} does not preserve {}: {answer:?}", solver.name(), question.invariant)
    };
    Err(ProofError::Wrong(open.iter().map(line).collect::<Vec<_>>().join("\n")))
}

/// Asks a solver whether each litmus test's bad outcome is possible; returns the number of tests and how many are impossible.
///
/// # Errors
/// Returns an error that names the test with another answer than expected.
pub fn check_litmus(solver: &Solver) -> Result<(usize, usize), ProofError> {
    let scripts = litmus::scripts();
    let answers = in_parallel(&scripts, |(_, text, _)| solver.run(text))?;
    for ((name, _, impossible), answer) in scripts.iter().zip(answers) {
        let expected = if *impossible { "unsat" } else { "sat" };
        if answer.trim() != expected {
            let answer = answer.trim();
            return Err(ProofError::Wrong(format!(
                "{}: {name}: {answer} instead of {expected}",
                solver.name()
            )));
        }
    }
    Ok((scripts.len(), scripts.iter().filter(|(.., impossible)| *impossible).count()))
}

/// What the mutants of the table showed.
#[derive(Clone, Copy, Debug)]
pub struct Mutated {
    /// Mutants whose proof fails.
    pub refuted: usize,
    /// Mutants that are known to be harmless.
    pub harmless: usize,
}

/// Checks that the proof fails for each mutant of the table that is not known to be harmless, and that each invariant fails
/// for one.
///
/// # Errors
/// Returns an error that names what no mutant shows.
pub fn check_mutants(table: &Table, solver: &Solver) -> Result<Mutated, ProofError> {
    let known = survivors().map_err(ProofError::Wrong)?;
    let mutants = mutants(table);
    let refutes = |mutant: &crate::proof::mutants::Mutant| {
        let script = smt::preserved(table, &mutant.row);
        let answers = if script.questions.is_empty() { Vec::new() } else { solver.ask(&script)? };
        let refuted = script.questions.iter().zip(answers).filter(|(_, answer)| *answer == Answer::Refuted);
        Ok::<Vec<_>, SolverError>(refuted.map(|(question, _)| question.invariant.clone()).collect())
    };
    let refuted = in_parallel(&mutants, refutes)?;
    let mut problems = String::new();
    let is_known = |name: &str| known.iter().any(|(survivor, _)| *survivor == name);
    for (mutant, _) in
        mutants.iter().zip(&refuted).filter(|(mutant, by)| by.is_empty() && !is_known(&mutant.name))
    {
        writeln!(problems, "the proof does not notice {}", mutant.name).expect("writing to a string works");
    }
    let survives = |pattern: &str| {
        mutants.iter().zip(&refuted).any(|(mutant, by)| by.is_empty() && mutant.name == pattern)
    };
    for (pattern, _) in known.iter().filter(|(pattern, _)| !survives(pattern)) {
        writeln!(problems, "survivors.txt: no mutant `{pattern}` survives")
            .expect("writing to a string works");
    }
    let broken: BTreeSet<_> = refuted.iter().flatten().collect();
    for invariant in table.invariants.iter().filter(|it| !broken.contains(&it.name)) {
        writeln!(problems, "no mutant breaks the invariant {}", invariant.name)
            .expect("writing to a string works");
    }
    if !problems.is_empty() {
        return Err(ProofError::Wrong(problems));
    }
    let harmless = refuted.iter().filter(|by| by.is_empty()).count();
    Ok(Mutated { refuted: mutants.len() - harmless, harmless })
}

/// Returns the shortest run of the known defect, and the rows at which its proof fails if there is a solver.
///
/// # Errors
/// Returns an error if the defect is not found.
pub fn find_defect(solver: Option<&Solver>) -> Result<String, ProofError> {
    let table = defect::never_used_and_put_back()?;
    let mut report = String::new();
    if let Some(solver) = solver {
        let Err(ProofError::Wrong(why)) = prove(&table, solver) else {
            return Err(ProofError::Wrong("the proof does not notice the known defect".to_owned()));
        };
        writeln!(report, "{why}").expect("writing to a string works");
    }
    for (name, size) in scenarios::small() {
        if let Some(broken) = explore(&table, &name, &size)?.broken {
            writeln!(report, "{name}: {} after", broken.invariant).expect("writing to a string works");
            report.extend(broken.run.iter().map(|step| format!("  {step}\n")));
            return Ok(report);
        }
    }
    Err(ProofError::Wrong("no world shows the known defect".to_owned()))
}

/// What worlds found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worlds {
    /// Number of worlds.
    pub worlds: usize,
    /// States from which they began.
    pub beginnings: usize,
    /// States that they reached.
    pub states: usize,
    /// Steps that they took, also to states that were known.
    pub steps: usize,
}

/// Runs the table in worlds.
///
/// # Errors
/// Returns the shortest run that breaks an invariant, or the rows that no world takes if `all_rows`.
pub fn run_worlds(table: &Table, list: &[(String, Size)], all_rows: bool) -> Result<Worlds, ProofError> {
    let mut worlds = Worlds::default();
    let mut taken = BTreeSet::new();
    let explored = in_parallel(list, |(name, size)| {
        let mut explored = explore(table, name, size)?;
        let Some(broken) = explored.broken.take() else { return Ok(explored) };
        let run = broken.run.join("\n  ");
        Err(ProofError::Wrong(format!("world \"{name}\" breaks {}:\n  {run}", broken.invariant)))
    })?;
    for explored in &explored {
        worlds.worlds += 1;
        worlds.beginnings += explored.beginnings;
        worlds.states += explored.states;
        worlds.steps += explored.steps;
        taken.extend(&explored.taken);
    }
    let missed: Vec<_> =
        table.rows.iter().filter(|row| !taken.contains(&row.name)).map(|row| &row.name).collect();
    if all_rows && !missed.is_empty() {
        return Err(ProofError::Wrong(format!("no world takes the rows {missed:?}")));
    }
    Ok(worlds)
}

fn explore(table: &Table, name: &str, size: &Size) -> Result<worlds::Explored, ProofError> {
    worlds::explore(table, size).map_err(|source| ProofError::World { name: name.to_owned(), source })
}

fn scripts(table: &Table) -> Vec<Script> {
    let rows = table.rows.iter().map(|row| smt::preserved(table, row));
    let all = std::iter::once(smt::initial(table)).chain(rows);
    all.filter(|script| !script.questions.is_empty()).collect()
}

/// Calls `work` for all items, on all processors, and returns the results in the order of the items, or the first error
/// in that order. No work begins after an error.
fn in_parallel<T: Sync, R: Send, E: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let at = next.fetch_add(1, Relaxed); // relaxed: the number is all that matters
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            if result.is_err() {
                next.store(items.len(), Relaxed); // relaxed: items before this one have begun
            }
            done.lock().expect("no worker panics while it holds the lock").push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().expect("all workers have ended");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
