//! M6, blocks owned by CPUs: measures what they save in shared state, and what they cost in whole 2 MiB blocks.
//!
//! One thread acts as all CPUs of a node in turn. Each CPU allocates and frees blocks of random orders, with half to 70 % of
//! the memory in use. Counted are locks, whole blocks that are left, and how often
//! the count of free frames changes, whose cache line all CPUs share. Source: an RFC for Linux of April 2026 (J. Weiner, "mm: page_alloc: pcp buddy
//! allocator"); docs/decisions/0033 compares the prediction with these counts.

use std::sync::atomic::AtomicBool;

use fastrand::Rng;
use zonal::config::OwnedBlocks;
use zonal::units::Order;
use zonal::{Block, Config, Request};

use super::measure::{Better, Table};
use super::world::{Node, Shared, World, cpu_time_ns, locks_acquired, machine, run_on, with_worlds};
use super::{Findings, Mechanism, Origin, Sizes, stops};

pub(super) const MATTERS: &str = "dozens of CPUs of one node allocate and free blocks of many orders: the node's counters and \
    free areas are then shared far less.";
pub(super) const DOES_NOT_MATTER: &str = "blocks are single frames or 2 MiB, which pagesets cache, or few CPUs share a node: \
    more split 2 MiB blocks are then the only effect.";

const RULES: [(&str, OwnedBlocks); 2] = [("off", OwnedBlocks::Off), ("on", OwnedBlocks::On)];
/// Order of a 2 MiB block.
const HUGE: u8 = 9;
/// CPUs of the node, and frames for each: 256 MiB.
const CPUS: u32 = 16;
const FRAMES_FOR_EACH: u64 = 1 << 16;
/// Steps that a CPU takes before the next one has its turn.
const TURN: u32 = 64;

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let node = Node { cpus: CPUS, frames: u64::from(CPUS) * FRAMES_FOR_EACH };
    let configs = RULES.map(|(_, owned_blocks)| Config { owned_blocks, ..Config::default() });
    let counted = with_worlds::<Shared, _>(&machine(&[node], |_, _| 10), &configs, |worlds| {
        let mut mixes: Vec<Mix<'_, '_>> = worlds.iter().map(|world| Mix::new(world, sizes.seed)).collect();
        // The rules alternate. Round 0 is a warm-up.
        for _ in 0..=sizes.rounds {
            for mix in &mut mixes {
                if stops(stop) {
                    return None;
                }
                mix.round(sizes.mix_turns);
            }
        }
        Some(mixes.into_iter().map(Mix::finish).collect::<Vec<Counted>>())
    })?;
    let mut table = Table::new(RULES.map(|(name, _)| name), "off");
    let of = |value: fn(&Counted) -> f64| counted.iter().map(value);
    let names = ("count_changes", "changes of the count of free frames in 1000 pairs", "changes");
    table.exact(Better::Less, names, of(|counted| counted.changes));
    let names = ("locks", "locks acquired in 1000 pairs", "locks");
    table.exact(Better::Less, names, of(|counted| counted.locks));
    let names = ("whole_blocks", "% of the possible 2 MiB blocks that are whole", "%");
    table.exact(Better::More, names, of(|counted| counted.whole));
    let names = ("mixed_pair", "ns for a pair of random order, one thread", "ns");
    table.sampled(Better::Less, Origin::Timed, names, counted.iter().map(|counted| counted.ns.clone()))?;
    let setup = format!(
        "{CPUS} CPUs, taking turns, on one node of {} GiB: each allocates and frees blocks of 1 to 512 pages, with half to \
         70 % of the node in use. Simulated caches of 112 CPUs: the example shared_lines.",
        node.frames >> 18
    );
    Some(table.finish(Mechanism::M6, setup))
}

