//! Small worlds in which the table itself runs: every order of the rows of all threads, from every state that a setup reaches.
//!
//! A world has a few threads, pagesets and frames, and explores all states breadth first. Any thread may be preempted before
//! each access, because every row is a step of its own. Each state is checked against all invariants of the table, so that a
//! mistake in the table ends in the shortest run that shows it.
//!
//! The proof (`smt.rs`) has no bound on threads or frames, but does not say which states can be reached. Worlds have a bound,
//! and show that every row is taken. Related files: `table.rs` has the rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::proof::table::{Invariant, Role, Row, Table};
use crate::proof::term::{Op, Term};

/// Largest number in a world; a step that would exceed it is not taken.
const LARGEST: i64 = 4;
/// Limit of differences, which no step reaches.
const LANE_MAX: i64 = 127;

/// The size of a world.
#[derive(Clone, Debug)]
pub struct Size {
    /// How CPUs access their pagesets: a value of the enum `Mode`.
    pub mode: &'static str,
    /// The CPU of each pageset.
    pub cpus: Vec<i8>,
    /// The slots of each stack.
    pub slots: i8,
    /// The frames.
    pub frames: usize,
    /// How often each thread may begin to work on a pageset.
    pub operations: i8,
    /// Rows that the setup takes, by the beginnings of their names. One thread takes them, and every state between two of its
    /// operations is a beginning of the world.
    pub setup: &'static [&'static str],
    /// How often the thread of the setup may begin to work on a pageset.
    pub setups: i8,
    /// Rows that each thread takes, by the beginnings of their names.
    pub roles: Vec<&'static [&'static str]>,
    /// Maximum number of states.
    pub states: usize,
}

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

type State = Box<[i8]>;

/// A step by thread, program counter and position; thread 0 stands for none.
type Taken = [u16; 3];

/// A term whose variables are places in a state.
#[derive(Debug)]
enum Code {
    Number(i64),
    /// The value at a place.
    At(usize),
    /// The value at a place that depends on indices: first place, and (index, length of its dimension, stride).
    Indexed(usize, Vec<(Code, i64, usize)>),
    Apply(Op, Vec<Code>),
}

/// A row with a thread and its choices.
struct Step {
    row: usize,
    label: String,
    begins: bool,
    when: Vec<Code>,
    /// Place, value and change of sums.
    writes: Vec<(Code, Code)>,
}

struct Machine<'t> {
    table: &'t Table,
    size: Size,
    /// First place and dimensions of each variable.
    places: BTreeMap<String, (usize, Vec<usize>)>,
    len: usize,
    /// Which places hold counts.
    is_count: Vec<bool>,
    /// The steps by thread and program counter.
    steps: Vec<Vec<Vec<Step>>>,
    checks: Vec<(String, Code)>,
    /// The checks that a row can affect.
    affected: Vec<Vec<usize>>,
}

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
    let from: BTreeSet<State> = beginnings.into_iter().filter(idle).map(forget).collect();
    // Beginnings that differ only in the numbers of frames are one.
    let orders = permutations(size.frames);
    let is_least = |state: &&State| orders.iter().all(|order| **state <= machine.renumbered(state, order));
    let from: Vec<State> = from.iter().filter(is_least).cloned().collect();
    if explored.broken.is_none() {
        let taken = std::mem::take(&mut explored.taken);
        explored = machine.run(from.clone(), |_| {})?;
        explored.taken.extend(taken);
        explored.beginnings = from.len();
    }
    Ok(explored)
}

