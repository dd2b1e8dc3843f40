//! Style rule: every write to an atomic in the core has a row in the table of transitions, or a reason why it has none.
//!
//! A *write* is a store, an exchange or another operation that changes an atomic, in a function that is not only for tests. A
//! row covers it if its `code` names the function and its `access` the operation, the ordering and the cell. The other way
//! round, each operation in an `access` must be one of its functions' writes. `writes.txt` has the writes beside the table and
//! explains its form. Related files: `read.rs` finds functions; `docs/proof.md` explains the table.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::{Function, read};
use crate::opened_files::is_test;
use crate::source_code::without_texts;
use crate::style::sources;

const CORE: &str = "crates/zonal/src";
const TABLE: &str = "crates/zonal-verify/src/proof/transitions.txt";
const BESIDE: &str = "xtask/src/sync_points/writes.txt";
/// Names in the `code` of rows that are not functions of the core: accesses by assembly and the system.
const OUTSIDE: [&str; 4] = ["POP[", "PUSH[", "LOCK[", "membarrier(2)"];

/// A call of a method that changes an atomic, up to its arguments.
static CALL: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"\.\s*(store|swap|compare_exchange(?:_weak)?|fetch_(?:add|sub|or|and|xor|max|min|update))\s*\(")
});
/// An ordering in the arguments of such a call.
static ORDERING: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(Relaxed|Acquire|Release|AcqRel|SeqCst)\b"));
/// An operation with an ordering on a cell, in the `access` of a row.
static ACCESS: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"\b(store|swap|exchange|add|or|and) (relaxed|acquire|release|acqrel|seqcst) ([a-z_]+)")
});
/// A parameter with an ordering, behind which a write would not be known as one.
static PARAMETER: LazyLock<Regex> = LazyLock::new(|| regex(r"\w\s*:\s*(?:\w+\s*::\s*)*Ordering\b"));

fn regex(pattern: &str) -> Regex {
    Regex::new(&format!("(?-u){pattern}")).expect("the pattern is constant")
}

/// An operation, its ordering and its cell.
type Access = (String, String, String);

/// The functions of the core by file and path, with the lines at which each performs an access.
type Writes = BTreeMap<(String, String), BTreeMap<Access, usize>>;

/// What the table and the list beside it say.
#[derive(Default)]
struct Known {
    /// The functions and accesses of each row.
    rows: Vec<Row>,
    /// Names that stand for cells, by file, function and name; the function `*` is all of a file.
    aliases: BTreeMap<[String; 3], String>,
    /// Functions whose callers' rows cover their writes, with the receivers of calls; none stands for every call.
    through: BTreeMap<(String, String), Through>,
    /// Cells that a function writes beside the table.
    beside: BTreeMap<(String, String), BTreeSet<String>>,
}

/// How calls of a function that writes for its callers look.
struct Through {
    /// Names on which calls count; all calls count if there are none.
    receivers: Vec<String>,
    call: Regex,
}

struct Row {
    name: String,
    functions: Vec<(String, String)>,
    accesses: Vec<Access>,
}

/// A source of the core.
struct Source {
    file: String,
    code: String,
    functions: Vec<Function>,
}

/// Returns every violation, and prints how many writes there are.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let text = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let files = sources(root).into_iter().filter(|file| file.starts_with(CORE) && !is_test(file));
    let texts = files.map(|file| (text(&file.to_string_lossy()), file)).collect();
    let (writes, found) = examine(texts, &text(TABLE), &text(BESIDE));
    println!(
        "{} writes to atomics in {} functions of the core",
        writes.values().map(BTreeMap::len).sum::<usize>(),
        writes.len()
    );
    found
}

/// Reads sources, the table and the list; returns the writes that need a row, and every violation.
fn examine(texts: Vec<(String, PathBuf)>, table: &str, beside: &str) -> (Writes, Vec<String>) {
    let mut found = Vec::new();
    let known = match Known::read(table, beside) {
        Ok(known) => known,
        Err(wrong) => return (Writes::new(), vec![wrong]),
    };
    let mut sources = Vec::new();
    for (text, file) in texts {
        let name = file.strip_prefix(CORE).unwrap_or(&file).to_string_lossy().into_owned();
        match read::outline(&file, &text) {
            Ok(functions) => sources.push(Source { file: name, code: without_texts(&text), functions }),
            Err(error) => found.push(format!("{}: {error}", file.display())),
        }
    }
    let mut writes = Writes::new();
    for source in &sources {
        source.direct(&known, &mut writes, &mut found);
    }
    // Functions may call each other in chains, so that one round is not enough.
    while sources.iter().any(|source| source.calls(&known, &mut writes)) {}
    found.extend(known.check(&writes));
    (writes, found)
}

impl Source {
    /// Returns the path of the function with a place in the code, unless the place is in a test; empty outside all functions.
    fn function_at(&self, at: usize) -> Option<String> {
        let line = self.line(at);
        let with = self.functions.iter().filter(|function| function.lines.contains(&line));
        match with.min_by_key(|function| function.lines.end() - function.lines.start()) {
            Some(function) if function.is_for_tests => None,
            Some(function) => Some(function.path()),
            None => Some(String::new()),
        }
    }

