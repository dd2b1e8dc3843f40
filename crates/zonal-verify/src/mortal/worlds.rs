//! Exhaustive worlds: from each of a few states, each operation dies before each of its writes.
//!
//! Survivors then recover what the dead process held, at once or after an operation that meets its locks, or a successor joins in
//! its place. In each of these operations, the process dies in turn, and another one recovers both. What is held is compared with
//! the model after each operation, as in random histories, and the allocator verifies itself when all dead are recovered.

use std::fmt;

use zonal::machine::FrameRange;
use zonal::units::{Order, PageCount};
use zonal::{Config, OnDeath};

use super::cells;
use super::world::{AREA, PROCESSES, SECOND_AREA, TWO_AREAS, ZONES, range};
use super::{End, History, Operation, SCALE, Step};

/// The process that dies first, except while `THIRD` joins.
const VICTIM: u8 = 1;
/// The process that survives the first death, and whose blocks the victim frees, splits and takes over.
const OTHER: u8 = 2;
/// A process that lives, or has died before the first operation, or has not joined.
const THIRD: u8 = 3;

/// The worlds to run of all.
pub struct Worlds<'a> {
    /// Only operations whose description contains this.
    pub only: &'a str,
    /// The first process dies before every nth write.
    pub stride: usize,
    /// At most this many first deaths in an operation, spread over its writes.
    pub most: usize,
    /// The second process dies before every nth write. The first of these is one later after each first death, so after `n`
    /// first deaths, second ones have been before all writes.
    pub second_stride: usize,
}

/// Sums of worlds.
#[derive(Clone, Copy, Default, Debug)]
pub struct WorldSums {
    /// States from which operations run.
    pub setups: u64,
    /// Operations in which the first process dies, in all setups.
    pub operations: u64,
    /// Deaths in these operations.
    pub first_deaths: u64,
    /// Deaths of processes that recover or meet what a first one has left.
    pub second_deaths: u64,
    /// Times that the allocator has verified itself.
    pub verified: u64,
}

impl fmt::Display for WorldSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setups, operations, first_deaths, second_deaths, verified } = self;
        write!(
            f,
            "{operations} operations in {setups} setups, {first_deaths} first deaths, {second_deaths} second deaths; verified \
             {verified} times"
        )
    }
}

/// What has happened before the first operation.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Two processes have joined.
    Joined,
    /// Three processes have blocks of all kinds, and frames in their pagesets.
    Used,
    /// As `Used`, and the blocks of most orders are allocated.
    Full,
    /// As `Used`, and a process has died in a refill.
    DeadInRefill,
    /// As `Used`, and a process has died while it took a block over.
    DeadInHandover,
}