impl<'t> Machine<'t> {
    fn new(table: &'t Table, size: &Size, roles: &[&[&str]]) -> Self {
        let mut places = BTreeMap::new();
        let (mut len, mut is_count) = (0, Vec::new());
        for (name, variable) in &table.variables {
            let dimensions: Vec<_> = variable.at.iter().map(|sort| domain(size, sort).len()).collect();
            let count: usize = dimensions.iter().product();
            places.insert(name.clone(), (len, dimensions));
            len += count;
            is_count.resize(len, variable.sort == "Int" && name != "lanemax");
        }
        // The last places count the operations that each thread may still begin.
        let len = len + 1 + size.roles.len();
        let mut machine = Self {
            table,
            size: size.clone(),
            places,
            len,
            is_count,
            steps: Vec::new(),
            checks: Vec::new(),
            affected: Vec::new(),
        };
        // Thread 0 is nobody.
        let steps = roles.iter().enumerate().map(|(at, rows)| machine.steps_of(at as i64 + 1, rows));
        machine.steps = std::iter::once(Vec::new()).chain(steps).collect();
        machine.checks = table.invariants.iter().flat_map(|it| machine.checks_of(it)).collect();
        let affects = |row: &Row, name: &str| {
            let invariant = table.invariants.iter().find(|it| it.name == name);
            invariant.is_some_and(|invariant| table.affects(row, &invariant.term))
        };
        let of_row = |row: &Row| {
            let checks = machine.checks.iter().enumerate();
            checks.filter(|(_, (name, _))| affects(row, name)).map(|(at, _)| at).collect()
        };
        machine.affected = table.rows.iter().map(of_row).collect();
        machine
    }

    /// Returns the state before anything has happened.
    fn first(&self) -> State {
        let mut state = vec![0; self.len].into_boxed_slice();
        let mut set = |name: &str, value: i64| {
            let (first, dimensions) = &self.places[name];
            state[*first..first + dimensions.iter().product::<usize>()].fill(value as i8);
        };
        set("mode", self.table.index_of("Mode", self.size.mode));
        set("cap", i64::from(self.size.slots));
        set("lanemax", LANE_MAX);
        set("size", 1);
        // A thread that has not worked on a pageset has the first one in its register.
        let cpus = self.places["cpu"].0;
        for (at, cpu) in self.size.cpus.iter().enumerate() {
            state[cpus + at] = *cpu;
        }
        let parents = self.places["parent"].0;
        for frame in 0..self.size.frames {
            state[parents + frame] = frame as i8;
        }
        let (bits, _) = self.places["bud"];
        state[bits..bits + self.size.frames].fill(1);
        for init in &self.table.init {
            for (target, value) in self.equations_of(init) {
                let place = target.place(&state).expect("initial values are within the arrays");
                state[place] = value.eval(&state).expect("initial values are within the arrays") as i8;
            }
        }
        state
    }

    /// Returns the equations in an initial condition: the variable and its value.
    fn equations_of(&self, init: &Invariant) -> Vec<(Code, Code)> {
        let instances = self.instances(init);
        let parts = instances.iter().flat_map(Term::conjuncts);
        parts
            .filter_map(|part| match part {
                Term::Apply(Op::Equal, of) if matches!(of[0], Term::Read(..)) => {
                    Some((self.code(&of[0]), self.code(&of[1])))
                }
                _ => None,
            })
            .collect()
    }

    fn grant(&self, state: &mut State, operations: i8) {
        let threads = self.size.roles.len();
        let first = self.len - threads;
        state[first..].fill(operations);
    }

    /// Whether thread 1 is between two operations and holds nothing in its hands.
    fn is_at_rest(&self, state: &State) -> bool {
        let at = |name: &str, index: usize| state[self.places[name].0 + index];
        let in_hand =
            ["Freed", "Popped", "Moving", "Raw", "Split"].map(|it| self.table.index_of("Place", it));
        at("pc", 1) == 0
            && at("areaheld", 0) == 0
            && (0..self.size.frames).all(|frame| !in_hand.contains(&i64::from(at("place", frame))))
    }

