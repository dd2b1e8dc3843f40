//! Measures the five mechanisms, each off and on: counts, times and costs.
//!
//! The measurements run the allocator of the crate `zonal`, not a model of it, on the CPUs of this machine. The nodes,
//! CPUs and frames that the allocator manages are emulated. Some figures need more CPUs than this machine has. The
//! simulator produces these figures, and they are labelled as simulated.
//!
//! Related files: `mechanisms/world.rs` emulates the machines. `mechanisms/m1.rs` to `mechanisms/m5.rs` measure one
//! mechanism each and return plain data. `crates/zonal-cli/src/mechanisms.rs` prints this data for the command
//! `zonal mechanisms`.

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
    /// Pageset tuning.
    M2,
    /// The use of the zonelist cache before node reclaim: zones marked as full are not reclaimed.
    M3,
    /// Zoned counters.
    M4,
    /// The node fallback order with node load.
    M5,
}

impl Mechanism {
    /// All mechanisms, in order.
    pub const ALL: [Self; 5] = [Self::M1, Self::M2, Self::M3, Self::M4, Self::M5];

    /// Returns the name on the command line and in documents.
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

    /// Returns a summary in one line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::M1 => "zonelist cache: skip zones found full within the last second",
            Self::M2 => "pageset tuning: size pagesets by the depth of allocation and freeing",
            Self::M3 => "zonelist cache before node reclaim: no repeated futile walks",
            Self::M4 => "zoned counters: fold into shared totals only beyond a threshold",
            Self::M5 => "fallback order: equally near nodes take turns as the next fallback",
        }
    }

    /// Returns the author and year of publication.
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

    /// Returns the end of a sentence that begins with "it matters when".
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

    /// Returns the end of a sentence that begins with "it does not matter when".
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

/// Whether a measure shows a benefit or a cost of a mechanism.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A benefit: the mechanism is expected to improve the values.
    Gain,
    /// A cost: the mechanism may worsen the values.
    Cost,
}

/// One measured quantity, with a value for every variant of the mechanism.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure {
    /// Name in JSON documents.
    pub metric: String,
    /// Name in text output.
    pub label: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Whether the measure shows a benefit or a cost.
    pub kind: Kind,
    /// Whether the values come from a simulated machine instead of this one.
    pub simulated: bool,
    /// One value for each of [`Findings::variants`], in their order.
    pub values: Vec<f64>,
}

impl Measure {
    /// Creates a measure of kind [`Kind::Gain`].
    fn gain(
        metric: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        let (metric, label) = (metric.into(), label.into());
        Self { metric, label, unit, kind: Kind::Gain, simulated: false, values }
    }

    /// Creates a measure of kind [`Kind::Cost`].
    fn cost(
        metric: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        Self { kind: Kind::Cost, ..Self::gain(metric, label, unit, values) }
    }
}

/// The results of one mechanism.
#[derive(Clone, PartialEq, Debug)]
pub struct Findings {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// The setup in a sentence or two.
    pub setup: String,
    /// The names of the variants that are compared. The first variant is without the mechanism.
    pub variants: Vec<&'static str>,
    /// The benefits, followed by the costs.
    pub measures: Vec<Measure>,
}

/// Largest number of CPUs used. The number is limited because the metadata of emulated machines grows with their CPUs.
const CPUS_MAX: usize = 64;

/// The amount of work that the measurements do.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Number of rounds in which each time is measured. The result is the median over the rounds.
    pub rounds: usize,
    /// Number of CPUs that work concurrently in measurements with several CPUs.
    pub cpus: NonZeroU32,
    /// Numbers of full nodes that precede the node with free memory in the fallback order (M1). Each number is measured
    /// separately.
    pub full_nodes: Vec<u16>,
    /// Number of pages allocated and freed in a round (M1).
    pub pairs: u32,
    /// Number of pages that a CPU allocates before it frees them (M2).
    pub deep_pages: usize,
    /// How often per second of the simulated clock each CPU allocates and frees `deep_pages` pages (M2).
    pub deep_loops: u32,
    /// Seconds of the simulated clock during which pages are allocated from a full node (M3).
    pub reclaim_seconds: u64,
    /// Batches of 64 pages that each CPU allocates and frees in a round (M4).
    pub batches: u32,
    /// Number of operations. After each operation, the approximate counters are compared with the exact counts (M4).
    pub drift_steps: u32,
    /// CPU counts of the simulated machines, as in the experiment `zoned-counters-2006` (M4).
    pub simulated_cpus: Vec<u32>,
    /// Number of pages that each simulated CPU touches (M4).
    pub simulated_pages: u32,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Sizes {
    /// Returns sizes with which the measurements take less than a minute on two cores. The measurements use all CPUs of
    /// this machine, up to 64.
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

/// The progress of the measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The mechanism that is measured next.
    pub mechanism: Mechanism,
    /// Number of mechanisms measured so far.
    pub done: usize,
    /// Total number of mechanisms.
    pub total: usize,
}

/// Measures `mechanisms` one after another and returns their results. When `stop` becomes true, the function returns
/// only the results of the mechanisms whose measurements are already complete.
///
/// # Panics
/// Panics if the allocator panics, or if the host has too little memory for the emulated machines.
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

/// Returns the CPU count as text, such as `4 CPUs`.
fn threads_text(sizes: &Sizes) -> String {
    match sizes.cpus.get() {
        1 => "1 CPU".to_owned(),
        cpus => format!("{cpus} CPUs"),
    }
}

/// Whether the caller has requested that the measurements stop.
fn stops(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed) // relaxed: only the flag itself is read
}
