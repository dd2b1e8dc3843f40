//! Counts chains of two "of" in one clause, the sign of prose that was translated: "the limit of the differences of a zone"
//! for "a zone's fold threshold".
//!
//! A clause ends at `. , ; : ? ! ( ) |`, at a dash, and where a list item or heading begins. Quoted code is one word, and
//! code blocks do not count. `language_numbers.toml` has the chains per 1000 words for all comments and all Markdown,
//! in tenths. They may only fall, and one that fell is to be lowered there. `ZONAL_CHAINS` lists the chains of the
//! files whose paths contain it. Related file: `source.rs` finds comments.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;

use regex::Regex;

use super::source::{self, Passage};
use crate::style;

/// The file with the numbers, relative to the root.
const FILE: &str = "xtask/language_numbers.toml";
/// Variable with a path part of the files whose chains are listed.
const LISTED: &str = "ZONAL_CHAINS";

/// Chains and words of some texts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Count {
    chains: usize,
    words: usize,
}

impl Count {
    /// Returns the chains per 1000 words, rounded up to tenths.
    fn rate(self) -> f64 {
        (self.chains * 10_000).div_ceil(self.words.max(1)) as f64 / 10.0
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.chains += other.chains;
        self.words += other.words;
    }
}

/// Finds chains in passages.
struct Finder {
    code: Regex,
    ends: Regex,
    of: Regex,
}

impl Finder {
    fn new() -> Self {
        let regex = |pattern| Regex::new(pattern).expect("the pattern is constant");
        Self {
            code: regex("`[^`]*`"),
            ends: regex(r"[.,;:?!()|–—]|[ \n]-+[ \n]|\n *(?:[-*#]+|[0-9]+\.) "),
            of: regex(r"(?i-u)\bof\b"),
        }
    }

    /// Counts the chains and words of passages, and calls `each` with the line and text of each chain.
    fn count(&self, passages: &[Passage], mut each: impl FnMut(usize, &str)) -> Count {
        let (mut count, mut in_block) = (Count::default(), false);
        for passage in passages {
            let text = without_blocks(&passage.text, &mut in_block);
            // Code becomes a word of the same length, so that lines can be found.
            let text = self.code.replace_all(&text, |code: &regex::Captures<'_>| "x".repeat(code[0].len()));
            count.words += text.split_whitespace().count();
            for clause in self.ends.split(&text).filter(|clause| self.of.find_iter(clause).count() > 1) {
                count.chains += 1;
                let start = clause.as_ptr() as usize - text.as_ptr() as usize;
                let clause = &passage.text[start..start + clause.len()];
                let blank = clause.len() - clause.trim_start().len();
                each(
                    passage.line_at(start + blank),
                    &clause.split_whitespace().collect::<Vec<_>>().join(" "),
                );
            }
        }
        count
    }
}

/// Replaces the lines of code blocks by spaces. A block may continue in the next passage.
fn without_blocks(text: &str, in_block: &mut bool) -> String {
    let lines = text.split_inclusive('\n').map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        let is_code = is_fence || *in_block;
        *in_block ^= is_fence;
        let blank = |line: &str| line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect();
        if is_code { blank(line) } else { line.to_owned() }
    });
    lines.collect()
}

/// Compares the chains per 1000 words with those of the file, prints them, and returns what differs.
pub(crate) fn differences(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| error.to_string());
    let known = text.and_then(|text| toml::from_str(&text).map_err(|error| error.to_string()));
    let known: BTreeMap<String, f64> = match known {
        Ok(known) => known,
        Err(problem) => return vec![format!("{FILE}: {problem}")],
    };
    let counted = match count(root) {
        Ok(counted) => counted,
        Err(problem) => return vec![problem],
    };
    for (name, count) in &counted {
        let Count { chains, words } = count;
        println!("{name}: {:.1} chains of \"of\" per 1000 words ({chains} in {words})", count.rate());
    }
    compare(&known, &counted)
}

/// Counts the chains of all comments, and of all Markdown.
fn count(root: &Path) -> Result<BTreeMap<&'static str, Count>, String> {
    let finder = Finder::new();
    let listed = std::env::var(LISTED).ok();
    let mut counted = BTreeMap::from([("comments", Count::default()), ("markdown", Count::default())]);
    for file in style::texts(root) {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        let name = file.display().to_string();
        let (kind, passages) = match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let comments = source::comments(&text).map_err(|problem| format!("{name}: {problem}"))?;
                ("comments", comments)
            }
            Some("md") => ("markdown", source::paragraphs(&text)),
            _ => continue,
        };
        let is_listed = listed.as_ref().is_some_and(|part| name.contains(part));
        let print = |line: usize, clause: &str| {
            if is_listed {
                println!("{name}:{line}: {clause}");
            }
        };
        *counted.get_mut(kind).expect("both kinds are there") += finder.count(&passages, print);
    }
    Ok(counted)
}

