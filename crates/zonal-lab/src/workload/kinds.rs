//! The kinds of workloads and their keys, with the descriptions in the types.
//!
//! `workload/kinds.json` has them as data, so that the command does not derive them again. A test compares the file with
//! the types. Related files: `experiment/guide.rs` shows the keys to people.

use std::sync::LazyLock;

use serde::Deserialize;

/// A table of an experiment file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Keys {
    /// Kind of the workload, or `hardware`.
    pub name: String,
    /// Description.
    pub about: String,
    /// Its keys, those that must be present first.
    pub keys: Vec<KeyInfo>,
}

/// A key of a table.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct KeyInfo {
    /// Name in files.
    pub name: String,
    /// Type of the value, such as `number`.
    pub value: String,
    /// Description.
    pub about: String,
    /// Whether the key must be present.
    pub required: bool,
}

/// All tables.
#[derive(Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
struct Tables {
    kinds: Vec<Keys>,
    hardware: Keys,
}

static TABLES: LazyLock<Tables> =
    LazyLock::new(|| serde_json::from_str(include_str!("kinds.json")).expect("a test reads the same text"));

/// Returns all kinds of workloads, in the order of [`Workload::KINDS`](super::Workload::KINDS).
#[must_use]
pub fn kinds() -> &'static [Keys] {
    &TABLES.kinds
}

/// Returns the hardware costs.
#[must_use]
pub fn hardware_keys() -> &'static Keys {
    &TABLES.hardware
}

#[cfg(test)]
mod tests;