impl Worlds<'_> {
    /// Runs the worlds.
    ///
    /// # Errors
    /// A description of what was wrong, and of the deaths before.
    pub fn run(&self) -> Result<WorldSums, String> {
        use Before::{DeadInHandover, DeadInRefill, Full, Joined, Used};
        let mut sums = WorldSums::default();
        for before in [Joined, Used, Full, DeadInRefill, DeadInHandover] {
            for on_death in [OnDeath::Free, OnDeath::Keep] {
                let named = |why| format!("{before:?}, {on_death:?}: {why}");
                self.run_setup(before, on_death, &mut sums).map_err(named)?;
            }
        }
        Ok(sums)
    }

    /// Runs all operations from one setup.
    fn run_setup(&self, before: Before, on_death: OnDeath, sums: &mut WorldSums) -> Result<(), String> {
        let mut history = History::new(Config::default(), ZONES);
        set_up(&mut history, before, on_death)?;
        let begun = history.snapshot();
        sums.setups += 1;
        for (process, operation) in operations(&history) {
            if !format!("{operation:?}").contains(self.only) {
                continue;
            }
            // First to its end, which also shows what changed settings lead to.
            history.restore(&begun);
            run(&mut history, process, &operation)?;
            let stride = self.stride.max((cells::writes_made() as usize).div_ceil(self.most));
            settle(&mut history)?;
            for writes in (sums.operations as usize % stride..).step_by(stride) {
                history.restore(&begun);
                if die(&mut history, process, &operation, writes)? == End::Done {
                    break;
                }
                let named = |why| format!("{process} dies after {writes} writes of {operation:?}; {why}");
                self.run_aftermaths(&mut history, process, sums).map_err(named)?;
                sums.first_deaths += 1;
            }
            sums.operations += 1;
        }
        sums.verified += history.sums.verified;
        Ok(())
    }

    /// Runs all that others may do after the death of `victim`, and their deaths.
    fn run_aftermaths(&self, history: &mut History, victim: u8, sums: &mut WorldSums) -> Result<(), String> {
        let died = history.snapshot();
        for aftermath in aftermaths(history, victim) {
            history.restore(&died);
            for (process, operation) in aftermath {
                let before = history.snapshot();
                let shift = sums.first_deaths as usize % self.second_stride;
                for writes in (shift..).step_by(self.second_stride) {
                    history.restore(&before);
                    if die(history, process, &operation, writes)? == End::Done {
                        break;
                    }
                    let named = |why| format!("{process} dies after {writes} of {operation:?}; {why}");
                    settle(history).map_err(named)?;
                    sums.second_deaths += 1;
                }
            }
            settle(history)?;
        }
        Ok(())
    }
}

/// Runs an operation.
fn run(history: &mut History, process: u8, operation: &Operation) -> Result<(), String> {
    step(history, process, operation, None).map(drop)
}

/// Runs an operation in which the process dies, if it writes more than this.
fn die(history: &mut History, process: u8, operation: &Operation, writes: usize) -> Result<End, String> {
    step(history, process, operation, Some(writes as u64))
}

/// Runs an operation in which the process dies.
fn die_in(history: &mut History, process: u8, operation: &Operation, writes: usize) -> Result<(), String> {
    match die(history, process, operation, writes)? {
        End::Death => Ok(()),
        End::Done => Err(format!("{operation:?} makes at most {writes} writes")),
    }
}

fn step(
    history: &mut History,
    process: u8,
    operation: &Operation,
    writes: Option<u64>,
) -> Result<End, String> {
    let named = |why| match writes {
        Some(writes) => {
            format!("{operation:?} of process {process}, which is to die after {writes} writes: {why}")
        }
        None => format!("{operation:?} of process {process}: {why}"),
    };
    history.apply(&Step { process, operation, cpu: 0, later_ns: 250_000_000, writes }).map_err(named)
}

/// Runs a recovery that dies before each of its writes, while the dead process's run is in two free areas; then another process
/// allocates a run that ends where the second area begins, and frees or splits it. Returns how often the recovery died, and how many such runs there were.
///
/// # Errors
/// A description of what was wrong, and of the operation.
pub fn runs_across_areas() -> Result<[u64; 2], String> {
    let config = Config { free_area_min: PageCount::new(1), ..Config::default() };
    let mut history = History::new(config, TWO_AREAS);
    for process in [OTHER, THIRD] {
        run(&mut history, process, &Operation::Join)?;
    }
    run(&mut history, VICTIM, &Operation::AllocRange(range(SECOND_AREA - 4, 8)))?;
    let end = step(&mut history, VICTIM, &Operation::Alloc(Order::PAGE), Some(0))?;
    assert_eq!(end, End::Death, "an allocation writes");
    let snapshot = history.snapshot();
    let adjacent = range(SECOND_AREA - 3, 3);
    let (mut deaths, mut runs) = (0, 0);
    while step(&mut history, OTHER, &Operation::Recover(VICTIM), Some(deaths))? == End::Death {
        deaths += 1;
        let torn = history.snapshot();
        for operation in [Operation::Free(adjacent), Operation::Split(adjacent, Order::PAGE)] {
            history.restore(&torn);
            run(&mut history, THIRD, &Operation::AllocRange(adjacent))?;
            if history.model.blocks().any(|entry| entry.1 == adjacent) {
                runs += 1;
                run(&mut history, THIRD, &operation)?;
            }
            settle(&mut history)?;
        }
        history.restore(&snapshot);
    }
    Ok([deaths, runs])
}

