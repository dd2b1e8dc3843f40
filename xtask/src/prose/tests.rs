//! Tests with small texts that have one violation each.

use std::path::Path;

use super::subjects::Subjects;
use super::{Rules, read};

fn rules() -> Rules {
    Rules::new(&read(&crate::workspace_root()).unwrap()).unwrap()
}

/// Returns the lines with violations in a file of this name. Each line is returned once.
fn lines(file: &str, text: &str) -> Vec<usize> {
    let mut lines: Vec<usize> =
        rules().check(Path::new(file), text).unwrap().iter().map(|(line, _)| *line).collect();
    lines.dedup();
    lines
}

/// Returns the lines with violations in a source of a crate.
fn in_source(text: &str) -> Vec<usize> {
    lines("crates/zonal/src/new.rs", text)
}

const NONE: [usize; 0] = [];

/// Text with a banned word, in parts, so that this file passes.
const BANNED: [&str; 14] = [
    concat!("the seat", "s of CPUs"),
    concat!("VIR", "GIN frames"),
    concat!("a withh", "eld copy"),
    concat!("the boo", "ks balance"),
    concat!("mis", "used blocks"),
    concat!("car", "ved from a zone"),
    concat!("it lets", " go of a block"),
    concat!("no", "body sees it"),
    concat!("some", "body frees it"),
    concat!("those", " who wait"),
    concat!("all but", " for one"),
    concat!("it lies", " not in a zone"),
    concat!("the CPU is", " told of it"),
    concat!("it is free, for", " it was drained"),
];

#[test]
fn a_valid_file_passes() {
    let text = "//! Home-made, homeless; not told apart from those of whole zones.\n\n/// Returns who owns it.\nfn owner() {}\n";
    assert_eq!(in_source(&text.replace("Home-made", "Self-made").replace("not told", "kept")), NONE);
}

#[test]
fn banned_words_are_found_in_comments_strings_and_markdown() {
    for banned in BANNED {
        assert_eq!(in_source(&format!("//! Purpose.\n\n// Now {banned}.\nfn f() {{}}\n")), [3], "{banned}");
        assert_eq!(in_source(&format!("//! Purpose.\n\nfn f() {{}} // {banned}\n")), [3], "{banned}");
        assert_eq!(in_source(&format!("//! Purpose.\n\n/* {banned} */\nfn f() {{}}\n")), [3], "{banned}");
        assert_eq!(in_source(&format!("//! Purpose.\n\n/// Does: {banned}\nfn f() {{}}\n")), [3], "{banned}");
        let code = format!("//! Purpose.\nfn f() {{\n    print!(\"{banned}\");\n}}\n");
        assert_eq!(in_source(&code), [3], "{banned}");
        assert_eq!(lines("docs/new.md", &format!("# Title\n\nSay that {banned}.\n")), [3], "{banned}");
    }
}

#[test]
fn phrases_are_found_across_lines() {
    let (first, second) = (concat!("// all those", "\n"), "// who wait\n");
    assert_eq!(in_source(&format!("//! Purpose.\n{first}{second}fn f() {{}}\n")), [2]);
    let text = format!("All of those{}who wait.\n", "\n");
    assert_eq!(lines("README.md", &text), [1]);
    let apart = format!("//! Purpose.\n{first}fn f() {{}}\n{second}");
    assert_eq!(in_source(&apart), NONE);
}

#[test]
fn code_and_strings_of_tests_are_not_prose() {
    let banned = BANNED[7];
    let test = format!("#[cfg(test)]\nmod tests {{\n    const A: &str = \"{banned}\";\n}}\n");
    assert_eq!(in_source(&format!("//! Purpose.\n{test}")), NONE);
    assert_eq!(
        lines("crates/zonal/tests/new.rs", &format!("//! Purpose.\nconst A: &str = \"{banned}\";\n")),
        NONE
    );
    // Comments of tests are prose.
    assert_eq!(
        in_source(&test.replace("    const", "    // {banned}\n    const").replace("{banned}", banned)),
        [3]
    );
}

#[test]
fn names_are_found_as_words() {
    for name in [
        concat!("withh", "eld_blocks"),
        concat!("Home", "Zone"),
        concat!("VIR", "GIN"),
        concat!("let", "_go"),
    ] {
        assert_eq!(in_source(&format!("//! Purpose.\nconst {name}: u32 = 0;\n")), [2], "{name}");
    }
    assert_eq!(in_source("//! Purpose.\nconst HOMOGENEOUS: u32 = 0;\n"), NONE);
}

