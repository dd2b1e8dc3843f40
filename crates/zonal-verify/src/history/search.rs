//! Searches all histories of a small world, and visits each state once.
//!
//! The search is breadth first. It makes all moves from each state, checks each new state in full, and continues from
//! it. Two states are the same if everything that an answer depends on is equal, so cells that only count events
//! (*figures*) are ignored. A *move* is one operation on one CPU, and a *transition* is a move from a state.
//!
//! Related files: `recording.rs` saves and restores states.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64};

use zonal::Config;
use zonal::metadata::regions::Part;
use zonal::units::{CpuId, ZoneId};

use super::executor::Executor;
use super::model::Model;
use super::operation::Operation;
use super::plan::{Plan, World};
use super::recording::{RecordedCell, RecordedCells, Recording, State};

/// A world to be searched.
pub struct Search<'s> {
    /// The machine.
    pub plan: &'s Plan,
    /// The allocator's configuration.
    pub config: &'s Config,
    /// The operations to execute before the search begins.
    pub start: &'s [Operation],
    /// The moves that can be made from a state.
    pub moves: &'s dyn Fn(&Model, &mut Vec<Move>),
    /// Maximum number of moves from the start.
    pub depth: u32,
    /// The parts of a state that distinguish it from others.
    pub key: StateKey,
}

/// The choice of state parts that distinguish it from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateKey {
    /// All cells that an answer depends on: equal states have equal successors.
    Answers,
    /// The place of each frame, and the CPUs that are online. States that differ only in counters and limits are
    /// visited as one state, so some successors are missed, but the search goes much deeper.
    Places,
}

/// One operation on one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The CPU.
    pub cpu: u8,
    /// The operation on this CPU.
    pub operation: Operation,
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Number of different states, including the start.
    pub states: u64,
    /// Number of moves made.
    pub transitions: u64,
    /// Number of moves from the start to the farthest state.
    pub depth: u32,
    /// Maximum number of frames in pagesets in any state.
    pub in_pagesets_max: u64,
    /// Minimum number of free frames in any state, including those in pagesets.
    pub free_min: u64,
    /// Number of states in which some frames were offline.
    pub short_of_memory: u64,
}

/// A state whose successors are searched.
struct Reached {
    state: State,
    model: Model,
    ms: u64,
    /// Index of the previous state, and the move from there.
    parent: Option<(usize, Move)>,
}

/// A running search.
struct Searcher<'r, 'w, 'm> {
    executor: Executor<'w, 'm, RecordedCells>,
    recording: &'r Recording<'w, 'm>,
    seen: HashSet<[u64; 2]>,
    /// Roles of cells, by the number of the cell.
    roles: Vec<Option<CellRole>>,
    /// Numbers of the cells that hold pageset words.
    words: HashMap<Of, usize>,
    /// Cells whose value differs from that at the start: number, role, value at the start, and current value.
    changed: Vec<(usize, CellRole, u64, u64)>,
    by: StateKey,
    found: Found,
}

impl Search<'_> {
    /// Runs the search, and returns its result.
    ///
    /// # Panics
    /// Panics if an answer is wrong or a state is invalid, and prints the moves to that state.
    #[must_use]
    pub fn run(&self) -> Found {
        let found = self.plan.with_executor(self.config, |mut executor| {
            self.start.iter().for_each(|&operation| executor.apply(operation));
            let recording = Recording::begin(executor.world);
            let found = Found { free_min: u64::MAX, ..Found::default() };
            let searcher = Searcher {
                executor,
                recording: &recording,
                seen: HashSet::new(),
                roles: Vec::new(),
                words: HashMap::new(),
                changed: Vec::new(),
                by: self.key,
                found,
            };
            searcher.run(self)
        });
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Prints the moves to a state in which a check failed.
struct PathPrinter<'t> {
    levels: &'t [Vec<Reached>],
    from: usize,
    step: Move,
}

impl Drop for PathPrinter<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (mut moves, mut at) = (vec![self.step], self.from);
        for stops in self.levels.iter().rev() {
            let Some((before, step)) = stops[at].parent else { break };
            moves.push(step);
            at = before;
        }
        eprintln!("the moves there:");
        moves.iter().rev().for_each(|step| eprintln!("  CPU {} {:?}", step.cpu, step.operation));
    }
}

