//! The core in numbers, which may only fall: code, names, and what the whole crate sees.
//!
//! `core_numbers.toml` has the numbers that the tree has. A number that grew is refused, and one that fell is to be lowered
//! there, so that it does not grow again. The counts are of the text, not of types: functions are found by their headers and
//! braces, and calls by names. They are estimates that are the same for everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;

use crate::style::sources;

/// The file with the numbers, in the folder of the tasks.
const FILE: &str = "xtask/core_numbers.toml";
/// The page that shows the numbers, and how the row of each begins.
const PAGE: &str = "docs/core.md";
const ROWS: [(&str, &[&str]); 6] = [
    ("lines of code", &["code"]),
    ("files of `alloc/`", &["files_in_alloc"]),
    ("methods of `Allocator`", &["methods_public", "methods_private"]),
    ("names", &["names"]),
    ("items visible", &["visible"]),
    ("functions reachable", &["ways"]),
];
/// Crates that were parts of the core. Their code counts in `code_with_extracted`.
const EXTRACTED: [&str; 1] = ["crates/zonal-history/"];

/// Compares the tree's numbers with those of the file, and returns what differs.
pub(crate) fn differences(root: &Path) -> Vec<String> {
    let text = match std::fs::read_to_string(root.join(FILE)) {
        Ok(text) => text,
        Err(error) => return vec![format!("{FILE}: {error}")],
    };
    let known: BTreeMap<String, usize> = match toml::from_str(&text) {
        Ok(known) => known,
        Err(error) => return vec![format!("{FILE}: {error}")],
    };
    let (counted, hidden) = numbers(root);
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    [compare(&known, &counted), stale_rows(&page, &counted), hidden].concat()
}

/// Returns the rows of the page that show something else than was counted, in the column after the one from before.
fn stale_rows(page: &str, counted: &BTreeMap<String, usize>) -> Vec<String> {
    let shown = |begin: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| {begin}")))?;
        row.split('|').nth(3).map(|cell| cell.replace(' ', ""))
    };
    let is_stale = |(begin, names): &&(&str, &[&str])| {
        let counts: Vec<_> = names.iter().map(|&name| counted[name].to_string()).collect();
        shown(begin) != Some(counts.join(","))
    };
    ROWS.iter()
        .filter(is_stale)
        .map(|(begin, names)| format!("{PAGE}: `{begin}` is not {names:?} of {FILE}"))
        .collect()
}

fn compare(known: &BTreeMap<String, usize>, counted: &BTreeMap<String, usize>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, &count) in counted {
        match known.get(name) {
            Some(&limit) if count > limit => {
                found.push(format!("{name}: {count}, more than the {limit} in {FILE}"));
            }
            Some(&limit) if count < limit => {
                found.push(format!("{name}: {count}, less than the {limit} in {FILE}: lower it there"));
            }
            Some(_) => {}
            None => found.push(format!("{name}: {count}; {FILE} has no such number")),
        }
    }
    let unknown = known.keys().filter(|&name| !counted.contains_key(name));
    found.extend(unknown.map(|name| format!("{FILE}: {name} is not counted")));
    found
}

/// Counts the core, and the words of the README; also returns an error for each file with code that is not counted.
fn numbers(root: &Path) -> (BTreeMap<String, usize>, Vec<String>) {
    let files = sources(root);
    let read = |below: &str| -> Vec<(String, String)> {
        let names = files.iter().filter_map(|file| file.to_str());
        let counted = names.filter(|file| file.starts_with(&format!("{below}src/")) && !is_test(file));
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
        counted.map(|file| (file.to_owned(), read(file))).collect()
    };
    let mut core = read("crates/zonal/");
    let hidden = core.iter().filter_map(|(file, text)| hidden(file, text)).collect();
    core.iter_mut().for_each(|(_, text)| text.truncate(without_tests(text).len()));
    let extracted = EXTRACTED.iter().flat_map(|below| read(below));
    let extracted: usize = extracted.map(|(_, text)| code_lines(without_tests(&text))).sum();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let mut counted = count(&core);
    counted.insert("code_with_extracted".into(), counted["code"] + extracted);
    counted.insert("readme_words".into(), readme.split_whitespace().count());
    (counted, hidden)
}

