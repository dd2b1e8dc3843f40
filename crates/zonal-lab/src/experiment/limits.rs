//! How much an experiment may have of everything that is held against everything else of its kind.
//!
//! Such work grows with the square of a number, or with the product of two; the limits keep it short, far
//! above what a person writes. Neighbours: `cases.rs` limits runs, `published.rs` figures.

use super::document::{Document, FileError, Span};

/// Longest name, in bytes: of an experiment, which names a folder, a part, a variant, a case or a column.
pub(super) const NAME_BYTES_MAX: usize = 200;
/// Most parts, variants or parameters, keys of a table, and names in a list.
pub(super) const LIST_MAX: usize = 256;

/// Refuses a name that is too long.
pub(super) fn check_name(
    document: Document<'_>,
    field: &str,
    name: &str,
    span: Span,
) -> Result<(), FileError> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let problem = format!("{field} has {} bytes; at most {NAME_BYTES_MAX} can be", name.len());
    Err(document.error(span, problem))
}

/// Refuses too many of what stands in `field`.
pub(super) fn check_count(
    document: Document<'_>,
    field: &str,
    count: usize,
    most: usize,
    span: Span,
) -> Result<(), FileError> {
    if count <= most {
        return Ok(());
    }
    Err(document.error(span, format!("`{field}` has {count} entries; at most {most} can be")))
}
