//! One executed instruction, and what is wrong with one.

use std::fmt;

use super::machine::Relation;

/// An instruction that was executed.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) text: String,
    pub(super) bytes: u64,
    pub(super) next: Next,
}

/// Where execution continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// At the instruction that follows.
    Follows,
    /// At an address if a relation of the flags holds, and else at the instruction that follows.
    BranchesIf(Relation, u64),
    /// At an address.
    Jumps(u64),
}

/// An instruction that a sequence must not have where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Address of the instruction.
    pub at: u64,
    /// The instruction.
    pub text: String,
    /// What is wrong with the instruction, as the end of a sentence.
    pub what: String,
}

impl Fault {
    /// Returns a fault.
    pub(super) fn new(at: u64, text: &str, what: impl Into<String>) -> Self {
        Self { at, text: text.to_owned(), what: what.into() }
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` at {:#x} {}", self.text, self.at, self.what)
    }
}