    /// Clears what thread 1 knows, so that beginnings that differ only in that are one.
    fn forget(&self, state: &mut State) {
        for (name, variable) in &self.table.variables {
            if variable.role == Role::Register && !["run", "owed"].contains(&name.as_str()) {
                let (first, dimensions) = &self.places[name];
                state[*first..first + dimensions.iter().product::<usize>()].fill(0);
            }
        }
        let run = &self.places["run"];
        state[run.0..run.0 + run.1[0]].fill(0);
        // Ghosts of frames that are nowhere near a hand.
        let by = self.places["by"].0;
        state[by..by + self.size.frames].fill(0);
        // What an operation of the setup still owes is counted.
        let owed = &self.places["owed"];
        let debts: i8 = state[owed.0..owed.0 + owed.1[0]].iter().sum();
        state[owed.0..owed.0 + owed.1[0]].fill(0);
        state[self.places["debts"].0] -= debts;
        state[self.places["total"].0] += debts;
    }

    fn steps_of(&self, me: i64, rows: &[&str]) -> Vec<Vec<Step>> {
        let chosen = |row: &Row| rows.iter().any(|prefix| row.name.starts_with(prefix));
        let mut state = self.first();
        let of_counter = |counter: usize| {
            state[self.places["pc"].0 + me as usize] = counter as i8;
            let rows = self.table.rows.iter().enumerate().filter(|(_, row)| chosen(row));
            let steps = rows.flat_map(|(at, row)| self.steps_of_row(me, at, row));
            // The first part of a guard is that of the program counter.
            steps.filter(|step| step.when[0].eval(&state) == Some(1)).collect()
        };
        (0..self.table.enums["Pc"].len()).map(of_counter).collect()
    }

    fn steps_of_row(&self, me: i64, at: usize, row: &Row) -> Vec<Step> {
        let mut choices = vec![BTreeMap::from([("me".to_owned(), Term::Number(me))])];
        for (name, sort) in &row.picks {
            let values = domain(&self.size, sort);
            let with = |chosen: &BTreeMap<String, Term>, value: i64| {
                let mut chosen = chosen.clone();
                chosen.insert(name.clone(), Term::Number(value));
                chosen
            };
            choices =
                choices.iter().flat_map(|it| values.iter().map(move |&value| with(it, value))).collect();
        }
        let idle = self.table.index_of("Pc", "Idle");
        let of_step = |chosen: &BTreeMap<String, Term>| {
            let code = |term: &Term| self.code(&term.bind(chosen));
            let target = |name: &str, at: &[Term]| {
                self.code(&Term::Read(name.to_owned(), at.iter().map(|term| term.bind(chosen)).collect()))
            };
            let mut writes: Vec<_> = row
                .writes
                .iter()
                .map(|write| (target(&write.variable, &write.at), code(&write.value)))
                .collect();
            for (sum, change) in self.changes(row) {
                writes.push((target(&sum, &[]), code(&change)));
            }
            let choice: Vec<_> =
                row.picks.iter().map(|(name, _)| format!("{name} = {}", chosen[name])).collect();
            let begins = row.writes.iter().any(|write| {
                write.variable == "set" || write.variable == "pc" && write.value == Term::Number(idle)
            }) && row.writes.iter().any(|write| write.variable == "set");
            Step {
                row: at,
                label: format!(
                    "thread {me}: {}{}",
                    row.name,
                    if choice.is_empty() { String::new() } else { format!(" ({})", choice.join(", ")) }
                ),
                begins,
                when: row.when.iter().map(code).collect(),
                writes,
            }
        };
        choices.iter().map(of_step).collect()
    }

