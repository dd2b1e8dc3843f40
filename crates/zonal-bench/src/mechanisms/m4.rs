//! M4, zoned counters: measures the cost of counting under different thresholds, and the error of readers.
//!
//! The first variant is the fixed threshold that Linux had before. Every CPU allocates and frees pages; the measurement
//! counts the folds of the node's counters, and the time while all CPUs contend. The simulator provides hundreds of
//! contending CPUs (`mechanisms/m4/simulated.rs`). The opposite of contention is precision: the error of a total that is
//! read without a fold (`mechanisms/m4/precision.rs`). Source: Lameter 2006, Linux df9ecaba3f15.

mod precision;
mod simulated;

use std::sync::atomic::AtomicBool;
use std::thread;

use zonal::rules::stat_threshold::{CounterRules, FoldRule, ThresholdRule};
use zonal::{Block, Config, Request};
use zonal_history::FirstPosting;

use super::measure::{Better, Table};
use super::world::{Node, Shared, World, cpu_time_ns, machine, run_on, with_worlds};
use super::{Findings, Mechanism, Origin, Sizes, stops, threads_origin, threads_text};

pub(super) const MATTERS: &str = "more than about 256 CPUs update one total, for whose cache line they wait with a \
    small threshold, or a machine is so small that totals with a threshold of 32 are imprecise.";
pub(super) const DOES_NOT_MATTER: &str = "there are a few dozen CPUs and readers tolerate errors, or there is no total \
    of the whole machine, which is the default: then only CPUs of one node share a cache line.";

/// A variant: its name, its threshold rule and its fold rule.
type Rule = (&'static str, ThresholdRule, FoldRule);

/// The rules to compare.
const RULES: [Rule; 5] = [
    ("32", ThresholdRule::Fixed(32), FoldRule::ToZero),
    ("32-overstep", ThresholdRule::Fixed(32), FoldRule::Overstep),
    ("first-posting", FirstPosting::RULE, FoldRule::Overstep),
    ("scaled", ThresholdRule::Scaled, FoldRule::ToZero),
    ("scaled-overstep", ThresholdRule::Scaled, FoldRule::Overstep),
];

/// Number of frames on the node.
const FRAMES: u64 = 1 << 19;
/// Number of pages that a CPU allocates before it frees them: many thresholds.
const BATCH: usize = 512;
/// Returns the default counter rules with this threshold and this fold rule.
fn counters(threshold: ThresholdRule, fold: FoldRule) -> CounterRules {
    CounterRules { threshold, fold, ..CounterRules::default() }
}

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let counted = contended(sizes, stop)?;
    let threads = threads_text(sizes);
    let mut table = Table::new(RULES.map(|(name, ..)| name), "scaled-overstep");
    let of = |value: fn(&Counted) -> &Vec<f64>| counted.iter().map(value).cloned();
    let names = ("folds", "folds per 1000 pages", "folds");
    table.sampled(Better::Less, threads_origin(sizes), names, of(|counted| &counted.folds))?;
    let names = ("contended_pair", format!("ns per page, {threads} at once"), "ns");
    table.sampled(Better::Less, Origin::Timed, names, of(|counted| &counted.ns))?;
    simulated::measure(&mut table, sizes, stop)?;
    precision::measure(&mut table, sizes, stop)?;
    let setup = format!(
        "{threads} on one node of {} MiB: each repeatedly allocates {BATCH} pages and frees them. Simulated: processes \
         touch pages, either with one total of the whole machine, as published, or without, which is the default. \
         Errors: the largest difference between a total of free or allocated pages that is read without a fold and the \
         exact count, on nodes with {} MiB for each CPU, while CPUs take turns with blocks of several orders.",
        FRAMES >> 8,
        precision::FRAMES_FOR_EACH >> 8,
    );
    Some(table.finish(Mechanism::M4, setup))
}

/// The cost of counting under one rule.
#[derive(Clone, Default, Debug)]
struct Counted {
    /// Folds of the node's counters per 1000 pages allocated and freed, in each round.
    folds: Vec<f64>,
    /// CPU time to allocate and free a page in each round, in nanoseconds.
    ns: Vec<f64>,
}

