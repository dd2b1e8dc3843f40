//! Random histories: processes run operations at random, and die before random writes.

use zonal::machine::FrameRange;
use zonal::units::{Order, PageCount};
use zonal::{Config, OnDeath};

use super::world::{PROCESSES, ZONES, range_in_a_zone};
use super::{History, Operation, SCALE, Step, Sums};

/// Orders of blocks, most of which are pages.
const ORDERS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 5, 8, 9, 10];

/// Settings that change, and their values.
const SETTINGS: [(&str, &str); 10] = [
    (SCALE, "10"),
    (SCALE, "30"),
    (SCALE, "100"),
    ("pageset_tuning", "fixed"),
    ("pageset_tuning", "depth"),
    ("percpu_pagelist_high_fraction", "16"),
    ("percpu_pagelist_high_fraction", "0"),
    ("zone_reclaim_mode", "1"),
    ("zonelist_cache", "off"),
    ("zonelist_cache", "on"),
];

/// A random history under way.
struct RandomHistory {
    history: History,
    random: fastrand::Rng,
}

/// Runs a history of `operations` operations, which follows from `seed`.
///
/// # Errors
/// A description of what was wrong, and of the operation.
pub fn run_random(seed: u64, operations: u64) -> Result<Sums, String> {
    let mut this = RandomHistory {
        history: History::new(Config::default(), ZONES),
        random: fastrand::Rng::with_seed(seed),
    };
    for number in 0..operations {
        let (process, operation) = this.choose();
        let named =
            |why| format!("seed {seed}, operation {number}, {operation:?} of process {process}: {why}");
        this.apply(process, &operation).map_err(named)?;
    }
    Ok(this.history.sums)
}

impl RandomHistory {
    /// Chooses an operation and the process that runs it.
    fn choose(&mut self) -> (u8, Operation) {
        let process = self.random.u8(1..=PROCESSES);
        if self.history.at(process).is_none() {
            // The dead wait for a while, so that others meet what they have left.
            let is_alone = self.history.processes.iter().all(Option::is_none);
            if is_alone || self.random.u8(..8) == 0 {
                return (process, Operation::Join);
            }
            return self.choose();
        }
        let block = self.random.usize(..self.history.model.blocks().len().max(1));
        let block = self.history.model.blocks().nth(block).map(|entry| entry.1);
        let is_full = self.history.model.blocks().len() > 400;
        let kind = self.random.u8(if is_full { 30..74 } else { 0..74 });
        let operation = match (kind, block) {
            (0..24, _) => Operation::Alloc(self.order()),
            (24..26, _) => Operation::AllocBulk(self.random.usize(1..150)),
            (26..28, _) => Operation::AllocFrames(self.random.u64(1..300)),
            (28..30, _) => {
                let count = self.random.u64(1..260);
                Operation::AllocRange(range_in_a_zone(self.random.u64(..1 << 20), count))
            }
            (30..50, Some(block)) => Operation::Free(block),
            (50..54, Some(_)) => {
                let singles = self
                    .history
                    .model
                    .blocks()
                    .map(|entry| entry.1)
                    .filter(|one| one.count == PageCount::new(1));
                let mut singles: Vec<_> = singles.collect();
                self.random.shuffle(&mut singles);
                singles.truncate(self.random.usize(1..100));
                Operation::FreeBulk(singles)
            }
            (54..58, Some(block)) => Operation::TakeOver(block),
            (58..60, Some(block)) if is_large_block(block) => {
                let order = block.count.get().ilog2() as u8;
                Operation::Split(block, Order::new(self.random.u8(..order)).expect("it is lower"))
            }
            (60..62, _) => Operation::Drain,
            (62..65, _) => Operation::Tick,
            (65, _) => Operation::Fold,
            (66, _) => {
                let (name, value) = SETTINGS[self.random.usize(..SETTINGS.len())];
                Operation::Setting(name, value)
            }
            (67, _) => Operation::OnDeath(if self.random.bool() { OnDeath::Keep } else { OnDeath::Free }),
            (68, _) if self.random.bool() => Operation::Leave,
            (69..74, _) => match self.history.model.dead() {
                dead if dead.is_empty() => Operation::Tick,
                dead => Operation::Recover(dead[self.random.usize(..dead.len())]),
            },
            _ => Operation::Alloc(Order::PAGE),
        };
        (process, operation)
    }

    fn order(&mut self) -> Order {
        Order::new(ORDERS[self.random.usize(..ORDERS.len())]).expect("orders are small")
    }

    /// Returns after how many writes the process dies, if it does: often after few, as most operations write little.
    fn writes(&mut self, operation: &Operation) -> Option<u64> {
        let is_long = matches!(operation, Operation::Recover(_) | Operation::Join | Operation::Leave);
        let bits = self.random.u32(0..if is_long { 13 } else { 9 });
        (self.random.u8(..5) == 0).then(|| self.random.u64(..1 << bits))
    }

    /// Runs an operation, in which the process may die.
    fn apply(&mut self, process: u8, operation: &Operation) -> Result<(), String> {
        let writes = self.writes(operation);
        let (cpu, later_ns) = (self.random.u32(..4), self.random.u64(..300_000_000));
        self.history.apply(&Step { process, operation, cpu, later_ns, writes })?;
        if self.history.model.is_all_known() && self.history.sums.operations.is_multiple_of(8) {
            self.history.verify(process)?;
        }
        Ok(())
    }
}

fn is_large_block(range: FrameRange) -> bool {
    let count = range.count.get();
    count > 1 && count.is_power_of_two() && range.start.get().is_multiple_of(count)
}
