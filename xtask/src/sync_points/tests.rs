//! Tests for the check of sync points. Each mutant of two sources that pass is found at its line.

use std::path::PathBuf;

use super::{Functions, examine};

const LOCK: &str = "impl Lock {
    fn lock(&self) {
        // Acquire: takes the holder's writes; pairs with `Lock::unlock`.
        while self
            .0
            .swap(true, Acquire)
        {}
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release); // Release: publishes the holder's writes; pairs with `lock`.
    }
}
";
const TABLE: &str = "static TABLE: Table = Table::new();

fn add(number: u32) {
    // Release: publishes the entry; pairs with `table::get`, and the embedder's interrupts.
    TABLE.word.store(number, Release);
    TABLE.other.store(number, Release); // Release: as above.
}

fn get() -> u32 {
    assert_eq!(End::Release, TABLE.end);
    // Acquire: takes the entry; pairs with `add`.
    TABLE.word.load(Acquire)
}

fn count() -> u32 {
    TABLE.count.load(SeqCst) // SeqCst: orders nothing; unpaired: it is a statistic.
}

#[cfg(test)]
mod tests {
    fn test() {
        TABLE.word.load(Acquire);
    }
}
";

/// Checks the two sources, in which the first occurrence of `from` is replaced.
fn with(from: &str, to: &str) -> (Functions, Vec<String>) {
    let sources = [(LOCK, "crates/a/src/lock.rs"), (TABLE, "crates/b/src/table.rs")];
    let is_there = sources.iter().any(|(text, _)| text.contains(from));
    assert!(is_there, "{from}");
    examine(sources.into_iter().map(|(text, file)| (text.replacen(from, to, 1), PathBuf::from(file))))
}

/// Checks that the mutant has a violation at this place with this text.
#[track_caller]
fn is_found(from: &str, to: &str, place: &str, what: &str) {
    let (_, found) = with(from, to);
    let is_it = |one: &String| one.starts_with(&format!("crates/{place}: ")) && one.contains(what);
    assert!(found.iter().any(is_it), "{found:#?}");
}

#[test]
fn sources_with_complete_comments_pass() {
    let (functions, found) = with("", "");
    assert_eq!(found, [""; 0]);
    let points: usize = functions.values().flatten().map(|function| function.orderings.len()).sum();
    assert_eq!(points, 6, "tests have none, and neither have variants of other types");
}

#[test]
fn an_ordering_without_comment_is_found() {
    is_found("// Release: as above.", "", "b/src/table.rs:6", "Release has no comment; write // Release: ");
    is_found("// Release: as above.", "// as above", "b/src/table.rs:6", "no comment");
    is_found("// Release: as above.", "// SeqCst: orders x; unpaired: y.", "b/src/table.rs:6", "no comment");
}

#[test]
fn a_comment_covers_one_statement_and_not_those_inside() {
    is_found("swap(true, Acquire)", "swap(true, Relaxed)", "a/src/lock.rs:3", "describes no ordering");
    is_found("{}", "{ self.0.load(Acquire); }", "a/src/lock.rs:7", "Acquire has no comment");
}

#[test]
fn a_comment_of_another_form_is_found() {
    for wrong in ["publishes the entry; ", "takes; ", ""] {
        is_found("takes the entry; ", wrong, "b/src/table.rs:11", "is not of the form // Acquire: takes");
    }
    is_found("the embedder's interrupts", "somebody", "b/src/table.rs:4", "`somebody` is no partner");
    is_found("; unpaired: it is a statistic", "", "b/src/table.rs:16", "is not of the form");
    is_found(
        "store(number, Release); // Rel",
        "store(number, Relaxed); // Rel",
        "b/src/table.rs:6",
        "describes",
    );
    is_found("// Release: as above.", "// AcqRel: as above.", "b/src/table.rs:6", "write it out");
}

#[test]
fn a_partner_that_does_not_exist_is_found() {
    is_found("`add`", "`add`, `put`", "b/src/table.rs:11", "there is no function `put`");
    is_found("`add`", "`add`, `Lock::add`", "b/src/table.rs:11", "there is no function `Lock::add`");
    is_found("`add`", "`add`, `test`", "b/src/table.rs:11", "there is no function `test`");
}

#[test]
fn a_partner_without_the_other_side_is_found() {
    is_found("`add`", "`add`, `get`", "b/src/table.rs:11", "`get` has no release ordering");
    is_found("with `lock`", "with `lock`, `unlock`", "a/src/lock.rs:11", "`unlock` has no acquire ordering");
}

#[test]
fn a_partner_that_does_not_name_the_function_is_found() {
    is_found("`table::get`, and ", "", "b/src/table.rs:11", "`add` does not name `get` as its partner");
    is_found("`add`", "`add`, `Lock::unlock`", "b/src/table.rs:11", "`Lock::unlock` does not name `get`");
}
