//! Mutants of the table: each leaves out one condition or one effect of a row, and the proof of that row must then fail.
//!
//! A mutant that the proof does not notice survives. `survivors.txt` has the known ones with a reason each, so that a new one is noticed.

use crate::proof::table::{Row, Table};
use crate::proof::term::Term;

/// The known survivors, and why the proof holds without what they leave out.
const SURVIVORS: &str = include_str!("survivors.txt");

/// A row with something left out.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The row's name, and what is left out.
    pub name: String,
    /// The row without it.
    pub row: Row,
}

/// Returns all mutants of the table.
pub fn mutants(table: &Table) -> Vec<Mutant> {
    table.rows.iter().flat_map(of_row).collect()
}

/// Returns the known survivors with reasons.
///
/// # Errors
/// Returns a line that has no reason.
pub fn survivors() -> Result<Vec<(&'static str, &'static str)>, String> {
    let lines = SURVIVORS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(": ").ok_or_else(|| format!("`{line}` gives no reason"))).collect()
}

fn of_row(row: &Row) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for at in (0..row.when.len()).filter(|&at| row.when[at] != Term::truth()) {
        let mut changed = row.clone();
        let left_out = changed.when.remove(at);
        mutants.push(Mutant { name: format!("{} without `{left_out}`", row.name), row: changed });
    }
    for at in 0..row.every.len() {
        let mut changed = row.clone();
        let left_out = changed.every.remove(at);
        mutants.push(Mutant { name: format!("{} without every {}", row.name, left_out.name), row: changed });
    }
    for at in 0..row.writes.len() {
        let mut changed = row.clone();
        let left_out = changed.writes.remove(at);
        let name = format!("{} without {} := {}", row.name, left_out.variable, left_out.value);
        mutants.push(Mutant { name, row: changed });
    }
    mutants
}
