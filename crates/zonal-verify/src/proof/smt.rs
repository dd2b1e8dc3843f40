//! The proof as scripts for SMT solvers.
//!
//! For each row and each invariant that the row's writes can affect, a script asks for a state in which all invariants hold and
//! the row is enabled, and after which the invariant does not hold. *Unsatisfiable* means that the row preserves the invariant,
//! for any number of threads, CPUs, pagesets, areas and frames: their sorts have no bound.
//!
//! An invariant holds for all values that its names can have. It is assumed for those terms that the row and the goal mention.
//! Fewer assumptions could only make a proof fail, so that every proof that is found is right. No quantifier is left, so that
//! both solvers decide every question. Each invariant is written once, as a function of its names, because most of the
//! solvers' time would go into reading it again for each term.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::proof::table::{Invariant, Role, Row, Table};
use crate::proof::term::{Op, Term, choices};

/// A question: unsatisfiable means that `row` preserves `invariant`.
#[derive(Clone, Debug)]
pub struct Question {
    /// The row, or `None` for the initial states.
    pub row: Option<String>,
    /// The invariant.
    pub invariant: String,
}

/// A script with questions, in the order of their `check-sat`.
#[derive(Clone, Debug)]
pub struct Script {
    /// The text in the language SMT-LIB 2.6.
    pub text: String,
    /// The questions.
    pub questions: Vec<Question>,
}

/// Returns the script that asks whether the initial states satisfy all invariants.
pub fn initial(table: &Table) -> Script {
    let mut writer = Writer::new(table, None);
    writer.declare();
    writer.assume();
    for invariant in &table.invariants {
        writer.ask(invariant);
    }
    writer.script
}

/// Returns the script of a row: one question for each invariant that the row can affect.
pub fn preserved(table: &Table, row: &Row) -> Script {
    let mut writer = Writer::new(table, Some(row));
    writer.declare();
    writer.step(row);
    writer.assume();
    for invariant in table.invariants.iter().filter(|it| table.affects(row, &it.term)) {
        writer.ask(invariant);
    }
    writer.script
}

struct Writer<'t> {
    table: &'t Table,
    row: Option<&'t Row>,
    bound: BTreeMap<String, String>,
    written: BTreeSet<String>,
    /// What is asserted in all questions.
    asserted: BTreeSet<String>,
    script: Script,
}

impl<'t> Writer<'t> {
    fn new(table: &'t Table, row: Option<&'t Row>) -> Self {
        let mut bound = BTreeMap::from([("me".to_owned(), "Thread".to_owned())]);
        bound.extend(row.into_iter().flat_map(|row| row.picks.iter().cloned()));
        let script = Script { text: String::new(), questions: Vec::new() };
        Self { table, row, bound, written: BTreeSet::new(), asserted: BTreeSet::new(), script }
    }

    fn line(&mut self, text: &str) {
        self.script.text.push_str(text);
        self.script.text.push('\n');
    }

    fn sort(&self, sort: &str) -> String {
        // Sorts get names that no solver has a meaning for.
        match sort {
            "Int" | "Bool" => sort.to_owned(),
            _ if self.table.numbers.iter().any(|it| it == sort) => "Int".to_owned(),
            _ => format!("Of{sort}"),
        }
    }

    fn array(&self, at: &[String], sort: &str) -> String {
        at.iter().rev().fold(self.sort(sort), |inner, index| format!("(Array {} {inner})", self.sort(index)))
    }

    /// Declares the state before the step.
    fn declare(&mut self) {
        self.line("(set-option :produce-models true)\n(set-logic ALL)");
        for sort in &self.table.sorts {
            self.line(&format!("(declare-sort Of{sort} 0)"));
        }
        for (name, values) in &self.table.enums {
            let values: Vec<_> = values.iter().map(|value| format!("({value}!)")).collect();
            self.line(&format!("(declare-datatypes ((Of{name} 0)) (({})))", values.join(" ")));
        }
        for (name, variable) in &self.table.variables {
            let sort = self.array(&variable.at, &variable.sort);
            self.line(&format!("(declare-const {name} {sort})"));
        }
        for (name, sort) in self.bound.clone() {
            let sort = self.sort(&sort);
            self.line(&format!("(declare-const {name} {sort})"));
        }
        self.line("(assert (not (= me no_thread)))");
    }

