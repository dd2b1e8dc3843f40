//! Which structure a line belongs to, told from the code that goes there.
//!
//! Every structure of the core starts on a line of its own and has a room of its own, so the files
//! that use a line name it. The first rule that fits wins; a file that no rule knows gives the line
//! its own name. Neighbours: `coherence.rs` notes who uses a line.

use std::panic::Location;

use crate::coherence::{Caches, Line};

/// Part of a file's name, and the structure it stands for.
const RULES: [(&str, &str); 22] = [
    ("cpu_local", "pageset"),
    ("pageset", "pageset"),
    ("at_home", "pageset"),
    ("frame_table", "frame states"),
    ("quarantine", "quarantine"),
    ("lock", "region heads"),
    ("regions", "region heads"),
    ("find_first", "buddy indexes"),
    ("buddy", "buddy words"),
    ("zonelist_cache", "zonelist cache"),
    ("zonelist", "zonelist"),
    ("events", "events"),
    ("node.rs", "node"),
    ("settings", "settings"),
    ("lists", "settings"),
    ("allocator.rs", "online CPUs"),
    ("zone.rs", "zone"),
    ("scan", "zone"),
    ("counters", "counter totals"),
    ("alloc", "frame states"),
    ("free.rs", "frame states"),
    ("tick", "pageset"),
];

/// The structure a line belongs to.
pub(crate) fn structure(caches: &Caches, line: &Line) -> String {
    let files: Vec<&str> = line.uses.iter().map(|used| file(caches.sites.get(used.site))).collect();
    let rule = RULES.iter().find(|(part, _)| files.iter().any(|file| file.contains(part)));
    let name = rule.map_or_else(|| files.first().copied().unwrap_or("unused"), |(_, name)| name);
    // Settings of zones and nodes are read on every path, but written by changes only.
    let is_read_only = line.uses.iter().all(|used| used.writes == 0);
    match name {
        "zone" | "node" if is_read_only => format!("{name} rules"),
        "counter totals" if is_read_only => "counter thresholds".to_owned(),
        "zone" | "node" => format!("{name} notes"),
        _ => name.to_owned(),
    }
}

/// A place in the code, as `file:line` within the core.
pub(crate) fn place_in_code(site: &Location<'_>) -> String {
    format!("{}:{}", file(site), site.line())
}

fn file<'l>(site: &'l Location<'_>) -> &'l str {
    let path = site.file();
    path.rsplit_once("src/").map_or(path, |(_, file)| file)
}
