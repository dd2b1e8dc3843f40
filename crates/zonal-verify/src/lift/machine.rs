//! A processor that computes with expressions and records what a sequence does to memory.
//!
//! Related files: `x86_64.rs` and `aarch64.rs` execute instructions on it, and `matching.rs` compares the record with
//! the contract.

use std::collections::BTreeMap;
use std::fmt;

use super::expression::{Atom, Expression};

/// A step of a sequence that the contract is about.
#[derive(Clone, Debug)]
pub struct Event {
    /// Address of the instruction.
    pub at: u64,
    /// The instruction.
    pub text: String,
    /// What the instruction does.
    pub action: Action,
}

/// What an instruction does besides computing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Loads from memory.
    Load {
        /// Whether the load is ordered before all later accesses.
        is_acquire: bool,
        /// Width in bytes.
        bytes: u32,
        /// Address of the first byte.
        address: Expression,
        /// The expression that stands for the value.
        value: Expression,
    },
    /// Stores to memory.
    Store {
        /// Width in bytes.
        bytes: u32,
        /// Address of the first byte.
        address: Expression,
        /// The value stored.
        value: Expression,
    },
    /// Branches to the abort if the condition holds.
    AbortIf(Condition),
}

/// How the two sides of a condition compare. The values are without a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `>`
    Above,
    /// `<=`
    AtMost,
}

/// A condition of a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The left side.
    pub left: Expression,
    /// How the sides compare.
    pub relation: Relation,
    /// The right side.
    pub right: Expression,
}

impl Condition {
    /// Returns a condition. The sides of a relation without order are sorted, so that equal conditions compare equal.
    #[must_use]
    pub fn new(left: Expression, relation: Relation, right: Expression) -> Self {
        let has_order = !matches!(relation, Relation::Equal | Relation::NotEqual);
        let (left, right) = if has_order || left >= right { (left, right) } else { (right, left) };
        Self { left, relation, right }
    }
}

/// What the flags of the processor describe.
#[derive(Clone, Default, Debug)]
enum Flags {
    /// Nothing that a branch may use.
    #[default]
    Unknown,
    /// The comparison of two values.
    Comparison(Expression, Expression),
    /// Whether a value is zero.
    Zero(Expression),
}

/// A change of a register.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) register: &'static str,
    pub(super) value: Expression,
}

/// The state of the processor, and what it did.
#[derive(Default, Debug)]
pub(super) struct Machine {
    registers: BTreeMap<&'static str, Expression>,
    flags: Flags,
    loads: usize,
    pub(super) actions: Vec<Action>,
    pub(super) writes: Vec<Write>,
}

impl Machine {
    pub(super) fn register(&self, name: &'static str) -> Expression {
        self.registers.get(name).cloned().unwrap_or_else(|| Expression::of(Atom::Register(name)))
    }

    pub(super) fn set_register(&mut self, register: &'static str, value: Expression) {
        self.writes.push(Write { register, value: value.clone() });
        self.registers.insert(register, value);
    }

    pub(super) fn load(&mut self, bytes: u32, address: Expression, is_acquire: bool) -> Expression {
        self.loads += 1;
        let value = Expression::of(Atom::Load { number: self.loads, bytes });
        self.actions.push(Action::Load { is_acquire, bytes, address, value: value.clone() });
        value
    }

    pub(super) fn store(&mut self, bytes: u32, address: Expression, value: Expression) {
        self.actions.push(Action::Store { bytes, address, value });
    }

    pub(super) fn set_flags_unknown(&mut self) {
        self.flags = Flags::Unknown;
    }

    pub(super) fn compare(&mut self, left: Expression, right: Expression) {
        self.flags = Flags::Comparison(left, right);
    }

    pub(super) fn test(&mut self, value: Expression) {
        self.flags = Flags::Zero(value);
    }

    /// Records a branch to the abort.
    pub(super) fn abort_if(&mut self, relation: Relation) -> Result<(), String> {
        let condition = match (&self.flags, relation) {
            (Flags::Comparison(left, right), _) => Condition::new(left.clone(), relation, right.clone()),
            (Flags::Zero(value), Relation::Equal | Relation::NotEqual) => {
                Condition::new(value.clone(), relation, Expression::constant(0))
            }
            (flags, _) => return Err(format!("branches on {relation:?} after flags of {flags:?}")),
        };
        self.actions.push(Action::AbortIf(condition));
        Ok(())
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::AtLeast => ">=",
            Self::Below => "<",
            Self::Above => ">",
            Self::AtMost => "<=",
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.relation, self.right)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { is_acquire, bytes, address, value } => {
                let way = if *is_acquire { "load with acquire" } else { "plain load" };
                write!(f, "{value} = {way} of {bytes} bytes at {address}")
            }
            Self::Store { bytes, address, value } => {
                write!(f, "store of {value} to {bytes} bytes at {address}")
            }
            Self::AbortIf(condition) => write!(f, "abort if {condition}"),
        }
    }
}
