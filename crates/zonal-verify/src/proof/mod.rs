//! The proof: one table of transitions, invariants that a solver proves for any number of CPUs and frames, and worlds in
//! which the table itself runs.
//!
//! `docs/proof.md` says what is proved, and under which assumptions.

pub mod check;
pub mod defect;
pub mod litmus;
mod machine;
pub mod mutants;
pub mod scenarios;
pub mod smt;
pub mod solver;
pub mod table;
pub mod term;
mod unread;
pub mod worlds;
