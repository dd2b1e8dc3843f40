//! M1, the zonelist cache: measures the cost of full nodes before the serving node, and of a stale full bit.
//!
//! Gain: node 0 has the CPU. Node 0 and the nearest other nodes are filled to their `low` watermark, and the last
//! node serves. A page is allocated and freed under each mode of the zonelist cache. Cost: memory on a near node is
//! freed some time after the node was marked full. The measurement counts the pages that still come from farther
//! nodes within the next second. Source: Jackson 2006, Linux 9276b1bc96a1.

use std::sync::atomic::AtomicBool;

use zonal::config::ZonelistCache;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::PageCount;
use zonal::{Block, Config, Request};

use super::measure::{Better, Table};
use super::world::{
    Access, Node, SECOND_NS, Shared, Single, World, cpu_time_ns, machine, run_on, with_worlds,
};
use super::{Findings, Mechanism, Origin, Sizes, stops};

pub(super) const MATTERS: &str = "programs outgrow their node on a machine with many nodes: without it, every \
    allocation probes every full zone again.";
pub(super) const DOES_NOT_MATTER: &str = "the CPU's own node has free memory: its pageset serves, and no zone is \
    probed.";

/// The modes to compare.
const MODES: [(&str, ZonelistCache); 4] = [
    ("off", ZonelistCache::Off),
    ("2006", ZonelistCache::Jackson2006),
    ("published", ZonelistCache::Published),
    ("on", ZonelistCache::On),
];

/// Frames of each filled node, and of the node that serves.
const SMALL: u64 = 1 << 10;
const LARGE: u64 = 1 << 18;
/// Pages allocated and freed after each change of mode, so that full bits are set.
const WARM_UP: u32 = 200;

/// Frames per node in the measurement of stale full bits, and number of pages that a CPU then frees.
const STALE_FRAMES: u64 = 1 << 14;
const FREED: usize = 6000;
/// Number of pages allocated in the second after these pages were freed.
const ALLOCATED: usize = 2000;
/// Number of moments at which memory is freed, evenly spaced over the second for which a full bit is valid.
const MOMENTS: u64 = 10;

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let found: Option<Vec<_>> = sizes.full_nodes.iter().map(|&full| past_full(full, sizes, stop)).collect();
    let found: Vec<(u16, Vec<PastFull>)> = sizes.full_nodes.iter().copied().zip(found?).collect();
    let mut table = Table::new(MODES.map(|(name, _)| name), "on");
    for (full, found) in &found {
        let label = format!("zones probed past {full} full nodes");
        let names = (format!("zones_probed_past_{full}_full"), label, "zones");
        table.exact(Better::Less, names, found.iter().map(|past| past.zones));
    }
    for (full, found) in found {
        let label = format!("ns per page past {full} full nodes");
        let names = (format!("pair_past_{full}_full"), label, "ns");
        table.sampled(Better::Less, Origin::Timed, names, found.into_iter().map(|past| past.ns))?;
    }
    table.exact(
        Better::Less,
        ("pages_from_farther_than_need_be", "% of pages from farther than necessary", "%"),
        MODES.map(|(_, mode)| farther_than_need_be(mode)),
    );
    let setup = format!(
        "One CPU on the first of up to {} full nodes of {} MiB; the next node, of {} MiB, serves. Pages from farther \
         than necessary: over the second after memory is freed on a nearer node that was marked full.",
        sizes.full_nodes.iter().max().copied().unwrap_or_default(),
        SMALL >> 8,
        LARGE >> 8,
    );
    Some(table.finish(Mechanism::M1, setup))
}

/// The cost of a page that is served past full nodes, under one mode.
#[derive(Clone, Debug)]
struct PastFull {
    /// Number of zones probed per page.
    zones: f64,
    /// CPU time to allocate and free a page in each round, in nanoseconds.
    ns: Vec<f64>,
}

/// Measures the cost under each mode. The modes alternate in every round.
fn past_full(full: u16, sizes: &Sizes, stop: &AtomicBool) -> Option<Vec<PastFull>> {
    run_on(0);
    with_worlds::<Single, _>(&machine_of(full), &[config_of(full)], |worlds| {
        let world = &worlds[0];
        fill_up_to(world, full);
        let mut found = MODES.map(|_| (0.0, Vec::new()));
        for _ in 0..sizes.rounds {
            if stops(stop) {
                return None;
            }
            for ((_, mode), (zones, times)) in MODES.iter().zip(&mut found) {
                world.set_zonelist_cache(*mode).expect("past forms are linked");
                pairs(world, WARM_UP);
                let (probes, start) = (world.events().probes, cpu_time_ns());
                pairs(world, sizes.pairs);
                times.push((cpu_time_ns() - start) as f64 / f64::from(sizes.pairs));
                *zones = (world.events().probes - probes) as f64 / f64::from(sizes.pairs);
            }
        }
        Some(found.into_iter().map(|(zones, ns)| PastFull { zones, ns }).collect())
    })
}

