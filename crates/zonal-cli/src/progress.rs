//! Shows the progress of long work as a live line on standard error if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar of `length` steps, which is drawn only if standard error is a terminal.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("constant templates are valid");
    ProgressBar::new(length).with_style(style)
}
