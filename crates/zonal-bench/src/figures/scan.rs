//! Measures the cost of full nodes before the serving node.
//!
//! Node 0 has the CPU. All nodes except the last are filled to their `low` watermark. The last node is large and
//! serves all requests. Each round times a pair on this machine, and on a machine that has only the large node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{Moment, PageCount};
use zonal::{Config, Request};
use zonal_workload::cpu_time;

use super::described::{Description, World};
use super::{Figure, Goal, Sizes};
use crate::ours;
use crate::spread::Spread;

/// Frames of each filled node, and of the node that serves.
const SMALL: u64 = 128;
const LARGE: u64 = 8192;
/// Number of pairs in one timing.
const PAIRS: u32 = 200_000;
/// Pairs between two clock steps.
const PAIRS_A_TICK: u32 = 2000;

/// Measures the figures with the default zonelist cache, as multiples of the time without any full node.
pub(super) fn scans(sizes: &Sizes, stop: &AtomicBool) -> Vec<Figure> {
    let counts: Vec<u16> = std::iter::once(0).chain(sizes.full_nodes).collect();
    let worlds: Vec<World> = counts.iter().map(|&full| filled(full)).collect();
    let start = Instant::now();
    let mut times: Vec<Vec<f64>> = Vec::new();
    // Round 0 is a warm-up.
    for round in 0..=sizes.repeats {
        let times_of_round = worlds.iter().map(|world| ns_per_pair(world, start)).collect();
        // Relaxed: only the flag itself is read.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if round > 0 {
            times.push(times_of_round);
        }
    }
    let median = |of: &dyn Fn(&Vec<f64>) -> f64| Spread::of(times.iter().map(of)).map(|spread| spread.median);
    let mut rows = Vec::new();
    for (at, full) in counts.iter().enumerate() {
        let row = match full {
            0 => median(&|times| times[0]).map(|ns| Figure::new("pair_past_0_full", ours::NAME, ns, "ns")),
            _ => median(&|times| times[at] / times[0]).map(|ratio| {
                let name = format!("pair_past_{full}_full");
                Figure::new(name, ours::NAME, ratio, "times pair_past_0_full")
                    .with_goal(Goal::AtMost(1.5, 1.2))
            }),
        };
        rows.extend(row);
    }
    rows
}

/// Creates an allocator with `full` nodes that are filled to `low`, followed by a large node that serves.
fn filled(full: u16) -> World {
    let frames = std::iter::repeat_n(SMALL, usize::from(full)).chain([LARGE]).collect();
    let min_free = Some(PageCount::new(8 * u64::from(full) + 64));
    let watermarks = WatermarkSettings { min_free, ..WatermarkSettings::default() };
    let world = Description { frames, cpus: 1, absent: 0 }.start(&Config { watermarks, ..Config::default() });
    loop {
        let block = world.allocator.alloc(&Request::page()).expect("the large node serves");
        if block.node.get() == full {
            return world;
        }
    }
}

/// Returns the CPU time of a pair.
fn ns_per_pair(world: &World, since: Instant) -> f64 {
    let start = cpu_time::of_this_thread();
    for at in 0..PAIRS {
        if at % PAIRS_A_TICK == 0 {
            world.allocator.platform().set_time(Moment::from_ns(since.elapsed().as_nanos() as u64));
        }
        let block = world.allocator.alloc(&Request::page()).expect("a frame given back is there again");
        world.allocator.free(std::hint::black_box(block).first, block.order).expect("it was out");
    }
    (cpu_time::of_this_thread() - start).as_secs_f64() * 1e9 / f64::from(PAIRS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_node_serves() {
        for full in [1, 65] {
            let world = filled(full);
            let block = world.allocator.alloc(&Request::page()).unwrap();
            assert_eq!(block.node.get(), full);
            world.allocator.free(block.first, block.order).unwrap();
            let probes = world.allocator.events().probes;
            ns_per_pair(&world, Instant::now());
            let each = (world.allocator.events().probes - probes) as f64 / f64::from(PAIRS);
            assert!(each < 4.0, "{each} zones looked at with {full} full");
            let last = &world.allocator.zones().last().expect("there are zones").locality;
            assert!(last.miss > u64::from(PAIRS), "served {last:?} with {full} full");
        }
    }
}