    /// Asserts the guard, and defines the state after the step, whose variables end in `!`.
    fn step(&mut self, row: &Row) {
        for part in row.when.iter().chain(&self.table.acts) {
            let text = self.emit(part, "Bool", false);
            self.line(&format!("(assert {text})"));
        }
        let mut sums: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for write in &row.writes {
            let variable = &self.table.variables[&write.variable];
            let value = self.emit(&write.value, &variable.sort, false);
            let at: Vec<_> =
                write.at.iter().zip(&variable.at).map(|(term, sort)| self.emit(term, sort, false)).collect();
            let name = &write.variable;
            assert!(self.written.insert(name.clone()), "row {} writes {name} twice", row.name);
            let body = match at.as_slice() {
                [] => value.clone(),
                [i] => format!("(store {name} {i} {value})"),
                [i, j] => format!("(store {name} {i} (store (select {name} {i}) {j} {value}))"),
                _ => unreachable!("variables have at most two indices"),
            };
            let sort = self.array(&variable.at, &variable.sort);
            self.line(&format!("(define-fun {name}! () {sort} {body})"));
            for (sum, of) in &self.table.variables {
                if of.role == Role::Sum(name.clone()) {
                    sums.entry(sum.clone())
                        .or_default()
                        .push(format!("(- {value} (select {name} {}))", at[0]));
                }
            }
        }
        self.count(row, &mut sums);
        for (sum, changes) in sums {
            self.line(&format!("(define-fun {sum}! () Int (+ {sum} {}))", changes.join(" ")));
            self.written.insert(sum);
        }
    }

    /// Adds the changes of counts: for each frame that the row writes, its size if it counts afterwards less its size if it
    /// counted before.
    fn count(&self, row: &Row, sums: &mut BTreeMap<String, Vec<String>>) {
        for (name, variable) in &self.table.variables {
            let Role::Count { size, places } = &variable.role else { continue };
            let touched =
                row.writes.iter().filter(|write| ["place", size.as_str()].contains(&write.variable.as_str()));
            let mut frames: Vec<String> =
                touched.map(|write| self.emit(&write.at[0], "Frame", false)).collect();
            frames.dedup();
            let weight = |frame: &str, mark: bool| {
                let named = |name: &str| {
                    if mark && self.written.contains(name) { format!("{name}!") } else { name.to_owned() }
                };
                let (place, size) = (named("place"), named(size));
                let of =
                    places.iter().map(|it| format!("(= (select {place} {frame}) {it}!)")).collect::<Vec<_>>();
                format!("(ite (or {}) (select {size} {frame}) 0)", of.join(" "))
            };
            for (at, frame) in frames.iter().enumerate() {
                let change = format!("(- {} {})", weight(frame, true), weight(frame, false));
                // A frame that two writes name counts once.
                let change = frames[..at]
                    .iter()
                    .fold(change, |change, other| format!("(ite (= {frame} {other}) 0 {change})"));
                sums.entry(name.clone()).or_default().push(change);
            }
        }
    }

    /// Returns what may be assumed.
    fn assumed(&self) -> impl Iterator<Item = &'t Invariant> + use<'t> {
        let everywhere = if self.row.is_some() { &self.table.invariants } else { &self.table.init };
        everywhere.iter().chain(self.row.into_iter().flat_map(|row| &row.every))
    }

    /// Defines what may be assumed, and assumes it for the terms that the row mentions.
    fn assume(&mut self) {
        for (at, assumed) in self.assumed().enumerate() {
            let bound = self.bound.clone();
            self.bound.extend(assumed.over.iter().cloned());
            let body = self.emit(&assumed.term, "Bool", false);
            self.bound = bound;
            let names = assumed.over.iter().map(|(name, sort)| format!("({name} {})", self.sort(sort)));
            let names = names.collect::<Vec<_>>().join(" ");
            self.line(&format!("(define-fun assumed_{at} ({names}) Bool {body})"));
        }
        self.asserted = self.instances(&self.candidates());
        let text: String = self.asserted.iter().map(|it| format!("(assert {it})\n")).collect();
        self.script.text.push_str(&text);
    }

    /// Returns the terms that the row and the bound names mention.
    fn candidates(&self) -> Candidates {
        let mut known = Candidates::default();
        known.add_names(&self.bound);
        if let Some(row) = self.row {
            row.when.iter().for_each(|term| known.gather(self.table, &self.bound, term));
            for write in &row.writes {
                let target = Term::Read(write.variable.clone(), write.at.clone());
                known.gather(self.table, &self.bound, &target);
                known.gather(self.table, &self.bound, &write.value);
            }
        }
        known
    }

