//! Collects case logs from a guest's output.
//!
//! A line of a log is printed with a prefix that names the case, and the guest counts the lines.

use std::path::{Path, PathBuf};

use super::super::kernels::{SERIES, Series};
use super::cases::{Case, GROUPS};
use super::script::{counted, prefix};
use crate::steps::target_folder;

/// The table of the logs.
const INDEX: &str = "INDEX.tsv";
const HEADINGS: &str = "file\tkernel\tcase\trequested\texpected\n";

/// Returns the folder of the logs.
pub(super) fn folder(root: &Path) -> PathBuf {
    target_folder(root).join("numa").join("oom")
}

/// Returns the name of a log.
fn name(series: Series, case: &Case) -> String {
    format!("{}-{}.txt", series.name(), case.name)
}

/// Writes a file for each case in the output of a guest, which is in the file `output`. A log with fewer lines than the
/// guest counted is an error.
pub(super) fn collect(output: &Path, to: &Path, series: Series, cases: &[&Case]) -> Result<(), String> {
    let text = std::fs::read_to_string(output).map_err(|error| format!("{}: {error}", output.display()))?;
    std::fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for case in cases {
        let Some(count) = text.lines().find_map(|line| counted(line, case.name)) else { continue };
        let prefix = prefix(case.name);
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        if lines.len() != count {
            return Err(format!("{}: of {count} lines of the log, {} came", case.name, lines.len()));
        }
        let file = to.join(name(series, case));
        std::fs::write(&file, lines.join("\n") + "\n")
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// Writes the table of all logs in a folder: what was requested, and what refused it.
pub(super) fn index(folder: &Path) -> Result<(), String> {
    let mut text = HEADINGS.to_owned();
    for series in SERIES {
        for case in GROUPS.iter().flat_map(|(_, cases)| *cases) {
            let file = name(series, case);
            if folder.join(&file).exists() {
                let (kernel, name) = (series.name(), case.name);
                text.push_str(&format!("{file}\t{kernel}\t{name}\t{}\t{}\n", case.requested, case.expected));
            }
        }
    }
    let file = folder.join(INDEX);
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Copies the logs of a kernel to another folder, and writes the table there.
pub(super) fn copy(from: &Path, to: &Path, series: Series) -> Result<(), String> {
    std::fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for case in GROUPS.iter().flat_map(|(_, cases)| *cases) {
        let (from, to) = (from.join(name(series, case)), to.join(name(series, case)));
        if from.exists() {
            std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        }
    }
    index(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> &'static Case {
        &GROUPS[0].1[0]
    }

    /// Collects the log of the first case from an output, and returns the folder.
    fn collected(output: &str) -> Result<tempfile::TempDir, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("output");
        std::fs::write(&file, output.replace("NAME", case().name)).unwrap();
        collect(&file, folder.path(), SERIES[0], &[case()]).map(|()| folder)
    }

    #[test]
    fn a_log_is_collected_and_listed() {
        let folder =
            collected("up\n| kmsg NAME: [ 1.0] a\n| kmsg other: b\n| kmsg NAME:  c\nok oom NAME: 2 lines\n");
        let folder = folder.unwrap();
        let to = folder.path().join("kept");
        copy(folder.path(), &to, SERIES[0]).unwrap();
        let file = name(SERIES[0], case());
        assert_eq!(std::fs::read_to_string(to.join(&file)).unwrap(), "[ 1.0] a\n c\n");
        let index = std::fs::read_to_string(to.join(INDEX)).unwrap();
        assert!(
            index.starts_with(HEADINGS) && index.contains(&file) && index.lines().count() == 2,
            "{index}"
        );
    }

    #[test]
    fn a_log_that_is_cut_is_an_error() {
        let why = collected("| kmsg NAME: a\nok oom NAME: 2 lines\n").unwrap_err();
        assert!(why.ends_with("of 2 lines of the log, 1 came"), "{why}");
        let folder = collected("| kmsg NAME: a\nnot ok oom NAME: its log has no kill\n").unwrap();
        assert!(!folder.path().join(name(SERIES[0], case())).exists());
    }
}
