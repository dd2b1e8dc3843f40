//! Measures figures other than the time of a pair: fragmentation, the duration of scans and starts, and the size of
//! metadata.
//!
//! A figure may have a goal, which consists of a required value and a desired value. The same code computes the
//! figures of free blocks for all contenders, from the blocks that each has allocated. Related files:
//! `figures/fragmentation.rs` measures any contender; `figures/scan.rs` and `figures/start.rs` measure the core on
//! machines that `figures/described.rs` describes.

mod described;
mod fragmentation;
mod scan;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zonal::units::PageCount;

use crate::contender::Entry;
use crate::ours;

/// The goal of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    /// At most a limit: the required limit, and the desired limit.
    AtMost(f64, f64),
    /// At least a value: the required value, and the desired value.
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
    /// The goal, which only figures of zonal may have.
    pub goal: Option<Goal>,
}

/// Name of the row that has the best possible value.
const IDEAL: &str = "ideal";

impl Figure {
    fn new(name: impl Into<String>, contender: &str, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), contender: contender.into(), value, unit, goal: None }
    }

    /// Sets the goal, if this is a figure of zonal.
    fn with_goal(self, goal: Goal) -> Self {
        let goal = (self.contender == ours::NAME).then_some(goal);
        Self { goal, ..self }
    }
}

/// The amount of work that the measurements do.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of frames in a pool for fragmentation.
    pub frames: PageCount,
    /// Requests in the mix of orders.
    pub requests: usize,
    /// Rounds of churn, each of which frees some frames and allocates as many.
    pub churn_rounds: usize,
    /// Sizes, in GiB, of the pools whose start is timed.
    pub start_gib: [u64; 3],
    /// Counts of full nodes before the node that serves.
    pub full_nodes: [u16; 6],
    /// Repetitions per timing.
    pub repeats: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for Sizes {
    /// Returns sizes with pools of 4 GiB, and starts with 1 GiB to 1 TiB.
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
    /// One line for each figure that was left out, with the reason.
    pub skipped: Vec<String>,
}

/// A group of figures that are measured together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Blocks of 2 MiB that remain free, or become free again.
    Fragmentation,
    /// The time of a pair that is served past full nodes.
    Scans,
    /// The time to start with much memory.
    Starts,
    /// Bytes of metadata per frame.
    Metadata,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Fragmentation, Self::Scans, Self::Starts, Self::Metadata];

    /// Returns the name that is used in arguments and documents.
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

/// Runs `work` on one CPU. On several, frames would stay behind in pagesets of CPUs that the thread has left, and the figures
/// would depend on when it was moved.
fn on_one_cpu<R>(work: impl FnOnce() -> R) -> R {
    /// The CPUs of the thread, which it gets back when this is dropped.
    struct Original(CpuSet);
    impl Drop for Original {
        fn drop(&mut self) {
            let _ = sched_setaffinity(None, &self.0);
        }
    }
    let Ok(original) = sched_getaffinity(None).map(Original) else { return work() };
    let mut first = CpuSet::new();
    (0..CpuSet::MAX_CPU).find(|&cpu| original.0.is_set(cpu)).into_iter().for_each(|cpu| first.set(cpu));
    // If this is refused, the figures depend on the scheduler.
    let _ = sched_setaffinity(None, &first);
    work()
}

/// Measures the figures of `parts` until `stop` becomes true. `entries` are the contenders for figures that apply to
/// any allocator. Calls `on_progress` before each part.
///
/// # Panics
/// Panics if a contender panics, or if this machine does not have enough address space for the metadata of the pools.
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
            Part::Fragmentation => {
                on_one_cpu(|| fragmentation::take(&entries, sizes, stop, &mut figures));
            }
            Part::Scans => figures.rows.extend(on_one_cpu(|| scan::scans(sizes, stop))),
            Part::Starts => {
                start::starts(&entries, sizes, stop, &mut figures);
                figures.rows.extend(start::sparse_start(sizes));
            }
            Part::Metadata => figures.rows.extend(start::metadata(sizes)),
        }
    }
    figures
}
