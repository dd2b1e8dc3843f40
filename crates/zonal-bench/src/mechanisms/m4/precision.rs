//! The precision of totals: how far a reader's total is from the truth under each rule, on machines of several sizes.
//!
//! A total lacks what CPUs have not folded yet. With a fixed threshold, its error grows with the number of CPUs alone, so
//! that totals of a small machine are as imprecise, per CPU, as those of a large one. A scaled threshold is smaller on a
//! small machine, and larger on a large one. Related files: `mechanisms/m4.rs` measures the cost of counting.

use std::sync::atomic::AtomicBool;

use fastrand::Rng;
use zonal::units::{Order, PageCount};
use zonal::{Block, Config, Request};

use super::super::measure::{Better, Table};
use super::super::world::{Node, Shared, World, machine, run_on, with_worlds};
use super::super::{Sizes, stops};
use super::{RULES, Rule, counters, free};

/// Frames of the node for each CPU: a gibibyte for four.
pub(super) const FRAMES_FOR_EACH: u64 = 1 << 16;
/// Orders of the blocks that make counters deviate. No pageset caches blocks of the last one, which change only totals.
const ORDERS: [u8; 6] = [0, 0, 0, 1, 3, 10];

/// Adds the largest error and its bound for each number of CPUs.
pub(super) fn measure(table: &mut Table, sizes: &Sizes, stop: &AtomicBool) -> Option<()> {
    for &cpus in &sizes.drift_cpus {
        let found = RULES.into_iter().map(|rule| error(rule, cpus, sizes, stop));
        let found = found.collect::<Option<Vec<ReadError>>>()?;
        let (id, text) = if cpus == 1 {
            ("1_cpu".into(), "1 CPU".into())
        } else {
            (format!("{cpus}_cpus"), format!("{cpus} CPUs"))
        };
        let names = (format!("error_{id}"), format!("largest error of a total, {text}"), "pages");
        table.exact(Better::Less, names, found.iter().map(|error| error.largest as f64));
        let names = (format!("error_bound_{id}"), format!("its bound: {text} times threshold"), "pages");
        table.exact(Better::Less, names, found.iter().map(|error| error.bound as f64));
    }
    Some(())
}

/// The error of approximate reads, in pages.
#[derive(Clone, Copy, Default, Debug)]
struct ReadError {
    /// The largest difference from the exact count, of free or allocated pages.
    largest: u64,
    /// The bound of both differences.
    bound: u64,
}

/// Measures the error under one rule. One thread acts as all CPUs, so that every read can be compared with the exact
/// count.
fn error((_, threshold, fold): Rule, cpus: u32, sizes: &Sizes, stop: &AtomicBool) -> Option<ReadError> {
    let machine = machine(&[Node { cpus, frames: u64::from(cpus) * FRAMES_FOR_EACH }], |_, _| 10);
    let config = Config { counters: counters(threshold, fold), ..Config::default() };
    with_worlds::<Shared, _>(&machine, &[config], |worlds| largest(&worlds[0], cpus, sizes, stop))
}

fn largest(world: &World<'_, Shared>, cpus: u32, sizes: &Sizes, stop: &AtomicBool) -> Option<ReadError> {
    let mut random = Rng::with_seed(sizes.seed);
    let mut held: Vec<Block> = Vec::new();
    let mut error = ReadError::default();
    for _ in 0..sizes.drift_steps {
        if stops(stop) {
            return None;
        }
        run_on(random.u32(..cpus));
        let block = if random.bool() {
            let order = Order::new(ORDERS[random.usize(..ORDERS.len())]).expect("a small order");
            world.alloc(&Request::new(order)).ok()
        } else {
            None
        };
        match block {
            Some(block) => held.push(block),
            None if held.is_empty() => {}
            None => free(world, held.swap_remove(random.usize(..held.len()))),
        }
        let exact = world.accounting();
        let allocated: PageCount = world.allocated_approximate().into_iter().sum();
        let of_free = world.free_approximate().get().abs_diff(exact.free.get());
        let of_allocated = allocated.get().abs_diff(exact.allocated.get());
        error.largest = error.largest.max(of_free).max(of_allocated);
    }
    let threshold = world.zones().map(|zone| u64::from(zone.stat_threshold)).max()?;
    Some(ReadError { bound: u64::from(cpus) * threshold, ..error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn errors_stay_within_their_bound_and_scale_with_the_machine() {
        let sizes = Sizes { drift_steps: 4000, ..Sizes::for_this_machine() };
        let errors = |cpus| RULES.map(|rule| error(rule, cpus, &sizes, &AtomicBool::new(false)).unwrap());
        let all = [1, 4, 16, 64].map(errors);
        for error in all.iter().flatten() {
            assert!(0 < error.largest && error.largest <= error.bound, "{error:?}");
        }
        // Thresholds: 2 * fls(CPUs) * (1 + fls(units of 128 MiB)) with two units for each CPU, up to 120 or 125.
        let thresholds = all.map(|errors| errors.map(|error| error.bound));
        assert_eq!(thresholds[0], [32, 32, 6, 6, 6]);
        assert_eq!(thresholds[1], [32, 32, 30, 30, 30].map(|threshold| 4 * threshold));
        assert_eq!(thresholds[2], [32, 32, 70, 70, 70].map(|threshold| 16 * threshold));
        assert_eq!(thresholds[3], [32, 32, 120, 125, 125].map(|threshold| 64 * threshold));
        // On one CPU, a scaled total is more precise than one with the fixed threshold; on 64 CPUs it is less precise.
        assert!(all[0][4].largest < all[0][0].largest, "{:?}", all[0]);
        assert!(all[3][4].largest > all[3][0].largest, "{:?}", all[3]);
    }
}