    fn line(&self, at: usize) -> usize {
        1 + self.code[..at].matches('\n').count()
    }

    /// Adds the writes in this source.
    fn direct(&self, known: &Known, writes: &mut Writes, found: &mut Vec<String>) {
        let cells = self.file == "platform/mod.rs"; // defines the cells
        for parameter in PARAMETER.find_iter(&self.code).filter(|_| !cells) {
            let line = self.line(parameter.start());
            found.push(format!("{CORE}/{}:{line}: name the ordering at the atomic itself", self.file));
        }
        for call in CALL.captures_iter(&self.code) {
            let all = call.get(0).expect("a match has a whole");
            let arguments = &self.code[all.end()..all.end() + length_within(&self.code[all.end()..])];
            let Some(ordering) = ORDERING.find(arguments) else { continue };
            let Some(function) = self.function_at(all.start()) else { continue };
            let verb = match &call[1] {
                "compare_exchange" | "compare_exchange_weak" => "exchange",
                other => other.trim_start_matches("fetch_"),
            };
            let receiver = receiver(&self.code[..all.start()]);
            let cell = known.cell(&self.file, &function, receiver);
            let access = (verb.to_owned(), ordering.as_str().to_lowercase(), cell);
            writes
                .entry((self.file.clone(), function))
                .or_default()
                .entry(access)
                .or_insert(self.line(all.start()));
        }
    }

    /// Adds the writes of functions that this source calls; returns whether there are new ones.
    fn calls(&self, known: &Known, writes: &mut Writes) -> bool {
        let mut grows = false;
        for (called, Through { receivers, call }) in &known.through {
            let Some(accesses) = writes.get(called).cloned() else { continue };
            let owner = called.1.rsplit_once("::").map(|(owner, _)| owner);
            for call in call.captures_iter(&self.code) {
                let at = call.get(0).expect("a match has a whole").start();
                let Some(function) = self.function_at(at) else { continue };
                let of_owner =
                    function.rsplit_once("::").map(|(owner, _)| owner) == owner && self.file != called.0;
                let receiver = call.get(1).map_or("", |receiver| receiver.as_str());
                let is_meant = receivers.is_empty()
                    || receivers.iter().any(|one| one == receiver)
                    || receiver == "self" && (of_owner || self.file == called.0);
                let is_definition = self.code[..at].trim_end().ends_with("fn") || function == called.1;
                if !is_meant || is_definition {
                    continue;
                }
                let line = self.line(at);
                let own = writes.entry((self.file.clone(), function)).or_default();
                for access in accesses.keys() {
                    if !own.contains_key(access) {
                        own.insert(access.clone(), line);
                        grows = true;
                    }
                }
            }
        }
        grows
    }
}

impl Known {
    fn read(table: &str, beside: &str) -> Result<Self, String> {
        let mut known = Self { rows: rows(table), ..Self::default() };
        let lines = beside.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        for (at, line) in lines {
            known.add(line).map_err(|what| format!("{BESIDE}:{}: {what}", at + 1))?;
        }
        Ok(known)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if let Some(("alias", rest)) = line.split_once(' ') {
            let form = "an alias is `alias FILE FUNCTION NAMES = CELL`";
            let (names, cell) = rest.split_once(" = ").ok_or(form)?;
            let mut names = names.split_whitespace().map(str::to_owned);
            let (file, function) = (names.next().ok_or(form)?, names.next().ok_or(form)?);
            self.aliases
                .extend(names.map(|name| ([file.clone(), function.clone(), name], cell.trim().to_owned())));
            return Ok(());
        }
        if let Some(("through", rest)) = line.split_once(' ') {
            let mut words = rest.split_whitespace();
            let (Some(file), Some(function)) = (words.next(), words.next()) else {
                return Err("`through` names a file and a function".to_owned());
            };
            let receivers = words.filter(|word| *word != "on").map(str::to_owned).collect();
            let name = function.rsplit("::").next().unwrap_or_default();
            let call = regex(&format!(r"(?:\b(\w+)\s*\.\s*)?\b{name}(?:\s*::\s*<[\w\s,]*>)?\s*\("));
            self.through.insert((file.to_owned(), function.to_owned()), Through { receivers, call });
            return Ok(());
        }
        let form = "a line is `FILE FUNCTION CELLS: REASON`";
        let (what, _) = line.split_once(": ").ok_or(form)?;
        let mut words = what.split_whitespace().map(str::to_owned);
        let function = (words.next().ok_or(form)?, words.next().ok_or(form)?);
        self.beside.entry(function).or_default().extend(words);
        Ok(())
    }

    /// Returns the cell for which a name stands in a function.
    fn cell(&self, file: &str, function: &str, name: String) -> String {
        let alias = |function: &str| self.aliases.get(&[file.to_owned(), function.to_owned(), name.clone()]);
        alias(function).or_else(|| alias("*")).cloned().unwrap_or(name)
    }

