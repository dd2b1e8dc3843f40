//! A table and the size of a world as a machine: the places of all variables in a state, and the steps that each thread takes.
//!
//! Related files: `worlds.rs` explores the states of a machine.

use std::collections::BTreeMap;

use crate::proof::table::{Invariant, Role, Row, Table};
use crate::proof::term::{Op, Term, choices};
use crate::proof::unread::Unread;

/// The values of all variables.
pub(super) type State = Box<[i8]>;

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
    /// The processes that share the allocator; 0 if it belongs to one. Threads and CPUs belong to them in turn.
    pub processes: i8,
    /// The slots of each stack.
    pub slots: i8,
    /// The frames.
    pub frames: usize,
    /// How often each thread may begin to work on a pageset.
    pub operations: i8,
    /// Rows that the setup takes, by the beginnings of their names. One thread takes them, and the world begins in every
    /// state between two operations.
    pub setup: &'static [&'static str],
    /// How often the thread of the setup may begin to work on a pageset.
    pub setups: i8,
    /// Rows that each thread takes, by the beginnings of their names.
    pub roles: Vec<&'static [&'static str]>,
    /// Maximum number of states.
    pub states: usize,
}

/// A term whose variables are places in a state.
#[derive(Debug)]
pub(super) enum Code {
    Number(i64),
    /// The value at a place.
    At(usize),
    /// The value at a place that depends on indices: first place, and (index, length of its dimension, stride).
    Indexed(usize, Vec<(Code, i64, usize)>),
    Apply(Op, Vec<Code>),
}

/// A row with a thread and its choices.
pub(super) struct Step {
    pub(super) row: usize,
    /// The thread.
    me: usize,
    pub(super) label: String,
    pub(super) begins: bool,
    pub(super) when: Vec<Code>,
    /// Place, value and change of sums.
    pub(super) writes: Vec<(Code, Code)>,
}

pub(super) struct Machine<'t> {
    pub(super) table: &'t Table,
    pub(super) size: Size,
    /// First place and dimensions of each variable.
    pub(super) places: BTreeMap<String, (usize, Vec<usize>)>,
    pub(super) len: usize,
    /// Which places hold counts.
    pub(super) is_count: Vec<bool>,
    /// The steps by thread and program counter.
    pub(super) steps: Vec<Vec<Vec<Step>>>,
    pub(super) checks: Vec<(String, Code)>,
    /// The checks that a row can affect.
    pub(super) affected: Vec<Vec<usize>>,
    unread: Unread,
}

