//! Figures that are no time of a pair: what fragmentation leaves, how long scans and starts take, how
//! much metadata there is.
//!
//! Each has a goal where one was set: what must be reached and what is aimed at. Figures of free blocks
//! are counted from the blocks that are out, by the same code for all. Neighbours: `fragmentation.rs`
//! asks any contender, `scan.rs` and `start.rs` ask the core over machines described to it
//! (`described.rs`).

mod described;
mod fragmentation;
mod scan;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};

use zonal::units::PageCount;

use crate::contender::Entry;
use crate::ours;

/// A goal of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    /// At most: what it must not exceed, and what is aimed at.
    AtMost(f64, f64),
    /// At least: what it must reach, and what is aimed at.
    AtLeast(f64, f64),
}

/// One figure of one contender.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What it is, as scripts know it.
    pub name: String,
    /// The contender, or `ideal`.
    pub contender: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What zonal's should be, where that was set.
    pub goal: Option<Goal>,
}

/// Name of the row that says what would be best.
const IDEAL: &str = "ideal";

impl Figure {
    fn new(name: impl Into<String>, contender: &str, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), contender: contender.into(), value, unit, goal: None }
    }

    /// The goal, if the figure is of zonal.
    fn with_goal(self, goal: Goal) -> Self {
        let goal = (self.contender == ours::NAME).then_some(goal);
        Self { goal, ..self }
    }
}

/// How large the worlds are in which figures are taken.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Frames of a pool for fragmentation.
    pub frames: PageCount,
    /// Requests of the mix of orders.
    pub requests: usize,
    /// Rounds of giving some back and taking as many.
    pub churn_rounds: usize,
    /// Pools whose start is timed, in GiB.
    pub start_gib: [u64; 3],
    /// Full nodes before the one that serves.
    pub full_nodes: [u16; 6],
    /// Times that a time is taken.
    pub repeats: usize,
    /// Start of all random choices.
    pub seed: u64,
}

impl Default for Sizes {
    /// Pools of 4 GiB; starts of 1 GiB to 1 TiB.
    fn default() -> Self {
        Self {
            frames: PageCount::new(1 << 20),
            requests: fragmentation::REQUESTS,
            churn_rounds: 200,
            start_gib: [1, 64, 1024],
            full_nodes: [1, 3, 15, 63, 255, 1023],
            repeats: 7,
            seed: 1,
        }
    }
}

/// What figures found.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// In the order taken.
    pub rows: Vec<Figure>,
    /// Who was left out of what, and why, a line each.
    pub skipped: Vec<String>,
}

/// Figures that are taken together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Blocks of 2 MiB that are left whole, or become whole again.
    Fragmentation,
    /// A pair past full nodes.
    Scans,
    /// Time to start over much memory.
    Starts,
    /// Bytes of metadata for each frame.
    Metadata,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fragmentation, Self::Scans, Self::Starts, Self::Metadata];

    /// The name people and scripts use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fragmentation => "fragmentation",
            Self::Scans => "scans",
            Self::Starts => "starts",
            Self::Metadata => "metadata",
        }
    }

    /// What it is, in a line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Fragmentation => {
                "blocks of 2 MiB left whole by a mix of orders, and made whole again by churn"
            }
            Self::Scans => "a pair with 1 to 1023 full nodes before the one that serves",
            Self::Starts => "time to start over 1 GiB, 64 GiB and 1 TiB, and over 4 GiB within 4 TiB",
            Self::Metadata => "bytes of metadata for each frame",
        }
    }
}

/// Takes the figures of `parts` until `stop` becomes true; `entries` are asked for those that any
/// allocator has. `on_progress` is told what comes next.
///
/// # Panics
/// When a contender breaks, or when this machine has no addresses for the metadata of the pools.
pub fn figures(
    entries: &[Entry],
    parts: &[Part],
    sizes: &Sizes,
    stop: &AtomicBool,
    mut on_progress: impl FnMut(Part),
) -> Figures {
    let entries: Vec<&Entry> = entries.iter().filter(|entry| entry.has_pool()).collect();
    let mut figures = Figures::default();
    for &part in parts {
        // Relaxed: nothing but the flag itself is read.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        on_progress(part);
        match part {
            Part::Fragmentation => fragmentation::take(&entries, sizes, stop, &mut figures),
            Part::Scans => figures.rows.extend(scan::scans(sizes, stop)),
            Part::Starts => {
                start::starts(&entries, sizes, stop, &mut figures);
                figures.rows.extend(start::sparse_start(sizes));
            }
            Part::Metadata => figures.rows.extend(start::metadata(sizes)),
        }
    }
    figures
}
