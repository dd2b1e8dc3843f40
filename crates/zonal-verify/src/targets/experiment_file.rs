//! Fuzz target: bytes are the file of an experiment and, after the first zero byte, a table of figures.
//!
//! The file must be a plan, or fail with an error that names the file and the line. A plan is not run. The only machine
//! file that it may name is always the same.
//!
//! Related files: `machine_file.rs` is the target for machine files.

use std::fs;

use zonal_lab::experiment::{FileError, Source, load};

/// A machine of four small nodes.
const MACHINE: &str = include_str!("experiment_file/small.json");

/// Reads `data` as an experiment.
pub fn target(data: &[u8]) {
    let mut texts = data.splitn(2, |&byte| byte == 0);
    let experiment = texts.next().unwrap_or_default();
    let figures = texts.next().unwrap_or_default();
    let root = tempfile::tempdir().expect("a directory can be made");
    let files = [("small.toml", experiment), ("small.csv", figures), ("small.json", MACHINE.as_bytes())];
    for (name, text) in files {
        fs::write(root.path().join(name), text).expect("a file can be written");
    }
    let lines = |text: &[u8]| 1 + text.iter().filter(|&&byte| byte == b'\n').count();
    let path = root.path().join("small.toml");
    match load(&Source::File(path.clone())) {
        Ok(plan) => {
            assert_eq!(plan.runs.len(), plan.cases() * plan.variants.len());
            assert!(plan.runs.iter().all(|run| !run.text().is_empty() && run.operations >= 0.0));
        }
        Err(error) => {
            super::errors::check_error(&error, &error.file);
            assert!(!error.problem.is_empty());
            let is_whole = error.problem.starts_with("cannot be read");
            let most = if error.file == path.display().to_string() { experiment } else { figures };
            match &error {
                FileError { line: Some(line), .. } => assert!((1..=lines(most)).contains(line), "{error}"),
                FileError { line: None, .. } => assert!(is_whole, "{error}"),
            }
        }
    }
}