    /// Returns the new values of the sums that a row changes.
    fn changes(&self, row: &Row) -> Vec<(String, Term)> {
        let mut changes = Vec::new();
        let read = |name: &str, at: &[Term]| Term::Read(name.to_owned(), at.to_vec());
        let apply = |op, a, b| Term::Apply(op, vec![a, b]);
        for (name, variable) in &self.table.variables {
            match &variable.role {
                Role::Sum(of) => {
                    for write in row.writes.iter().filter(|write| write.variable == *of) {
                        let before = read(of, &write.at);
                        let sum = apply(Op::Add, read(name, &[]), write.value.clone());
                        changes.push((name.clone(), apply(Op::Subtract, sum, before)));
                    }
                }
                Role::Count { size, places } => {
                    let touched = |write: &&crate::proof::table::Write| {
                        write.variable == "place" || write.variable == *size
                    };
                    let mut frames: Vec<_> =
                        row.writes.iter().filter(touched).map(|write| write.at[0].clone()).collect();
                    frames.dedup();
                    if frames.is_empty() {
                        continue;
                    }
                    let weight = |frame: &Term, after: bool| {
                        let value = |name: &str| {
                            let of = row
                                .writes
                                .iter()
                                .find(|write| write.variable == name && write.at[0] == *frame);
                            match of {
                                Some(write) if after => write.value.clone(),
                                _ => read(name, std::slice::from_ref(frame)),
                            }
                        };
                        let is = places.iter().map(|it| {
                            apply(Op::Equal, value("place"), Term::Value("Place".to_owned(), it.clone()))
                        });
                        let counts = Term::Apply(Op::Or, is.collect());
                        Term::Apply(Op::If, vec![counts, value(size), Term::Number(0)])
                    };
                    let mut sum = read(name, &[]);
                    for frame in &frames {
                        sum = apply(Op::Add, sum, weight(frame, true));
                        sum = apply(Op::Subtract, sum, weight(frame, false));
                    }
                    changes.push((name.clone(), sum));
                }
                _ => {}
            }
        }
        changes
    }

    fn checks_of(&self, invariant: &Invariant) -> Vec<(String, Code)> {
        self.instances(invariant).iter().map(|term| (invariant.name.clone(), self.code(term))).collect()
    }

    /// Returns the term of an invariant for all values of its names.
    fn instances(&self, invariant: &Invariant) -> Vec<Term> {
        let mut choices = vec![BTreeMap::new()];
        for (name, sort) in &invariant.over {
            let values = domain(&self.size, sort);
            let with = |chosen: &BTreeMap<String, Term>, value: i64| {
                let mut chosen = chosen.clone();
                chosen.insert(name.clone(), Term::Number(value));
                chosen
            };
            choices =
                choices.iter().flat_map(|it| values.iter().map(move |&value| with(it, value))).collect();
        }
        choices.iter().map(|chosen| invariant.term.bind(chosen)).collect()
    }

