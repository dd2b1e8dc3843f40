//! The five mechanisms, each off and on: what changes in counts and times, and what it costs.
//!
//! Everything is measured with the allocator that ships, on emulated machines (`world.rs`) that run
//! natively; what needs more CPUs than a machine has comes from the simulator and is labelled
//! simulated. `m1.rs` to `m5.rs` set up and measure one mechanism each and return plain data.
//! Neighbours: `zonal mechanisms` renders it.

mod m1;
mod m2;
mod m3;
mod m4;
mod m5;
mod world;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mechanism of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// The zonelist cache.
    M1,
    /// Tuned pagesets.
    M2,
    /// The zonelist cache before node reclaim.
    M3,
    /// Zoned counters.
    M4,
    /// Node fallback order.
    M5,
}

impl Mechanism {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::M1, Self::M2, Self::M3, Self::M4, Self::M5];

    /// The name on the command line and in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::M1 => "M1",
            Self::M2 => "M2",
            Self::M3 => "M3",
            Self::M4 => "M4",
            Self::M5 => "M5",
        }
    }

    /// What it does, in a line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::M1 => "zonelist cache: skip zones found full within the last second",
            Self::M2 => "tuned pagesets: as deep as their CPU's allocation and freeing go",
            Self::M3 => "zonelist cache before node reclaim: no second walk where one found nothing",
            Self::M4 => "zoned counters: fold into shared totals only beyond a threshold",
            Self::M5 => "fallback order: equally near nodes take turns as the next choice",
        }
    }

    /// Who published it, and when.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::M1 => "Jackson 2006",
            Self::M2 => "Huang 2023",
            Self::M3 => "Gorman 2011",
            Self::M4 => "Lameter 2006",
            Self::M5 => "Ramakrishnan 2021",
        }
    }

    /// What follows "it matters when", up to the end of the sentence.
    #[must_use]
    pub const fn matters(self) -> &'static str {
        match self {
            Self::M1 => m1::MATTERS,
            Self::M2 => m2::MATTERS,
            Self::M3 => m3::MATTERS,
            Self::M4 => m4::MATTERS,
            Self::M5 => m5::MATTERS,
        }
    }

    /// What follows "it does not matter when", up to the end of the sentence.
    #[must_use]
    pub const fn does_not_matter(self) -> &'static str {
        match self {
            Self::M1 => m1::DOES_NOT_MATTER,
            Self::M2 => m2::DOES_NOT_MATTER,
            Self::M3 => m3::DOES_NOT_MATTER,
            Self::M4 => m4::DOES_NOT_MATTER,
            Self::M5 => m5::DOES_NOT_MATTER,
        }
    }
}

/// What a measure speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// What the mechanism is meant to improve.
    Gain,
    /// What it may make worse.
    Cost,
}

/// One figure, measured for every variant.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure {
    /// Name for scripts.
    pub metric: String,
    /// Name for people.
    pub label: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Gain or cost.
    pub kind: Kind,
    /// Whether a simulated machine ran, and not this one.
    pub simulated: bool,
    /// A value for each of [`Findings::variants`], in their order.
    pub values: Vec<f64>,
}

impl Measure {
    /// A figure of the side that the mechanism improves.
    fn gain(
        metric: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        let (metric, label) = (metric.into(), label.into());
        Self { metric, label, unit, kind: Kind::Gain, simulated: false, values }
    }

    /// A figure of what the mechanism costs.
    fn cost(
        metric: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        Self { kind: Kind::Cost, ..Self::gain(metric, label, unit, values) }
    }
}

/// What was found out about one mechanism.
#[derive(Clone, PartialEq, Debug)]
pub struct Findings {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// What was set up, a sentence or two.
    pub setup: String,
    /// What was compared, the mechanism switched off first.
    pub variants: Vec<&'static str>,
    /// Gains, then costs.
    pub measures: Vec<Measure>,
}

/// More CPUs than this are not used: the metadata of emulated machines grows with them.
const CPUS_MAX: usize = 64;

/// How much work the measurements do.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Rounds of each timed figure; the median counts.
    pub rounds: usize,
    /// CPUs that work at the same time where several do.
    pub cpus: NonZeroU32,
    /// Full nodes before the one that serves (M1).
    pub full_nodes: Vec<u16>,
    /// Pages allocated and freed in a round (M1).
    pub pairs: u32,
    /// Pages that a CPU allocates before it frees them (M2).
    pub deep_pages: usize,
    /// How often it does so in a second of the clock (M2).
    pub deep_loops: u32,
    /// Seconds of the clock during which pages are allocated from a full node (M3).
    pub reclaim_seconds: u64,
    /// Batches of 64 pages that each CPU allocates and frees in a round (M4).
    pub batches: u32,
    /// Operations after each of which the counters are compared (M4).
    pub drift_steps: u32,
    /// CPUs of simulated machines: cases of the experiment `zoned-counters-2006` (M4).
    pub simulated_cpus: Vec<u32>,
    /// Pages that each of them touches (M4).
    pub simulated_pages: u32,
    /// Start of all random choices.
    pub seed: u64,
}

impl Sizes {
    /// Work of less than a minute on two cores, with a CPU for each of this machine's, up to 64.
    #[must_use]
    pub fn for_this_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(CPUS_MAX) as u32);
        Self {
            rounds: 9,
            cpus: NonZeroU32::new(cpus).unwrap_or(NonZeroU32::MIN),
            full_nodes: vec![0, 3, 15, 63, 255],
            pairs: 10_000,
            deep_pages: 1 << 15,
            deep_loops: 20,
            reclaim_seconds: 4,
            batches: 2000,
            drift_steps: 20_000,
            simulated_cpus: vec![128, 512, 1020],
            simulated_pages: 1024,
            seed: 1,
        }
    }
}

/// How far the measurements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is measured next.
    pub mechanism: Mechanism,
    /// Mechanisms that are done.
    pub done: usize,
    /// Mechanisms in all.
    pub total: usize,
}

/// Measures `mechanisms` one after the other until `stop` becomes true; one that was not finished by
/// then is left out.
///
/// # Panics
/// When the allocator breaks, or the host has no memory for the emulated machines.
pub fn measure(
    mechanisms: &[Mechanism],
    sizes: &Sizes,
    stop: &AtomicBool,
    mut on_progress: impl FnMut(Progress),
) -> Vec<Findings> {
    let mut all = Vec::new();
    for (done, &mechanism) in mechanisms.iter().enumerate() {
        on_progress(Progress { mechanism, done, total: mechanisms.len() });
        let found = match mechanism {
            Mechanism::M1 => m1::measure(sizes, stop),
            Mechanism::M2 => m2::measure(sizes, stop),
            Mechanism::M3 => m3::measure(sizes, stop),
            Mechanism::M4 => m4::measure(sizes, stop),
            Mechanism::M5 => m5::measure(stop),
        };
        let Some(found) = found else { break };
        all.push(found);
    }
    all
}

/// The threads of measurements with several, in words.
fn threads_text(sizes: &Sizes) -> String {
    match sizes.cpus.get() {
        1 => "1 CPU".to_owned(),
        cpus => format!("{cpus} CPUs"),
    }
}

/// Whether the caller wants the measurements to end.
fn stops(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed) // nothing but the flag itself is read
}
