//! Style rule: which sources may start threads.
//!
//! A child made by `fork` cannot start threads by the standard library if its parent was starting or ending one. The
//! library that children use therefore starts all threads in one module.

use std::path::Path;

use crate::opened_files::{code_of, is_test};
use crate::style::Violation;

/// The sources that the rule covers.
const SOURCES: &str = "crates/zonal-linux/src";
/// A source that has only tests.
const TESTS: &str = "pool/conformance.rs";
/// What starts threads by the standard library. Written in two parts, so that this file passes.
const STARTERS: [&str; 3] =
    [concat!("thread", "::spawn"), concat!("thread", "::scope"), concat!("thread", "::Builder")];

/// Checks a source, given as its path below the root.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Violation> {
    if !file.starts_with(SOURCES) || is_test(file) || file.ends_with(TESTS) {
        return Vec::new();
    }
    let code = code_of(text);
    let found = (1..).zip(code.lines()).filter(|(_, line)| STARTERS.iter().any(|one| line.contains(one)));
    found.map(|(number, _)| (number, "threads are started by `threads/start.rs`".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_standard_library_are_found_outside_tests() {
        let text = |line: &str| format!("//! A source.\nfn run() {{\n    {line}\n}}\n");
        let check = |file: &str, line: &str| check(Path::new(file), &text(line)).len();
        for line in STARTERS {
            assert_eq!(
                check("crates/zonal-linux/src/pool/new.rs", &format!("std::{line}(work);")),
                1,
                "{line}"
            );
            assert_eq!(check("crates/zonal-linux/src/pool/tests.rs", line), 0);
            assert_eq!(check("crates/zonal-lab/src/lib.rs", line), 0);
            assert_eq!(check("crates/zonal-linux/src/pool/new.rs", &format!("/// {line}")), 0);
        }
    }
}