/// Runs a recovery that dies before each of its writes, after a death in the only free area that has free frames; then a process
/// that prefers another area allocates a block. Returns how often the recovery died.
///
/// # Errors
/// A description of what was wrong, such as a block that is not found although most frames of the area are free.
pub fn areas_half_rebuilt() -> Result<u64, String> {
    let config = Config { free_area_min: PageCount::new(1), ..Config::default() };
    let mut history = History::new(config, TWO_AREAS);
    for process in [OTHER, THIRD] {
        run(&mut history, process, &Operation::Join)?;
    }
    let first_area = range(SECOND_AREA - AREA, AREA);
    run(&mut history, OTHER, &Operation::AllocRange(first_area))?;
    die_in(&mut history, VICTIM, &Operation::AllocRange(range(SECOND_AREA + 30, 8)), 12)?;
    let snapshot = history.snapshot();
    let mut deaths = 0;
    while step(&mut history, THIRD, &Operation::Recover(VICTIM), Some(deaths))? == End::Death {
        deaths += 1;
        let torn = history.snapshot();
        for order in [0, 3, 9, 10] {
            history.restore(&torn);
            let before = shortages(&history);
            run(&mut history, OTHER, &alloc(order))?;
            let found = block_of(&history, OTHER, 1 << order).is_some();
            if !found || shortages(&history) != before {
                return Err(format!(
                    "after {deaths} writes of a recovery, a block of order {order} is not found at once"
                ));
            }
            settle(&mut history)?;
        }
        history.restore(&snapshot);
    }
    Ok(deaths)
}

/// Returns how often zones were found full and background reclaim was woken.
fn shortages(history: &History) -> [u64; 2] {
    let events = history.at(OTHER).expect("it lives").allocator.events();
    [events.marks, events.background_wakes]
}

/// Lets a process recover all dead, and the allocator verify itself.
fn settle(history: &mut History) -> Result<(), String> {
    let living = (1..=PROCESSES).find(|&process| history.at(process).is_some());
    let process = living.unwrap_or(VICTIM);
    if living.is_none() {
        run(history, process, &Operation::Join)?;
    }
    for dead in history.model.dead() {
        run(history, process, &Operation::Recover(dead))?;
    }
    history.verify(process)
}

/// Makes what has happened before the first operation.
fn set_up(history: &mut History, before: Before, on_death: OnDeath) -> Result<(), String> {
    run(history, OTHER, &Operation::Join)?;
    for process in [VICTIM, OTHER] {
        run(history, process, &Operation::OnDeath(on_death))?;
    }
    if matches!(before, Before::Joined) {
        return Ok(());
    }
    run(history, THIRD, &Operation::Join)?;
    run(history, THIRD, &Operation::OnDeath(on_death))?;
    for process in 1..=PROCESSES {
        use_memory(history, process)?;
    }
    match before {
        Before::Joined | Before::Used => {}
        Before::Full => {
            for order in [10, 9, 7, 5, 3] {
                let mut blocks = 0;
                while history.model.blocks().len() > blocks {
                    blocks = history.model.blocks().len();
                    run(history, OTHER, &alloc(order))?;
                }
            }
        }
        Before::DeadInRefill => die_in(history, THIRD, &Operation::AllocBulk(100), 40)?,
        Before::DeadInHandover => {
            let block = block_of(history, OTHER, 8).expect("it has blocks of all kinds");
            die_in(history, THIRD, &Operation::TakeOver(block), 12)?;
        }
    }
    Ok(())
}

