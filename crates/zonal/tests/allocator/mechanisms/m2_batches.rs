//! Tests that pagesets are drained in batches, even if the zone is small or short of frames. A pageset must not pass
//! single frames on to the buddy allocator one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{Scripted, one_cpu, order, pages, with_min};
use crate::common::{Plan, Random, World, node, repeats, run_on};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::ZoneKind;
use zonal::{Block, Config, Policy, Request};

/// Minimum number of frees for each drain.
const FREES: u64 = 32;
/// The rules whose drains are rounded to whole words.
const ROUNDED: [PagesetTuning; 2] = [PagesetTuning::Depth, PagesetTuning::Fixed];
/// Zone sizes with batches of 1, 1, 3, 7, 15, 31 and 63 frames.
const SIZES: [u64; 7] = [2048, 8192, 16_384, 32_768, 1 << 16, 1 << 17, 1 << 18];

fn tuned(tuning: PagesetTuning) -> Config {
    Config { tuning, ..Config::default() }
}

/// Counts frees and drains, to compare the two numbers.
struct Frees<'w> {
    world: &'w World,
    count: u64,
    drains: u64,
}

impl<'w> Frees<'w> {
    fn of(world: &'w World) -> Self {
        Self { world, count: 0, drains: world.allocator.events().drains }
    }

    fn free(&mut self, block: Block) {
        self.world.allocator.free(block.first, block.order).unwrap();
        self.count += 1;
    }

    /// Checks the minimum number of frees for each drain. One more drain is allowed for each pageset.
    fn check(&self, what: &str) {
        let drains = self.world.allocator.events().drains - self.drains;
        let allowed = self.count / FREES + self.world.allocator.pagesets().count() as u64;
        assert!(drains <= allowed, "{what}: {drains} drains for {} frees", self.count);
        self.world.check();
    }
}

#[test]
fn a_pool_that_fills_up_drains_in_batches() {
    for tuning in ROUNDED {
        for frames in SIZES {
            let world = one_cpu(&[frames], ZoneKind::Normal).build(&tuned(tuning));
            run_on(0);
            let mut frees = Frees::of(&world);
            for _ in 0..4 {
                let mut held = world.alloc_all(&Request::page());
                world.controls.advance_ms(300);
                while let Some(block) = held.pop() {
                    frees.free(block);
                }
            }
            frees.check(&format!("{tuning:?}, {frames} frames"));
        }
    }
}

/// Allocates three quarters of all memory on four small nodes from all their CPUs, and frees it in the order of
/// allocation. Only one CPU runs at a time, each for several operations, as when many threads share two processors.
fn spill_over(cpus: &[Vec<u32>], tuning: PagesetTuning) {
    let mut plan = Plan::even(4, 1, 8192);
    plan.nodes = (0..).zip(cpus.iter().cloned()).collect();
    let world = plan.build(&tuned(tuning));
    let mut random = Random(11);
    let mut threads: Vec<(u32, Vec<Block>, bool)> =
        cpus.iter().flatten().map(|&cpu| (cpu, Vec::new(), true)).collect();
    let share = 4 * 6144 / threads.len();
    let mut frees = Frees::of(&world);
    for _ in 0..3000 {
        let turn = random.below(threads.len() as u64) as usize;
        let (cpu, held, takes) = &mut threads[turn];
        run_on(*cpu);
        if *takes {
            for _ in 0..random.below(400) {
                held.push(world.allocator.alloc(&Request::page()).unwrap());
            }
            *takes = held.len() < share;
        } else {
            let stretch = (random.below(400) as usize).min(held.len());
            held.drain(..stretch).for_each(|block| frees.free(block));
            *takes = held.is_empty();
        }
        world.controls.advance_ms(1);
    }
    frees.check(&format!("{tuning:?}, {cpus:?}"));
}

#[test]
fn small_nodes_that_spill_over_drain_in_batches() {
    for tuning in ROUNDED {
        spill_over(&[vec![0], vec![1], vec![2], vec![3]], tuning);
        spill_over(&[vec![0], vec![], vec![1], vec![]], tuning);
    }
}

/// Allocates and frees in runs of all lengths in zones with `frames` frames, on a CPU of the same node or another node.
fn runs(frames: u64, tuning: PagesetTuning, foreign: bool, longest: u64) {
    let world = Plan::even(2, 2, frames).build(&tuned(tuning));
    run_on(if foreign { 2 } else { 0 });
    let policy = Policy::preferred(&world.allocator, node(0)).unwrap();
    let mut random = Random(frames + longest);
    let (mut held, mut frees) = (Vec::new(), Frees::of(&world));
    for _ in 0..100_000 / longest {
        for _ in 0..random.below(longest) {
            if (held.len() as u64) < frames / 2 {
                held.push(world.allocator.alloc(&Request::page().policy(&policy)).unwrap());
            }
        }
        for _ in 0..random.below(longest).min(held.len() as u64) {
            let at = random.below(held.len() as u64) as usize;
            frees.free(held.swap_remove(at));
        }
        world.controls.advance_ms(random.below(30));
    }
    frees.check(&format!("{tuning:?}, {frames} frames, foreign {foreign}, runs up to {longest}"));
}

