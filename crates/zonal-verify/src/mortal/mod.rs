//! Random histories in which processes share an allocator, and may die before any write.
//!
//! A process that dies leaves what it has written; the others go on, meet its locks and repair what those guard, until one of
//! them, or a successor, recovers what the dead process held, and may die while it does. After each operation, what is held is
//! compared with a model, in which only the blocks of interrupted operations are unsure. When all dead are recovered, the
//! allocator verifies itself, and all frames and counts must be right.
//!
//! Other processes see only the writes of one that died, so this covers its instructions, except in restartable sequences, for
//! which `TryLock` stands. `deaths` kills real processes at their instructions.

mod cells;
mod model;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::rules::watermarks::Watermarks;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, OnDeath, Request};

use model::{Entry, Model};
use world::{MortalPlatform, PROCESSES, Process, World, range_in_a_zone};

type Allocator = zonal::Allocator<'static, MortalPlatform>;

/// Orders of blocks, most of which are pages.
const ORDERS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 5, 8, 9, 10];

/// The setting from which watermarks follow.
const SCALE: &str = "watermark_scale_factor";
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

/// An operation of a process.
#[derive(Clone, Debug)]
enum Operation {
    Alloc(Order),
    AllocBulk(usize),
    AllocFrames(u64),
    AllocRange(FrameRange),
    /// Frees a block or run.
    Free(FrameRange),
    /// Frees single frames together.
    FreeBulk(Vec<FrameRange>),
    TakeOver(FrameRange),
    Split(FrameRange, Order),
    Drain,
    Tick,
    Fold,
    Setting(&'static str, &'static str),
    OnDeath(OnDeath),
    /// Recovers a process that has died.
    Recover(u8),
    /// The process begins, in the place of one that has ended or died.
    Join,
    Leave,
}

/// What an operation has done.
enum Done {
    Nothing,
    Allocated(Vec<FrameRange>),
    Joined(Box<Process>),
}

/// Sums of a history.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sums {
    /// Operations that were run to their end.
    pub operations: u64,
    /// Processes that died in one.
    pub deaths: u64,
    /// Deaths in a recovery, or while a process began or ended.
    pub deaths_in_recovery: u64,
    /// Times that the allocator has verified itself.
    pub verified: u64,
}

impl Sums {
    /// Adds the sums of another history.
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.deaths += other.deaths;
        self.deaths_in_recovery += other.deaths_in_recovery;
        self.verified += other.verified;
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, deaths, deaths_in_recovery, verified } = self;
        write!(
            f,
            "{operations} operations, {deaths} deaths, of them {deaths_in_recovery} in a recovery; verified {verified} times"
        )
    }
}

/// A history under way.
struct History {
    world: World,
    processes: [Option<Process>; PROCESSES as usize],
    /// Whether the blocks of each process outlive it.
    keeps: [bool; PROCESSES as usize],
    model: Model,
    /// The watermarks that follow from each value of the setting, which changes that were not interrupted have made.
    watermarks: BTreeMap<String, Vec<Watermarks>>,
    random: fastrand::Rng,
    last_name: u32,
    sums: Sums,
}

/// Runs a history of `operations` operations, which follows from `seed`.
///
/// # Errors
/// A description of what was wrong, and of the operation.
pub fn run(seed: u64, operations: u64) -> Result<Sums, String> {
    cells::begin_history();
    let mut history = History {
        processes: [const { None }; PROCESSES as usize],
        keeps: [false; PROCESSES as usize],
        model: Model::default(),
        watermarks: BTreeMap::new(),
        random: fastrand::Rng::with_seed(seed),
        last_name: 2,
        sums: Sums::default(),
        world: World::new(Config::default()),
    };
    history.processes[0] = Some(history.world.start(1, 2, true));
    for number in 0..operations {
        let (process, operation) = history.choose();
        let named =
            |why| format!("seed {seed}, operation {number}, {operation:?} of process {process}: {why}");
        history.apply(process, &operation).map_err(named)?;
    }
    Ok(history.sums)
}

impl History {
    fn at(&self, process: u8) -> Option<&Process> {
        self.processes[usize::from(process) - 1].as_ref()
    }