/// Returns a machine with `full` small nodes, the first of which has the CPU, and then the large node. One more node
/// is never used: without it, the machine could have only one node, and a single node has no zonelist cache.
fn machine_of(full: u16) -> zonal_machine::MachineModel {
    let node = |frames| Node { cpus: 0, frames };
    let small = std::iter::repeat_n(node(SMALL), full.into());
    let mut nodes: Vec<Node> = small.chain([node(LARGE), node(SMALL)]).collect();
    nodes[0].cpus = 1;
    machine(&nodes, |_, _| 20)
}

/// Returns a configuration with watermarks of a few frames per node.
fn config_of(full: u16) -> Config {
    let min_free = Some(PageCount::new(8 * u64::from(full) + 64));
    let watermarks = WatermarkSettings { min_free, ..WatermarkSettings::default() };
    Config { watermarks, past: zonal_history::PAST, ..Config::default() }
}

/// Allocates pages until node `full` serves a page.
fn fill_up_to<A: Access>(world: &World<'_, A>, full: u16) {
    while page(world).node.get() != full {}
}

fn page<A: Access>(world: &World<'_, A>) -> Block {
    world.alloc(&Request::page()).expect("a node of the emulated machine has memory")
}

fn pairs<A: Access>(world: &World<'_, A>, count: u32) {
    for _ in 0..count {
        let block = page(world);
        world.free(std::hint::black_box(block).first, block.order).expect("the block was allocated");
    }
}

/// Returns the percentage of pages that come from a farther node although a nearer node has free memory again. Pages
/// are counted in the second after the memory was freed, and the result is the mean over [`MOMENTS`] moments of
/// freeing.
fn farther_than_need_be(mode: ZonelistCache) -> f64 {
    let farther: usize = (0..MOMENTS).map(|moment| farther_after(mode, moment)).sum();
    100.0 * farther as f64 / (MOMENTS as usize * ALLOCATED) as f64
}

/// Counts the pages that come from node 2 in the second after memory was freed on node 1.
fn farther_after(mode: ZonelistCache, moment: u64) -> usize {
    let near = Node { cpus: 1, frames: STALE_FRAMES };
    let machine =
        machine(&[near, near, Node { cpus: 0, ..near }], |from, to| 10 + 2 * from.abs_diff(to) as u8);
    let config = Config { zonelist_cache: mode, ..config_of(3) };
    with_worlds::<Shared, _>(&machine, &[config], |worlds| {
        let world = &worlds[0];
        run_on(1);
        let mut held: Vec<Block> = (0..FREED).map(|_| page(world)).collect();
        run_on(0);
        fill_up_to(world, 2);
        // More than a second later, the next scan clears the full bits, and finds both nodes full again.
        world.platform().advance_ns(SECOND_NS + 1);
        page(world);
        world.platform().advance_ns((2 * moment + 1) * SECOND_NS / (2 * MOMENTS));
        run_on(1);
        held.drain(..).for_each(|block| world.free(block.first, block.order).expect("it was allocated"));
        run_on(0);
        let mut farther = 0;
        for _ in 0..ALLOCATED {
            world.platform().advance_ns(SECOND_NS / ALLOCATED as u64);
            farther += usize::from(page(world).node.get() == 2);
        }
        farther
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_probed_grow_with_full_nodes_only_without_the_cache() {
        let sizes = Sizes { rounds: 1, pairs: 500, ..Sizes::for_this_machine() };
        for full in [0, 3, 15, 63, 255] {
            let found = past_full(full, &sizes, &AtomicBool::new(false)).unwrap();
            let [off, of_2006, published, on] = [0, 1, 2, 3].map(|at| found[at].zones);
            let walk = if full == 0 { 0.0 } else { f64::from(full) + 1.0 };
            assert_eq!(off, walk, "{full} full nodes, off");
            assert_eq!([of_2006, published], [walk.min(2.0); 2], "{full} full nodes, published");
            assert!(on <= 2.0, "{full} full nodes, on: {on}");
        }
    }

    #[test]
    fn stale_full_bits_cost_half_the_pages_as_published_and_none_by_default() {
        let [off, of_2006, published, on] = MODES.map(|(_, mode)| farther_than_need_be(mode));
        assert_eq!(off, 0.0);
        for stale in [of_2006, published] {
            assert!((49.0..=51.0).contains(&stale), "{stale} % as published");
        }
        assert!(on < 1.0, "{on} % by default");
    }

    #[test]
    fn an_interrupted_measurement_returns_nothing() {
        assert!(measure(&Sizes::for_this_machine(), &AtomicBool::new(true)).is_none());
    }
}