    /// Returns what may be assumed, for every choice of candidates.
    fn instances(&self, known: &Candidates) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (at, assumed) in self.assumed().enumerate() {
            for chosen in known.choices(&assumed.over) {
                let terms = assumed.over.iter().map(|(name, sort)| self.emit(&chosen[name], sort, false));
                let terms = terms.fold(String::new(), |terms, term| terms + " " + &term);
                let is_constant = terms.is_empty();
                found.insert(if is_constant {
                    format!("assumed_{at}")
                } else {
                    format!("(assumed_{at}{terms})")
                });
            }
        }
        found
    }

    /// Asks whether the step can end in a state without the invariant.
    fn ask(&mut self, invariant: &Invariant) {
        self.line("(push 1)");
        let before = self.bound.clone();
        let mut with = BTreeMap::new();
        for (name, sort) in &invariant.over {
            let of_goal = format!("goal_{name}");
            self.line(&format!("(declare-const {of_goal} {})", self.sort(sort)));
            self.bound.insert(of_goal.clone(), sort.clone());
            with.insert(name.clone(), Term::Bound(of_goal));
        }
        let goal = invariant.term.bind(&with);
        let mut known = self.candidates();
        known.gather(self.table, &self.bound, &goal);
        for instance in self.instances(&known).difference(&self.asserted) {
            writeln!(self.script.text, "(assert {instance})").expect("writing to a string works");
        }
        let goal = self.emit(&goal, "Bool", true);
        self.line(&format!("(assert (not {goal}))\n(check-sat)"));
        let row = self.row.map(|row| row.name.clone());
        self.script.questions.push(Question { row, invariant: invariant.name.clone() });
        self.line("(pop 1)");
        self.bound = before;
    }

    /// Writes a term of the given sort, after the step if `after`.
    fn emit(&self, term: &Term, sort: &str, after: bool) -> String {
        match term {
            Term::Number(number) if sort == "Bool" => (*number != 0).to_string(),
            Term::Number(number) if *number < 0 => format!("(- {})", -number),
            Term::Number(number) => number.to_string(),
            Term::Value(_, name) => format!("{name}!"),
            Term::Bound(name) => name.clone(),
            Term::Read(name, at) => {
                let variable = &self.table.variables[name];
                let mark = if after && self.written.contains(name) { "!" } else { "" };
                at.iter().zip(&variable.at).fold(format!("{name}{mark}"), |inner, (index, sort)| {
                    format!("(select {inner} {})", self.emit(index, sort, after))
                })
            }
            Term::Apply(op, of) => {
                let inner = match op {
                    Op::Or | Op::And | Op::Implies | Op::Not => "Bool".to_owned(),
                    Op::If => sort.to_owned(),
                    _ => {
                        let sorts = of.iter().map(|term| self.table.sort_of(term, &self.bound));
                        sorts.into_iter().find(|sort| sort != "Int").unwrap_or_else(|| "Int".to_owned())
                    }
                };
                let name = match op {
                    Op::Or => "or",
                    Op::And => "and",
                    Op::Implies => "=>",
                    Op::Not => "not",
                    Op::Equal => "=",
                    Op::Less => "<",
                    Op::AtMost => "<=",
                    Op::Add => "+",
                    Op::Subtract => "-",
                    Op::If => "ite",
                };
                let mut text = format!("({name}");
                for (at, term) in of.iter().enumerate() {
                    let sort = if *op == Op::If && at == 0 { "Bool" } else { &inner };
                    write!(text, " {}", self.emit(term, sort, after)).expect("writing to a string works");
                }
                text.push(')');
                text
            }
        }
    }
}

/// Terms for which invariants are assumed, by sort.
#[derive(Default)]
struct Candidates {
    of: BTreeMap<String, BTreeSet<Term>>,
}

impl Candidates {
    const SORTS: [&'static str; 7] = ["Thread", "Cpu", "Set", "Area", "Process", "Frame", "Pos"];

    fn add(&mut self, sort: &str, term: &Term) {
        let is_closed = !matches!(term, Term::Apply(Op::If, _));
        if is_closed && Self::SORTS.contains(&sort) {
            self.of.entry(sort.to_owned()).or_default().insert(term.clone());
        }
    }

    /// Adds all bound names.
    fn add_names(&mut self, bound: &BTreeMap<String, String>) {
        bound.iter().for_each(|(name, sort)| self.add(sort, &Term::Bound(name.clone())));
    }

    /// Adds the terms in `term`, by their sorts.
    fn gather(&mut self, table: &Table, bound: &BTreeMap<String, String>, term: &Term) {
        let mut found = Vec::new();
        term.visit(&mut |term| {
            if let Term::Read(name, at) = term {
                let variable = &table.variables[name];
                found.push((variable.sort.clone(), term.clone()));
                found.extend(variable.at.iter().cloned().zip(at.iter().cloned()));
            } else if let Term::Bound(name) = term {
                found.push((bound.get(name).cloned().unwrap_or_default(), term.clone()));
            }
        });
        for (sort, term) in found {
            self.add(&sort, &term);
        }
    }

    /// Returns every choice of candidates for some names.
    fn choices(&self, over: &[(String, String)]) -> Vec<BTreeMap<String, Term>> {
        choices(BTreeMap::new(), over, |sort| self.of.get(sort).into_iter().flatten().cloned().collect())
    }
}
