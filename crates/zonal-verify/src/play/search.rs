//! Every history of a small world, each state of it once.
//!
//! Breadth first: from each state all moves are made, and a state that is new is checked in full and
//! searched further. Two states are the same when nothing that decides about any answer differs: cells
//! that only count what happened (*figures*) are left out. Vocabulary: a *move* is one operation on one
//! CPU; a *transition* is a move from a state. Neighbours: `kept.rs` saves and restores.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64};

use zonal::Config;
use zonal::metadata::regions::Part;
use zonal::units::{CpuId, ZoneId};

use super::kept::{Kept, KeptCell, Recording, State};
use super::model::Model;
use super::operation::Operation;
use super::plan::{Plan, World};
use super::player::Player;

/// A world to be searched.
pub struct Search<'s> {
    /// The machine.
    pub plan: &'s Plan,
    /// The allocator's configuration.
    pub config: &'s Config,
    /// What was done before the search begins.
    pub start: &'s [Operation],
    /// The moves that can be made from a state: CPU and operation.
    pub moves: &'s dyn Fn(&Model, &mut Vec<Move>),
    /// Moves from the start at most.
    pub depth: u32,
    /// What tells states apart.
    pub telling: Telling,
}

/// What tells states apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// All that decides about any answer: of two states that are the same the same follows.
    Answers,
    /// Where each frame is, and who is online: counters and limits may differ between states that are
    /// visited as one, so not all is seen that could follow, but much deeper.
    Places,
}

/// One operation on one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The CPU.
    pub cpu: u8,
    /// What is done there.
    pub operation: Operation,
}

/// What a search came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Different states, the start included.
    pub states: u64,
    /// Moves made.
    pub transitions: u64,
    /// Moves from the start to the farthest state.
    pub depth: u32,
    /// Most frames that pagesets held in any state.
    pub in_pagesets_max: u64,
    /// Fewest frames that were free in any state, pagesets included.
    pub free_min: u64,
    /// States in which some frames were offline.
    pub short_of_memory: u64,
}

/// A state to search on from.
struct Stop {
    state: State,
    model: Model,
    ms: u64,
    /// Place of the stop it was reached from, and by which move.
    came: Option<(usize, Move)>,
}

/// A search under way.
struct Searcher<'r, 'w, 'm> {
    player: Player<'w, 'm, Kept>,
    recording: &'r Recording<'w, 'm>,
    seen: HashSet<[u64; 2]>,
    /// By number of the cell.
    tells: Vec<Option<Tells>>,
    /// Numbers of the cells that tell of rooms.
    words: HashMap<Of, usize>,
    /// Cells not as at the start: number, what it tells, what it held then and holds now.
    changed: Vec<(usize, Tells, u64, u64)>,
    by: Telling,
    found: Found,
}

impl Search<'_> {
    /// Searches, and says what there is.
    ///
    /// # Panics
    /// When an answer is wrong or a state is not sound: the moves that lead there are printed.
    #[must_use]
    pub fn run(&self) -> Found {
        let found = self.plan.played_by(self.config, |mut player| {
            self.start.iter().for_each(|&operation| player.apply(operation));
            let recording = Recording::begin(player.world);
            let found = Found { free_min: u64::MAX, ..Found::default() };
            let searcher = Searcher {
                player,
                recording: &recording,
                seen: HashSet::new(),
                tells: Vec::new(),
                words: HashMap::new(),
                changed: Vec::new(),
                by: self.telling,
                found,
            };
            searcher.run(self)
        });
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Prints the way to where something is wrong.
struct Trail<'t> {
    levels: &'t [Vec<Stop>],
    from: usize,
    step: Move,
}

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (mut moves, mut at) = (vec![self.step], self.from);
        for stops in self.levels.iter().rev() {
            let Some((before, step)) = stops[at].came else { break };
            moves.push(step);
            at = before;
        }
        eprintln!("the way there:");
        moves.iter().rev().for_each(|step| eprintln!("  CPU {} {:?}", step.cpu, step.operation));
    }
}

