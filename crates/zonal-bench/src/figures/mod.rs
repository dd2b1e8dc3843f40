//! Figures other than the time of a pair: fragmentation, the duration of scans and starts, the size of
//! metadata.
//!
//! Each figure has a goal if one was set: a required value and a desired value. Figures of free blocks are
//! computed from the allocated blocks, by the same code for all contenders. Neighbours:
//! `figures/fragmentation.rs` measures any contender; `figures/scan.rs` and `figures/start.rs` measure the
//! core on described machines (`figures/described.rs`).

mod described;
mod fragmentation;
mod scan;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};

use zonal::units::PageCount;

use crate::contender::Entry;
use crate::ours;

/// The goal of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    /// At most: the required limit, and the desired one.
    AtMost(f64, f64),
    /// At least: the required value, and the desired one.
    AtLeast(f64, f64),
}

/// One figure of one contender.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The figure's name in scripts.
    pub name: String,
    /// The contender, or `ideal`.
    pub contender: String,
    /// The measured value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The goal for zonal, if one was set.
    pub goal: Option<Goal>,
}

/// Name of the row with the best possible value.
const IDEAL: &str = "ideal";

impl Figure {
    fn new(name: impl Into<String>, contender: &str, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), contender: contender.into(), value, unit, goal: None }
    }

    /// Sets the goal, if the figure is one of zonal.
    fn with_goal(self, goal: Goal) -> Self {
        let goal = (self.contender == ours::NAME).then_some(goal);
        Self { goal, ..self }
    }
}

/// The sizes of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Frames of a pool for fragmentation.
    pub frames: PageCount,
    /// Requests of the mix of orders.
    pub requests: usize,
    /// Rounds of freeing some frames and allocating as many.
    pub churn_rounds: usize,
    /// Sizes of pools whose start is timed, in GiB.
    pub start_gib: [u64; 3],
    /// Numbers of full nodes before the serving one.
    pub full_nodes: [u16; 6],
    /// Number of repetitions of each timing.
    pub repeats: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for Sizes {
    /// Returns sizes with pools of 4 GiB, and starts of 1 GiB to 1 TiB.
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

/// The measured figures.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The figures, in the order of measurement.
    pub rows: Vec<Figure>,
    /// What was left out and why, one line each.
    pub skipped: Vec<String>,
}

/// A group of figures that are measured together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Blocks of 2 MiB that remain free, or become free again.
    Fragmentation,
    /// The time of a pair past full nodes.
    Scans,
    /// The time to start with much memory.
    Starts,
    /// Bytes of metadata per frame.
    Metadata,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Fragmentation, Self::Scans, Self::Starts, Self::Metadata];

    /// Returns the name in arguments and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fragmentation => "fragmentation",
            Self::Scans => "scans",
            Self::Starts => "starts",
            Self::Metadata => "metadata",
        }
    }

    /// Returns a summary in one line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Fragmentation => "free 2 MiB blocks left by a mix of orders, and recovered by churn",
            Self::Scans => "a pair when 1 to 1023 full nodes precede the serving node",
            Self::Starts => "start-up time with 1 GiB, 64 GiB and 1 TiB, and with 4 GiB spread over 4 TiB",
            Self::Metadata => "bytes of metadata per frame",
        }
    }
}

/// Measures the figures of `parts` until `stop` becomes true; `entries` are the contenders of those figures
/// that any allocator has. Calls `on_progress` with the next figure.
///
/// # Panics
/// Panics if a contender panics, or if this machine has no address space for the metadata of the pools.
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
        // Relaxed: only the flag itself is read.
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
