//! Places the boxes of a graph in rows. Each box is below all boxes that it uses.
//!
//! Arrows that follow from other arrows are not drawn. An arrow that passes several rows has a slot in each of them, so
//! that it crosses no box. Related files: `layers/draw.rs` draws the result.

use std::collections::{BTreeMap, BTreeSet};

use super::Imports;

/// Number of times that the rows are sorted.
const SWEEPS: usize = 8;

/// A slot in a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// The box of this name.
    Node(String),
    /// An arrow between these two boxes that passes the row of this number.
    Passage(String, String, usize),
}

/// A graph in rows.
pub(super) struct Rows {
    /// The slots of each row, from left to right. The boxes that a row uses are in rows before it.
    pub(super) rows: Vec<Vec<Slot>>,
    /// The parts of arrows, each from a slot to a slot in the row before.
    pub(super) parts: BTreeSet<(Slot, Slot)>,
}

impl Rows {
    /// Places a graph without cycles.
    pub(super) fn new(imports: &Imports) -> Self {
        let levels = levels(imports);
        let count = levels.values().max().map_or(0, |level| level + 1);
        let mut rows: Vec<Vec<Slot>> = vec![Vec::new(); count];
        for (name, _) in imports {
            rows[levels[name.as_str()]].push(Slot::Node(name.clone()));
        }
        let mut parts = BTreeSet::new();
        for (user, used) in arrows(imports) {
            let mut last = Slot::Node(user.to_owned());
            for level in (levels[used] + 1..levels[user]).rev() {
                let passage = Slot::Passage(user.to_owned(), used.to_owned(), level);
                rows[level].push(passage.clone());
                parts.insert((last, passage.clone()));
                last = passage;
            }
            parts.insert((last, Slot::Node(used.to_owned())));
        }
        let mut placed = Self { rows, parts };
        placed.sort();
        placed
    }

    /// Sorts each row several times, by the places of its neighbours in the row before and in the row after
    /// alternately.
    fn sort(&mut self) {
        for sweep in 0..SWEEPS {
            let order: Vec<usize> = match sweep % 2 {
                0 => (0..self.rows.len().saturating_sub(1)).rev().collect(),
                _ => (1..self.rows.len()).collect(),
            };
            for row in order {
                let other = if sweep % 2 == 0 { row + 1 } else { row - 1 };
                let places: BTreeMap<&Slot, f64> = places(&self.rows[other]);
                let mut keyed: Vec<(f64, Slot)> = Vec::new();
                for (slot, own) in self.rows[row].iter().zip(places_of(self.rows[row].len())) {
                    let joined =
                        self.parts.iter().filter_map(|(from, to)| match (from == slot, to == slot) {
                            (true, _) => places.get(to),
                            (_, true) => places.get(from),
                            _ => None,
                        });
                    let joined: Vec<f64> = joined.copied().collect();
                    let mean = joined.iter().sum::<f64>() / joined.len().max(1) as f64;
                    keyed.push((if joined.is_empty() { own } else { mean }, slot.clone()));
                }
                keyed.sort_by(|one, other| one.0.total_cmp(&other.0));
                self.rows[row] = keyed.into_iter().map(|(_, slot)| slot).collect();
            }
        }
    }
}

fn places(row: &[Slot]) -> BTreeMap<&Slot, f64> {
    row.iter().zip(places_of(row.len())).collect()
}

/// Returns `count` evenly spaced places between 0 and 1, one for each slot.
fn places_of(count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |at| (at as f64 + 0.5) / count as f64)
}

/// Returns the row of each node. The row is 0 for nodes that use nothing, and otherwise one more than the rows of all
/// nodes that it uses.
pub(super) fn levels(imports: &Imports) -> BTreeMap<&str, usize> {
    let mut levels: BTreeMap<&str, usize> = imports.iter().map(|(name, _)| (name.as_str(), 0)).collect();
    // In a graph without cycles, no chain is longer than the number of nodes.
    for _ in imports {
        for (name, used) in imports {
            let above = used.iter().filter_map(|used| levels.get(used.as_str())).max();
            let level = above.map_or(0, |above| above + 1);
            levels.insert(name, level);
        }
    }
    levels
}

/// Returns the arrows, each with the user first, without those that follow from a chain of other arrows.
pub(super) fn arrows(imports: &Imports) -> Vec<(&str, &str)> {
    let uses = |name: &str| imports.iter().find(|(known, _)| known == name).map(|(_, used)| used);
    let reaches = |from: &str, to: &str| {
        let mut waiting = vec![from];
        while let Some(at) = waiting.pop() {
            let Some(used) = uses(at) else { continue };
            if used.contains(to) {
                return true;
            }
            waiting.extend(used.iter().map(String::as_str));
        }
        false
    };
    let all =
        imports.iter().flat_map(|(user, used)| used.iter().map(move |used| (user.as_str(), used.as_str())));
    let is_direct = |&(user, used): &(&str, &str)| {
        uses(user).is_none_or(|others| !others.iter().any(|other| other != used && reaches(other, used)))
    };
    all.filter(is_direct).collect()
}
