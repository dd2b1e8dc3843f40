//! Tests how many large blocks are left after mixed and scattered use, and how many are recovered.
//!
//! These are counts, not times, and depend only on the seed. The tests check bounds on 512 MiB. `zonal bench figures`
//! reports the figures for 4 GiB next to those of other allocators. *Ideal* is the number of free 2 MiB blocks if all
//! allocated frames were contiguous.

use crate::common::{Plan, Random, World, order, run_on};
use zonal::request::Block;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::{Config, Request};

/// Order of a 2 MiB block.
const HUGE: u8 = 9;
/// Frames of the machine: 512 MiB, 256 blocks of 2 MiB.
const FRAMES: u64 = 1 << 17;
/// Rounds of churn after frames were freed at random.
const ROUNDS: u32 = 200;

/// A machine of one node, used from one CPU or from two CPUs alternately.
struct Use {
    world: World,
    frames: u64,
    cpus: u32,
    held: Vec<Block>,
    held_pages: u64,
    random: Random,
}

impl Use {
    fn new(frames: u64, cpus: u32, tuning: PagesetTuning) -> Self {
        let world = Plan::even(1, 2, frames).build(&Config { tuning, ..Config::default() });
        run_on(0);
        Self { world, frames, cpus, held: Vec::new(), held_pages: 0, random: Random(1) }
    }

    /// Moves to the CPU whose turn it is.
    fn take_turns(&self, turn: u64) {
        run_on((turn % u64::from(self.cpus)) as u32);
    }

    fn take(&mut self, block_order: u8) -> bool {
        let Ok(block) = self.world.allocator.alloc(&Request::new(order(block_order)).no_wait()) else {
            return false;
        };
        self.held_pages += block.order.pages().get();
        self.held.push(block);
        true
    }

    fn give(&mut self) {
        let at = self.random.below(self.held.len() as u64) as usize;
        let block = self.held.swap_remove(at);
        self.held_pages -= block.order.pages().get();
        self.world.allocator.free(block.first, block.order).unwrap();
    }

    /// Advances the clock by a second and ticks.
    fn pass_a_second(&self) {
        self.world.controls.advance_ms(1001);
        self.world.allocator.tick();
    }

    /// Returns the number of free 2 MiB blocks, including those inside larger blocks.
    fn huge_blocks(&self) -> u64 {
        let zone = self.world.allocator.zones().next().unwrap();
        (HUGE..=18).map(|at| zone.free_blocks[usize::from(at)] << (at - HUGE)).sum()
    }

    /// Returns the number of free 2 MiB blocks if all allocated frames were contiguous.
    fn ideal(&self) -> u64 {
        (self.frames - self.held_pages) >> HUGE
    }

    /// Allocates and frees blocks of orders 0 to 9 at 50 to 70 % occupancy.
    fn mix_orders(&mut self, steps: u64) {
        let (least, most) = (self.frames / 2, self.frames * 7 / 10);
        let mut step = 0;
        while step < steps {
            self.take_turns(step / 64);
            if self.held_pages >= least {
                step += 1;
                if step % (1 << 18) == 0 {
                    self.pass_a_second();
                }
            }
            if self.held_pages >= most || (self.held_pages > least && self.random.below(2) == 0) {
                self.give();
            } else {
                let block_order = self.random.below(u64::from(HUGE) + 1) as u8;
                assert!(self.take(block_order));
            }
        }
    }

    /// Allocates all frames one by one and frees a random half of them one by one. Then runs rounds of churn, each of
    /// which frees a random tenth of the held frames and allocates as many again.
    fn scatter_and_churn(&mut self) {
        while self.take(0) {}
        let half = self.frames / 2;
        while self.held_pages > half {
            self.give();
        }
        for round in 0..ROUNDS {
            self.pass_a_second();
            let tenth = self.held_pages / 10;
            for pair in 0..2 * tenth {
                self.take_turns(pair / 64);
                if pair < tenth {
                    self.give();
                } else {
                    assert!(self.take(0), "round {round}");
                }
            }
        }
    }
}

/// Returns how many 2 MiB blocks are free after a mix of orders, and the ideal.
fn after_mix(frames: u64, cpus: u32, steps: u64) -> (u64, u64) {
    let mut mix = Use::new(frames, cpus, PagesetTuning::Depth);
    mix.mix_orders(steps);
    (mix.huge_blocks(), mix.ideal())
}

/// Returns the number of free 2 MiB blocks after churn, and the ideal.
fn after_churn(frames: u64, cpus: u32, tuning: PagesetTuning) -> (u64, u64) {
    let mut churn = Use::new(frames, cpus, tuning);
    churn.scatter_and_churn();
    (churn.huge_blocks(), churn.ideal())
}

#[test]
fn few_large_blocks_are_broken_by_a_mix_of_orders() {
    for (cpus, lost) in [(1, 16), (2, 24)] {
        for steps in [10_000, 100_000] {
            let (found, ideal) = after_mix(FRAMES, cpus, steps);
            assert!(found + lost >= ideal, "{found} of {ideal}, {steps} steps on {cpus} CPUs");
        }
    }
}

#[test]
fn large_blocks_come_back_after_scattered_frees() {
    for cpus in [1, 2] {
        let (found, ideal) = after_churn(FRAMES, cpus, PagesetTuning::Fixed);
        assert_eq!(ideal, 128);
        assert!(found >= 120, "{found} of {ideal} on {cpus} CPUs");
    }
}
