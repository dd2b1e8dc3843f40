//! How much an experiment may have of everything that is held against everything else of its kind.
//!
//! Such work grows with the square of a number, or with the product of two; the limits keep it short, far
//! above what a person writes. Neighbours: `cases.rs` limits runs, `published.rs` figures.

/// Longest name, in bytes: of an experiment, which names a folder, a part, a variant, a case or a column.
pub(super) const NAME_BYTES_MAX: usize = 200;
/// Most parts, variants or parameters, keys of a table, and names in a list.
pub(super) const LIST_MAX: usize = 256;
