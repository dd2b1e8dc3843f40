//! Limits on the number and length of the elements of an experiment that are compared with each other.
//!
//! The time for these comparisons grows with the square of a number or with the product of two numbers. The limits
//! keep this time short and are far above the size of any experiment written by hand. Related files:
//! `experiment/cases.rs` limits the number of runs, `experiment/published.rs` the number of figures.

/// Maximum length of the name of an experiment, part, variant, case or column, in bytes. The name of an experiment is
/// also the name of a folder.
pub(super) const NAME_BYTES_MAX: usize = 200;
/// Maximum number of parts, of variants, of parameters, of keys in a table, and of names in a list.
pub(super) const LIST_MAX: usize = 256;
