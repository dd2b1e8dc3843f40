//! The rule for subjects of commits: the imperative, at most [`LENGTH_MAX`] characters, and no full stop.
//!
//! Commits since [`BASE`] are checked, and older commits are not. The check is skipped if the source has no history.
//! Related files: `prose.rs` reads the words.

use std::path::Path;
use std::process::Command;

use toml::Table;

use crate::steps::{Outcome, Step};

/// The last commit that is not checked.
const BASE: &str = "ac44666f58ad8171f5264bf909d1ffda2652a213";
/// Maximum length of a subject in characters.
const LENGTH_MAX: usize = 72;
/// The section of the rules.
const SECTION: &str = "subjects";

/// Words with which a subject may or must not begin.
pub(super) struct Subjects {
    imperatives: Vec<String>,
    ending_in_s: Vec<String>,
    no_verbs: Vec<String>,
}

/// Returns the step that checks the subjects.
pub(crate) fn step() -> Step {
    Step::new("subjects of commits", check)
}

fn check(root: &Path) -> Outcome {
    let subjects = match super::read(root).and_then(|table| Subjects::new(&table)) {
        Ok(subjects) => subjects,
        Err(problem) => return Outcome::Failed(format!("{}: {problem}", super::RULES)),
    };
    match log(root) {
        Err(why) => Outcome::Skipped(why),
        Ok(log) => crate::plan::report(subjects.violations(&log)),
    }
}

/// Returns the commits since [`BASE`], one on each line. The error states what is missing.
fn log(root: &Path) -> Result<String, String> {
    let git = |arguments: &[&str]| {
        let ran = Command::new("git").current_dir(root).args(arguments).output();
        let ran = ran.map_err(|error| format!("git did not start: {error}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if ran.status.success() { Ok(said(&ran.stdout)) } else { Err(said(&ran.stderr)) }
    };
    if !root.join(".git").exists() {
        return Err("no history: this is not a clone".into());
    }
    git(&["cat-file", "-e", &format!("{BASE}^{{commit}}")])
        .map_err(|_| format!("the history does not reach back to {BASE}"))?;
    git(&["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")])
}

impl Subjects {
    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let texts = |key| super::texts(table, SECTION, key);
        Ok(Self {
            imperatives: texts("imperatives")?,
            ending_in_s: texts("ending_in_s")?,
            no_verbs: texts("no_verbs")?,
        })
    }

    /// Returns the violations in lines of a commit's hash and subject.
    pub(super) fn violations(&self, log: &str) -> Vec<String> {
        let lines = log.lines().filter_map(|line| line.split_once(' '));
        let found = lines.flat_map(|(hash, subject)| {
            self.wrong(subject).into_iter().map(move |what| format!("commit {hash}: `{subject}`: {what}"))
        });
        found.collect()
    }

    fn wrong(&self, subject: &str) -> Vec<String> {
        let mut found = Vec::new();
        let length = subject.chars().count();
        if length > LENGTH_MAX {
            found.push(format!("{length} characters; a subject has at most {LENGTH_MAX}"));
        }
        if subject.ends_with('.') {
            found.push("a subject has no full stop".into());
        }
        let first = subject.split_whitespace().next().unwrap_or_default();
        if !first.starts_with(|c: char| c.is_ascii_uppercase()) {
            found.push("a subject begins with a capital letter".into());
        }
        if first.ends_with(':') {
            found.push(format!("a subject has no prefix such as `{first}`"));
        }
        let first = first.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !self.is_imperative(first) {
            found.push(format!("`{first}` is no imperative: use Add, Fix, Remove"));
        }
        found
    }

    /// Whether a word has the form of a verb in the imperative.
    fn is_imperative(&self, word: &str) -> bool {
        let is_in = |list: &[String]| list.iter().any(|known| known.eq_ignore_ascii_case(word));
        let ends_otherwise = word.ends_with("ed") || word.ends_with("ing");
        let is_third_person = word.ends_with('s') && !is_in(&self.ending_in_s);
        !is_in(&self.no_verbs) && (is_in(&self.imperatives) || !(ends_otherwise || is_third_person))
    }
}
