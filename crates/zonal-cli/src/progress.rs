//! How far long work is, as a live line on a terminal's standard error; elsewhere nothing is shown.

use indicatif::{ProgressBar, ProgressStyle};

/// A line of `length` steps, drawn on standard error if that is a terminal.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("constant templates are lawful");
    ProgressBar::new(length).with_style(style)
}
