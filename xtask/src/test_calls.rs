//! Style rule: calls that tests leave to `zonal-testing`, or make with a reason.
//!
//! A test that sleeps until another thread has probably done something fails on a busy machine, or tests nothing there.
//! Tests wait for conditions with `eventually`. One that binds threads to CPUs must choose among those that it may use, and
//! notice a refusal, as `pin_to` and `bind` do.

use std::path::Path;

use crate::opened_files::{TESTS, is_test};
use crate::source_code;
use crate::style::Violation;

/// Calls in Rust, C and Python, and what does the same.
const CALLS: [(&str, &str); 3] = [
    ("sleep(", "tests wait with `zonal_testing::eventually`"),
    ("sched_setaffinity(", "tests bind threads with `zonal_testing::pin_to` or `bind`"),
    ("available_parallelism(", "tests run on `zonal_testing::allowed_cpus`"),
];

const POLLS: &str = "waits in steps for a condition";
const MOMENT: &str = "chooses a moment; no check depends on it";
const UNTIL_KILLED: &str = "a process stays until it is killed";

/// The files of tests below `crates` that may make such calls, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("zonal-bench/src/floor/lines.rs", "compares with the number of CPUs"),
    ("zonal-c/src/calls.rs", "keeps a call in progress while another thread waits for it"),
    ("zonal-c/src/table.rs", "keeps an object in use while another thread waits for it"),
    ("zonal-c/tests/programs/callbacks.c", "waits in steps for conditions, and chooses moments"),
    ("zonal-c/tests/programs/contexts.c", POLLS),
    ("zonal-c/tests/programs/fork.c", POLLS),
    ("zonal-c/tests/programs/interface.c", MOMENT),
    ("zonal-conformance/tests/conformance/machine.rs", "lets other threads run"),
    ("zonal-linux/src/threads/lock.rs", "lets a waiter go through all its ways to wait"),
    ("zonal-linux/src/threads/start.rs", "a helper takes its time"),
    ("zonal-linux/src/threads/wake_tests.rs", "calls the board's own method"),
    (
        "zonal-linux/tests/common/of_shared_pools.rs",
        "limits the number of children; these stay until they are killed",
    ),
    ("zonal-linux/tests/remote_drains.rs", MOMENT),
    (
        "zonal-linux/tests/sequences.rs",
        "limits the rate of disturbances, and waits for the end of the test's time",
    ),
    ("zonal-linux/tests/shared/kept.rs", MOMENT),
    ("zonal-linux/tests/shared/main.rs", "chooses moments, and gives a thread time for what it must not do"),
    ("zonal-live/src/source/pool.rs", "a program sends too slowly"),
    ("zonal-malloc/tests/programs/denied.c", "gives a thread time for what it must not do"),
    ("zonal-malloc/tests/programs/idle.c", POLLS),
    ("zonal-malloc/tests/programs/nodes.c", "binds threads to CPUs that it may use, and checks that"),
    ("zonal-python/tests/test_lab.py", POLLS),
    (
        "zonal-python/tests/test_pool_interleavings.py",
        "a callback takes its time while others close the pool",
    ),
    ("zonal-python/tests/test_pool_processes.py", UNTIL_KILLED),
    ("zonal-verify/tests/wake_ups.rs", "calls the board's own method"),
];

/// Checks a file, given as its path below the root.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Violation> {
    let Ok(below) = file.strip_prefix("crates") else { return Vec::new() };
    let is_rust = below.extension().is_some_and(|extension| extension == "rs");
    let code = if is_rust { source_code::without_texts(text) } else { text.to_owned() };
    let begin = match code.find(TESTS) {
        _ if is_test(below) => 0,
        Some(begin) if is_rust => begin,
        _ => return Vec::new(),
    };
    let (before, tests) = code.split_at(begin);
    let mut found = Vec::new();
    for (number, line) in (before.matches('\n').count() + 1..).zip(tests.lines()) {
        let calls = CALLS.iter().filter(|(call, _)| line.contains(call));
        found.extend(calls.map(|(_, instead)| {
            (number, format!("{instead}, or the file is in `xtask/src/test_calls.rs` with a reason"))
        }));
    }
    if ALLOWED.iter().any(|(allowed, _)| Path::new(allowed) == below) {
        let unused = (1, "makes no call of `test_calls.rs`; remove it there".to_owned());
        return found.is_empty().then_some(unused).into_iter().collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_tests_are_found_outside_the_table() {
        let lines = |file: &str, text: &str| {
            check(Path::new(file), text).into_iter().map(|(line, _)| line).collect::<Vec<_>>()
        };
        let source = "//! A source.\nfn f() { thread::sleep(TIME) }\n\n#[cfg(test)]\nmod tests {\n    // sleep(1)\n    \
                      thread::sleep(TIME);\n}\n";
        assert_eq!(lines("crates/zonal-cli/src/run.rs", source), [7]);
        assert_eq!(lines("crates/zonal-cli/src/run/tests.rs", source), [2, 7]);
        assert_eq!(lines("crates/zonal-c/tests/programs/new.c", "int main(void)\n{\n\tusleep(1);\n}\n"), [3]);
        assert_eq!(lines("crates/zonal-python/tests/test_new.py", "time.sleep(0.2)\n"), [1]);
        assert_eq!(lines("crates/zonal-linux/tests/new.rs", "libc::sched_setaffinity(0, 8, set);\n"), [1]);
        assert_eq!(lines("crates/zonal-linux/tests/sequences.rs", source), [0; 0]);
        assert_eq!(lines("crates/zonal-linux/tests/sequences.rs", "//! No call.\n"), [1]);
    }

    #[test]
    fn files_of_the_table_exist() {
        let root = crate::workspace_root().join("crates");
        let gone: Vec<_> = ALLOWED.iter().filter(|(file, _)| !root.join(file).exists()).collect();
        assert!(gone.is_empty(), "{gone:?}");
    }
}
