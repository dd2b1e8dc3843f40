//! Simulated processes that share an allocator, and may die before any write.
//!
//! A process that dies leaves what it has written; the others go on, meet its locks and repair what those guard, until one of
//! them, or a successor, recovers what the dead process held, and may die while it does. After each operation, what is held is
//! compared with a model, in which only the blocks of interrupted operations are unsure. When all dead are recovered, the
//! allocator verifies itself, and all frames and counts must be right.
//!
//! Other processes see only the writes of one that died, so this covers its instructions, except in restartable sequences, for
//! which `TryLock` stands. `deaths` kills real processes at their instructions. Related files: `random.rs` chooses operations and
//! deaths at random, `worlds.rs` has each death of each operation.

mod cells;
mod model;
mod random;
mod world;
mod worlds;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::rules::watermarks::Watermarks;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, OnDeath, Request};

use model::{Entry, Model};
use world::{Contents, MortalPlatform, PROCESSES, Process, World};

pub use random::run_random;
pub use worlds::{WorldSums, Worlds, areas_half_rebuilt, runs_across_areas};

type Allocator = zonal::Allocator<'static, MortalPlatform>;

/// The setting from which watermarks follow.
const SCALE: &str = "watermark_scale_factor";

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

/// An operation, and how a process runs it.
struct Step<'a> {
    process: u8,
    operation: &'a Operation,
    /// The CPU on which it runs, counted in the process.
    cpu: u32,
    /// Time that has passed since the process's last operation.
    later_ns: u64,
    /// Writes after which the process dies.
    writes: Option<u64>,
}

/// How an operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Done,
    Death,
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

/// Processes with the memory that they share, and what is known about it.
struct History {
    world: World,
    processes: [Option<Rc<Process>>; PROCESSES as usize],
    /// Whether the blocks of each process outlive it.
    keeps: [bool; PROCESSES as usize],
    model: Model,
    /// The watermarks that follow from each value of the setting, which changes that were not interrupted have made.
    watermarks: BTreeMap<String, Vec<Watermarks>>,
    last_name: u32,
    sums: Sums,
}

/// What a history can be taken back to: all that changes, except for `watermarks`, names and sums.
struct Snapshot {
    memory: Contents,
    processes: [Option<(Rc<Process>, world::State)>; PROCESSES as usize],
    keeps: [bool; PROCESSES as usize],
    model: Model,
    dead_names: Vec<u32>,
}

impl History {
    /// Begins a history with process 1 alone, on a machine with these zones.
    fn new(config: Config, zones: &'static [world::Zone]) -> Self {
        cells::set_dead(Vec::new());
        let world = World::new(config, zones);
        let first = Rc::new(world.start(1, 2, true));
        Self {
            world,
            processes: [Some(first), None, None],
            keeps: [false; PROCESSES as usize],
            model: Model::default(),
            watermarks: BTreeMap::new(),
            last_name: 2,
            sums: Sums::default(),
        }
    }

    fn at(&self, process: u8) -> Option<&Process> {
        self.processes[usize::from(process) - 1].as_deref()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            memory: self.world.contents(),
            processes: self
                .processes
                .each_ref()
                .map(|one| one.as_ref().map(|one| (one.clone(), one.state()))),
            keeps: self.keeps,
            model: self.model.clone(),
            dead_names: cells::dead(),
        }
    }

    /// Takes the history back to a snapshot of it.
    fn restore(&mut self, snapshot: &Snapshot) {
        self.world.restore(&snapshot.memory);
        let restored = |(one, state): &(Rc<Process>, _)| {
            one.restore(state);
            one.clone()
        };
        let processes = snapshot.processes.each_ref().map(|one| one.as_ref().map(restored));
        cells::bury(std::mem::replace(&mut self.processes, processes));
        (self.keeps, self.model) = (snapshot.keeps, snapshot.model.clone());
        cells::set_dead(snapshot.dead_names.clone());
    }

    /// Runs an operation, and compares what is held then with the model.
    fn apply(&mut self, step: &Step<'_>) -> Result<End, String> {
        let Step { process, operation, .. } = *step;
        let at = usize::from(process) - 1;
        let name = if let Some(one) = &self.processes[at] {
            let platform = one.allocator.platform();
            platform.cpu.store(step.cpu, Relaxed); // relaxed, as below: one thread
            platform.clock_ns.fetch_add(step.later_ns, Relaxed);
            one.name
        } else {
            self.last_name += 1;
            self.last_name
        };
        let world = &self.world;
        let allocator = self.processes[at].as_ref().map(|one| &one.allocator);
        let done = cells::run(name, step.writes, || match allocator {
            Some(allocator) => perform(allocator, process, operation),
            None => Ok(Done::Joined(Box::new(world.start(process, name, false)))),
        });
        let is_done = done.is_some();
        match done {
            Some(done) => {
                self.sums.operations += 1;
                self.note(process, operation, done?)?;
            }
            None => self.note_death(process, operation),
        }
        self.check(process)?;
        Ok(if is_done { End::Done } else { End::Death })
    }

    /// Changes the model as an operation that has ended.
    fn note(&mut self, process: u8, operation: &Operation, done: Done) -> Result<(), String> {
        match done {
            Done::Allocated(blocks) => self.model.add(process, &blocks)?,
            Done::Joined(joined) => self.processes[usize::from(process) - 1] = Some(Rc::from(joined)),
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
        let gained = match operation {
            Operation::Alloc(order) => Some(order.pages().get()),
            Operation::AllocBulk(_) => Some(1),
            Operation::AllocFrames(count) => Some(*count),
            Operation::AllocRange(range) => Some(range.count.get()),
            _ => None,
        };
        self.sums.deaths += 1;
        let is_recovery = matches!(operation, Operation::Recover(_) | Operation::Join | Operation::Leave);
        self.sums.deaths_in_recovery += u64::from(is_recovery);
        self.model.die(process, &touched, gained);
        cells::bury(self.processes[usize::from(process) - 1].take());
    }

    /// Returns the process that sees what `after` has done: itself, or another one if it has died.
    fn witness(&self, after: u8) -> Option<&Process> {
        self.at(after).or_else(|| self.processes.iter().flatten().next().map(Rc::as_ref))
    }

    /// Compares what is held with the model.
    fn check(&mut self, after: u8) -> Result<(), String> {
        let Some(one) = self.witness(after) else { return Ok(()) };
        let held = held(&one.allocator);
        let in_force = watermarks(&one.allocator);
        let expected = self.watermarks.get(&in_force.0).filter(|_| self.model.is_all_known());
        if expected.is_some_and(|expected| *expected != in_force.1) {
            return Err(format!("with {SCALE} {}, the watermarks are {:?}", in_force.0, in_force.1));
        }
        self.model.check(held)
    }

    /// Lets the allocator verify itself, when all dead are recovered.
    fn verify(&mut self, after: u8) -> Result<(), String> {
        let Some(one) = self.witness(after) else { return Ok(()) };
        let accounting = one.allocator.verify().map_err(|error| error.to_string())?;
        self.sums.verified += 1;
        let expected: u64 = self.model.blocks().map(|entry| entry.1.count.get()).sum();
        match accounting.allocated.get() {
            found if found == expected => Ok(()),
            found => Err(format!("{found} frames are allocated, not {expected}")),
        }
    }
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
