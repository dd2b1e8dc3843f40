//! Self-contained experiments: the text of an experiment and all files that it names.
//!
//! Related files: `experiment/gather.rs` reads the texts, and `experiment/source.rs` returns them in place of files.

use std::collections::BTreeMap;

/// An experiment without references to the file system, so that it can run on another machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Texts {
    /// Name of the experiment file for use in errors.
    pub name: String,
    /// Text of the experiment.
    pub text: String,
    /// Texts of the machine files and the figure table, by the names that the experiment uses for them.
    pub files: BTreeMap<String, String>,
}