    /// Chooses an operation and the process that runs it.
    fn choose(&mut self) -> (u8, Operation) {
        let process = self.random.u8(1..=PROCESSES);
        if self.at(process).is_none() {
            // The dead wait for a while, so that others meet what they have left.
            let is_alone = self.processes.iter().all(Option::is_none);
            if is_alone || self.random.u8(..8) == 0 {
                return (process, Operation::Join);
            }
            return self.choose();
        }
        let block = self.random.usize(..self.model.blocks().len().max(1));
        let block = self.model.blocks().nth(block).map(|entry| entry.1);
        let is_full = self.model.blocks().len() > 400;
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
                let singles =
                    self.model.blocks().map(|entry| entry.1).filter(|one| one.count == PageCount::new(1));
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
            (69..74, _) => match self.model.dead() {
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

    /// Runs an operation, and compares what is held then with the model.
    fn apply(&mut self, process: u8, operation: &Operation) -> Result<(), String> {
        let writes = self.writes(operation);
        let at = usize::from(process) - 1;
        let (cpu, later) = (self.random.u32(..4), self.random.u64(..300_000_000));
        let name = if let Some(one) = &self.processes[at] {
            let platform = one.allocator.platform();
            platform.cpu.store(cpu, Relaxed); // relaxed, as below: one thread
            platform.clock_ns.fetch_add(later, Relaxed);
            one.name
        } else {
            self.last_name += 1;
            self.last_name
        };
        let world = &self.world;
        let allocator = self.processes[at].as_ref().map(|one| &one.allocator);
        let done = cells::run(name, writes, || match allocator {
            Some(allocator) => perform(allocator, process, operation),
            None => Ok(Done::Joined(Box::new(world.start(process, name, false)))),
        });
        match done {
            Some(done) => {
                self.sums.operations += 1;
                self.note(process, operation, done?)?;
            }
            None => self.note_death(process, operation),
        }
        self.check(process)
    }

    /// Changes the model as an operation that has ended.
    fn note(&mut self, process: u8, operation: &Operation, done: Done) -> Result<(), String> {
        match done {
            Done::Allocated(blocks) => self.model.add(process, &blocks)?,
            Done::Joined(joined) => self.processes[usize::from(process) - 1] = Some(*joined),
            Done::Nothing => {}
        }
        match operation {
            Operation::Free(block) => self.model.remove(&[*block]),
            Operation::FreeBulk(blocks) => self.model.remove(blocks),
            Operation::TakeOver(block) => {
                self.model.remove(&[*block]);
                self.model.add_known(process, *block);
            }
            Operation::Split(block, to) => {
                self.model.remove(&[*block]);
                let parts = (block.start.get()..block.end().get()).step_by(1 << to.get());
                parts.for_each(|first| self.model.add_known(process, world::range(first, 1 << to.get())));
            }
            Operation::Setting(..) => {
                let (value, its) = watermarks(&self.at(process).expect("it runs").allocator);
                self.watermarks.entry(value).or_insert(its);
            }
            Operation::OnDeath(on_death) => self.keeps[usize::from(process) - 1] = *on_death == OnDeath::Keep,
            Operation::Recover(_) | Operation::Join | Operation::Leave => {
                let of = if let Operation::Recover(dead) = operation { *dead } else { process };
                let held = held(&self.at(process).expect("it runs").allocator);
                self.model.recover(of, self.keeps[usize::from(of) - 1], &held)?;
                if matches!(operation, Operation::Leave) {
                    cells::bury(self.processes[usize::from(process) - 1].take());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes the model as the death of a process in an operation.
    fn note_death(&mut self, process: u8, operation: &Operation) {
        let of = |of: u8| -> Vec<FrameRange> {
            let its = self.model.blocks().filter(|entry| entry.0 == of && !self.keeps[usize::from(of) - 1]);
            its.map(|entry| entry.1).collect()
        };
        let touched = match operation {
            Operation::Free(block) | Operation::TakeOver(block) | Operation::Split(block, _) => vec![*block],
            Operation::FreeBulk(blocks) => blocks.clone(),
            Operation::Recover(dead) => of(*dead),
            Operation::Join | Operation::Leave => of(process),
            _ => Vec::new(),
        };
        let gains = matches!(
            operation,
            Operation::Alloc(_)
                | Operation::AllocBulk(_)
                | Operation::AllocFrames(_)
                | Operation::AllocRange(_)
        );
        self.sums.deaths += 1;
        let is_recovery = matches!(operation, Operation::Recover(_) | Operation::Join | Operation::Leave);
        self.sums.deaths_in_recovery += u64::from(is_recovery);
        self.model.die(process, &touched, gains);
        cells::bury(self.processes[usize::from(process) - 1].take());
    }

    /// Compares what is held with the model, and lets the allocator verify itself if all is known.
    fn check(&mut self, after: u8) -> Result<(), String> {
        let Some(one) = self.at(after).or_else(|| self.processes.iter().flatten().next()) else {
            return Ok(());
        };
        let held = held(&one.allocator);
        let verifies = self.model.is_all_known() && self.sums.operations.is_multiple_of(8);
        let verified = verifies.then(|| one.allocator.verify());
        let in_force = watermarks(&one.allocator);
        let expected = self.watermarks.get(&in_force.0).filter(|_| self.model.is_all_known());
        if expected.is_some_and(|expected| *expected != in_force.1) {
            return Err(format!("with {SCALE} {}, the watermarks are {:?}", in_force.0, in_force.1));
        }
        self.model.check(held)?;
        let Some(verified) = verified else { return Ok(()) };
        self.sums.verified += 1;
        let accounting = verified.map_err(|error| error.to_string())?;
        let expected: u64 = self.model.blocks().map(|entry| entry.1.count.get()).sum();
        match accounting.allocated.get() {
            found if found == expected => Ok(()),
            found => Err(format!("{found} frames are allocated, not {expected}")),
        }
    }
}

fn is_large_block(range: FrameRange) -> bool {
    let count = range.count.get();
    count > 1 && count.is_power_of_two() && range.start.get().is_multiple_of(count)
}

/// Returns the value of [`SCALE`], and the watermarks of all zones.
fn watermarks(allocator: &Allocator) -> (String, Vec<Watermarks>) {
    let value = allocator.setting(SCALE).expect("there is such a setting");
    (value.to_string(), allocator.zones().map(|zone| zone.watermarks).collect())
}

fn held(allocator: &Allocator) -> Vec<Entry> {
    let mut held = Vec::new();
    allocator.for_each_held(|holder, block| held.push((holder, block)));
    held
}

/// Runs an operation, which must succeed except for want of frames.
fn perform(allocator: &Allocator, process: u8, operation: &Operation) -> Result<Done, String> {
    fn text(error: impl fmt::Display) -> String {
        error.to_string()
    }
    let pages = Request::page();
    match operation {
        Operation::Alloc(order) => {
            let block = allocator.alloc(&Request::new(*order)).ok();
            return Ok(Done::Allocated(block.iter().map(zonal::request::Block::range).collect()));
        }
        Operation::AllocBulk(count) => {
            let mut frames = vec![Pfn::new(0); *count];
            let came = allocator.alloc_bulk(&pages, &mut frames).unwrap_or(0);
            return Ok(Done::Allocated(
                frames[..came].iter().map(|frame| world::range(frame.get(), 1)).collect(),
            ));
        }
        Operation::AllocFrames(count) => {
            let run = allocator.alloc_frames(&pages, PageCount::new(*count)).ok();
            return Ok(Done::Allocated(run.iter().map(|run| run.range).collect()));
        }
        Operation::AllocRange(range) => {
            let run = allocator.alloc_range(*range, PageKind::Kernel).ok();
            return Ok(Done::Allocated(run.iter().map(|run| run.range).collect()));
        }
        Operation::Free(block) => allocator.free_frames(block.start, block.count).map_err(text)?,
        Operation::FreeBulk(blocks) => {
            let frames: Vec<Pfn> = blocks.iter().map(|block| block.start).collect();
            allocator.free_bulk(&frames).map_err(text)?;
        }
        Operation::TakeOver(block) => allocator.take_over(block.start, block.count).map_err(text)?,
        Operation::Split(block, to) => allocator.split_frames(block.start, block.count, *to).map_err(text)?,
        Operation::Drain => allocator.drain_pagesets(),
        Operation::Tick => allocator.tick(),
        Operation::Fold => allocator.stat_refresh(),
        Operation::Setting(name, value) => allocator.set_setting(name, value).map_err(text)?,
        Operation::OnDeath(on_death) => allocator.set_on_death(process, *on_death),
        Operation::Recover(dead) => _ = allocator.recover(*dead),
        Operation::Leave => _ = allocator.recover(process),
        Operation::Join => unreachable!("the process has joined"),
    }
    Ok(Done::Nothing)
}
