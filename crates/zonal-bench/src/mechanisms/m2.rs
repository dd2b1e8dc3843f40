//! M2, tuned pagesets: measures the time that they save in a loop of many pages, and the memory that they hold
//! afterwards.
//!
//! Gain: every CPU repeatedly allocates many pages and frees all of them, under each tuning rule. The clock is
//! simulated, with a tick each second, so that tuning settles without waiting. Cost: the frames that pagesets hold
//! when nothing is allocated any more, and the blocks of 2 MiB that are therefore not free. Source: Huang 2023.

use std::sync::atomic::AtomicBool;
use std::thread;

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::Order;
use zonal::{Block, Config, Request};

use super::world::{
    Node, SECOND_NS, Shared, World, cpu_time_ns, locks_acquired, machine, run_on, with_worlds,
};
use super::{Findings, Measure, Mechanism, Sizes, stops, threads_text};
use crate::spread::Spread;

pub(super) const MATTERS: &str = "programs allocate and free thousands of pages at a time while many CPUs share \
    a zone and wait for its locks.";
pub(super) const DOES_NOT_MATTER: &str = "bursts fit into the fixed pageset, or few CPUs share a zone: a refill of \
    64 pages is then cheap.";

/// The rules to compare.
const RULES: [(&str, PagesetTuning); 3] =
    [("fixed", PagesetTuning::Fixed), ("depth", PagesetTuning::Depth), ("stepwise", PagesetTuning::Stepwise)];

/// Number of frames on the node for each page that a CPU allocates. With this many frames, the CPU's pageset may hold
/// all the pages.
const FRAMES_FOR_EACH: u64 = 16;
/// Seconds of the simulated clock after which tuning has settled.
const SECONDS_TO_SETTLE: usize = 8;
/// Number of idle seconds after which a pageset has drained to its lower limit.
const IDLE_SECONDS: usize = 3;
/// Order of a 2 MiB block.
const HUGE: Order = Order::new(9).expect("a small order");

/// The cost of loops for one second, summed over all CPUs.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    cpu_ns: u64,
    locks: u64,
    refills: u64,
}

/// Number of frames that pagesets hold, and number of free 2 MiB blocks, while nothing is allocated.
#[derive(Clone, Copy, Default, Debug)]
struct AtRest {
    held: u64,
    free_huge: u64,
}

/// The results of one rule.
#[derive(Clone, Debug)]
struct Found {
    refills: f64,
    locks: f64,
    ns: f64,
    at_rest: AtRest,
    after_idling: AtRest,
}

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let cpus = sizes.cpus.get();
    let frames = u64::from(cpus) * sizes.deep_pages as u64 * FRAMES_FOR_EACH;
    let machine = machine(&[Node { cpus, frames }], |_, _| 10);
    let configs = RULES.map(|(_, tuning)| Config { tuning, ..Config::default() });
    let found = with_worlds(&machine, &configs, |worlds| compare(worlds, sizes, stop))?;
    let of = |value: &dyn Fn(&Found) -> f64| found.iter().map(value).collect::<Vec<f64>>();
    let pages = sizes.deep_pages;
    let measures = vec![
        Measure::gain("refills", format!("refills per {pages} pages"), "refills", of(&|found| found.refills)),
        Measure::gain(
            "lock_acquisitions",
            format!("locks acquired per {pages} pages"),
            "locks",
            of(&|found| found.locks),
        ),
        Measure::gain("pair", "ns per page", "ns", of(&|found| found.ns)),
        Measure::cost(
            "held_at_rest",
            "frames in pagesets after all frees",
            "frames",
            of(&|found| found.at_rest.held as f64),
        ),
        Measure::cost(
            "free_2mib_blocks_at_rest",
            format!("free 2 MiB blocks then, of {}", frames >> HUGE.get()),
            "blocks",
            of(&|found| found.at_rest.free_huge as f64),
        ),
        Measure::cost(
            "held_after_idling",
            format!("frames in pagesets, {IDLE_SECONDS} idle seconds later"),
            "frames",
            of(&|found| found.after_idling.held as f64),
        ),
        Measure::cost(
            "free_2mib_blocks_after_idling",
            format!("free 2 MiB blocks then, of {}", frames >> HUGE.get()),
            "blocks",
            of(&|found| found.after_idling.free_huge as f64),
        ),
    ];
    let threads = threads_text(sizes);
    let setup = format!(
        "{threads} on one node of {} MiB: each repeatedly allocates {pages} pages and frees them. \
         Tuning settles during {SECONDS_TO_SETTLE} seconds of a simulated clock before the measurement.",
        frames >> 8
    );
    let variants = RULES.map(|(name, _)| name).to_vec();
    Some(Findings { mechanism: Mechanism::M2, setup, variants, measures })
}

