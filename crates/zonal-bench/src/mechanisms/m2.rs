//! M2, tuned pagesets: measures the time that they save in a loop of many pages, and the memory that they hold
//! afterwards.
//!
//! Every CPU repeatedly allocates many pages and frees all of them, under each tuning rule. The clock is simulated, with
//! a tick each second, so that tuning settles without waiting. Afterwards, pagesets hold frames although nothing is
//! allocated any more, and blocks of 2 MiB are therefore not free. How long CPUs wait for the zone's lock depends on their
//! number, so many CPUs are simulated (`mechanisms/m2/simulated.rs`). Source: Huang 2023.

mod simulated;

use std::sync::atomic::AtomicBool;
use std::thread;

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::Order;
use zonal::{Block, Config, Request};

use super::measure::{Better, Table};
use super::world::{
    Node, SECOND_NS, Shared, World, cpu_time_ns, locks_acquired, machine, run_on, with_worlds,
};
use super::{Findings, Mechanism, Origin, Sizes, stops, threads_origin, threads_text};

pub(super) const MATTERS: &str = "programs allocate and free thousands of pages at a time while many CPUs share \
    a zone and wait for its locks.";
pub(super) const DOES_NOT_MATTER: &str = "bursts fit into the fixed pageset, or few CPUs share a zone: a refill of \
    64 pages is then cheap.";

/// The rules to compare.
const RULES: [(&str, PagesetTuning); 4] = [
    ("fixed", PagesetTuning::Fixed),
    ("depth-published", PagesetTuning::DepthPublished),
    ("stepwise", PagesetTuning::Stepwise),
    ("depth", PagesetTuning::Depth),
];

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
    /// Refills and lock acquisitions per loop, and CPU time per page, in each round.
    refills: Vec<f64>,
    locks: Vec<f64>,
    ns: Vec<f64>,
    at_rest: AtRest,
    after_idling: AtRest,
}

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let cpus = sizes.cpus.get();
    let frames = u64::from(cpus) * sizes.deep_pages as u64 * FRAMES_FOR_EACH;
    let machine = machine(&[Node { cpus, frames }], |_, _| 10);
    let config = |tuning| Config { tuning, past: zonal_history::PAST, ..Config::default() };
    let configs = RULES.map(|(_, tuning)| config(tuning));
    let found = with_worlds(&machine, &configs, |worlds| compare(worlds, sizes, stop))?;
    let mut table = Table::new(RULES.map(|(name, _)| name), "depth");
    counts(&mut table, &found, sizes)?;
    for waits in simulated::measure(sizes, stop)? {
        let cpus = waits.cpus;
        let label = format!("% of time waiting for locks, {cpus} CPUs");
        table.simulated(Better::Less, (format!("lock_waiting_{cpus}_cpus"), label, "%"), waits.waiting);
        let label = format!("us per page, {cpus} CPUs");
        table.simulated(Better::Less, (format!("page_{cpus}_cpus"), label, "us"), waits.us);
    }
    at_rest_in(&mut table, &found, frames, sizes)?;
    let (threads, pages) = (threads_text(sizes), sizes.deep_pages);
    let setup = format!(
        "{threads} on one node of {} MiB: each repeatedly allocates {pages} pages and frees them. \
         Tuning settles during {SECONDS_TO_SETTLE} seconds of a simulated clock before the measurement. Simulated: CPUs \
         of one socket of 112 do the same with {} pages and {} ns of other work for each, and one lock guards the free \
         pages of the node, as in Linux. All rules have the same assumed costs.",
        frames >> 8,
        sizes.waiting_pages,
        simulated::OTHER_NS,
    );
    Some(table.finish(Mechanism::M2, setup))
}

/// Adds what the loops cost on this machine.
fn counts(table: &mut Table, found: &[Found], sizes: &Sizes) -> Option<()> {
    let (pages, origin) = (sizes.deep_pages, threads_origin(sizes));
    let of = |value: fn(&Found) -> &Vec<f64>| found.iter().map(value).cloned();
    let names = ("refills", format!("refills per {pages} pages"), "refills");
    table.sampled(Better::Less, origin, names, of(|found| &found.refills))?;
    let names = ("lock_acquisitions", format!("locks acquired per {pages} pages"), "locks");
    table.sampled(Better::Less, origin, names, of(|found| &found.locks))?;
    table.sampled(Better::Less, Origin::Timed, ("pair", "ns per page", "ns"), of(|found| &found.ns))
}

