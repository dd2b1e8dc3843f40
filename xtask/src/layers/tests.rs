//! Tests of small graphs and the committed picture.

use std::collections::BTreeSet;

use super::graph::{Rows, Slot, arrows, levels};
use super::{Imports, PICTURE, picture, violations};

fn imports(list: &[(&str, &[&str])]) -> Imports {
    let used = |used: &[&str]| used.iter().map(|used| (*used).to_owned()).collect::<BTreeSet<_>>();
    list.iter().map(|(name, uses)| ((*name).to_owned(), used(uses))).collect()
}

#[test]
fn what_is_used_is_in_a_row_before() {
    let graph = imports(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("d", &[])]);
    assert_eq!(levels(&graph).into_iter().collect::<Vec<_>>(), [("a", 0), ("b", 1), ("c", 2), ("d", 0)]);
}

#[test]
fn arrows_that_others_imply_are_left_out() {
    let graph = imports(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("d", &["a", "c"])]);
    assert_eq!(arrows(&graph), [("b", "a"), ("c", "b"), ("d", "c")]);
}

#[test]
fn long_arrows_have_a_slot_in_each_row_that_they_pass() {
    let graph = imports(&[("a", &[]), ("t", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["c", "t"])]);
    let rows = Rows::new(&graph);
    let passes: Vec<bool> =
        rows.rows.iter().map(|row| row.iter().any(|slot| matches!(slot, Slot::Passage(..)))).collect();
    assert_eq!(passes, [false, true, true, false]);
    let slots: BTreeSet<&Slot> = rows.rows.iter().flatten().collect();
    assert_eq!(slots.len(), rows.rows.iter().map(Vec::len).sum::<usize>(), "each slot is in one row");
}

#[test]
fn a_picture_that_differs_from_the_imports_is_found() {
    let root = crate::workspace_root();
    assert_eq!(violations(&root), Vec::<String>::new());
    let drawn = picture(&root).unwrap();
    // The test compares a tree with one more import, and a tree without a picture.
    let copy = tempfile::tempdir().unwrap();
    let copied =
        std::process::Command::new("cp").args(["-r", "crates"]).arg(copy.path()).current_dir(&root).status();
    assert!(copied.unwrap().success());
    assert!(violations(copy.path())[0].contains("cargo xtask layers"));
    std::fs::create_dir(copy.path().join("docs")).unwrap();
    std::fs::write(copy.path().join(PICTURE), &drawn).unwrap();
    assert_eq!(violations(copy.path()), Vec::<String>::new());
    let memory = copy.path().join("crates/zonal-linux/src/memory/mod.rs");
    let text = std::fs::read_to_string(&memory).unwrap();
    std::fs::write(&memory, format!("{text}\nuse crate::pool::Pool as _;\n")).unwrap();
    assert!(violations(copy.path())[0].contains("differs from the imports"));
}
