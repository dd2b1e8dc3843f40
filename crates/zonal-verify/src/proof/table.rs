//! The table of transitions, as read from its text.
//!
//! `transitions.txt` explains its own form. This file checks it: every name is known, every row belongs to one access, and a
//! row stores to one cell of shared memory at most.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::proof::term::{self, Names, Op, Term};

/// The table's text.
pub const TEXT: &str = include_str!("transitions.txt");

/// An error in the text of a table.
#[derive(Debug, Error)]
#[error("transitions.txt, line {line}: {what}")]
pub struct TableError {
    line: usize,
    what: String,
}

/// What a variable is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// A value that never changes.
    Const,
    /// Shared memory; the name is that of the cell, which several variables may share.
    Cell(String),
    /// What a thread or the kernel knows.
    Register,
    /// What no program stores.
    Ghost,
    /// A sum over all values of a variable.
    Sum(String),
    /// The total size of all frames in these places.
    Count {
        /// The variable with the sizes.
        size: String,
        /// The places that count.
        places: Vec<String>,
    },
}

/// A variable or constant: its role, the sorts of its indices and its own sort.
#[derive(Clone, Debug)]
pub struct Variable {
    /// What it is.
    pub role: Role,
    /// The sorts of its indices.
    pub at: Vec<String>,
    /// The sort of its values.
    pub sort: String,
}

/// The new value of a variable at some indices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The variable.
    pub variable: String,
    /// The indices.
    pub at: Vec<Term>,
    /// The new value.
    pub value: Term,
}

/// A step of one thread.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name, which begins with the operation.
    pub name: String,
    /// The function or place in a list of accesses that performs the step.
    pub code: String,
    /// The access that commits the step.
    pub access: String,
    /// The states of a frame that the access finds and leaves.
    pub states: Option<(String, String)>,
    /// What the thread chooses freely, with sorts.
    pub picks: Vec<(String, String)>,
    /// The guard, as conjuncts; the first is that of the program counter.
    pub when: Vec<Term>,
    /// Further conditions, which hold for all values of their bound names.
    pub every: Vec<Invariant>,
    /// The effect. All values are those before the row.
    pub writes: Vec<Write>,
}

/// What holds in every reachable state, for all values of the bound names.
#[derive(Clone, Debug)]
pub struct Invariant {
    /// The name.
    pub name: String,
    /// The bound names with their sorts.
    pub over: Vec<(String, String)>,
    /// What holds.
    pub term: Term,
}

/// A table of transitions.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Sorts whose values only have names.
    pub sorts: Vec<String>,
    /// Sorts whose values are numbers.
    pub numbers: Vec<String>,
    /// The values of each enum.
    pub enums: BTreeMap<String, Vec<String>>,
    /// All variables and constants.
    pub variables: BTreeMap<String, Variable>,
    definitions: BTreeMap<String, (String, String)>,
    /// What holds when a thread takes a row, as conjuncts.
    pub acts: Vec<Term>,
    /// What holds before the first step.
    pub init: Vec<Invariant>,
    /// The rows.
    pub rows: Vec<Row>,
    /// The invariants.
    pub invariants: Vec<Invariant>,
}

/// The names that a term may use.
struct Scope<'a> {
    table: &'a Table,
    bound: &'a [(String, String)],
}

impl Names for Scope<'_> {
    fn resolve(&self, name: &str, at: Vec<Term>) -> Option<Term> {
        let me = || Term::Bound("me".to_owned());
        let read = |name: &str, at| Term::Read(name.to_owned(), at);
        if self.bound.iter().any(|(bound, _)| bound == name) || name == "me" {
            return at.is_empty().then(|| Term::Bound(name.to_owned()));
        }
        match name {
            "true" => return Some(Term::truth()),
            "false" => return Some(Term::Number(0)),
            "my" => return Some(read("set", vec![me()])),
            "own" => return Some(read("cpu", vec![read("set", vec![me()])])),
            _ => {}
        }
        if let Some((of, _)) = self.table.enums.iter().find(|(_, values)| values.iter().any(|it| it == name))
        {
            return Some(Term::Value(of.clone(), name.to_owned()));
        }
        let variable = self.table.variables.get(name)?;
        (variable.at.len() == at.len()).then(|| read(name, at))
    }

    fn define(&self, name: &str, of: &Term) -> Option<Term> {
        let (parameter, body) = self.table.definitions.get(name)?;
        let mut bound = self.bound.to_vec();
        bound.push((parameter.clone(), String::new()));
        let body = term::read(body, &Scope { table: self.table, bound: &bound }).ok()?;
        Some(body.bind(&BTreeMap::from([(parameter.clone(), of.clone())])))
    }
}