/// What was counted under one rule.
#[derive(Clone, Debug)]
struct Counted {
    changes: f64,
    locks: f64,
    /// Percentage of the 2 MiB blocks that would be whole if all allocated pages were adjacent.
    whole: f64,
    ns: Vec<f64>,
}

/// The blocks of all CPUs, and the counts so far.
struct Mix<'a, 'm> {
    world: &'a World<'m, Shared>,
    random: Rng,
    held: Vec<Vec<Block>>,
    pages: u64,
    steps: u64,
    changes: u64,
    locks: u64,
    ns: Vec<f64>,
}

impl<'a, 'm> Mix<'a, 'm> {
    fn new(world: &'a World<'m, Shared>, seed: u64) -> Self {
        let held = (0..CPUS).map(|_| Vec::new()).collect();
        Self {
            world,
            random: Rng::with_seed(seed),
            held,
            pages: 0,
            steps: 0,
            changes: 0,
            locks: 0,
            ns: Vec::new(),
        }
    }

    /// Lets each CPU take `turns` turns.
    fn round(&mut self, turns: u32) {
        let (steps, locks) = (self.steps, locks_acquired());
        let mut busy = 0;
        for _ in 0..turns {
            for cpu in 0..CPUS {
                run_on(cpu);
                let (start, before) = (cpu_time_ns(), self.changes);
                for _ in 0..TURN {
                    let free = self.world.free_approximate();
                    self.step(cpu as usize);
                    self.changes += u64::from(free != self.world.free_approximate());
                }
                busy += cpu_time_ns() - start;
                debug_assert!(before <= self.changes);
            }
        }
        self.locks += locks_acquired() - locks;
        self.ns.push(2.0 * busy as f64 / (self.steps - steps) as f64);
    }

    /// Allocates or frees a block; frees only what exceeds half of the CPU's share.
    fn step(&mut self, cpu: usize) {
        self.steps += 1;
        let used: u64 = self.pages * 100 / (u64::from(CPUS) * FRAMES_FOR_EACH);
        if used >= 70 || used >= 50 && self.random.bool() && !self.held[cpu].is_empty() {
            let at = self.random.usize(..self.held[cpu].len());
            let block = self.held[cpu].swap_remove(at);
            self.pages -= block.order.pages().get();
            self.world.free(block.first, block.order).expect("the block was allocated");
        } else {
            let order = Order::new(self.random.u8(..=HUGE)).expect("orders of up to 2 MiB exist");
            let block = self.world.alloc(&Request::new(order)).expect("less than the node is in use");
            self.pages += order.pages().get();
            self.held[cpu].push(block);
        }
    }

    fn finish(self) -> Counted {
        let rate = |count: u64| count as f64 * 2000.0 / self.steps as f64;
        self.world.drain_pagesets();
        let whole: u64 = (self.world.zones())
            .map(|zone| {
                let huge = zone.free_blocks.iter().enumerate().skip(HUGE.into());
                huge.map(|(order, blocks)| blocks << (order - usize::from(HUGE))).sum::<u64>()
            })
            .sum();
        let possible = (u64::from(CPUS) * FRAMES_FOR_EACH - self.pages) >> HUGE;
        Counted {
            changes: rate(self.changes),
            locks: rate(self.locks),
            whole: 100.0 * whole as f64 / possible as f64,
            ns: self.ns[1..].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_blocks_trade_whole_blocks_for_a_quiet_counter() {
        let sizes = Sizes { rounds: 2, mix_turns: 40, ..Sizes::for_this_machine() };
        let found = measure(&sizes, &AtomicBool::new(false)).unwrap();
        let of = |metric: &str| {
            let measure = found.measures.iter().find(|measure| measure.metric == metric).unwrap();
            (measure.values[0], measure.values[1])
        };
        let (off, on) = of("count_changes");
        assert!(on * 2.0 < off, "{on} against {off}");
        let (off, on) = of("whole_blocks");
        assert!(on <= off && off <= 100.0, "{on} against {off}");
    }
}
