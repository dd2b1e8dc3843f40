//! All CPUs at once, with random operations.
//!
//! Related files: `operations.rs` has the operations.

use core::array::from_fn;

use zonal::Request;
use zonal::units::Order;

use crate::duel::{Actor, Kit};
use crate::harness::{Harness, Job};
use crate::operations::{all_return, disturb};
use crate::report::{Stop, hold};
use crate::rule::Rule;
use crate::world::{LANES, Text, World};

/// Steps of a CPU in a round.
const STEPS: u32 = 200;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

impl<H: Harness> Kit<'_, H> {
    /// Lets all CPUs allocate, free, and do the first `choices` of 64 other operations.
    pub(crate) fn load(&mut self, what: &str, choices: u64, rule: Rule) -> Result<(), Stop> {
        for round in 0..self.harness.rounds().div_ceil(10) {
            self.harness.begin(rule);
            self.counts.free += 1;
            let world = self.world()?;
            let cpus = world.harness.cpus();
            let cpus = &cpus[..cpus.len().min(LANES)];
            let work = |lane: usize| {
                let me = Actor { lane, other: cpus[(lane + 1) % cpus.len()] };
                work(
                    &world,
                    me,
                    Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(round) << 8 ^ lane as u64),
                    choices,
                );
            };
            let works: [_; LANES] = from_fn(|lane| {
                let work = &work;
                move || work(lane)
            });
            let jobs: [Job<'_>; LANES] =
                from_fn(|at| (cpus[at % cpus.len()], &works[at] as &(dyn Fn() + Sync)));
            world.harness.run(&jobs[..cpus.len()]);
            let me = Actor { lane: 0, other: cpus[0] };
            world.on(cpus[0], || all_return(&world, me));
            let found = world.check();
            hold(rule, found.map(|found| Text::new(format_args!("{what}: {}", found.as_str()))))?;
        }
        Ok(())
    }
}

fn work<H: Harness>(world: &World<'_, H>, me: Actor, mut random: Random, choices: u64) {
    for _ in 0..STEPS {
        match random.below(16) {
            0 => disturb(world, me, random.below(choices)),
            1..9 => {
                let order = [0, 0, 0, 0, 0, 1, 0, 2][random.below(8) as usize];
                let request = Request::new(Order::new(order).expect("a small order")).no_wait();
                // Larger blocks may be lacking.
                if let Ok(block) = world.call(|allocator| allocator.alloc(&request)) {
                    world.keep(me.lane, block.first, block.order);
                }
            }
            _ => _ = world.free(me.lane),
        }
    }
}
