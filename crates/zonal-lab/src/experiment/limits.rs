//! Limits on the number and length of an experiment's elements that are compared with each other.
//!
//! The time for these comparisons grows with a number's square or with a product. The limits keep this time short and
//! are far above the size of any experiment written by hand. Related files: `experiment/cases.rs` limits the number of
//! runs, `experiment/published.rs` the number of figures.

/// Maximum length of a name (experiment, part, variant, case or column), in bytes. An experiment's name is also the name
/// of a folder.
pub(super) const NAME_BYTES_MAX: usize = 200;
/// Maximum number of parts, of variants, of parameters, of keys in a table, and of names in a list.
pub(super) const LIST_MAX: usize = 256;
/// Maximum number of programs that run at the same time.
pub(super) const PROGRAMS_MAX: usize = 64;