    /// Compares the writes with the rows and the list, in both directions.
    fn check(&self, writes: &Writes) -> Vec<String> {
        let mut found = Vec::new();
        let mut unused: BTreeSet<(&(String, String), &String)> = BTreeSet::new();
        for (function, cells) in &self.beside {
            unused.extend(cells.iter().map(|cell| (function, cell)));
        }
        for (function, accesses) in
            writes.iter().filter(|(function, _)| !self.through.contains_key(*function))
        {
            for ((verb, ordering, cell), line) in accesses {
                let access = (verb.clone(), ordering.clone(), cell.clone());
                let is_row = self
                    .rows
                    .iter()
                    .any(|row| row.functions.contains(function) && row.accesses.contains(&access));
                let listed = self
                    .beside
                    .get_key_value(function)
                    .and_then(|(key, cells)| Some((key, cells.get(cell)?)));
                if let Some(used) = listed {
                    unused.remove(&used);
                } else if !is_row {
                    found.push(format!(
                        "{CORE}/{}:{line}: no row of the table has `{verb} {ordering} {cell}` by `{}`; add a row, or a line to \
                         {BESIDE} with the reason",
                        function.0, function.1
                    ));
                }
            }
        }
        let name = |(file, path): &(String, String)| format!("{file} {path}");
        found.extend(
            unused.iter().map(|(function, cell)| format!("{BESIDE}: {} writes no `{cell}`", name(function))),
        );
        let silent = self.through.keys().filter(|function| !writes.contains_key(*function));
        found.extend(silent.map(|function| format!("{BESIDE}: {} writes nothing", name(function))));
        for row in &self.rows {
            let outside = |(_, path): &(String, String)| OUTSIDE.iter().any(|part| path.starts_with(part));
            if row.functions.iter().any(outside) {
                continue;
            }
            let has = |access: &Access| {
                row.functions
                    .iter()
                    .any(|function| writes.get(function).is_some_and(|own| own.contains_key(access)))
            };
            found.extend(row.accesses.iter().filter(|access| !has(access)).map(|(verb, ordering, cell)| {
                format!("{TABLE}: no function of `{}` has `{verb} {ordering} {cell}`", row.name)
            }));
            let idle = row.functions.iter().filter(|function| {
                !row.accesses.is_empty()
                    && !writes
                        .get(*function)
                        .is_some_and(|own| row.accesses.iter().any(|access| own.contains_key(access)))
            });
            found.extend(idle.map(|function| {
                format!("{TABLE}: `{}` does not perform the access of `{}`", name(function), row.name)
            }));
        }
        found
    }
}

/// Returns the functions and accesses of each row.
fn rows(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines() {
        if let Some(head) = line.strip_prefix("row ") {
            let name = head.split(" : ").next().unwrap_or_default().trim().to_owned();
            rows.push(Row { name, functions: Vec::new(), accesses: Vec::new() });
        } else if let (Some(row), Some((part, text))) = (rows.last_mut(), line.trim().split_once(' ')) {
            match part {
                "code" => row.functions = functions(text),
                "access" => {
                    let of =
                        |all: regex::Captures<'_>| (all[1].to_owned(), all[2].to_owned(), all[3].to_owned());
                    row.accesses = ACCESS.captures_iter(text).map(of).collect();
                }
                _ => {}
            }
        }
    }
    rows
}

/// Returns the functions that a row names, with their files.
fn functions(code: &str) -> Vec<(String, String)> {
    let (mut file, mut functions) = (String::new(), Vec::new());
    for part in code.trim().split(", ") {
        let name = match part.split_once(' ') {
            Some((of, name)) => {
                file = of.to_owned();
                name
            }
            None if part.ends_with(".rs") => continue,
            None => part,
        };
        functions.push((file.clone(), name.to_owned()));
    }
    functions
}

/// Returns the length of a text up to the bracket that closes one before it.
fn length_within(text: &str) -> usize {
    let mut depth = 1;
    let end = text.char_indices().find(|(_, letter)| {
        depth += match letter {
            '(' | '[' | '{' => 1,
            ')' | ']' | '}' => -1,
            _ => 0,
        };
        depth == 0
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// Returns what a method is called on after this text: the last field, variable or function that is no number.
fn receiver(before: &str) -> String {
    let mut rest = before.trim_end();
    loop {
        while let Some(open) = rest.strip_suffix([')', ']']).map(opening) {
            rest = rest[..open].trim_end();
        }
        let name =
            rest.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
        if name.is_empty() || !name.starts_with(|letter: char| letter.is_ascii_digit()) {
            return name.to_owned();
        }
        rest = rest[..rest.len() - name.len()].trim_end().trim_end_matches('.').trim_end();
    }
}

/// Returns where the bracket begins that closes after a text.
fn opening(text: &str) -> usize {
    let mut depth = 1;
    let open = text.char_indices().rev().find(|(_, letter)| {
        depth += match letter {
            ')' | ']' => 1,
            '(' | '[' => -1,
            _ => 0,
        };
        depth == 0
    });
    open.map_or(0, |(at, _)| at)
}
