//! M4, zoned counters: measures the cost of counting under different thresholds, and the error of approximate reads.
//!
//! Gain: every CPU allocates and frees pages. The measurement counts the folds of the zone's counters, and measures
//! the time while all CPUs contend. Cost: the largest deviation of approximate reads from exact counts, and the bound
//! of the deviation, which is the number of CPUs times the threshold. The simulator provides hundreds of contending
//! CPUs (`mechanisms/m4/simulated.rs`). Source: Lameter 2006, Linux df9ecaba3f15.

mod simulated;

use std::sync::atomic::AtomicBool;
use std::thread;

use fastrand::Rng;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, ThresholdRule};
use zonal::units::{Order, PageCount};
use zonal::{Block, Config, Request};

use super::world::{Node, Shared, World, cpu_time_ns, machine, run_on, with_worlds};
use super::{Findings, Measure, Mechanism, Sizes, stops, threads_text};
use crate::spread::Spread;

pub(super) const MATTERS: &str = "more than about 256 CPUs update one total: with a small threshold they \
    wait for its cache line.";
pub(super) const DOES_NOT_MATTER: &str = "there are a few dozen CPUs, or no total of the whole machine, which is \
    the default: then only CPUs of one node share a cache line.";

/// A variant: its name, its threshold rule and its fold rule.
type Rule = (&'static str, ThresholdRule, FoldRule);

/// The rules to compare.
const RULES: [Rule; 5] = [
    ("1", ThresholdRule::Fixed(1), FoldRule::ToZero),
    ("32", ThresholdRule::Fixed(32), FoldRule::ToZero),
    ("32-overstep", ThresholdRule::Fixed(32), FoldRule::Overstep),
    ("scaled", ThresholdRule::Scaled, FoldRule::ToZero),
    ("scaled-overstep", ThresholdRule::Scaled, FoldRule::Overstep),
];

/// Number of frames on the node.
const FRAMES: u64 = 1 << 19;
/// Number of pages that a CPU allocates before it frees them.
const BATCH: usize = 64;
/// Number of emulated CPUs whose differences add up to the deviation.
const DRIFTING_CPUS: u32 = 64;
/// Orders of the blocks that make counters deviate. No pageset caches blocks of the last one, which change only totals.
const ORDERS: [u8; 6] = [0, 0, 0, 1, 3, 10];

/// Returns the default counter rules with this threshold and this fold rule.
fn counters(threshold: ThresholdRule, fold: FoldRule) -> CounterRules {
    CounterRules { threshold, fold, ..CounterRules::default() }
}

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let counted = contended(sizes, stop)?;
    let drifts = drift(sizes, stop)?;
    let threads = threads_text(sizes);
    let mut measures = vec![
        Measure::gain(
            "folds",
            "folds per 1000 pages",
            "folds",
            counted.iter().map(|counted| counted.folds).collect(),
        ),
        Measure::gain(
            "contended_pair",
            format!("ns per page, {threads} at once"),
            "ns",
            counted.iter().map(|counted| counted.ns).collect(),
        ),
    ];
    measures.extend(simulated::measure(sizes, stop)?);
    let drift = |of: fn(&Drift) -> u64| drifts.iter().map(|drift| of(drift) as f64).collect();
    measures.push(Measure::cost(
        "largest_deviation_free",
        "largest deviation of free pages",
        "pages",
        drift(|drift| drift.free),
    ));
    measures.push(Measure::cost(
        "largest_deviation_allocated",
        "largest deviation of allocated pages",
        "pages",
        drift(|drift| drift.allocated),
    ));
    measures.push(Measure::cost(
        "deviation_bound",
        "bound of both: CPUs times threshold",
        "pages",
        drift(|drift| drift.bound),
    ));
    let setup = format!(
        "{threads} on one node of {} MiB: each repeatedly allocates {BATCH} pages and frees them. Simulated: processes \
         touch pages, either with one total of the whole machine, as published, or without, which is the default. \
         Deviations: errors of approximate reads while {DRIFTING_CPUS} CPUs take turns with blocks of several orders.",
        FRAMES >> 8
    );
    let variants = RULES.map(|(name, ..)| name).to_vec();
    Some(Findings { mechanism: Mechanism::M4, setup, variants, measures })
}

/// The cost of counting under one rule.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Folds of the zone's counters per 1000 pages allocated and freed.
    folds: f64,
    /// CPU time to allocate and free a page, in nanoseconds.
    ns: f64,
}

