//! Values at the edges of what a setting can have, and just beyond.

use std::ops::RangeInclusive;

/// Values of a setting as text, for tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edges {
    /// The lowest and the highest value, or all names.
    pub right: Vec<String>,
    /// Values just outside, and texts that are no value.
    pub wrong: Vec<String>,
}

impl Edges {
    /// Returns a setting's values if it has this range or these names. With neither, it has four numbers, one for each
    /// zone kind.
    #[must_use]
    pub fn of(range: Option<RangeInclusive<u64>>, names: &[&str]) -> Self {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        match range {
            Some(range) => {
                let (low, high) = (i128::from(*range.start()), i128::from(*range.end()));
                Self {
                    right: [low, high].map(|number| number.to_string()).into(),
                    wrong: [low - 1, high + 1].map(|number| number.to_string()).into(),
                }
            }
            None if names.is_empty() => Self {
                right: texts(&["0 0 0 0", "4294967295 1 2 3"]),
                wrong: texts(&["1 2 3", "4294967296 0 0 0", "-1 0 0 0"]),
            },
            None => Self { right: texts(names), wrong: texts(&["no such name"]) },
        }
    }
}
