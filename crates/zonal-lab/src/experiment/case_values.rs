//! The values that distinguish a case from the other cases of its experiment.
//!
//! Related files: `experiment/keys.rs` turns these values into map keys.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// The names and values that distinguish a case from the others, in the order of the file.
pub type CaseValues = Vec<(String, CaseValue)>;

/// A value of a case.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(untagged, expecting = "a case is identified by a number or a name")]
pub enum CaseValue {
    /// A number: CPUs, threads, gigabytes.
    Number(f64),
    /// A name, such as that of a part.
    Text(String),
}

impl CaseValue {
    /// Parses a value from a cell in a table of figures.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.parse() {
            Ok(number) => Self::Number(number),
            Err(_) => Self::Text(text.to_owned()),
        }
    }

    /// Returns the number as an integer if it has no fraction. Most numbers in cases are integers.
    fn whole(&self) -> Option<i64> {
        match self {
            Self::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => Some(*number as i64),
            _ => None,
        }
    }
}

impl fmt::Display for CaseValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for CaseValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.whole(), self) {
            (Some(whole), _) => serializer.serialize_i64(whole),
            (None, Self::Number(number)) => serializer.serialize_f64(*number),
            (None, Self::Text(text)) => serializer.serialize_str(text),
        }
    }
}

/// Formats a case for people: `workload = kbuild, cpus = 4`. The text is empty for a case without values.
#[must_use]
pub fn case_text(case: &CaseValues) -> String {
    let values = case.iter().map(|(name, value)| format!("{name} = {value}"));
    values.collect::<Vec<_>>().join(", ")
}
