//! Small worlds in which the table itself runs: every order in which threads can take its rows, from every state that a setup reaches.
//!
//! A world has a few threads, pagesets and frames, and explores all states breadth first. Any thread may be preempted before
//! each access, because every row is a step of its own. Each state is checked against all invariants of the table, so that a
//! mistake in the table ends in the shortest run that shows it.
//!
//! The proof (`smt.rs`) has no bound on threads or frames, but does not say which states can be reached. Worlds have a bound,
//! and show that every row is taken. Related files: `table.rs` has the rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

pub use crate::proof::machine::Size;
use crate::proof::machine::{Machine, State};
use crate::proof::table::{Role, Table};
use crate::proof::unread::HELD;

/// What a world found.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// States from which the world began.
    pub beginnings: usize,
    /// States that it reached.
    pub states: usize,
    /// Steps that it took, also to states that were known.
    pub steps: usize,
    /// The rows that were taken.
    pub taken: BTreeSet<String>,
    /// The shortest run that breaks an invariant, if any does.
    pub broken: Option<Broken>,
}

/// A run that breaks an invariant.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The invariant.
    pub invariant: String,
    /// The steps: thread, row, what the thread chose, and what the step changed.
    pub run: Vec<String>,
}

/// A world that has more states than it may have.
#[derive(Debug, thiserror::Error)]
#[error("the world has more than {0} states")]
pub struct TooLarge(usize);

/// A step by thread, program counter and position; thread 0 stands for none.
type Taken = [u16; 3];

/// Explores a world of the table.
///
/// # Errors
/// Returns an error if the world has too many states.
pub fn explore(table: &Table, size: &Size) -> Result<Explored, TooLarge> {
    let setup = Machine::new(table, size, &[size.setup]);
    let mut first = setup.first();
    setup.grant(&mut first, size.setups);
    let mut beginnings = BTreeSet::new();
    let mut explored = setup.run(vec![first], |state| {
        beginnings.insert(state.clone());
    })?;
    let machine = Machine::new(table, size, &size.roles);
    let idle = |state: &State| setup.is_at_rest(state);
    let forget = |mut state: State| {
        setup.forget(&mut state);
        machine.grant(&mut state, size.operations);
        state
    };
    // Of beginnings that differ only in the numbers of frames, one is kept.
    let orders = permutations(size.frames);
    let least = |state: &State| orders.iter().map(|order| machine.renumbered(state, order)).min();
    let from: BTreeMap<Option<State>, State> =
        beginnings.into_iter().filter(idle).map(forget).map(|state| (least(&state), state)).collect();
    let from: Vec<State> = from.into_values().collect();
    if explored.broken.is_none() {
        let taken = std::mem::take(&mut explored.taken);
        explored = machine.run(from.clone(), |_| {})?;
        explored.taken.extend(taken);
        explored.beginnings = from.len();
    }
    Ok(explored)
}