/// Measures the cost under each rule. The rules alternate.
fn contended(sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<Counted>> {
    let configs =
        RULES.map(|(_, threshold, fold)| Config { counters: counters(threshold, fold), ..Config::default() });
    let machine = machine(&[Node { cpus: sizes.cpus.get(), frames: FRAMES }], |_, _| 10);
    with_worlds::<Shared, _>(&machine, &configs, |worlds| {
        let mut found: Vec<Counted> = RULES.map(|_| Counted::default()).into();
        // Round 0 is a warm-up.
        for round in 0..=sizes.rounds {
            for (world, counted) in worlds.iter().zip(&mut found) {
                if stops(stop) {
                    return None;
                }
                let before = folds_of(world);
                let ns = on_all_cpus(world, sizes);
                if round > 0 {
                    counted.folds.push((folds_of(world) - before) as f64 * 1000.0 / pages(sizes));
                    counted.ns.push(ns as f64 / pages(sizes));
                }
            }
        }
        Some(found)
    })
}

/// Returns the page count of a round, summed over all CPUs.
fn pages(sizes: &Sizes) -> f64 {
    f64::from(sizes.batches) * BATCH as f64 * f64::from(sizes.cpus.get())
}

fn folds_of(world: &World<'_, Shared>) -> u64 {
    world.nodes().map(|node| node.counter_folds).sum()
}

/// Returns the CPU time of a round, summed over all CPUs.
fn on_all_cpus(world: &World<'_, Shared>, sizes: &Sizes) -> u64 {
    thread::scope(|scope| {
        let work = |cpu| {
            run_on(cpu);
            let mut held: Vec<Block> = Vec::with_capacity(BATCH);
            let start = cpu_time_ns();
            for _ in 0..sizes.batches {
                let alloc = |_| world.alloc(&Request::page()).expect("the node has memory for all");
                held.extend((0..BATCH).map(alloc));
                held.drain(..).for_each(|block| free(world, block));
            }
            cpu_time_ns() - start
        };
        let threads: Vec<_> = (0..sizes.cpus.get()).map(|cpu| scope.spawn(move || work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the allocator serves")).sum()
    })
}

fn free(world: &World<'_, Shared>, block: Block) {
    world.free(block.first, block.order).expect("the block was allocated");
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Measure};
    use super::*;
    use std::num::NonZeroU32;

    fn small() -> Sizes {
        Sizes {
            rounds: 2,
            cpus: NonZeroU32::MIN,
            batches: 200,
            drift_steps: 400,
            simulated_cpus: vec![4],
            simulated_pages: 50,
            ..Sizes::for_this_machine()
        }
    }

    #[test]
    fn folds_are_those_of_the_rule() {
        let counted = contended(&small(), &AtomicBool::new(false)).unwrap();
        // For one CPU and 2 GiB, the scaled threshold is 2 * fls(1) * (1 + fls(16)) = 12. Each page is counted when it is
        // allocated and when it is freed. A fold removes threshold + 1 of these steps from the difference, and
        // threshold / 2 more if it oversteps; the first one after a turn takes what the last one before it left.
        let rules = [(32, 0), (32, 16), (12, 6), (12, 0), (12, 6)];
        for (rule, (threshold, overstep)) in counted.iter().zip(rules) {
            let (mut difference, mut expected) = (0_i32, 0.0);
            for page in 0..1000 * 2 * BATCH {
                let step = if (page / BATCH) & 1 == 0 { 1 } else { -1 };
                difference += step;
                if difference.abs() > threshold {
                    difference = -step * overstep;
                    expected += 1.0 / BATCH as f64;
                }
            }
            for folds in &rule.folds {
                assert!((folds / expected - 1.0).abs() < 0.03, "{folds} folds, {expected} expected");
            }
        }
    }

    #[test]
    fn on_one_cpu_scaled_thresholds_cost_folds_and_gain_precision() {
        let found = measure(&small(), &AtomicBool::new(false)).unwrap();
        let of = |metric: &str| {
            let is_it = |measure: &&Measure| measure.metric == metric;
            found.measures.iter().find(is_it).unwrap()
        };
        let folds = of("folds");
        use Kind::{Cost, Gain, Same};
        assert_eq!(folds.kind, Cost, "{folds:?}");
        assert_eq!(folds.kinds, [Same, Gain, Cost, Cost, Cost], "{folds:?}");
        assert_eq!((of("error_1_cpu").kind, of("error_64_cpus").kind), (Gain, Cost));
    }
}