/// Measures each rule. The rules alternate.
fn compare(worlds: &[World<'_, Shared>], sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<Found>> {
    for _ in 0..SECONDS_TO_SETTLE {
        for world in worlds {
            if stops(stop) {
                return None;
            }
            second(world, sizes);
        }
    }
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); worlds.len()];
    for _ in 0..sizes.rounds {
        for (world, costs) in worlds.iter().zip(&mut costs) {
            if stops(stop) {
                return None;
            }
            costs.push(second(world, sizes));
        }
    }
    worlds.iter().zip(costs).map(|(world, costs)| found(world, &costs, sizes)).collect()
}

/// Returns the figures of one rule, and the memory that its pagesets hold when nothing is allocated.
fn found(world: &World<'_, Shared>, costs: &[Cost], sizes: &Sizes) -> Option<Found> {
    let loops = f64::from(sizes.deep_loops) * f64::from(sizes.cpus.get());
    let pages = loops * sizes.deep_pages as f64;
    let mean =
        |of: &dyn Fn(&Cost) -> u64| costs.iter().map(of).sum::<u64>() as f64 / costs.len() as f64 / loops;
    let ns = Spread::of(costs.iter().map(|cost| cost.cpu_ns as f64 / pages))?.median;
    let at_rest = at_rest(world);
    for _ in 0..IDLE_SECONDS {
        world.platform().advance_ns(SECOND_NS);
        world.tick();
    }
    Some(Found {
        refills: mean(&|cost| cost.refills),
        locks: mean(&|cost| cost.locks),
        ns,
        at_rest,
        after_idling: self::at_rest(world),
    })
}

/// Runs one second of loops on all CPUs in parallel, followed by a tick.
fn second(world: &World<'_, Shared>, sizes: &Sizes) -> Cost {
    let refills = world.events().refills;
    let mut cost = Cost::default();
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..sizes.cpus.get()).map(|cpu| scope.spawn(move || loops(world, cpu, sizes))).collect();
        for thread in threads {
            let of_thread = thread.join().expect("the allocator serves");
            cost.cpu_ns += of_thread.cpu_ns;
            cost.locks += of_thread.locks;
        }
    });
    cost.refills = world.events().refills - refills;
    world.platform().advance_ns(SECOND_NS + SECOND_NS / 10);
    world.tick();
    cost
}

/// Runs the loops of one CPU.
fn loops(world: &World<'_, Shared>, cpu: u32, sizes: &Sizes) -> Cost {
    run_on(cpu);
    let mut held: Vec<Block> = Vec::with_capacity(sizes.deep_pages);
    let (locks, start) = (locks_acquired(), cpu_time_ns());
    for _ in 0..sizes.deep_loops {
        let alloc = |_| world.alloc(&Request::page()).expect("the node has memory for all");
        held.extend((0..sizes.deep_pages).map(alloc));
        held.drain(..).rev().for_each(|block| {
            world.free(block.first, block.order).expect("the block was allocated");
        });
    }
    Cost { cpu_ns: cpu_time_ns() - start, locks: locks_acquired() - locks, refills: 0 }
}

fn at_rest(world: &World<'_, Shared>) -> AtRest {
    let huge = usize::from(HUGE.get());
    let free_huge = |zone: zonal::snapshot::ZoneSnapshot| -> u64 {
        let blocks = zone.free_blocks.iter().enumerate().skip(huge);
        blocks.map(|(order, count)| count << (order - huge)).sum()
    };
    AtRest { held: world.accounting().in_pagesets.get(), free_huge: world.zones().map(free_huge).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn small() -> Sizes {
        let cpus = NonZeroU32::MIN;
        Sizes { rounds: 2, cpus, deep_pages: 8192, deep_loops: 4, ..Sizes::for_this_machine() }
    }

    #[test]
    fn depth_tuning_saves_refills_and_locks_and_holds_more_frames() {
        let found = measure(&small(), &AtomicBool::new(false)).unwrap();
        let of = |metric: &str| {
            let is_it = |measure: &&Measure| measure.metric == metric;
            <[f64; 3]>::try_from(&*found.measures.iter().find(is_it).unwrap().values).unwrap()
        };
        let [fixed, depth, stepwise] = of("refills");
        assert!(fixed > 50.0 && depth * 10.0 < fixed && stepwise * 2.0 < fixed, "{fixed} {depth} {stepwise}");
        let [fixed, depth, stepwise] = of("lock_acquisitions");
        assert!(
            fixed > 100.0 && depth * 10.0 < fixed && stepwise * 2.0 < fixed,
            "{fixed} {depth} {stepwise}"
        );
        let [fixed, depth, stepwise] = of("held_at_rest");
        assert!(
            fixed < 2000.0 && depth > 3.0 * fixed && stepwise > 3.0 * fixed,
            "{fixed} {depth} {stepwise}"
        );
        let [fixed, depth, _] = of("free_2mib_blocks_at_rest");
        assert!(fixed > depth && depth > 128.0, "{fixed} {depth} of 256");
        let [fixed, depth, stepwise] = of("held_after_idling");
        // Both rules drain pagesets to the lower limit, except for a remainder: pagesets drain in words of 64 frames.
        assert!(depth.max(stepwise) < fixed + 128.0, "{fixed} {depth} {stepwise}");
    }
}