/// Lets a process allocate blocks of all kinds, and free some.
fn use_memory(history: &mut History, process: u8) -> Result<(), String> {
    let bulk = Operation::AllocBulk(60);
    for operation in [bulk, alloc(3), alloc(3), alloc(9), alloc(9), Operation::AllocFrames(37)] {
        run(history, process, &operation)?;
    }
    let pages = blocks_of(history, process, 1);
    let freed = [block_of(history, process, 8), block_of(history, process, 512)];
    for operation in freed.into_iter().flatten().map(Operation::Free) {
        run(history, process, &operation)?;
    }
    run(history, process, &Operation::FreeBulk(pages.into_iter().skip(8).collect()))
}

/// Returns the operations that run from a state, with the process that dies in each.
fn operations(history: &History) -> Vec<(u8, Operation)> {
    let mut all = vec![
        alloc(0),
        alloc(3),
        alloc(9),
        alloc(10),
        Operation::AllocBulk(70),
        Operation::AllocFrames(37),
        Operation::AllocFrames(300),
        Operation::AllocRange(range(2048 + 500, 30)),
        Operation::Drain,
        Operation::Tick,
        Operation::Fold,
        Operation::Setting(SCALE, "30"),
        Operation::Setting("pageset_tuning", "depth"),
        Operation::Setting("percpu_pagelist_high_fraction", "16"),
        Operation::OnDeath(OnDeath::Keep),
        Operation::OnDeath(OnDeath::Free),
        Operation::Leave,
    ];
    for holder in [VICTIM, OTHER] {
        for block in [1, 8, 37, 512].into_iter().filter_map(|frames| block_of(history, holder, frames)) {
            all.push(Operation::Free(block));
            if holder == OTHER {
                all.push(Operation::TakeOver(block));
            }
        }
        let to = |block, order| Operation::Split(block, Order::new(order).expect("it is small"));
        all.extend(block_of(history, holder, 8).map(|block| to(block, 0)));
        all.extend(block_of(history, holder, 512).map(|block| to(block, 5)));
    }
    let pages: Vec<_> =
        [VICTIM, OTHER].into_iter().flat_map(|holder| blocks_of(history, holder, 1)).collect();
    if !pages.is_empty() {
        all.push(Operation::FreeBulk(pages));
    }
    all.extend(history.model.dead().into_iter().map(Operation::Recover));
    let join = history.at(THIRD).is_none().then_some((THIRD, Operation::Join));
    all.into_iter().map(|operation| (VICTIM, operation)).chain(join).collect()
}

/// Returns what others may do after the death of `victim`, each time up to the recovery.
fn aftermaths(history: &History, victim: u8) -> Vec<Vec<(u8, Operation)>> {
    let recoveries: Vec<_> =
        history.model.dead().into_iter().map(|dead| (OTHER, Operation::Recover(dead))).collect();
    let own = history.model.blocks().filter(|entry| entry.0 == OTHER).map(|entry| entry.1);
    let others = history.model.blocks().filter(|entry| entry.0 != OTHER).map(|entry| entry.1);
    let meetings = [
        Some(Operation::AllocBulk(100)),
        own.max_by_key(|block| block.count).map(Operation::Free),
        others.max_by_key(|block| block.count).map(Operation::TakeOver),
        Some(Operation::Drain),
        Some(Operation::Setting(SCALE, "100")),
    ];
    let meeting = |operation| [vec![(OTHER, operation)], recoveries.clone()].concat();
    let mut all: Vec<_> = meetings.into_iter().flatten().map(meeting).collect();
    all.push(vec![(victim, Operation::Join)]);
    all.push(recoveries);
    all
}

fn alloc(order: u8) -> Operation {
    Operation::Alloc(Order::new(order).expect("orders are small"))
}

/// Returns the blocks of a process that have this many frames.
fn blocks_of(history: &History, holder: u8, frames: u64) -> Vec<FrameRange> {
    let its = history.model.blocks().filter(|entry| entry.0 == holder).map(|entry| entry.1);
    its.filter(|block| block.count == PageCount::new(frames)).collect()
}

fn block_of(history: &History, holder: u8, frames: u64) -> Option<FrameRange> {
    blocks_of(history, holder, frames).first().copied()
}
