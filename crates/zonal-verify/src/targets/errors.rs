//! The form that the errors of all targets must have.

/// Checks that an error's text is one line that starts with the name of the faulty input.
pub(super) fn check_error(error: &dyn std::error::Error, origin: &str) {
    let text = error.to_string();
    assert!(text.starts_with(origin), "{text:?} does not name {origin}");
    assert!(!text.contains(['\n', '\r']), "{text:?} is more than a line");
}
