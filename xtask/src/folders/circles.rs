//! Finds import cycles among a crate's files. A cycle is a group in which each file uses every other file, directly or
//! indirectly.
//!
//! A re-export (`pub use`) is not an import. A file that uses the re-exported name imports the file that defines it.
//! The root of the crate is ignored, because it re-exports everything. Related files: `folders/resolve.rs` resolves
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::modules::Modules;
use super::resolve::{absolute, definition};

/// The files that each file uses.
pub(super) type Arrows = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// Returns a crate's files and the files that each of them uses.
pub(super) fn arrows(modules: &Modules) -> Arrows {
    let mut arrows = Arrows::new();
    for (at, module) in modules.iter().filter(|(at, _)| !at.is_empty()) {
        for reference in module.references.iter().filter(|reference| !reference.is_reexport) {
            let Some(target) = absolute(modules, at, &reference.path) else { continue };
            let Some(defined) = definition(modules, &target).filter(|defined| !defined.is_empty()) else {
                continue;
            };
            let used = modules.get(&defined).map(|module| &module.files[..]).unwrap_or_default();
            let others = used.iter().filter(|file| **file != reference.file).cloned();
            arrows.entry(reference.file.clone()).or_default().extend(others);
        }
    }
    arrows
}

/// Returns the groups of several files that all use each other, in order.
pub(super) fn circles(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        arrows.keys().map(|file| (file, reachable(arrows, file))).collect();
    let mut found: Vec<BTreeSet<PathBuf>> = Vec::new();
    for (file, reaches) in &reached {
        if !reaches.contains(file) || found.iter().any(|circle| circle.contains(*file)) {
            continue;
        }
        let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|reaches| reaches.contains(file));
        found.push(reaches.iter().filter(back).map(|other| (*other).clone()).collect());
    }
    found
}

/// Returns all files reachable from `from`. The result contains `from` only if it is in a cycle.
fn reachable<'a>(arrows: &'a Arrows, from: &PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&PathBuf> = arrows.get(from).into_iter().flatten().collect();
    while let Some(file) = waiting.pop() {
        if reached.insert(file) {
            waiting.extend(arrows.get(file).into_iter().flatten());
        }
    }
    reached
}
