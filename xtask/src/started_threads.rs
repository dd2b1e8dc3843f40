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
/// The source that starts threads.
const STARTER: &str = "threads/start.rs";
/// What starts threads.
const STARTS: [&str; 6] =
    ["thread::spawn", "thread::scope", "thread::Builder", "thread::{", "thread as ", "pthread_create"];

/// Checks a source, given as its path below the root.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Violation> {
    if !file.starts_with(SOURCES)
        || is_test(file)
        || [TESTS, STARTER].iter().any(|own| file == Path::new(SOURCES).join(own))
    {
        return Vec::new();
    }
    let code = code_of(text);
    let found = (1..).zip(code.lines()).filter(|(_, line)| STARTS.iter().any(|one| line.contains(one)));
    found.map(|(number, _)| (number, "threads are started by `threads/start.rs`".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_standard_library_are_found_outside_tests() {
        let text = |line: &str| format!("//! A source.\nfn run() {{\n    {line}\n}}\n");
        let check = |file: &str, line: &str| check(Path::new(file), &text(line)).len();
        for line in STARTS {
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
