//! Map keys for cases and figures. The keys of two cases are equal exactly when the cases have the same values, in
//! any order.
//!
//! Related files: `experiment/case_values.rs` defines cases. `experiment/figures.rs` and `experiment/collect.rs` look
//! up cases and figures by key.

use std::fmt::Write as _;

use super::case_values::{CaseValue, CaseValues};

/// Returns the key of a case.
pub(crate) fn case_key(case: &CaseValues) -> String {
    let key = |(name, value): &(String, CaseValue)| match value {
        // Zero and negative zero must have the same bits; adding zero turns -0.0 into 0.0.
        CaseValue::Number(number) => format!("{}:{name}#{:x};", name.len(), (number + 0.0).to_bits()),
        CaseValue::Text(text) => format!("{}:{name}{}:{text}", name.len(), text.len()),
    };
    let mut values: Vec<String> = case.iter().map(key).collect();
    values.sort_unstable();
    values.concat()
}

/// A case value that can be an element of a set. A number is represented by its bits.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum ValueKey<'v> {
    Number(u64),
    Text(&'v str),
}

/// Returns the key of a value; equal values have equal keys.
pub(crate) fn value_key(value: &CaseValue) -> ValueKey<'_> {
    match value {
        CaseValue::Number(number) => ValueKey::Number((number + 0.0).to_bits()),
        CaseValue::Text(text) => ValueKey::Text(text),
    }
}

/// Returns the key of a run, which is a case with a variant.
pub(crate) fn run_key(case: &CaseValues, variant: &str) -> String {
    let mut key = case_key(case);
    let _ = write!(key, "/{}:{variant}", variant.len());
    key
}

/// Returns the key of a run's figure.
pub(crate) fn figure_key(case: &CaseValues, variant: &str, metric: &str) -> String {
    run_key(case, variant) + "/" + metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_exactly_when_cases_are() {
        let text = |name: &str, value: &str| (name.to_owned(), CaseValue::Text(value.to_owned()));
        let number = |name: &str, value: f64| (name.to_owned(), CaseValue::Number(value));
        let one = vec![text("part", "a"), number("cpus", 0.0)];
        assert_eq!(case_key(&one), case_key(&vec![number("cpus", -0.0), text("part", "a")]));
        let others = [
            vec![text("part", "a")],
            vec![text("part", "a"), number("cpus", 1.0)],
            vec![text("part", "a"), text("cpus", "0")],
            vec![text("part", "a#0;4:cpus"), number("cpus", 0.0)],
            vec![text("part1", ":a"), number("cpus", 0.0)],
        ];
        for other in others {
            assert_ne!(case_key(&one), case_key(&other));
        }
        assert_ne!(run_key(&one, "a"), run_key(&one, "b"));
        assert_ne!(figure_key(&one, "a", "wall"), figure_key(&one, "a", "sys"));
    }
}