impl<'t> Machine<'t> {
    pub(super) fn new(table: &'t Table, size: &Size, roles: &[&[&str]]) -> Self {
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
        let unread = Unread::find(table, &places, size.roles.len(), size.frames);
        let mut machine = Self {
            table,
            size: size.clone(),
            places,
            len,
            is_count,
            steps: Vec::new(),
            checks: Vec::new(),
            affected: Vec::new(),
            unread,
        };
        // Thread 0 stands for no thread.
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
    pub(super) fn first(&self) -> State {
        let mut state = vec![0; self.len].into_boxed_slice();
        let mut set = |name: &str, value: i64| {
            let (first, dimensions) = &self.places[name];
            state[*first..first + dimensions.iter().product::<usize>()].fill(value as i8);
        };
        set("mode", self.table.index_of("Mode", self.size.mode));
        set("cap", i64::from(self.size.slots));
        set("lanemax", LANE_MAX);
        set("lives", 1);
        set("is_shared", i64::from(self.size.processes > 0));
        set("size", 1);
        // A thread that has not worked on a pageset has the first one in its register.
        let cpus = self.places["cpu"].0;
        for (at, cpu) in self.size.cpus.iter().enumerate() {
            state[cpus + at] = *cpu;
        }
        for (name, at) in [("process", 1), ("user", 0)] {
            let (first, dimensions) = &self.places[name];
            for place in at..dimensions[0] {
                state[first + place] = 1 + (place - at) as i8 % self.size.processes.max(1);
            }
        }
        let parents = self.places["parent"].0;
        for frame in 0..self.size.frames {
            state[parents + frame] = frame as i8;
        }
        let (bits, _) = self.places["bud"];
        state[bits..bits + self.size.frames].fill(1);
        for (name, variable) in &self.table.variables {
            // All frames are in the buddy, the first of the places.
            if matches!(&variable.role, Role::Count { places, .. } if places.contains(&self.table.enums["Place"][0]))
            {
                state[self.places[name].0] = self.size.frames as i8;
            }
        }
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

    fn steps_of(&self, me: i64, rows: &[&str]) -> Vec<Vec<Step>> {
        let chosen = |row: &Row| rows.iter().any(|prefix| row.name.starts_with(prefix));
        let mut state = self.first();
        let of_counter = |counter: usize| {
            state[self.places["pc"].0 + me as usize] = counter as i8;
            let rows = self.table.rows.iter().enumerate().filter(|(_, row)| chosen(row));
            let steps = rows.flat_map(|(at, row)| self.steps_of_row(me, at, row));
            // The first part of a guard tests the program counter.
            steps.filter(|step| step.when[0].eval(&state) == Some(1)).collect()
        };
        (0..self.table.enums["Pc"].len()).map(of_counter).collect()
    }

    fn steps_of_row(&self, me: i64, at: usize, row: &Row) -> Vec<Step> {
        let thread = BTreeMap::from([("me".to_owned(), Term::Number(me))]);
        let choices = choices(thread, &row.picks, |sort| values(&self.size, sort));
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
            // Where no process dies, all threads act.
            let acts = if self.size.processes > 0 { &*self.table.acts } else { &[] };
            let every = row.every.iter().flat_map(|it| self.instances(it));
            let choice: Vec<_> =
                row.picks.iter().map(|(name, _)| format!("{name} = {}", chosen[name])).collect();
            Step {
                row: at,
                me: me as usize,
                label: format!(
                    "thread {me}: {}{}",
                    row.name,
                    if choice.is_empty() { String::new() } else { format!(" ({})", choice.join(", ")) }
                ),
                begins: row.writes.iter().any(|write| write.variable == "set"),
                when: row.when.iter().chain(acts).map(code).chain(every.map(|term| code(&term))).collect(),
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

    /// Returns an invariant for all values that its names can have.
    pub(super) fn instances(&self, invariant: &Invariant) -> Vec<Term> {
        let choices = choices(BTreeMap::new(), &invariant.over, |sort| values(&self.size, sort));
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

    pub(super) fn take(&self, step: &Step, state: &State) -> Option<State> {
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
        self.unread.clear(&mut next);
        if step.begins {
            let left = self.len - self.size.roles.len() + step.me - 1;
            if next[left] == 0 {
                return None;
            }
            next[left] -= 1;
        }
        Some(next)
    }
}

impl Code {
    /// Returns the value; `None` if it reads outside of the world's arrays.
    pub(super) fn eval(&self, state: &State) -> Option<i64> {
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

    pub(super) fn place(&self, state: &State) -> Option<usize> {
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

fn values(size: &Size, sort: &str) -> Vec<Term> {
    domain(size, sort).into_iter().map(Term::Number).collect()
}

/// Returns the values of a sort in a world.
fn domain(size: &Size, sort: &str) -> Vec<i64> {
    let upto = |count: usize| (0..count as i64).collect();
    match sort {
        "Thread" => upto(size.roles.len() + 1), // thread 0 stands for no thread
        "Cpu" => upto(size.cpus.iter().map(|&cpu| cpu as usize + 1).max().unwrap_or(1)),
        "Set" => upto(size.cpus.len()),
        "Area" => upto(1),
        "Process" => upto(size.processes.max(1) as usize + 1), // process 0 stands for no process
        "Frame" => upto(size.frames),
        "Pos" => upto(size.slots as usize),
        _ => vec![-1, 0, size.slots.into()],
    }
}
