//! Limits on parts of an experiment that are compared with each other.
//!
//! The time for such comparisons grows with the square of a number or the product of two; the limits keep it
//! short and are far above what people write by hand. Neighbours: `experiment/cases.rs` limits runs,
//! `experiment/published.rs` figures.

/// Maximum length of a name, in bytes: of an experiment (which names a folder), a part, a variant, a case or a
/// column.
pub(super) const NAME_BYTES_MAX: usize = 200;
/// Maximum number of parts, variants, parameters, keys of a table, and names in a list.
pub(super) const LIST_MAX: usize = 256;
