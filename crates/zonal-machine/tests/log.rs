//! Reports of failed requests: reading them, deciding them again, and what hostile logs do.

mod altered;
mod corpus;
mod hostile;

use std::fs;
use std::path::{Path, PathBuf};

use zonal_machine::log::{Explanation, LogReader, LogReport, explain_report};

/// Returns the folder of the logs.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/logs")
}

/// Returns the text of a log.
fn text(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names of all logs that a kernel printed, in order.
fn real_logs() -> Vec<String> {
    let mut names = Vec::new();
    for part in ["guest", "public"] {
        for entry in fs::read_dir(folder().join(part)).unwrap() {
            names.push(format!("{part}/{}", entry.unwrap().file_name().to_str().unwrap()));
        }
    }
    names.sort();
    names
}

/// Reads all reports of a log and explains them.
fn explained(text: &str) -> Vec<(LogReport, Explanation)> {
    let mut reader = LogReader::new(text.as_bytes());
    let mut reports = Vec::new();
    while let Some(report) = reader.next_report().unwrap() {
        let explanation = explain_report(&report);
        reports.push((report, explanation));
    }
    reports
}