impl Searcher<'_, '_, '_> {
    fn run(mut self, search: &Search<'_>) -> Found {
        let first = self.stop(self.recording.save(), None);
        let key = self.key();
        self.seen.insert(key);
        self.meet();
        let mut levels = vec![vec![first]];
        let mut moves = Vec::new();
        for depth in 1..=search.depth {
            let mut next = Vec::new();
            let before = self.found.states;
            for (from, stop) in levels[depth as usize - 1].iter().enumerate() {
                moves.clear();
                (search.moves)(&stop.model, &mut moves);
                for &step in &moves {
                    let _trail = Trail { levels: &levels, from, step };
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
            // Of those that were searched only the way is needed from now on.
            levels[depth as usize - 1].iter_mut().for_each(|stop| stop.state = State::default());
            levels.push(next);
        }
        self.found
    }

    fn stop(&self, state: State, came: Option<(usize, Move)>) -> Stop {
        let ms = self.player.world.controls.ms();
        Stop { state, model: self.player.model.clone(), ms, came }
    }

    /// Makes a move from a state; gives the state that it leads to, when that is new.
    fn make(&mut self, from: &Stop, step: Move) -> Option<State> {
        self.recording.restore(&from.state);
        self.player.model.clone_from(&from.model);
        let controls = &self.player.world.controls;
        controls.set_ms(from.ms);
        controls.run_on(u32::from(step.cpu));
        let act = self.player.act(step.operation);
        self.found.transitions += 1;
        let key = self.key();
        // Judging and checking change hints: nobody goes on from what they leave.
        let state = self.seen.insert(key).then(|| self.recording.save());
        self.player.judge(&act);
        if state.is_some() {
            self.meet();
        }
        state
    }

    /// Looks at a new state.
    fn meet(&mut self) {
        self.player.check();
        let accounting = self.player.world.allocator.accounting();
        let found = &mut self.found;
        found.states += 1;
        found.in_pagesets_max = found.in_pagesets_max.max(accounting.in_pagesets.get());
        found.free_min = found.free_min.min(accounting.free.plus(accounting.in_pagesets).get());
        found.short_of_memory += u64::from(!self.player.model.offline().is_empty());
    }

    /// What tells this state from others: 128 bits of all that differs from the start.
    fn key(&mut self) -> [u64; 2] {
        self.tells.resize(self.recording.cells(), None);
        let (tells, words, changed) = (&mut self.tells, &mut self.words, &mut self.changed);
        changed.clear();
        self.recording.changed(|at, address, first, value| {
            let told = *tells[at].get_or_insert_with(|| tells_of(self.recording.world(), self.by, address));
            if let Tells::Room(pageset) = told {
                words.insert(pageset, at);
            }
            changed.push((at, told, first, value));
        });
        let room = |pageset| {
            let at = words.get(&pageset)?;
            let found = changed.iter().find(|(of, ..)| of == at)?;
            Some(found.3 & ROOM)
        };
        let ms = self.recording.world().controls.ms();
        let mut key = [mixed(ms, 1), mixed(ms, 2)];
        for &(at, told, first, value) in &*changed {
            let bits = match told {
                Tells::Bits(bits) => bits,
                Tells::Room(_) => ROOM,
                Tells::Slot(pageset, at) if room(pageset).is_some_and(|room| at < room) => 0,
                Tells::Slot(..) => u64::MAX,
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

/// Two numbers scattered over all bits (the finisher of MurmurHash3).
fn mixed(value: u64, seed: u64) -> u64 {
    let mut mix = value ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for factor in [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53] {
        mix = (mix ^ (mix >> 33)).wrapping_mul(factor);
    }
    mix ^ (mix >> 33)
}

/// Bits of a pageset's word that say how much room its stack of single frames has.
const ROOM: u64 = (1 << 27) - 1;

/// A pageset.
type Of = (ZoneId, CpuId);

/// What a cell tells.
#[derive(Clone, Copy)]
enum Tells {
    /// These bits.
    Bits(u64),
    /// The room of a pageset.
    Room(Of),
    /// A place in a pageset, where there is something: beyond its room.
    Slot(Of, u64),
}

fn tells_of(world: &World<'_, Kept>, by: Telling, address: usize) -> Tells {
    let part_at = |address| world.allocator.part_at(address);
    let part = part_at(address).unwrap_or_else(|| panic!("the cell at {address:#x} is of no part"));
    if by == Telling::Answers {
        return Tells::Bits(match part {
            Part::Events(_) | Part::NodeTotals(_) | Part::MachineTotals => 0,
            // Free frames come first; the rest counts where blocks went.
            Part::ZoneTotals(_) if part_at(address - 1) == Some(part) => 0,
            _ => u64::MAX,
        });
    }
    match part {
        Part::Pageset(zone, cpu) if is_nth(&part_at, part, address, 1, size_of::<KeptCell<AtomicU64>>()) => {
            Tells::Room((zone, cpu))
        }
        Part::Slots(zone, cpu) => {
            let size = size_of::<KeptCell<AtomicU32>>();
            let nth = (0..).find(|&nth| is_nth(&part_at, part, address, nth, size));
            Tells::Slot((zone, cpu), nth.expect("it is one of them") as u64)
        }
        Part::FreeBitmap(..)
        | Part::FrameStates(_)
        | Part::OnlineCpus
        | Part::CurrentSlot(_)
        | Part::ZonelistCache(_) => Tells::Bits(u64::MAX),
        _ => Tells::Bits(0),
    }
}

/// Whether just `nth` cells of `size` bytes come before that at an address in its part.
fn is_nth(
    part_at: &impl Fn(usize) -> Option<Part>,
    part: Part,
    address: usize,
    nth: usize,
    size: usize,
) -> bool {
    part_at(address - nth * size) == Some(part) && part_at(address - nth * size - 1) != Some(part)
}
