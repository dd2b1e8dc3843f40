//! Lifts the machine code of restartable sequences from object files, and compares it with the contract.
//!
//! The model checkers explore the lists of accesses next to `Head`, and a pool runs instructions. This module closes
//! the gap: it finds each inlined copy of a sequence in a program, a library or an object for x86-64 or aarch64,
//! executes its instructions with expressions instead of numbers, and requires the accesses, conditions and stored
//! values that the lists define. An instruction that is not known is an error.
//!
//! `elf.rs` reads files, `sequence.rs` finds sequences and executes them with `x86_64.rs` or `aarch64.rs`, and
//! `matching.rs` compares the result with `contract.rs`. The program `lift` prints what was found.

mod aarch64;
mod area;
mod contract;
mod elf;
mod expression;
mod machine;
mod matching;
mod results;
mod sequence;
mod step;
mod x86_64;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use contract::Kind;
pub use expression::{Atom, Expression};
pub use machine::{Action, Condition, Event, Relation};
pub use sequence::{Lifted, Sequence};
pub use step::Fault;

/// Numbers of sequences, by kind.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts(BTreeMap<Kind, usize>);

/// A file that cannot be read, or that contains a sequence that breaks the contract.
#[derive(Debug, Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// The file is not an ELF file or an archive, or is damaged.
    #[error("{}: {why}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: object::Error,
    },
    /// The descriptors of the file are damaged.
    #[error("{}: {fault}", path.display())]
    Descriptors {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        fault: Fault,
    },
    /// A sequence breaks the contract.
    #[error("{}: the sequence at {start:#x} in {function}: {fault}", path.display())]
    Sequence {
        /// Path of the file.
        path: PathBuf,
        /// Address of the sequence.
        start: u64,
        /// Symbol of the function that contains the sequence.
        function: String,
        /// The first difference from the contract.
        fault: Fault,
    },
}

/// Returns the sequences in a program, library, object or archive. Files without sequences have none.
///
/// # Errors
/// The file cannot be read, or has damaged descriptors.
pub fn sequences(path: &Path) -> Result<Vec<Sequence>, Error> {
    let path_of_error = || path.to_owned();
    let data = std::fs::read(path).map_err(|why| Error::Read { path: path_of_error(), why })?;
    let images = elf::images(&data).map_err(|why| Error::Format { path: path_of_error(), why })?;
    sequence::sequences(images).map_err(|fault| Error::Descriptors { path: path_of_error(), fault })
}

/// Checks each sequence in a file against the contract, and counts the kinds.
///
/// # Errors
/// The first sequence that breaks the contract; or the file cannot be read.
pub fn check(path: &Path) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for sequence in sequences(path)? {
        let kind = sequence.lift().and_then(|lifted| lifted.kind());
        counts.add(kind.map_err(|fault| Error::Sequence {
            path: path.to_owned(),
            start: sequence.start(),
            function: sequence.function().to_owned(),
            fault,
        })?);
    }
    Ok(counts)
}

impl Counts {
    /// Counts a sequence.
    pub fn add(&mut self, kind: Kind) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// Returns how many sequences have this kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> usize {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// Whether there is a sequence of each kind.
    #[must_use]
    pub fn has_all_kinds(&self) -> bool {
        Kind::ALL.iter().all(|&kind| self.of(kind) > 0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = Kind::ALL.map(|kind| format!("{kind}: {}", self.of(kind)));
        f.write_str(&counts.join(", "))
    }
}
