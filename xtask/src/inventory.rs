//! Checks `docs/unsafe.md`, the inventory of unsafe code, against the sources. Every file with unsafe code must have a
//! row with the number of its unsafe places.
//!
//! The check covers the crates that are published or installed as libraries. `style.rs` checks that each unsafe place states its
//! reason.

use std::collections::BTreeMap;
use std::path::Path;

use crate::style::{is_unsafe, sources};

/// The inventory, relative to the root.
const INVENTORY: &str = "docs/unsafe.md";
/// Crates that are published or installed as libraries.
const CRATES: [&str; 12] = [
    "zonal",
    "zonal-conformance",
    "zonal-history",
    "zonal-model",
    "zonal-machine",
    "zonal-linux",
    "zonal-adapters",
    "zonal-workload",
    "zonal-lab",
    "zonal-c",
    "zonal-malloc",
    "zonal-python",
];

/// Returns the files whose row is missing, wrong or obsolete.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    match std::fs::read_to_string(root.join(INVENTORY)) {
        Ok(text) => compare(&listed(&text), &counted(root)),
        Err(error) => vec![format!("{INVENTORY}: {error}")],
    }
}

/// Returns the file and the number in each row `| path | number | ...`.
fn listed(text: &str) -> BTreeMap<String, usize> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let file = cells.next()?.trim_matches('`');
        Some((file.to_owned(), cells.next()?.parse().ok()?))
    });
    rows.collect()
}

fn counted(root: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for file in sources(root) {
        let name = file.display().to_string();
        if !CRATES.iter().any(|library| name.starts_with(&format!("crates/{library}/src/"))) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file)).unwrap_or_default();
        let places = text.lines().filter(|line| is_unsafe(line)).count();
        if places != 0 {
            found.insert(name, places);
        }
    }
    found
}

fn compare(listed: &BTreeMap<String, usize>, counted: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, places) in counted {
        match listed.get(file) {
            Some(listed) if listed == places => {}
            Some(listed) => {
                wrong.push(format!("{INVENTORY}: {file} has {places} unsafe blocks, not {listed}"));
            }
            None => wrong.push(format!("{INVENTORY}: {file} is missing; it has {places} unsafe blocks")),
        }
    }
    let gone = listed.keys().filter(|file| !counted.contains_key(*file));
    wrong.extend(gone.map(|file| format!("{INVENTORY}: {file} no longer has unsafe code")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_wrong_missing_or_left_over_are_found() {
        let listed = listed("| file | places |\n|---|---|\n| `a.rs` | 2 | why |\n| `b.rs` | 1 | why |\n");
        let counted = BTreeMap::from([("a.rs".to_owned(), 3), ("c.rs".to_owned(), 1)]);
        assert_eq!(compare(&listed, &counted).len(), 3);
        assert_eq!(compare(&counted, &counted).len(), 0);
    }
}