    fn code(&self, term: &Term) -> Code {
        match term {
            Term::Number(number) => Code::Number(*number),
            Term::Value(of, name) => Code::Number(self.table.index_of(of, name)),
            Term::Bound(name) => unreachable!("`{name}` is bound"),
            Term::Apply(op, of) => Code::Apply(*op, of.iter().map(|term| self.code(term)).collect()),
            Term::Read(name, at) => {
                let (first, dimensions) = &self.places[name];
                let (mut stride, mut place, mut indices) = (1, *first, Vec::new());
                for (index, &len) in at.iter().zip(dimensions).rev() {
                    match self.code(index) {
                        Code::Number(number) if (0..len as i64).contains(&number) => {
                            place += number as usize * stride;
                        }
                        code => indices.push((code, len as i64, stride)),
                    }
                    stride *= len;
                }
                if indices.is_empty() { Code::At(place) } else { Code::Indexed(place, indices) }
            }
        }
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

    fn take(&self, step: &Step, state: &State) -> Option<State> {
        // A read outside of the world's arrays happens in no guard that holds.
        if !step.when.iter().all(|part| part.eval(state) == Some(1)) {
            return None;
        }
        let mut next = state.clone();
        for (target, value) in &step.writes {
            let (place, value) = (target.place(state)?, value.eval(state)?);
            if self.is_count[place] && value.abs() > LARGEST {
                return None;
            }
            next[place] = value as i8;
        }
        self.settle(&mut next);
        if step.begins {
            let left = self.len - self.size.roles.len() + self.thread_of(step) - 1;
            if next[left] == 0 {
                return None;
            }
            next[left] -= 1;
        }
        Some(next)
    }

    /// Clears what no later step reads before it is written, so that states that differ only in that are one: the registers of
    /// threads that are idle, and ghosts of frames whose place does not need them.
    fn settle(&self, state: &mut State) {
        let first = |name: &str| self.places[name].0;
        for thread in 0..=self.size.roles.len() {
            if state[first("pc") + thread] == 0 {
                for name in ["set", "lock_seen", "free_seen", "diff_seen", "frame"] {
                    state[first(name) + thread] = 0;
                }
            }
        }
        let place = |name: &str| self.table.index_of("Place", name) as i8;
        let hands = ["Freed", "Popped", "Moving", "Raw", "Split"].map(place);
        for frame in 0..self.size.frames {
            let here = state[first("place") + frame];
            if !hands.contains(&here) {
                state[first("by") + frame] = 0;
            }
            if ![place("Stack"), place("Blocks")].contains(&here) {
                state[first("at") + frame] = 0;
            }
            if ![place("Stack"), place("Deferred")].contains(&here) {
                state[first("pos") + frame] = 0;
            }
            if here != place("Deferred") {
                state[first("dcpu") + frame] = 0;
            }
        }
    }

    fn thread_of(&self, step: &Step) -> usize {
        let digits = step.label.trim_start_matches("thread ");
        digits.split(':').next().and_then(|it| it.parse().ok()).expect("labels begin with a thread")
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

impl Code {
    /// Returns the value; `None` if it reads outside of the world's arrays.
    fn eval(&self, state: &State) -> Option<i64> {
        Some(match self {
            Self::Number(number) => *number,
            Self::At(place) => state[*place].into(),
            Self::Indexed(..) => state[self.place(state)?].into(),
            Self::Apply(op, of) => {
                let value = |at: usize| of[at].eval(state);
                match op {
                    Op::Or => i64::from(of.iter().any(|part| part.eval(state) == Some(1))),
                    Op::And => i64::from(of.iter().all(|part| part.eval(state) == Some(1))),
                    Op::Implies => i64::from(value(0) != Some(1) || value(1) == Some(1)),
                    Op::Not => i64::from(value(0)? == 0),
                    Op::Equal => i64::from(value(0)? == value(1)?),
                    Op::Less => i64::from(value(0)? < value(1)?),
                    Op::AtMost => i64::from(value(0)? <= value(1)?),
                    Op::Add => value(0)? + value(1)?,
                    Op::Subtract => value(0)? - value(1)?,
                    Op::If => value(if value(0)? == 1 { 1 } else { 2 })?,
                }
            }
        })
    }

    fn place(&self, state: &State) -> Option<usize> {
        match self {
            Self::At(place) => Some(*place),
            Self::Indexed(first, indices) => {
                let mut place = *first;
                for (index, len, stride) in indices {
                    let index = index.eval(state)?;
                    if !(0..*len).contains(&index) {
                        return None;
                    }
                    place += index as usize * stride;
                }
                Some(place)
            }
            Self::Number(_) | Self::Apply(..) => None,
        }
    }
}

/// Returns the values of a sort in a world.
fn domain(size: &Size, sort: &str) -> Vec<i64> {
    let upto = |count: usize| (0..count as i64).collect();
    match sort {
        "Thread" => upto(size.roles.len() + 1), // thread 0 is nobody
        "Cpu" => upto(size.cpus.iter().map(|&cpu| cpu as usize + 1).max().unwrap_or(1)),
        "Set" => upto(size.cpus.len()),
        "Area" => upto(1),
        "Frame" => upto(size.frames),
        "Pos" => upto(size.slots as usize),
        _ => vec![-1, 0, size.slots.into()],
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
