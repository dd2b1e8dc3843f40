//! Measures the mechanisms, each off and on: counts, times and costs.
//!
//! The measurements run the allocator of the crate `zonal`, not a model of it, on the CPUs of this machine. The nodes,
//! CPUs and frames that the allocator manages are emulated. Some figures need more CPUs than this machine has. The
//! simulator produces these figures, and they are labelled as simulated.
//!
//! Related files: `mechanisms/world.rs` emulates the machines. `mechanisms/m1.rs` to `mechanisms/m6.rs` measure one
//! mechanism each, and `mechanisms/measure.rs` compares the variants. `crates/zonal-cli/src/mechanisms.rs` prints this data for the command
//! `zonal mechanisms`.

mod m1;
mod m2;
mod m3;
mod m4;
mod m5;
mod m6;
mod measure;
mod world;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

pub use measure::{Kind, Measure, Origin};

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
    /// Blocks owned by CPUs.
    M6,
}

impl Mechanism {
    /// All mechanisms, in order.
    pub const ALL: [Self; 6] = [Self::M1, Self::M2, Self::M3, Self::M4, Self::M5, Self::M6];

    /// Returns the name on the command line and in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::M1 => "M1",
            Self::M2 => "M2",
            Self::M3 => "M3",
            Self::M4 => "M4",
            Self::M5 => "M5",
            Self::M6 => "M6",
        }
    }

    /// Returns a summary in one line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::M1 => "zonelist cache: skip zones found full within the last second",
            Self::M2 => "pageset tuning: size pagesets by the depth of allocation and freeing",
            Self::M3 => "zonelist cache before node reclaim: no repeated futile walks",
            Self::M4 => "zoned counters: thresholds that scale with the machine",
            Self::M5 => "fallback order: equally near nodes take turns as the next fallback",
            Self::M6 => "owned blocks: CPUs split whole 2 MiB blocks themselves (off by default)",
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
            Self::M6 => "Weiner 2026",
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
            Self::M6 => m6::MATTERS,
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
            Self::M6 => m6::DOES_NOT_MATTER,
        }
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
    /// The name of the variant that is the default.
    pub shipped: &'static str,
    /// The gains, then the costs, then what makes no difference.
    pub measures: Vec<Measure>,
}

/// Largest number of CPUs used. The number is limited because the metadata of emulated machines grows with their CPUs.
pub const CPUS_MAX: u32 = 64;

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
    /// How many simulated CPUs allocate and free at the same time (M2).
    pub waiting_cpus: Vec<u32>,
    /// How many pages each of these CPUs allocates before it frees them (M2).
    pub waiting_pages: usize,
    /// Seconds of the simulated clock during which pages are allocated from a full node in each round (M3).
    pub reclaim_seconds: u64,
    /// Batches of 64 pages that each CPU allocates and frees in a round (M4).
    pub batches: u32,
    /// How many CPUs have differences that add up to the error in a total (M4).
    pub drift_cpus: Vec<u32>,
    /// Number of operations. After each operation, the approximate counters are compared with the exact counts (M4).
    pub drift_steps: u32,
    /// CPU counts of the simulated machines, as in the experiment `zoned-counters-2006` (M4).
    pub simulated_cpus: Vec<u32>,
    /// Number of pages that each simulated CPU touches (M4).
    pub simulated_pages: u32,
    /// How many turns of 64 steps each CPU takes in a round (M6).
    pub mix_turns: u32,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Sizes {
    /// Returns sizes with which the measurements take less than a minute on two cores. The measurements use all CPUs of
    /// this machine, up to [`CPUS_MAX`].
    #[must_use]
    pub fn for_this_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(CPUS_MAX as usize));
        Self {
            rounds: 9,
            cpus: NonZeroU32::new(cpus as u32).unwrap_or(NonZeroU32::MIN),
            full_nodes: vec![0, 3, 15, 63, 255],
            pairs: 10_000,
            deep_pages: 1 << 15,
            deep_loops: 20,
            waiting_cpus: vec![16, 56, 112],
            waiting_pages: 1 << 11,
            reclaim_seconds: 1,
            batches: 2000,
            drift_cpus: vec![1, 4, 16, 64],
            drift_steps: 20_000,
            simulated_cpus: vec![128, 512, 1020],
            simulated_pages: 1024,
            mix_turns: 200,
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
            Mechanism::M6 => m6::measure(sizes, stop),
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

/// Returns the origin of counts that all CPUs contribute to.
fn threads_origin(sizes: &Sizes) -> Origin {
    if sizes.cpus.get() == 1 { Origin::Exact } else { Origin::Varying }
}

/// Whether the caller has requested that the measurements stop.
fn stops(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed) // relaxed: only the flag itself is read
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::LazyLock;

    use super::*;

    /// Returns sizes for which all measurements together take seconds.
    fn small() -> Sizes {
        Sizes {
            rounds: 2,
            cpus: NonZeroU32::MIN,
            full_nodes: vec![3],
            pairs: 300,
            deep_pages: 1 << 12,
            deep_loops: 2,
            waiting_cpus: vec![2],
            waiting_pages: 512,
            batches: 50,
            drift_cpus: vec![1, 4],
            drift_steps: 500,
            mix_turns: 20,
            simulated_cpus: vec![4],
            simulated_pages: 50,
            ..Sizes::for_this_machine()
        }
    }

    fn all() -> Vec<Findings> {
        measure(&Mechanism::ALL, &small(), &AtomicBool::new(false), |_| ())
    }

    /// What [`all`] returned for the first test.
    fn first() -> &'static [Findings] {
        static FIRST: LazyLock<Vec<Findings>> = LazyLock::new(all);
        &FIRST
    }

    #[test]
    fn only_times_and_counts_of_several_cpus_differ_between_runs() {
        let repeats = |found: &[Findings]| -> Vec<Measure> {
            let measures = found.iter().flat_map(|found| found.measures.clone());
            measures.filter(|measure| matches!(measure.origin, Origin::Exact | Origin::Simulated)).collect()
        };
        let first = first();
        assert_eq!(first.len(), Mechanism::ALL.len());
        // Kinds decide the order of measures, so only those that repeat are in the same order.
        assert_eq!(repeats(first), repeats(&all()));
        // With one CPU, counts of all mechanisms are exact.
        let measures = first.iter().flat_map(|found| &found.measures);
        assert!(measures.clone().all(|measure| measure.origin != Origin::Varying));
        assert!(measures.clone().any(|measure| measure.origin == Origin::Timed));
    }

    #[test]
    fn no_two_measures_share_a_name_and_no_gain_is_equal_in_all_variants() {
        for found in first() {
            let measures = &found.measures;
            let labels: BTreeSet<&str> = measures.iter().map(|measure| &*measure.label).collect();
            let metrics: BTreeSet<&str> = measures.iter().map(|measure| &*measure.metric).collect();
            assert_eq!((labels.len(), metrics.len()), (measures.len(), measures.len()), "{measures:?}");
            for measure in measures {
                assert_eq!(
                    (measure.values.len(), measure.kinds.len()),
                    (found.variants.len(), found.variants.len())
                );
                let equal = measure.values.iter().all(|value| *value == measure.values[0]);
                assert!(!equal || measure.kind == Kind::Same, "{measure:?}");
                if matches!(measure.origin, Origin::Exact | Origin::Simulated) {
                    let none_differs = measure.kinds.iter().all(|&kind| kind == Kind::Same);
                    assert_eq!(measure.kind == Kind::Same, none_differs, "{measure:?}");
                }
            }
            assert!(measures.is_sorted_by_key(|measure| measure.kind));
        }
    }
}
