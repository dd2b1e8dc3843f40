//! Rules for prose: words to avoid, summaries of functions, and subjects of commits.
//!
//! `xtask/prose.toml` lists the words and what to write instead. They are searched for in comments, in string literals
//! outside tests, in identifiers and in Markdown. Related files: `prose/source.rs` splits sources into these parts, and
//! `prose/summaries.rs`, `prose/subjects.rs` and `prose/chains.rs` have the other rules. `style.rs` checks everything
//! except language.

mod chains;
mod source;
mod subjects;
mod summaries;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use regex::Regex;
use toml::{Table, Value};

use crate::style;
use source::{Passage, Source};
use summaries::Summaries;

pub(crate) use chains::differences as chains;
pub(crate) use subjects::step as subjects;

/// The file of the words, relative to the root.
const RULES: &str = "xtask/prose.toml";

/// All rules of [`RULES`].
struct Rules {
    words: Vec<Word>,
    summaries: Summaries,
}

/// A word or phrase to avoid.
struct Word {
    pattern: Regex,
    instead: String,
    in_prose: bool,
    in_names: bool,
    /// Files, or folders that end in `/`, in which the word is a term of the field.
    except: Vec<String>,
}

/// Returns every violation of a rule about words and summaries, as `file:line: what`.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let rules = match read(root).and_then(|table| Rules::new(&table)) {
        Ok(rules) => rules,
        Err(problem) => return vec![format!("{RULES}: {problem}")],
    };
    let mut found = Vec::new();
    for file in style::texts(root) {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        match rules.check(&file, &text) {
            Ok(wrong) => {
                found.extend(wrong.iter().map(|(line, what)| format!("{}:{line}: {what}", file.display())));
            }
            Err(problem) => found.push(format!("{}: {problem}", file.display())),
        }
    }
    found
}

/// Reads the file of the rules.
fn read(root: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(root.join(RULES)).map_err(|error| error.to_string())?;
    text.parse().map_err(|error: toml::de::Error| error.to_string())
}

impl Rules {
    fn new(table: &Table) -> Result<Self, String> {
        let words = table.get("word").and_then(Value::as_array).ok_or("there is no [[word]]")?;
        let words = words.iter().map(Word::new).collect::<Result<_, _>>()?;
        Ok(Self { words, summaries: Summaries::new(table)? })
    }

    /// Returns the line and text of each violation in a file. Only Rust and Markdown files are checked.
    fn check(&self, file: &Path, text: &str) -> Result<Vec<(usize, String)>, String> {
        let name = file.display().to_string();
        let mut found = Vec::new();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let source = Source::new(text, is_for_tests(file))?;
                found.extend(self.used(&name, &source.comments, |word| word.in_prose));
                found.extend(self.used(&name, &source.strings, |word| word.in_prose));
                found.extend(self.used(&name, &source.names, |word| word.in_names));
                found.extend(self.summaries.check(&source));
            }
            Some("md") => found.extend(self.used(&name, &source::paragraphs(text), |word| word.in_prose)),
            _ => {}
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Returns the words to avoid that occur in `passages`.
    fn used(&self, file: &str, passages: &[Passage], applies: fn(&Word) -> bool) -> Vec<(usize, String)> {
        let words = self.words.iter().filter(|word| applies(word) && !word.is_allowed_in(file));
        let found = words.flat_map(|word| {
            let hits = move |passage: &Passage| {
                let hits = word.pattern.find_iter(&passage.text);
                let said = |hit: regex::Match<'_>| {
                    (passage.line_at(hit.start()), format!("`{}`: use {}", hit.as_str(), word.instead))
                };
                hits.map(said).collect::<Vec<_>>()
            };
            passages.iter().flat_map(hits)
        });
        found.collect()
    }
}

impl Word {
    fn new(entry: &Value) -> Result<Self, String> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let find = text("find").ok_or("a [[word]] lacks `find`")?;
        let instead = text("use").ok_or_else(|| format!("`{find}` lacks `use`"))?.to_owned();
        let (in_prose, in_names) = match text("in").unwrap_or("prose") {
            "prose" => (true, false),
            "names" => (false, true),
            "all" => (true, true),
            other => return Err(format!("`{find}`: in = `{other}`; allowed are prose, names, all")),
        };
        let begins_with_word = find.starts_with(|c: char| c.is_alphanumeric() || c == '(');
        let start = if begins_with_word { r"\b" } else { "" };
        let pattern = Regex::new(&format!(r"(?i-u){start}(?:{})\b", find.replace(' ', r"\s+")));
        let except = entry.get("except").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let except = except.iter().map(|exception| {
            let text = |key: &str| exception.get(key).and_then(Value::as_str);
            match (text("at"), text("why")) {
                (Some(at), Some(_)) => Ok(at.to_owned()),
                _ => Err(format!("`{find}`: an exception has `at` and `why`")),
            }
        });
        Ok(Self {
            pattern: pattern.map_err(|error| format!("`{find}`: {error}"))?,
            instead,
            in_prose,
            in_names,
            except: except.collect::<Result<_, _>>()?,
        })
    }

    fn is_allowed_in(&self, file: &str) -> bool {
        self.except.iter().any(|at| file == at || (at.ends_with('/') && file.starts_with(at)))
    }
}

/// Whether a file belongs only to tests or examples.
fn is_for_tests(file: &Path) -> bool {
    let folders: Vec<PathBuf> = file.iter().map(PathBuf::from).collect();
    folders.iter().any(|part| ["tests", "examples", "tests.rs"].iter().any(|name| part == Path::new(name)))
}

/// Returns the texts in an array of the rules' table.
fn texts(table: &Table, section: &str, key: &str) -> Result<Vec<String>, String> {
    let array = table.get(section).and_then(|section| section.get(key)).and_then(Value::as_array);
    let array = array.ok_or_else(|| format!("[{section}] lacks `{key}`"))?;
    array
        .iter()
        .map(|text| text.as_str().map(str::to_owned).ok_or_else(|| format!("{key}: not text")))
        .collect()
}
