//! The result of a check, and how checks make it. Neighbours: `guest/mod.rs` lists the checks.

/// What a check found, unless something does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Everything holds; figures that are worth printing.
    Holds(String),
    /// This machine lacks what the check needs.
    Skipped(String),
}

/// The result of a check; an error says what does not hold.
pub type Verdict = Result<Found, String>;

/// Fails the check unless a condition holds.
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
