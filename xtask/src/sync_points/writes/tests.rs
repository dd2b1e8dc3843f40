//! Tests for the comparison of writes with the table. A source, a table and a list agree, and each change is found.

use std::path::PathBuf;

use super::{CORE, examine};

const HEAD: &str = "impl Head {
    fn open(&self) {
        self.lock_word.store(OPEN, Release);
    }

    fn flag(&self) {
        assert!(self.remote_lock().swap(1, Ordering::Acquire) == 0);
        self.seen.0.store(now(at[1]), Relaxed);
    }

    fn set(&self, setting: Setting) {
        self.settings.store(setting, &config());
    }
}
";
const STATES: &str = "impl Table {
    fn free(&self, at: u32) {
        self.step(at, FREE);
        step_byte(&self.states[at], USED);
    }

    fn step(&self, at: u32, to: u8) {
        step_byte(&self.states[at], to)
    }
}

fn step_byte(cell: &AtomicU8, to: u8) {
    cell.store(to, Release);
}

fn other(steps: &Steps) {
    steps.step(4);
}

#[cfg(test)]
mod tests {
    fn test() {
        cell.store(7, Relaxed);
    }
}
";
const TABLE: &str = "row held.open : Held -> Idle
  code   head.rs Head::open
  access store release lock_word
row remote.flag : Idle -> Held
  code   head.rs Head::flag, states.rs
  access swap acquire remote_lock
  do     flag[my] := true
row frame.free : Idle -> Idle
  code   states.rs Table::free
  access load acquire and store release state
row pop.commit : Idle -> Idle
  code   head.rs POP[4]
  access store relaxed word
";
const LIST: &str = "# A comment.
alias states.rs * cell = state
through states.rs step_byte
through states.rs Table::step on table
head.rs Head::flag seen: statistics
";

/// Examines the texts, in which the first occurrence of `from` is replaced.
fn with(from: &str, to: &str) -> Vec<String> {
    assert!([HEAD, STATES, TABLE, LIST].iter().any(|text| text.contains(from)), "{from}");
    let changed = |text: &str| text.replacen(from, to, 1);
    let source = |name: &str, text: &str| (changed(text), PathBuf::from(CORE).join(name));
    let sources = vec![source("head.rs", HEAD), source("states.rs", STATES)];
    examine(sources, &changed(TABLE), &changed(LIST)).1
}

#[track_caller]
fn is_found(from: &str, to: &str, what: &str) {
    let found = with(from, to);
    assert!(found.iter().any(|one| one.contains(what)), "{found:#?}");
}

#[test]
fn sources_that_agree_with_the_table_pass() {
    assert_eq!(with("", ""), [""; 0]);
}

#[test]
fn a_write_without_a_row_is_found() {
    let new = "self.lock_word.store(OPEN, Release);\n        self.word.fetch_add(1, Relaxed);";
    is_found(
        "self.lock_word.store(OPEN, Release);",
        new,
        "head.rs:4: no row of the table has `add relaxed word`",
    );
    let line = "head.rs Head::flag seen: statistics\n";
    is_found(line, "", "head.rs:8: no row of the table has `store relaxed seen` by `Head::flag`");
    is_found("fn other(", "fn other() { cell.swap(0, AcqRel); }\nfn more(", "`swap acqrel state` by `other`");
}

#[test]
fn a_caller_of_a_function_that_writes_needs_a_row() {
    is_found("steps.step(4)", "step_byte(steps, 4)", "`store release state` by `other`");
    is_found("steps.step(4)", "table.step(4)", "`store release state` by `other`");
}

#[test]
fn another_ordering_or_operation_is_found() {
    is_found("store(OPEN, Release)", "store(OPEN, Relaxed)", "`store relaxed lock_word` by `Head::open`");
    is_found("store(OPEN, Release)", "store(OPEN, Relaxed)", "no function of `held.open` has `store release");
    is_found("swap acquire", "exchange acquire", "no function of `remote.flag` has `exchange acquire");
}

#[test]
fn a_row_whose_function_does_not_write_is_found() {
    is_found("Head::open\n", "Head::set\n", "`head.rs Head::set` does not perform the access of `held.open`");
    is_found("Table::free\n", "Table::free, other\n", "`states.rs other` does not perform");
}

#[test]
fn lines_of_the_list_that_nothing_needs_are_found() {
    is_found("Head::flag seen:", "Head::flag seen gone:", "head.rs Head::flag writes no `gone`");
    is_found("through states.rs step_byte", "through states.rs step", "states.rs step writes nothing");
    is_found(
        "head.rs Head::flag seen: statistics",
        "head.rs Head::flag seen",
        "writes.txt:5: a line is `FILE",
    );
    is_found("* cell = state", "cell state", "writes.txt:2: an alias is");
}

#[test]
fn an_ordering_in_a_parameter_is_found() {
    is_found("setting: Setting)", "order: Ordering)", "head.rs:11: name the ordering at the atomic itself");
}