/// Whether a file has only tests, or helps them.
fn is_test(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs");
    let ends = ["test", "tests"].iter().any(|end| name == *end || name.ends_with(&format!("_{end}")));
    ends || name.ends_with("testing") || file.contains("/tests/")
}

/// Returns an error if a file has code below its tests, where it is not counted.
fn hidden(file: &str, text: &str) -> Option<String> {
    let mut is_test = false;
    let below = text[without_tests(text).len()..].lines().filter(|line| !line.starts_with([' ', '}', '/']));
    let first = below.filter(|line| !line.is_empty()).find(|line| {
        let was_test = is_test;
        is_test = line.starts_with("#[cfg(") || was_test && line.starts_with("#[");
        !is_test && !was_test
    })?;
    Some(format!(
        "{file}: `{first}` stands below the tests, where it is not counted: move the tests to the end"
    ))
}

/// Returns the text before its module of tests.
fn without_tests(text: &str) -> &str {
    let start = regex(r"(?m)^#\[cfg\((?:all\()?test").find(text).map_or(text.len(), |found| found.start());
    &text[..start]
}

fn code_lines(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// A function: its name, its visibility and qualifiers, its header, and its body.
struct Function<'t> {
    name: &'t str,
    qualifiers: &'t str,
    header: &'t str,
    body: &'t str,
}

