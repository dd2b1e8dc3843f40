//! What errors of all targets must be like.

/// Checks the text of an error: one line, with the name of what is wrong at its start.
pub(super) fn check_error(error: &dyn std::error::Error, origin: &str) {
    let text = error.to_string();
    assert!(text.starts_with(origin), "{text:?} does not name {origin}");
    assert!(!text.contains(['\n', '\r']), "{text:?} is more than a line");
}
