//! The result of a check, and the helpers that produce it. Related files: `guest/mod.rs` lists the checks.

/// The result of a check that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Every condition holds. The text has figures to print.
    Holds(String),
    /// The machine lacks a prerequisite of the check, which the text names.
    Skipped(String),
}

/// The result of a check. An error names the condition that does not hold.
pub type Verdict = Result<Found, String>;

/// Fails the check with a formatted text unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err(format!($($why)+));
        }
    };
}
pub(super) use ensure;

/// Returns the text of any error.
pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
