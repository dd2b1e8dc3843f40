//! Lists the checks that tests skipped. Each skip appends one line to a file, because libtest counts these tests as
//! passed.
//!
//! `zonal-testing` writes lines of the form `SKIPPED: program: test: why`. Related files: `steps.rs` passes the file to
//! every cargo it starts and prints the skips with its summary.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::steps::target_folder;

/// The environment variable that passes the path of the file to `zonal-testing`.
pub(crate) const VARIABLE: &str = "ZONAL_SKIPS_FILE";
/// Prefix of a line.
const BEGINNING: &str = "SKIPPED: ";

/// A test, as program and name, and the reason of its skip.
type Skip = (String, String);

/// Returns the path of this run's file. It is absolute, because tests run in their own folders.
pub(crate) fn file(root: &Path) -> PathBuf {
    let file = target_folder(root).join(format!("skips-{}.txt", std::process::id()));
    std::path::absolute(&file).unwrap_or(file)
}

/// Records a skip in a test of `program` that could not write to the file itself.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn add(root: &Path, program: &str, test: &str, why: &str) -> Result<(), String> {
    let (file, line) = (file(root), format!("{BEGINNING}{program}: {test}: {why}\n"));
    let opened = OpenOptions::new().create(true).append(true).open(&file);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns each skip once, in order, and removes the file.
///
/// # Errors
/// Returns an error if the file exists but cannot be read or is not text. The file is not removed then.
pub(crate) fn take(root: &Path) -> Result<BTreeSet<Skip>, String> {
    take_from(&file(root))
}

fn take_from(file: &Path) -> Result<BTreeSet<Skip>, String> {
    let unknown = |error| format!("cannot read the list of skipped tests: {}: {error}", file.display());
    match std::fs::read_to_string(file) {
        Ok(text) => std::fs::remove_file(file).map(|()| parse(&text)).map_err(unknown),
        // The file exists only if a test skipped a check.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(unknown(error)),
    }
}

fn parse(text: &str) -> BTreeSet<Skip> {
    let skip = |line: &str| {
        let mut parts = line.strip_prefix(BEGINNING)?.splitn(3, ": ");
        let (program, test, why) = (parts.next()?, parts.next()?, parts.next()?);
        Some((format!("{program} {test}"), why.to_owned()))
    };
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| skip(line).unwrap_or_else(|| ("a test".to_owned(), line.to_owned()))).collect()
}

/// Returns the end of the summary's last line, which lists the tests that skipped checks.
pub(crate) fn in_summary(skips: &BTreeSet<Skip>) -> String {
    let tests: BTreeSet<&str> = skips.iter().map(|(test, _)| test.as_str()).collect();
    let names: Vec<&str> = tests.iter().copied().collect();
    match names.len() {
        0 => String::new(),
        1 => format!(", 1 test skipped: {}", names[0]),
        count => format!(", {count} tests skipped: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_listed_once_and_counted_by_test() {
        let text = "SKIPPED: denied: maps: no filters: none\nSKIPPED: pool: huge: no reserve\n\n\
            SKIPPED: denied: maps: no filters: none\nSKIPPED: pool: huge: no second reserve\n";
        let skips = parse(text);
        let found: Vec<_> = skips.iter().map(|(test, why)| (test.as_str(), why.as_str())).collect();
        let huge = "pool huge";
        assert_eq!(
            found,
            [("denied maps", "no filters: none"), (huge, "no reserve"), (huge, "no second reserve")]
        );
        assert_eq!(in_summary(&skips), ", 2 tests skipped: denied maps, pool huge");
        assert_eq!(in_summary(&parse("SKIPPED: pool: huge: no reserve\n")), ", 1 test skipped: pool huge");
        assert_eq!(in_summary(&parse("")), "");
    }

    #[test]
    fn a_line_of_another_form_is_shown_too() {
        assert_eq!(parse("torn line\n").into_iter().next().unwrap().1, "torn line");
    }

    #[test]
    fn the_file_goes_when_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        std::fs::write(&file, "SKIPPED: pool: huge: no reserve\n").unwrap();
        assert_eq!(take_from(&file).unwrap().len(), 1);
        assert_eq!(take_from(&file), Ok(BTreeSet::new()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        std::fs::write(&file, b"SKIPPED: pool: huge: \xff\n").unwrap();
        let why = take_from(&file).unwrap_err();
        assert!(why.contains("skips") && file.exists(), "{why}");
        let why = take_from(folder.path()).unwrap_err();
        assert!(why.contains("cannot read the list of skipped tests"), "{why}");
    }
}