fn functions(text: &str) -> Vec<Function<'_>> {
    let header =
        regex(r#"(?m)^[ \t]*((?:pub(?:\([^)]*\))? )?(?:const |unsafe |extern "C" )*)fn ([a-z_0-9]+)"#);
    let mut found = Vec::new();
    for captures in header.captures_iter(text) {
        let (Some(all), Some(qualifiers), Some(name)) = (captures.get(0), captures.get(1), captures.get(2))
        else {
            continue;
        };
        let Some(brace) = text[all.end()..].find('{').map(|at| all.end() + at) else { continue };
        if text[all.end()..brace].contains(';') {
            continue; // without a body
        }
        let mut depth = 0_usize;
        let end = text[brace..].char_indices().find(|&(_, letter)| {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let end = end.map_or(text.len(), |(at, _)| brace + at + 1);
        found.push(Function {
            name: name.as_str(),
            qualifiers: qualifiers.as_str(),
            header: &text[all.start()..brace],
            body: &text[brace..end],
        });
    }
    found
}

fn count(core: &[(String, String)]) -> BTreeMap<String, usize> {
    let of_allocator = regex(r"(?ms)^impl<[^\n]*> Allocator<.*?^\}");
    let takes = regex(r":[ \n]*&(?:'[a-z_]+ )?(?:mut )?(?:Allocator|MachineState)<");
    let verb = regex(r"^(?:alloc|pop|push|free)(?:_|$)");
    let visible = regex(r"pub\((?:crate|in )");
    let call = regex(r"(?-u:\b)([a-z_0-9]+)(?:::<[^>]*>)?\(");
    let (mut public, mut private, mut taking, mut seen) = (0, 0, 0, 0);
    let (mut names, mut bodies, mut defined) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    for (file, text) in core {
        seen += visible.find_iter(text).count();
        let spans: Vec<_> = of_allocator.find_iter(text).map(|found| found.range()).collect();
        for function in functions(text) {
            let at = text.find(function.header).unwrap_or_default();
            if spans.iter().any(|span| span.contains(&at)) {
                *if function.qualifiers.starts_with("pub ") { &mut public } else { &mut private } += 1;
            } else {
                taking += usize::from(takes.is_match(function.header));
            }
            if verb.is_match(function.name) {
                names.insert(function.name);
            }
            *defined.entry(function.name).or_insert(0) += 1;
            if !file.contains("/buddy/") {
                let calls: &mut BTreeSet<&str> = bodies.entry(function.name).or_default();
                calls.extend(call.captures_iter(function.body).map(|found| found.extract::<1>().1[0]));
            }
        }
    }
    let numbers = [
        ("code", core.iter().map(|(_, text)| code_lines(text)).sum()),
        (
            "files_in_alloc",
            core.iter().filter(|(file, _)| file.starts_with("crates/zonal/src/alloc/")).count(),
        ),
        ("methods_public", public),
        ("methods_private", private),
        ("taking_the_allocator", taking),
        ("names", names.len()),
        ("visible", seen),
        ("ways", reachable(&bodies, &defined)),
    ];
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

/// Returns the number of functions that `alloc` and `free` reach. Names that several functions have, as `get`, are left out.
fn reachable(bodies: &BTreeMap<&str, BTreeSet<&str>>, defined: &BTreeMap<&str, usize>) -> usize {
    let roots = ["alloc", "free"];
    let (mut seen, mut next) = (BTreeSet::new(), roots.to_vec());
    while let Some(name) = next.pop() {
        let Some(calls) = bodies.get(name) else { continue };
        let is_common = defined.get(name).is_some_and(|&count| count > 2) && !roots.contains(&name);
        if !is_common && seen.insert(name) {
            next.extend(calls);
        }
    }
    seen.len()
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! Header.

impl<P: Platform> Allocator<'_, P> {
    /// Allocates.
    pub fn alloc(&self) -> u8 {
        self.pop_first(1)
    }

    pub(super) fn pop_first(&self, _: u8) -> u8 {
        refill::<P>(self) // in the text
    }
}

pub(crate) fn refill<P>(allocator: &Allocator<'_, P>) -> u8 {
    allocator.get()
}

#[cfg(test)]
mod tests {
    fn free_never() {}
}
";

    #[test]
    fn functions_and_calls_are_counted() {
        let core = [("crates/zonal/src/alloc/mod.rs".to_owned(), without_tests(TEXT).to_owned())];
        let counted = count(&core);
        let of = |name: &str| counted[name];
        assert_eq!((of("code"), of("files_in_alloc")), (11, 1));
        assert_eq!((of("methods_public"), of("methods_private"), of("taking_the_allocator")), (1, 1, 1));
        assert_eq!((of("names"), of("visible"), of("ways")), (2, 1, 3));
    }

    #[test]
    fn numbers_may_only_fall() {
        let of = |number| BTreeMap::from([("code".to_owned(), number)]);
        assert!(compare(&of(5), &of(5)).is_empty());
        assert!(compare(&of(5), &of(6))[0].starts_with("code: 6, more than the 5"));
        assert!(compare(&of(5), &of(4))[0].ends_with("lower it there"));
        assert_eq!(compare(&BTreeMap::new(), &of(4)).len(), 1);
        assert_eq!(compare(&of(4), &BTreeMap::new()).len(), 1);
    }

    #[test]
    fn the_page_shows_what_was_counted() {
        let names = ROWS.iter().flat_map(|row| row.1);
        let counted: BTreeMap<_, _> = names.map(|name| ((*name).to_owned(), 1234)).collect();
        let row = |(begin, names): &(&str, &[&str])| {
            format!("| {begin} of it | 9 | {} | 5 |\n", vec!["1 234"; names.len()].join(", "))
        };
        let page: String = ROWS.iter().map(row).collect();
        assert_eq!(stale_rows(&page, &counted), [""; 0]);
        let stale = stale_rows(&page.replacen("1 234", "1 235", 1), &counted);
        assert!(stale.len() == 1 && stale[0].contains("`lines of code`"), "{stale:?}");
        assert_eq!(stale_rows("", &counted).len(), ROWS.len());
    }

    #[test]
    fn code_below_tests_is_found() {
        let tests = "#[cfg(test)]\nextern crate std;\n#[cfg(test)]\n#[allow(dead_code)]\nmod tests {\n    fn f() {}\n}\n";
        assert_eq!(hidden("a.rs", &format!("fn f() {{}}\n\n{tests}")), None);
        for below in ["fn g() {\n}\n", "\n#[inline]\npub struct S;\n"] {
            let found = hidden("a.rs", &format!("{tests}{below}")).unwrap();
            assert!(found.starts_with("a.rs: `") && found.contains("not counted"), "{found}");
        }
    }

    #[test]
    fn tests_are_left_out() {
        let tests = ["a/tests/b.rs", "a/test.rs", "a/tests.rs", "a/of_tests.rs", "a/testing.rs"];
        assert!(tests.iter().all(|file| is_test(file)));
        assert!(!is_test("a/contest.rs") && !is_test("a/latest.rs"));
    }
}