impl Machine<'_> {
    fn grant(&self, state: &mut State, operations: i8) {
        let threads = self.size.roles.len();
        let first = self.len - threads;
        state[first..].fill(operations);
    }

    /// Whether thread 1 is between two operations and holds nothing in its hands.
    fn is_at_rest(&self, state: &State) -> bool {
        let at = |name: &str, index: usize| state[self.places[name].0 + index];
        let in_hand: Vec<_> = HELD.iter().map(|it| self.table.index_of("Place", it)).collect();
        at("pc", 1) == 0
            && at("areaheld", 0) == 0
            && (0..self.size.frames).all(|frame| !in_hand.contains(&i64::from(at("place", frame))))
    }

    /// Clears what thread 1 knows, so that beginnings that differ only in that are one.
    fn forget(&self, state: &mut State) {
        for (name, variable) in &self.table.variables {
            if variable.role == Role::Register && !["run", "told", "dead", "lives"].contains(&name.as_str()) {
                let (first, dimensions) = &self.places[name];
                state[*first..first + dimensions.iter().product::<usize>()].fill(0);
            }
        }
        let run = &self.places["run"];
        state[run.0..run.0 + run.1[0]].fill(0);
        // Ghosts of frames that are nowhere near a hand.
        let by = self.places["by"].0;
        state[by..by + self.size.frames].fill(0);
    }

    /// Returns the state in which each frame has the number that `order` gives it.
    fn renumbered(&self, state: &State, order: &[usize]) -> State {
        let mut renumbered = state.clone();
        for (name, (first, dimensions)) in &self.places {
            let variable = &self.table.variables[name];
            let by_frame = variable.at.first().is_some_and(|sort| sort == "Frame");
            for at in 0..dimensions.iter().product::<usize>() {
                let value = state[first + at];
                let frame = order.get(value as usize).filter(|_| variable.sort == "Frame" && value >= 0);
                let at = if by_frame { order[at] } else { at };
                renumbered[first + at] = frame.map_or(value, |&frame| frame as i8);
            }
        }
        renumbered
    }

    /// Explores all states from `from`; calls `each` for every state.
    fn run(&self, from: Vec<State>, mut each: impl FnMut(&State)) -> Result<Explored, TooLarge> {
        let mut explored = Explored { beginnings: from.len(), ..Explored::default() };
        let mut seen: HashMap<u64, (u64, Taken)> = HashMap::new();
        let mut queue = VecDeque::new();
        for state in &from {
            if seen.insert(fingerprint(state), (0, [0; 3])).is_none() {
                queue.push_back(state.clone());
            }
        }
        let mut taken = vec![false; self.table.rows.len()];
        let fails = |state: &State, at: usize| self.checks[at].1.eval(state) == Some(0);
        let mut broken = None;
        for state in &from {
            if let Some(at) = (0..self.checks.len()).find(|&at| fails(state, at)) {
                broken = Some((self.checks[at].0.clone(), fingerprint(state)));
            }
        }
        let counters = self.places["pc"].0;
        while let Some(state) = queue.pop_front().filter(|_| broken.is_none()) {
            let here = fingerprint(&state);
            each(&state);
            for (me, steps) in self.steps.iter().enumerate().skip(1) {
                let counter = state[counters + me] as usize;
                for (at, step) in steps[counter].iter().enumerate() {
                    let Some(next) = self.take(step, &state) else { continue };
                    explored.steps += 1;
                    taken[step.row] = true;
                    let print = fingerprint(&next);
                    if let std::collections::hash_map::Entry::Vacant(entry) = seen.entry(print) {
                        entry.insert((here, [me as u16, counter as u16, at as u16]));
                        if let Some(&at) = self.affected[step.row].iter().find(|&&at| fails(&next, at)) {
                            broken.get_or_insert((self.checks[at].0.clone(), print));
                        }
                        queue.push_back(next);
                    }
                }
            }
            if seen.len() > self.size.states {
                return Err(TooLarge(self.size.states));
            }
        }
        explored.states = seen.len();
        let rows = taken.iter().zip(&self.table.rows).filter(|(taken, _)| **taken);
        explored.taken = rows.map(|(_, row)| row.name.clone()).collect();
        explored.broken = broken.map(|(invariant, end)| self.describe(&from, &seen, invariant, end));
        Ok(explored)
    }

    /// Rebuilds the run to a state.
    fn describe(
        &self,
        from: &[State],
        seen: &HashMap<u64, (u64, Taken)>,
        invariant: String,
        end: u64,
    ) -> Broken {
        let mut steps = Vec::new();
        let mut at = end;
        while let Some(&(before, [me, counter, step])) = seen.get(&at).filter(|(_, taken)| taken[0] != 0) {
            steps.push(&self.steps[usize::from(me)][usize::from(counter)][usize::from(step)]);
            at = before;
        }
        let mut state = from.iter().find(|state| fingerprint(state) == at).expect("runs begin here").clone();
        let mut run = Vec::new();
        for step in steps.into_iter().rev() {
            let next = self.take(step, &state).expect("the step was taken before");
            run.push(format!("{}: {}", step.label, self.changed(&state, &next)));
            state = next;
        }
        Broken { invariant, run }
    }

    /// Returns what differs between two states, except what only a proof needs.
    fn changed(&self, before: &State, after: &State) -> String {
        let mut parts = Vec::new();
        for (name, (first, dimensions)) in &self.places {
            let variable = &self.table.variables[name];
            if matches!(variable.role, Role::Sum(_) | Role::Count { .. }) || name == "run" {
                continue;
            }
            for at in 0..dimensions.iter().product::<usize>() {
                let value = after[first + at];
                if value != before[first + at] {
                    let mut indices = Vec::new();
                    let mut rest = at;
                    for &len in dimensions.iter().rev() {
                        indices.push((rest % len).to_string());
                        rest /= len;
                    }
                    indices.reverse();
                    let value = match self.table.enums.get(&variable.sort) {
                        Some(values) => values[value as usize].clone(),
                        None if variable.sort == "Bool" => (value != 0).to_string(),
                        None => value.to_string(),
                    };
                    let index =
                        if indices.is_empty() { String::new() } else { format!("[{}]", indices.join(", ")) };
                    parts.push(format!("{name}{index} := {value}"));
                }
            }
        }
        parts.join(", ")
    }
}

/// Returns all orders of `count` numbers.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for next in 0..count {
        let insert = |order: &Vec<usize>| {
            (0..=order.len()).map(|at| [&order[..at], &[next], &order[at..]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(insert).collect();
    }
    orders
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