/// Measures the cost under each rule. The rules alternate.
fn contended(sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<Counted>> {
    let configs =
        RULES.map(|(_, threshold, fold)| Config { counters: counters(threshold, fold), ..Config::default() });
    let machine = machine(&[Node { cpus: sizes.cpus.get(), frames: FRAMES }], |_, _| 10);
    with_worlds::<Shared, _>(&machine, &configs, |worlds| {
        let mut found = RULES.map(|_| (0, Vec::new()));
        // Round 0 is a warm-up.
        for round in 0..=sizes.rounds {
            for (world, (folds, times)) in worlds.iter().zip(&mut found) {
                if stops(stop) {
                    return None;
                }
                let before = folds_of(world);
                let ns = on_all_cpus(world, sizes);
                if round > 0 {
                    *folds += folds_of(world) - before;
                    times.push(ns as f64 / pages(sizes));
                }
            }
        }
        let counted = |(folds, times): (u64, Vec<f64>)| {
            let folds = folds as f64 * 1000.0 / (pages(sizes) * times.len() as f64);
            Some(Counted { folds, ns: Spread::of(times)?.median })
        };
        found.into_iter().map(counted).collect()
    })
}

/// Returns the page count of a round, summed over all CPUs.
fn pages(sizes: &Sizes) -> f64 {
    f64::from(sizes.batches) * BATCH as f64 * f64::from(sizes.cpus.get())
}

fn folds_of(world: &World<'_, Shared>) -> u64 {
    world.zones().map(|zone| zone.counter_folds).sum()
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

/// The deviation of approximate reads from exact ones, in pages.
#[derive(Clone, Copy, Default, Debug)]
struct Drift {
    free: u64,
    allocated: u64,
    /// The bound of both deviations.
    bound: u64,
}

/// Measures the deviation under each rule. One thread acts as all CPUs, so that every read can be compared with the
/// exact count.
fn drift(sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<Drift>> {
    let machine = machine(&[Node { cpus: DRIFTING_CPUS, frames: FRAMES }], |_, _| 10);
    let of_rule = |(_, threshold, fold): Rule| {
        let config = Config { counters: counters(threshold, fold), ..Config::default() };
        with_worlds::<Shared, _>(&machine, &[config], |worlds| deviation(&worlds[0], sizes, stop))
    };
    RULES.into_iter().map(of_rule).collect()
}

fn deviation(world: &World<'_, Shared>, sizes: &Sizes, stop: &AtomicBool) -> Option<Drift> {
    let mut random = Rng::with_seed(sizes.seed);
    let mut held: Vec<Block> = Vec::new();
    let mut drift = Drift::default();
    for _ in 0..sizes.drift_steps {
        if stops(stop) {
            return None;
        }
        run_on(random.u32(..DRIFTING_CPUS));
        if random.bool() && !held.is_empty() {
            free(world, held.swap_remove(random.usize(..held.len())));
        } else {
            let order = Order::new(ORDERS[random.usize(..ORDERS.len())]).expect("a small order");
            held.push(world.alloc(&Request::new(order)).expect("the node has memory for all"));
        }
        let exact = world.accounting();
        let allocated: PageCount = world.allocated_approximate().into_iter().sum();
        drift.free = drift.free.max(world.free_approximate().get().abs_diff(exact.free.get()));
        drift.allocated = drift.allocated.max(allocated.get().abs_diff(exact.allocated.get()));
    }
    let threshold = world.zones().map(|zone| u64::from(zone.stat_threshold)).max()?;
    Some(Drift { bound: u64::from(DRIFTING_CPUS) * threshold, ..drift })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn small() -> Sizes {
        Sizes {
            rounds: 2,
            cpus: NonZeroU32::MIN,
            batches: 200,
            drift_steps: 4000,
            ..Sizes::for_this_machine()
        }
    }

    #[test]
    fn folds_are_those_of_the_rule() {
        let counted = contended(&small(), &AtomicBool::new(false)).unwrap();
        // For one CPU and 2 GiB, the scaled threshold is 2 * fls(1) * (1 + fls(16)) = 12. Each page increments two
        // items. A fold removes threshold + 1 of these increments from the difference, and threshold / 2 more if it
        // oversteps.
        for (rule, (threshold, overstep)) in counted.iter().zip([(1, 0), (32, 0), (32, 16), (12, 0), (12, 6)])
        {
            let expected = 2000.0 / f64::from(threshold + 1 + overstep);
            assert!((rule.folds / expected - 1.0).abs() < 0.03, "{} folds, {expected} expected", rule.folds);
        }
    }

    #[test]
    fn reads_deviate_within_their_bound_and_more_with_larger_thresholds() {
        let drifts = drift(&small(), &AtomicBool::new(false)).unwrap();
        for drift in &drifts {
            assert!(drift.free <= drift.bound && drift.allocated <= drift.bound, "{drifts:?}");
        }
        let bounds: Vec<u64> = drifts.iter().map(|drift| drift.bound).collect();
        assert_eq!(bounds, [64, 2048, 2048, 5376, 5376]);
        // Refills and drains change the free frame count by more than a threshold of one, so each is folded at once.
        assert_eq!(drifts[0].free, 0, "{drifts:?}");
        assert!(0 < drifts[1].free && drifts[1].free < drifts[3].free, "{drifts:?}");
        assert!(0 < drifts[0].allocated && drifts[0].allocated < drifts[1].allocated, "{drifts:?}");
        assert!(drifts[1].allocated < drifts[3].allocated, "{drifts:?}");
    }
}