fn compare(known: &BTreeMap<String, f64>, counted: &BTreeMap<&'static str, Count>) -> Vec<String> {
    let mut found = Vec::new();
    for (&name, count) in counted {
        let rate = count.rate();
        match known.get(name) {
            Some(&limit) if rate > limit => found.push(format!(
                "{name}: {rate:.1} chains of \"of\" per 1000 words, more than the {limit:.1} in {FILE}; \
                 {LISTED}=PATH lists them"
            )),
            Some(&limit) if rate < limit => {
                found.push(format!("{name}: {rate:.1}, less than the {limit:.1} in {FILE}: lower it there"));
            }
            Some(_) => {}
            None => found.push(format!("{name}: {rate:.1}; {FILE} has no such number")),
        }
    }
    let unknown = known.keys().filter(|name| !counted.contains_key(name.as_str()));
    found.extend(unknown.map(|name| format!("{FILE}: {name} is not counted")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of the chains in a Markdown text.
    fn lines(text: &str) -> Vec<usize> {
        let mut lines = Vec::new();
        Finder::new().count(&source::paragraphs(text), |line, _| lines.push(line));
        lines
    }

    const NONE: [usize; 0] = [];

    #[test]
    fn two_in_one_clause_are_a_chain() {
        assert_eq!(lines("# Title\n\nThe end of the list\nof a zone.\n"), [3]);
        assert_eq!(lines("One of one.\nThe end of the list of a zone, of which of\nthose of us.\n"), [2, 2]);
        assert_eq!(lines("Of a zone of `a. b` of nodes.\n"), [1]);
        assert_eq!(lines("Offers of often.\n"), NONE);
    }

    #[test]
    fn clauses_end_where_the_sentence_pauses() {
        for end in [".", ",", ";", ":", "?", "!", " (", ")", "|", " -", " –", "—", "\n-", "\n##", "\n2."]
        {
            assert_eq!(lines(&format!("The end of it{end} of a zone\n")), NONE, "{end}");
        }
        assert_eq!(lines("The end of a well-known list of zones\n"), [1]);
    }

    #[test]
    fn code_is_not_prose() {
        let code = "```text\none of a of b\n\none of a of b\n```\n";
        assert_eq!(lines(&format!("{code}\nThe end of a list of zones.\n{code}")), [7]);
        assert_eq!(lines("The `end of` a list of `of zones`.\n"), NONE);
    }

    #[test]
    fn comments_are_counted_in_tests_too_and_code_is_not() {
        let text = "//! The end of a list of zones.\n\nfn of() { of::of() } // one of them of these\n\n/// ```\n/// // \
                    a of b of c\n/// ```\nfn f() {}\n";
        let comments = source::comments(text).unwrap();
        let mut found = Vec::new();
        let count = Finder::new().count(&comments, |line, clause| found.push((line, clause.to_owned())));
        let expected = [(1, "The end of a list of zones"), (3, "one of them of these")];
        assert_eq!(found, expected.map(|(line, clause)| (line, clause.to_owned())));
        assert_eq!(count, Count { chains: 2, words: 12 });
    }

    #[test]
    fn rates_may_only_fall() {
        let counted = |chains| BTreeMap::from([("comments", Count { chains, words: 10_000 })]);
        let compared =
            |limit, chains| compare(&BTreeMap::from([("comments".to_owned(), limit)]), &counted(chains));
        assert_eq!(compared(0.5, 5), [""; 0]);
        assert!(compared(0.5, 6)[0].contains("more than the 0.5"));
        assert!(compared(0.5, 4)[0].contains("lower it"));
        assert!(compare(&BTreeMap::new(), &counted(1))[0].contains("no such number"));
        assert!(
            compare(&BTreeMap::from([("x".to_owned(), 1.0)]), &BTreeMap::new())[0].contains("not counted")
        );
        assert_eq!(Count { chains: 1, words: 10_001 }.rate(), 0.1);
        assert_eq!(Count { chains: 1, words: 9_999 }.rate(), 0.2);
    }
}