impl Searcher<'_, '_, '_> {
    fn run(mut self, search: &Search<'_>) -> Found {
        let first = self.stop(self.recording.save(), None);
        let key = self.key();
        self.seen.insert(key);
        self.visit();
        let mut levels = vec![vec![first]];
        let mut moves = Vec::new();
        for depth in 1..=search.depth {
            let mut next = Vec::new();
            let before = self.found.states;
            for (from, stop) in levels[depth as usize - 1].iter().enumerate() {
                moves.clear();
                (search.moves)(&stop.model, &mut moves);
                for &step in &moves {
                    let _trail = PathPrinter { levels: &levels, from, step };
                    if let Some(state) = self.make(stop, step)
                        && depth < search.depth
                    {
                        next.push(self.stop(state, Some((from, step))));
                    }
                }
            }
            if self.found.states == before {
                break;
            }
            self.found.depth = depth;
            // After the moves from a state were made, only the move to it is needed, so its cells are dropped.
            levels[depth as usize - 1].iter_mut().for_each(|stop| stop.state = State::default());
            levels.push(next);
        }
        self.found
    }

    fn stop(&self, state: State, parent: Option<(usize, Move)>) -> Reached {
        let ms = self.executor.world.controls.ms();
        Reached { state, model: self.executor.model.clone(), ms, parent }
    }

    /// Makes a move from a state. Returns the state to which it leads, if that state is new.
    fn make(&mut self, from: &Reached, step: Move) -> Option<State> {
        self.recording.restore(&from.state);
        self.executor.model.clone_from(&from.model);
        let controls = &self.executor.world.controls;
        controls.set_ms(from.ms);
        controls.run_on(u32::from(step.cpu));
        let execution = self.executor.execute(step.operation);
        self.found.transitions += 1;
        let key = self.key();
        // Checks change hints, so the state is saved before them.
        let state = self.seen.insert(key).then(|| self.recording.save());
        self.executor.check_answer(&execution);
        if state.is_some() {
            self.visit();
        }
        state
    }

    /// Checks a new state.
    fn visit(&mut self) {
        self.executor.check();
        let accounting = self.executor.world.allocator.accounting();
        let found = &mut self.found;
        found.states += 1;
        found.in_pagesets_max = found.in_pagesets_max.max(accounting.in_pagesets.get());
        found.free_min = found.free_min.min(accounting.free.plus(accounting.in_pagesets).get());
        found.short_of_memory += u64::from(!self.executor.model.offline().is_empty());
    }

    /// Returns the key of this state, a 128-bit hash of all relevant differences from the start.
    fn key(&mut self) -> [u64; 2] {
        self.roles.resize(self.recording.cells(), None);
        let (roles, words, changed) = (&mut self.roles, &mut self.words, &mut self.changed);
        changed.clear();
        self.recording.changed(|at, address, first, value| {
            let role = *roles[at].get_or_insert_with(|| role_of(self.recording.world(), self.by, address));
            if let CellRole::FreeSlots(pageset) = role {
                words.insert(pageset, at);
            }
            changed.push((at, role, first, value));
        });
        let free_slots = |pageset| {
            let at = words.get(&pageset)?;
            let found = changed.iter().find(|(of, ..)| of == at)?;
            Some(found.3 & FREE_SLOTS)
        };
        let ms = self.recording.world().controls.ms();
        let mut key = [mixed(ms, 1), mixed(ms, 2)];
        for &(at, role, first, value) in &*changed {
            let bits = match role {
                CellRole::Bits(bits) => bits,
                CellRole::FreeSlots(_) => FREE_SLOTS,
                CellRole::Slot(pageset, at)
                    if free_slots(pageset).is_some_and(|free_slots| at < free_slots) =>
                {
                    0
                }
                CellRole::Slot(..) => u64::MAX,
            };
            if (value ^ first) & bits != 0 {
                let seed = (at as u64) << 8;
                key[0] = key[0].wrapping_add(mixed(value & bits, seed | 3));
                key[1] = key[1].wrapping_add(mixed(value & bits, seed | 4));
            }
        }
        key
    }
}

/// Returns a hash of a number and a seed (the finalizer of MurmurHash3).
fn mixed(value: u64, seed: u64) -> u64 {
    let mut mix = value ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for factor in [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53] {
        mix = (mix ^ (mix >> 33)).wrapping_mul(factor);
    }
    mix ^ (mix >> 33)
}

/// Bits of a pageset's word that contain how many slots its single-frame stack has free.
const FREE_SLOTS: u64 = (1 << 27) - 1;

/// A pageset.
type Of = (ZoneId, CpuId);

/// The contribution of a cell to the key.
#[derive(Clone, Copy)]
enum CellRole {
    /// These bits.
    Bits(u64),
    /// The free slots of a pageset.
    FreeSlots(Of),
    /// A slot of a pageset. It contains a frame unless it is one of the free slots, which come first.
    Slot(Of, u64),
}

fn role_of(world: &World<'_, RecordedCells>, by: StateKey, address: usize) -> CellRole {
    let part_at = |address| world.allocator.part_at(address);
    let part = part_at(address).unwrap_or_else(|| panic!("the cell at {address:#x} belongs to no part"));
    if by == StateKey::Answers {
        return CellRole::Bits(match part {
            Part::Events(_) | Part::NodeTotals(_) | Part::MachineTotals => 0,
            // The first cell is the number of free frames. The others count events, so they do not belong to the key.
            Part::ZoneTotals(_) if part_at(address - 1) == Some(part) => 0,
            _ => u64::MAX,
        });
    }
    match part {
        Part::Pageset(zone, cpu)
            if is_nth(&part_at, part, address, 1, size_of::<RecordedCell<AtomicU64>>()) =>
        {
            CellRole::FreeSlots((zone, cpu))
        }
        Part::Slots(zone, cpu) => {
            let size = size_of::<RecordedCell<AtomicU32>>();
            let nth = (0..).find(|&nth| is_nth(&part_at, part, address, nth, size));
            CellRole::Slot((zone, cpu), nth.expect("it is one of them") as u64)
        }
        Part::FreeBitmap(..)
        | Part::FrameStates(_)
        | Part::OnlineCpus
        | Part::CurrentSlot(_)
        | Part::ZonelistCache(_) => CellRole::Bits(u64::MAX),
        _ => CellRole::Bits(0),
    }
}

/// Whether exactly `nth` cells of `size` bytes precede the cell at `address` in its part.
fn is_nth(
    part_at: &impl Fn(usize) -> Option<Part>,
    part: Part,
    address: usize,
    nth: usize,
    size: usize,
) -> bool {
    part_at(address - nth * size) == Some(part) && part_at(address - nth * size - 1) != Some(part)
}