impl Table {
    /// Reads the table of this crate.
    ///
    /// # Errors
    /// Returns the line that is wrong, and why.
    pub fn read() -> Result<Self, TableError> {
        Self::parse(TEXT)
    }

    /// Reads a table.
    ///
    /// # Errors
    /// Returns the line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut table = Self::default();
        let mut lines = text.lines().enumerate().peekable();
        while let Some((at, line)) = lines.next() {
            let mut body = Vec::new();
            while let Some(&(_, next)) = lines.peek().filter(|(_, next)| next.starts_with("  ")) {
                body.push(next.trim());
                lines.next();
            }
            let line = line.split('#').next().unwrap_or_default().trim_end();
            let added = match (line, body.first()) {
                ("", None) => Ok(()),
                ("", Some(part)) => Err(format!("`{part}` is part of nothing")),
                _ => table.add(line, &body),
            };
            added.map_err(|what| TableError { line: at + 1, what })?;
        }
        Ok(table)
    }

    /// Returns a value of the enum by name.
    pub fn index_of(&self, of: &str, value: &str) -> i64 {
        let values = &self.enums[of];
        values.iter().position(|it| it == value).expect("names are resolved when the table is read") as i64
    }

    /// Returns the row of this name.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns the source with the rows that change a frame's state, against which the core checks itself.
    pub fn rows_for_the_core(&self) -> String {
        let mut text = "// The rows of `crates/zonal-verify/src/proof/transitions.txt` that change a frame's state: name, state before, \
                        state after.\n// `cargo test -p zonal-verify --test proof` compares the two.\n\
                        const STATE_ROWS: &[(&str, &str, &str)] = &[\n"
            .to_owned();
        for row in &self.rows {
            if let Some((from, to)) = &row.states {
                text.push_str(&format!("    (\"{}\", \"{from}\", \"{to}\"),\n", row.name));
            }
        }
        text + "];\n"
    }

    /// Returns the sort of a term, where `bound` gives those of bound names.
    pub fn sort_of(&self, term: &Term, bound: &BTreeMap<String, String>) -> String {
        match term {
            Term::Bound(name) => bound.get(name).cloned().unwrap_or_else(|| "Thread".to_owned()),
            Term::Value(of, _) => of.clone(),
            Term::Read(name, _) => self.variables[name].sort.clone(),
            Term::Number(_) => "Int".to_owned(),
            Term::Apply(Op::Add | Op::Subtract, of) => self.sort_of(&of[0], bound),
            Term::Apply(Op::If, of) => self.sort_of(&of[1], bound),
            Term::Apply(..) => "Bool".to_owned(),
        }
    }

    fn add(&mut self, line: &str, body: &[&str]) -> Result<(), String> {
        let (kind, rest) = line.split_once(' ').ok_or("a line needs more than one word")?;
        let rest = rest.trim();
        match kind {
            "sort" => self.sorts.extend(rest.split_whitespace().map(str::to_owned)),
            "number" => self.numbers.extend(rest.split_whitespace().map(str::to_owned)),
            "enum" => {
                let (name, values) = rest.split_once('=').ok_or("an enum needs values")?;
                let values = values.split_whitespace().map(str::to_owned).collect();
                self.enums.insert(name.trim().to_owned(), values);
            }
            "const" | "cell" | "register" | "ghost" => self.declare(kind, rest)?,
            "sum" | "count" => self.declare_sum(kind, rest)?,
            "define" => {
                let (head, body) = rest.split_once('=').ok_or("a definition needs a body")?;
                let (name, parameter) =
                    head.trim().trim_end_matches(')').split_once('(').ok_or("no parameter")?;
                self.definitions.insert(name.to_owned(), (parameter.to_owned(), body.trim().to_owned()));
            }
            "acts" => self.acts.extend(self.term(rest, &[])?.conjuncts()),
            "init" => {
                let (term, over) = rest.split_once(" for ").unwrap_or((rest, ""));
                let name = format!("init {}", self.init.len());
                let init = self.quantified(name, over, term)?;
                self.init.push(init);
            }
            "invariant" => {
                let (name, over) = rest.split_once(" for ").unwrap_or((rest, ""));
                let invariant = self.quantified(name.trim().to_owned(), over, &body.join(" "))?;
                self.invariants.push(invariant);
            }
            "row" => {
                let row = self.parse_row(rest, body)?;
                self.rows.push(row);
            }
            other => return Err(format!("`{other}` begins no line")),
        }
        Ok(())
    }

    fn declare(&mut self, kind: &str, rest: &str) -> Result<(), String> {
        let (head, sort) = rest.split_once(':').ok_or("a variable needs a sort")?;
        let (sort, cell) =
            sort.split_once('@').map_or((sort, None), |(sort, cell)| (sort, Some(cell.trim())));
        let (name, at) = head.trim().trim_end_matches(']').split_once('[').unwrap_or((head.trim(), ""));
        let at: Vec<_> = at.split(',').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect();
        let role = match (kind, cell) {
            ("const", None) => Role::Const,
            ("cell", Some(cell)) => Role::Cell(cell.to_owned()),
            ("register", None) => Role::Register,
            ("ghost", None) => Role::Ghost,
            _ => return Err("a cell, and nothing else, names its place in memory after `@`".to_owned()),
        };
        let sort = sort.trim().to_owned();
        for of in at.iter().chain([&sort]) {
            let known = self.sorts.contains(of)
                || self.numbers.contains(of)
                || self.enums.contains_key(of)
                || ["Int", "Bool"].contains(&of.as_str());
            if !known {
                return Err(format!("`{of}` is no sort"));
            }
        }
        self.variables.insert(name.to_owned(), Variable { role, at, sort });
        Ok(())
    }

    fn declare_sum(&mut self, kind: &str, rest: &str) -> Result<(), String> {
        let (name, of) = rest.split_once('=').ok_or("a sum needs what it sums")?;
        let role = if kind == "sum" {
            Role::Sum(of.trim().to_owned())
        } else {
            let (size, places) = of.split_once(" where ").ok_or("a count needs places")?;
            let places = places.split_whitespace().map(str::to_owned).collect();
            Role::Count { size: size.trim().to_owned(), places }
        };
        let variable = Variable { role, at: Vec::new(), sort: "Int".to_owned() };
        self.variables.insert(name.trim().to_owned(), variable);
        Ok(())
    }

    fn quantified(&self, name: String, over: &str, term: &str) -> Result<Invariant, String> {
        let over = bindings(over)?;
        let term = self.term(term, &over)?;
        Ok(Invariant { name, over, term })
    }

    fn term(&self, text: &str, bound: &[(String, String)]) -> Result<Term, String> {
        term::read(text, &Scope { table: self, bound })
    }

    fn parse_row(&self, head: &str, body: &[&str]) -> Result<Row, String> {
        let (name, way) = head.split_once(':').ok_or("a row needs `name : from -> to`")?;
        let (from, to) = way.split_once("->").ok_or("a row needs `from -> to`")?;
        let mut parts: BTreeMap<&str, String> = BTreeMap::new();
        let mut everies = Vec::new();
        for line in body {
            let (part, text) = line.split_once(' ').ok_or_else(|| format!("`{line}` says nothing"))?;
            match part {
                "every" => everies.push(text.trim()),
                "code" | "access" | "state" | "pick" | "when" | "do" => {
                    parts.insert(part, text.trim().to_owned());
                }
                _ => return Err(format!("`{part}` is no part of a row")),
            }
        }
        let part = |name: &str| parts.get(name).cloned().unwrap_or_default();
        let picks = bindings(&part("pick"))?;
        let pc = "pc[me]";
        let from = from.trim();
        let begins = if self.definitions.contains_key(from) {
            format!("{from}({pc})")
        } else {
            format!("{pc} = {from}")
        };
        let mut when = vec![self.term(&begins, &picks)?];
        if !part("when").is_empty() {
            when.extend(self.term(&part("when"), &picks)?.conjuncts());
        }
        let mut every = Vec::new();
        for text in everies {
            let (over, term) = text.split_once(':').ok_or("`every` needs `names: term`")?;
            let over = bindings(over)?;
            let bound: Vec<_> = picks.iter().chain(&over).cloned().collect();
            every.push(Invariant { name: text.to_owned(), term: self.term(term, &bound)?, over });
        }
        let mut writes = Vec::new();
        if to.trim() != "same" && to.trim() != from {
            writes.push(self.write(&format!("{pc} := {}", to.trim()), &picks)?);
        }
        for text in split_writes(&part("do")) {
            writes.push(self.write(text, &picks)?);
        }
        let states = part("state");
        let states = states.split_once("->").map(|(from, to)| (from.trim().to_owned(), to.trim().to_owned()));
        let row = Row {
            name: name.trim().to_owned(),
            code: part("code"),
            access: part("access"),
            states,
            picks,
            when,
            every,
            writes,
        };
        self.check_row(&row)?;
        Ok(row)
    }

    fn write(&self, text: &str, bound: &[(String, String)]) -> Result<Write, String> {
        let (target, value) = text.split_once(":=").ok_or_else(|| format!("`{text}` has no `:=`"))?;
        let Term::Read(variable, at) = self.term(target, bound)? else {
            return Err(format!("`{target}` is no variable"));
        };
        Ok(Write { variable, at, value: self.term(value, bound)? })
    }

    /// Checks that a row names its code and access, and that it accesses one cell at most, unless a lock protects it.
    fn check_row(&self, row: &Row) -> Result<(), String> {
        if row.code.is_empty() || row.access.is_empty() {
            return Err("a row names its code and its access".to_owned());
        }
        // A copy within a variable stores nothing: it makes a block from what was inside another one.
        let stores = |write: &&Write| !matches!(&write.value, Term::Read(name, _) if *name == write.variable);
        let written: BTreeSet<&str> =
            row.writes.iter().filter(stores).filter_map(|write| self.cell_of(&write.variable)).collect();
        if written.len() > 1 {
            return Err(format!("`{}` stores to more than one cell: {written:?}", row.name));
        }
        for write in &row.writes {
            if self.variables[&write.variable].role == Role::Const {
                return Err(format!("`{}` changes the constant `{}`", row.name, write.variable));
            }
        }
        if let Some((from, to)) = &row.states {
            for state in [from, to] {
                if !self.enums["State"].contains(state) {
                    return Err(format!("`{state}` is no state of a frame"));
                }
            }
        }
        Ok(())
    }

    /// Whether a row writes a variable that the term reads, or one of which the term reads a sum.
    pub fn affects(&self, row: &Row, term: &Term) -> bool {
        let writes = |name: &str| row.writes.iter().any(|write| write.variable == name);
        let mut affects = false;
        term.visit(&mut |term| {
            if let Term::Read(name, _) = term {
                affects |= match &self.variables[name].role {
                    Role::Sum(of) => writes(of),
                    Role::Count { size, .. } => writes(size) || writes("place"),
                    _ => writes(name),
                };
            }
        });
        affects
    }

    /// Returns the cell that a variable is part of.
    pub fn cell_of(&self, variable: &str) -> Option<&str> {
        match &self.variables[variable].role {
            Role::Cell(cell) => Some(cell),
            _ => None,
        }
    }
}

fn bindings(text: &str) -> Result<Vec<(String, String)>, String> {
    let each = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    each.map(|it| {
        let (name, sort) = it.split_once(' ').ok_or_else(|| format!("`{it}` needs a name and a sort"))?;
        Ok((name.to_owned(), sort.trim().to_owned()))
    })
    .collect()
}

/// Splits at commas that are outside all brackets.
fn split_writes(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}
