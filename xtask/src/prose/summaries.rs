//! The rule for summaries: the documentation of a function begins with a verb in the third person.
//!
//! Functions of tests may instead begin with the behavior that they test, but not with a weak verb. Related files:
//! `prose/source.rs` finds the functions.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::source::{Function, Source};

/// The section of the rules.
const SECTION: &str = "summaries";

/// The allowed first words of summaries.
pub(super) struct Summaries {
    first_words: Vec<String>,
    /// Words that may be nouns or verbs.
    nouns: Vec<String>,
    /// Words that follow a verb, not a noun.
    before_objects: Vec<String>,
    /// Verbs that state too little, and the words to write instead.
    weak: BTreeMap<String, String>,
}

impl Summaries {
    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let weak = table.get(SECTION).and_then(|section| section.get("weak")).and_then(Value::as_table);
        let weak = weak.ok_or_else(|| format!("[{SECTION}] lacks `weak`"))?.iter();
        let pair = |(verb, instead): (&String, &Value)| Some((verb.clone(), instead.as_str()?.to_owned()));
        Ok(Self {
            first_words: super::texts(table, SECTION, "first_words")?,
            nouns: super::texts(table, SECTION, "nouns")?,
            before_objects: super::texts(table, SECTION, "before_objects")?,
            weak: weak.filter_map(pair).collect(),
        })
    }

    /// Returns the line and text of each summary that begins with another word.
    pub(super) fn check(&self, source: &Source) -> Vec<(usize, String)> {
        source.functions.iter().filter_map(|function| Some((function.line, self.wrong(function)?))).collect()
    }

    fn wrong(&self, function: &Function) -> Option<String> {
        let first = first_word(&function.summary);
        if let Some(instead) = self.weak.get(first) {
            return Some(format!("`{first}` begins a summary: use {instead}"));
        }
        let is_accepted = function.is_for_tests
            || self.begins_with_verb(&function.summary, first)
            || self.first_words.iter().any(|w| w == first);
        (!is_accepted).then(|| {
            format!(
                "`{first}` begins a summary: use a verb in the third person (Returns, Allocates) or Whether"
            )
        })
    }

    /// Whether a summary begins with a word that has the form of a verb in the third person.
    fn begins_with_verb(&self, summary: &str, first: &str) -> bool {
        let has_form = first.starts_with(|c: char| c.is_ascii_uppercase())
            && first.ends_with('s')
            && !first.ends_with("ss");
        let is_noun = || {
            let next = summary[first.len()..].split_whitespace().next().unwrap_or_default();
            self.nouns.iter().any(|noun| noun == first)
                && !self.before_objects.iter().any(|word| word == next)
        };
        has_form && !is_noun()
    }
}

/// Returns the first word, which ends at a space or at a sign other than a hyphen.
fn first_word(summary: &str) -> &str {
    let end = summary.find(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ':' | '.'));
    &summary[..end.unwrap_or(summary.len())]
}