/// Adds what pagesets hold afterwards.
fn at_rest_in(table: &mut Table, found: &[Found], frames: u64, sizes: &Sizes) -> Option<()> {
    let origin = threads_origin(sizes);
    let huge = frames >> HUGE.get();
    let of = |value: fn(&Found) -> u64| found.iter().map(move |found| vec![value(found) as f64]);
    let names = ("held_at_rest", "frames in pagesets after all frees".to_owned(), "frames");
    table.sampled(Better::Less, origin, names, of(|found| found.at_rest.held))?;
    let names = ("free_2mib_blocks_at_rest", format!("free 2 MiB blocks then, of {huge}"), "blocks");
    table.sampled(Better::More, origin, names, of(|found| found.at_rest.free_huge))?;
    let label = format!("frames in pagesets, {IDLE_SECONDS} idle seconds later");
    let names = ("held_after_idling", label, "frames");
    table.sampled(Better::Less, origin, names, of(|found| found.after_idling.held))?;
    let label = format!("free 2 MiB blocks after {IDLE_SECONDS} idle seconds");
    let names = ("free_2mib_blocks_after_idling", label, "blocks");
    table.sampled(Better::More, origin, names, of(|found| found.after_idling.free_huge))
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
    Some(worlds.iter().zip(costs).map(|(world, costs)| found(world, &costs, sizes)).collect())
}

/// Returns the figures of one rule, and the memory that its pagesets hold when nothing is allocated.
fn found(world: &World<'_, Shared>, costs: &[Cost], sizes: &Sizes) -> Found {
    let loops = f64::from(sizes.deep_loops) * f64::from(sizes.cpus.get());
    let each =
        |of: fn(&Cost) -> u64, number: f64| costs.iter().map(|cost| of(cost) as f64 / number).collect();
    let at_rest = at_rest(world);
    for _ in 0..IDLE_SECONDS {
        world.platform().advance_ns(SECOND_NS);
        world.tick();
    }
    Found {
        refills: each(|cost| cost.refills, loops),
        locks: each(|cost| cost.locks, loops),
        ns: each(|cost| cost.cpu_ns, loops * sizes.deep_pages as f64),
        at_rest,
        after_idling: self::at_rest(world),
    }
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
    use super::super::{Kind, Measure};
    use super::*;
    use std::num::NonZeroU32;

    fn small() -> Sizes {
        let cpus = NonZeroU32::MIN;
        let waiting = (vec![112], 1 << 10);
        Sizes {
            rounds: 2,
            cpus,
            deep_pages: 8192,
            deep_loops: 4,
            waiting_cpus: waiting.0,
            waiting_pages: waiting.1,
            ..Sizes::for_this_machine()
        }
    }

    #[test]
    fn tuning_saves_refills_locks_and_waiting_and_holds_more_frames() {
        let found = measure(&small(), &AtomicBool::new(false)).unwrap();
        let of = |metric: &str| {
            let is_it = |measure: &&Measure| measure.metric == metric;
            let measure = found.measures.iter().find(is_it).unwrap();
            (<[f64; 4]>::try_from(&*measure.values).unwrap(), measure.kind)
        };
        let ([fixed, published, stepwise, depth], kind) = of("refills");
        assert!(fixed > 50.0 && depth * 10.0 < fixed && published * 10.0 < fixed && stepwise * 2.0 < fixed);
        assert_eq!(kind, Kind::Gain);
        let ([fixed, published, stepwise, depth], _) = of("lock_acquisitions");
        assert!(fixed > 100.0 && depth * 10.0 < fixed && published * 10.0 < fixed && stepwise * 2.0 < fixed);
        let ([fixed, published, stepwise, depth], kind) = of("held_at_rest");
        assert!(fixed < 2000.0 && [published, stepwise, depth].iter().all(|&held| held > 3.0 * fixed));
        assert_eq!(kind, Kind::Cost);
        let ([fixed, _, _, depth], _) = of("free_2mib_blocks_at_rest");
        assert!(fixed > depth && depth > 128.0, "{fixed} {depth} of 256");
        let ([fixed, _, stepwise, depth], _) = of("held_after_idling");
        // Both rules drain pagesets to the lower limit, except for a remainder: pagesets drain in words of 64 frames.
        assert!(depth.max(stepwise) < fixed + 128.0, "{fixed} {depth} {stepwise}");
        let ([fixed, tuned @ ..], kind) = of("lock_waiting_112_cpus");
        assert!(fixed > 40.0 && tuned.iter().all(|&waiting| waiting < fixed), "{fixed} {tuned:?}");
        assert!(tuned[0] < fixed / 4.0 && tuned[2] < fixed / 4.0, "{fixed} {tuned:?}");
        assert_eq!(kind, Kind::Gain);
    }
}
