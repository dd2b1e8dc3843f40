//! The solvers that answer the proof's questions: Z3, and cvc5 for a second answer.
//!
//! Both come as Python packages. Z3's has a program, which reads a script from standard input. That of cvc5 is a library, for
//! which `cvc5.py` does the same.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use thiserror::Error;

use crate::proof::smt::Script;

/// Runs a script with the library of cvc5.
const CVC5: &str = include_str!("cvc5.py");

/// A solver that is installed.
#[derive(Clone, Debug)]
pub enum Solver {
    /// The program `z3`.
    Z3(PathBuf),
    /// A Python interpreter with the module `cvc5`.
    Cvc5(PathBuf),
}

/// The answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// No state refutes the invariant.
    Proved,
    /// A state refutes the invariant.
    Refuted,
    /// The solver gave up.
    Unknown,
}

/// A solver that did not answer.
#[derive(Debug, Error)]
pub enum SolverError {
    /// The solver did not run.
    #[error("{solver} did not run: {source}")]
    Run {
        /// The solver.
        solver: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The solver did not answer every question.
    #[error("{solver} refused the script of {row}: {what}")]
    Refused {
        /// The solver.
        solver: &'static str,
        /// The row whose script it was.
        row: String,
        /// What the solver printed.
        what: String,
    },
}

impl Solver {
    /// Returns the solver's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Z3(_) => "Z3",
            Self::Cvc5(_) => "cvc5",
        }
    }

    /// Returns the answers to a script's questions.
    ///
    /// # Errors
    /// Returns an error if the solver does not run or does not answer every question.
    pub fn ask(&self, script: &Script) -> Result<Vec<Answer>, SolverError> {
        let text = self.run(&script.text)?;
        let answers: Vec<_> = text.lines().filter_map(answer).collect();
        if answers.len() == script.questions.len() {
            return Ok(answers);
        }
        let row = script.questions.first().and_then(|question| question.row.clone());
        let what =
            text.lines().find(|line| answer(line).is_none()).unwrap_or("answers are missing").to_owned();
        Err(SolverError::Refused { solver: self.name(), row: row.unwrap_or_else(|| "init".to_owned()), what })
    }

    /// Runs a script and returns what the solver prints.
    ///
    /// # Errors
    /// Returns an error if the solver does not run.
    pub fn run(&self, script: &str) -> Result<String, SolverError> {
        let mut command = match self {
            Self::Z3(program) => {
                let mut command = Command::new(program);
                command.arg("-in");
                command
            }
            Self::Cvc5(python) => {
                let mut command = Command::new(python);
                command.args(["-c", CVC5]);
                command
            }
        };
        let failed = |source| SolverError::Run { solver: self.name(), source };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut input = child.stdin.take().expect("it is piped");
        let output = std::thread::scope(|scope| {
            // The solver prints while it reads, so that neither may wait for the other.
            let writer = scope.spawn(move || input.write_all(script.as_bytes()));
            let output = child.wait_with_output();
            // A solver that ends early has said why.
            let _ = writer.join();
            output
        });
        Ok(String::from_utf8_lossy(&output.map_err(failed)?.stdout).into_owned())
    }
}

fn answer(line: &str) -> Option<Answer> {
    match line.trim() {
        "unsat" => Some(Answer::Proved),
        "sat" => Some(Answer::Refuted),
        "unknown" | "timeout" => Some(Answer::Unknown),
        _ => None,
    }
}