#[test]
fn terms_of_the_field_are_allowed_in_files_of_the_table() {
    let text = format!("The {} node of a line.\n", concat!("ho", "me"));
    assert_eq!(lines("docs/lab.md", &text), NONE);
    assert_eq!(lines("docs/performance.md", &text), [1]);
    let text = format!("//! The {} node of a line.\n", concat!("ho", "me"));
    assert_eq!(lines("crates/zonal-lab/src/sim/coherence.rs", &text), NONE);
}

#[test]
fn summaries_begin_with_a_verb_in_the_third_person() {
    let with = |summary: &str| format!("//! Purpose.\n\nimpl S {{\n    /// {summary}\n    fn f() {{}}\n}}\n");
    for summary in [
        "Returns a block.",
        "Allocates, and frees.",
        "Whether a block is free.",
        "Maps.",
        "Blocks the thread.",
    ] {
        assert_eq!(in_source(&with(summary)), NONE, "{summary}");
    }
    for summary in [
        "Return a block.",
        "Gives a block.",
        "Tells of a block.",
        "Compute a block.",
        "A block.",
        "Frames of a block.",
        "Blocks of a thread.",
        "How many blocks.",
        "returns a block.",
        "Process a block.",
        "# Errors",
    ] {
        assert_eq!(in_source(&with(summary)), [4], "{summary}");
    }
    let free = |attribute: &str| format!("//! Purpose.\n\n{attribute}\n/// A block.\npub fn f() {{}}\n");
    assert_eq!(in_source(&free("")), [4]);
    assert_eq!(in_source(&free("#[cfg(test)]")), NONE);
    assert_eq!(in_source("//! Purpose.\n\ntrait T {\n    /// A block.\n    fn f();\n}\n"), [4]);
    assert_eq!(in_source("//! Purpose.\n\n/// A block.\nstruct S;\n"), NONE);
}

#[test]
fn summaries_of_tests_have_no_weak_verb() {
    let with = |summary: &str| format!("//! Purpose.\n\n/// {summary}\nfn f() {{}}\n");
    assert_eq!(lines("crates/zonal/tests/new.rs", &with("A machine of two nodes.")), NONE);
    assert_eq!(lines("crates/zonal/tests/new.rs", &with("Gives a machine.")), [3]);
}

#[test]
fn subjects_are_imperative_and_short() {
    let subjects = Subjects::new(&read(&crate::workspace_root()).unwrap()).unwrap();
    let wrong = |subject: &str| subjects.violations(&format!("0123abc {subject}")).len();
    for subject in
        ["Add a check", "Pass flags on", "Embed the core", "Process a list", "Name things", "Fix `a`"]
    {
        assert_eq!(wrong(subject), 0, "{subject}");
    }
    let long = format!("Add {}", "x".repeat(69));
    for subject in [
        "Adds a check",
        "Added a check",
        "Adding a check",
        "add a check",
        "Add a check.",
        "The check",
        &long,
        "Fixes a bug",
        "Core: fix a bug",
    ] {
        assert_eq!(wrong(subject), 1, "{subject}");
    }
    assert_eq!(wrong(&long[..72]), 0);
    assert_eq!(subjects.violations("a Add\nb Adds\nc Fixed.\n").len(), 3);
}

#[test]
fn rules_that_are_not_valid_are_errors() {
    let error = |text: &str| Rules::new(&text.parse().unwrap()).err().unwrap();
    assert!(error("").contains("[[word]]"));
    assert!(error("[[word]]\nfind = 'a'").contains("`use`"));
    assert!(error("[[word]]\nfind = '('\nuse = 'b'").contains("`(`"));
    assert!(error("[[word]]\nfind = 'a'\nuse = 'b'\nin = 'c'").contains("`c`"));
    assert!(error("[[word]]\nfind = 'a'\nuse = 'b'\nexcept = [{ at = 'c' }]").contains("`why`"));
    assert!(error("[[word]]\nfind = 'a'\nuse = 'b'").contains("summaries"));
}

#[test]
fn a_source_that_is_not_rust_is_an_error() {
    assert!(rules().check(Path::new("a.rs"), "//! Purpose.\nfn f( {}\n").is_err());
}