#[test]
fn runs_of_any_length_drain_in_batches() {
    for tuning in ROUNDED {
        for frames in SIZES {
            for longest in [2, 8, 40, 100, 400].into_iter().step_by(repeats(2, 1) as usize) {
                runs(frames, tuning, false, longest);
                runs(frames, tuning, true, longest);
            }
        }
    }
}

#[test]
fn single_frames_come_in_batches_beside_larger_blocks() {
    for frames in SIZES {
        let world = one_cpu(&[frames], ZoneKind::Normal).build(&Config::default());
        run_on(0);
        let take = |of: u8, count: usize| -> Vec<Block> {
            (0..count).map(|_| world.allocator.alloc(&Request::new(order(of))).unwrap()).collect()
        };
        // The slots now hold 90 frames of larger blocks that are not allocated again, so hardly any slots are left for
        // single frames.
        let larger = [take(1, 31), take(2, 7)].concat();
        world.allocator.drain_pagesets();
        world.free(larger);
        let mut frees = Frees::of(&world);
        let refills = world.allocator.events().refills;
        for _ in 0..500 {
            take(0, 31).into_iter().for_each(|block| frees.free(block));
        }
        frees.check(&format!("{frames} frames"));
        let refills = world.allocator.events().refills - refills;
        assert!(refills < 10, "{refills} refills, {frames} frames");
    }
}

/// Runs background reclaim with a reclaimer that frees into the pageset and allocates from it. Checks that the pageset
/// stays within four batches, whether it is empty or deep when reclaim begins.
fn held_small(frames: u64, tuning: PagesetTuning, deep: bool) {
    let config = Config { tuning, ..with_min(frames / 4) };
    let world = one_cpu(&[frames], ZoneKind::Normal).build(&config).leak();
    run_on(0);
    let cap = 4 * world.zone(0).pageset_limits.batch.get();
    let count = || world.allocator.pagesets().next().unwrap().count.get();
    // After these frames have been freed, as many may be freed again at once.
    let mut held = world.alloc_all(&Request::page().no_wait());
    let swing = (frames / 8) as usize;
    world.free(held.drain(..swing));
    let taken: Vec<Block> = (0..if deep { 0 } else { count() })
        .map(|_| world.allocator.alloc(&Request::page()).unwrap())
        .collect();
    held.extend(taken);
    let most = Arc::new(AtomicU64::new(0));
    let (seen, giving) = (Arc::clone(&most), std::sync::Mutex::new(held));
    world.controls.set_reclaimer(Scripted::new(frames, move |_, _| {
        let mut held = giving.lock().unwrap();
        for _ in 0..4 {
            for _ in 0..frames / 16 {
                world.free(held.pop());
                seen.fetch_max(count(), Relaxed);
            }
            for _ in 0..frames / 16 {
                held.push(world.allocator.alloc(&Request::page()).unwrap());
                seen.fetch_max(count(), Relaxed);
            }
        }
        0
    }));
    world.allocator.background_reclaim(node(0));
    let most = most.load(Relaxed);
    assert!(most > 0 && most <= cap, "{tuning:?}, {frames} frames: {most} in a pageset, {cap} allowed");
    assert!(world.zone(0).free >= pages(0));
    world.check();
}

#[test]
fn pagesets_of_zones_that_are_reclaimed_hold_four_batches() {
    let tunings =
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
    for tuning in tunings {
        for frames in SIZES {
            held_small(frames, tuning, true);
            held_small(frames, tuning, false);
        }
    }
}

/// Several threads allocate until no frame is left and then free everything. They run one at a time, in turns of random
/// length.
fn short_of_memory(nodes: u16, cpus: u32, burst: u64) {
    let world = Plan::even(nodes, cpus, 32_768 / u64::from(nodes)).build(&Config::default());
    let mut threads: Vec<(Vec<Block>, bool)> =
        (0..u32::from(nodes) * cpus).map(|_| (Vec::new(), true)).collect();
    let (mut random, mut frees) = (Random(burst), Frees::of(&world));
    for _ in 0..200_000 / burst {
        let turn = random.below(threads.len() as u64) as usize;
        run_on(turn as u32);
        let (held, takes) = &mut threads[turn];
        for _ in 0..random.below(2 * burst) {
            if *takes {
                match world.allocator.alloc(&Request::page()) {
                    Ok(block) => held.push(block),
                    Err(_) => *takes = false,
                }
            } else if let Some(block) = held.pop() {
                frees.free(block);
            } else {
                *takes = true;
            }
        }
    }
    assert!(world.allocator.events().failures > 0);
    frees.check(&format!("{nodes} nodes of {cpus} CPUs, turns of {burst}"));
}

#[test]
fn threads_that_run_out_of_memory_drain_in_batches() {
    for (nodes, cpus) in [(1, 2), (1, 4), (4, 1)] {
        for burst in [1, 4, 30, 250] {
            short_of_memory(nodes, cpus, burst);
        }
    }
}
