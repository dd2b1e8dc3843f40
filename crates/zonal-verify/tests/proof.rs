//! The table of transitions: small worlds in which it runs, and the known defect that it must find.
//!
//! `cargo xtask proof` proves the table's invariants with solvers.

use zonal_verify::proof::table::{Row, TEXT, Table};
use zonal_verify::proof::{check, scenarios};

#[test]
fn every_row_is_taken_in_small_worlds_and_breaks_no_invariant() {
    let table = Table::read().unwrap();
    let worlds = check::run_worlds(&table, &scenarios::small(), true).unwrap();
    println!("{worlds:?}");
}

#[test]
fn the_known_defect_of_an_unused_pageset_is_found_as_an_interleaving() {
    let report = check::find_defect(None).unwrap();
    assert!(report.contains("held.put_back: holder[0] := 0, lock[0] := Zero"), "{report}");
    assert!(report.contains("pop.lock_word: lock_seen"), "{report}");
}

#[test]
fn a_row_that_a_sequence_may_commit_after_an_interrupt_breaks_an_invariant() {
    let text = TEXT.replacen("  when   run[own] = me\n  do     free[my]", "  do     free[my]", 1);
    let error = check::run_worlds(&Table::parse(&text).unwrap(), &scenarios::small(), true).unwrap_err();
    assert!(error.to_string().contains("pop.commit"), "{error}");
}

#[test]
fn the_dead_that_act_or_are_replaced_too_early_break_an_invariant() {
    let of_processes = |(name, _): &(String, _)| name.starts_with("two processes");
    let worlds: Vec<_> = scenarios::small().into_iter().filter(of_processes).collect();
    for (left_out, broken) in [
        ("acts lives[me] and not dead[process[me]]\n", "blocks_change_hands_under_an_intent"),
        (
            "  every  f Frame: held_by[f] = p => place[f] = Live or place[f] = Part or place[f] = Hand\n",
            "recovered_frames_were_held_by_the_dead",
        ),
    ] {
        assert!(TEXT.contains(left_out), "{left_out}");
        let table = Table::parse(&TEXT.replacen(left_out, "", 1)).unwrap();
        let error = check::run_worlds(&table, &worlds, false).unwrap_err().to_string();
        assert!(error.contains(&format!("breaks {broken}")), "{error}");
    }
}

#[test]
fn every_row_can_affect_an_invariant() {
    let table = Table::read().unwrap();
    let affects = |row: &Row| table.invariants.iter().any(|invariant| table.affects(row, &invariant.term));
    let silent: Vec<_> = table.rows.iter().filter(|row| !affects(row)).map(|row| row.name.as_str()).collect();
    assert_eq!(silent, [""; 0]);
}

#[test]
fn the_core_checks_itself_against_the_rows_of_the_table() {
    let rows = Table::read().unwrap().rows_for_the_core();
    let core = include_str!("../../zonal/transitions.in");
    assert_eq!(core, rows, "crates/zonal/transitions.in must be:\n{rows}");
}

#[test]
fn every_row_names_code_that_exists() {
    let core = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal/src");
    for row in &Table::read().unwrap().rows {
        let mut source = String::new();
        for part in row.code.split(", ") {
            let name = match part.split_once(' ') {
                Some((file, name)) => {
                    let path = core.join(file);
                    source = std::fs::read_to_string(&path)
                        .unwrap_or_else(|error| panic!("{}: {error}", row.name));
                    name
                }
                None if part.ends_with(".rs") => {
                    assert!(core.join(part).exists(), "{}: there is no {part}", row.name);
                    continue;
                }
                None => part,
            };
            let last = name.rsplit("::").next().unwrap().trim_end_matches(|c| "[]0123456789".contains(c));
            if last != "membarrier(2)" && !source.contains(last) {
                let anywhere = walk(&core).iter().any(|text| text.contains(&format!("fn {last}")));
                assert!(anywhere, "{}: there is no `{name}`", row.name);
            }
        }
    }
}

/// Returns the texts of all sources in a folder.
fn walk(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(
            |path| if path.is_dir() { walk(&path) } else { vec![std::fs::read_to_string(path).unwrap()] },
        )
        .collect()
}

#[test]
fn errors_in_a_table_name_the_line() {
    for (now, then, expected) in [
        ("lock[my] := Open, holder", "lock[my] := Opened, holder", "`Opened` is not known here"),
        ("cell used[Set] : Bool @ flags", "cell used[Set] : Bool", "names its place in memory"),
        (
            "  do     flag[my] := false",
            "  do     flag[my] := false, lock[my] := Open",
            "stores to more than one cell",
        ),
        ("  every  f Frame: Lifts", "  every  f Frame Lifts", "`every` needs `names: term`"),
        ("  do     pushmin[s]", "\n  do     pushmin[s]", "cap[s]` is part of nothing"),
        ("  access barrier\n", "", "names its code and its access"),
        ("  state  Cached -> Allocated", "  state  Cached -> Alloc", "`Alloc` is no state"),
    ] {
        let error = Table::parse(&TEXT.replacen(now, then, 1)).unwrap_err().to_string();
        assert!(error.starts_with("transitions.txt, line ") && error.contains(expected), "{error}");
    }
}
