//! Style rules that no compiler checks, tested on the text of every file.
//!
//! Files begin with `//!` and have at most [`LINES_MAX`] lines. They contain no notes of unfinished work and no
//! machine-specific paths. Unsafe code needs a reason: clippy checks only the code of this target, and these rules
//! check all of it. The compiler and clippy check function lengths and missing documentation. Related files:
//! `opened_files.rs` has the rule for files that programs open, `started_threads.rs` that for threads, `test_calls.rs`
//! that for calls in tests, and `arrows.rs` checks dependencies.

use std::path::{Path, PathBuf};

use crate::opened_files;
use crate::started_threads;
use crate::test_calls;
use walkdir::WalkDir;

/// Maximum length of a file in lines. The goal is about 500 lines.
const LINES_MAX: usize = 520;
/// Maximum length of a `//!` header in lines.
const HEADER_LINES_MAX: usize = 20;
/// Maximum distance in lines between an unsafe block and its reason above.
const REASON_LINES_MAX: usize = 10;

/// Words for unfinished work. They are written in two parts here and below, so that this file passes.
const UNDONE: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
/// A skip that is only printed, so that libtest hides it.
const HIDDEN_SKIP: &str = concat!("println!(\"", "SKIPPED");
/// A predictable name in a folder to which all users can write. Another user may have created a link of that name.
const GUESSED: &str = concat!("temp_dir()", ".join(");
/// Prefixes of paths that exist only on one machine.
const ELSEWHERE: [&str; 4] =
    [concat!("../", "shared"), concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
const UNSAFE: [&str; 4] = [
    concat!("unsafe", " {"),
    concat!("unsafe", " impl"),
    concat!("unsafe", " extern"),
    concat!("unsafe", "("),
];

/// Returns every violation of a rule in the workspace, as `file:line: what`.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let sources = sources(root);
    for file in texts(root) {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        let mut wrong = if is_rust { check_source(&text) } else { check_text(&text) };
        if is_rust {
            wrong.extend(opened_files::check(&file, &text));
            wrong.extend(started_threads::check(&file, &text));
            wrong.extend(missing_files(&text, &sources));
        }
        wrong.extend(test_calls::check(&file, &text));
        found.extend(wrong.iter().map(|(line, what)| format!("{}:{line}: {what}", file.display())));
    }
    found
}

/// Returns the Rust sources, as paths below the root, in order.
pub(crate) fn sources(root: &Path) -> Vec<PathBuf> {
    texts(root).into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs")).collect()
}

/// Returns all files except build output, version control and lock files.
pub(crate) fn texts(root: &Path) -> Vec<PathBuf> {
    let walk = WalkDir::new(root).sort_by_file_name().into_iter();
    let kept = walk.filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        !matches!(&*name, "target" | ".git" | "Cargo.lock")
    });
    let files = kept.flatten().filter(|entry| entry.file_type().is_file());
    files.filter_map(|entry| entry.path().strip_prefix(root).ok().map(Path::to_path_buf)).collect()
}

pub(crate) type Violation = (usize, String);

/// Checks the rules for every text file.
fn check_text(text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for word in UNDONE.iter().filter(|word| has_word(line, word)) {
            found.push((number, format!("`{word}`: resolve or remove it")));
        }
        for path in ELSEWHERE.iter().filter(|path| line.contains(*path)) {
            found.push((number, format!("`{path}` is a machine-specific path")));
        }
    }
    found
}

/// Checks the rules for Rust sources.
fn check_source(text: &str) -> Vec<Violation> {
    let mut found = check_text(text);
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > LINES_MAX {
        found.push((lines.len(), format!("{} lines; a file has at most {LINES_MAX}", lines.len())));
    }
    match header_lines(&lines) {
        0 => found.push((1, "a file begins with `//!`: purpose, vocabulary, neighbours".into())),
        long if long > HEADER_LINES_MAX => {
            found.push((1, format!("header of {long} lines, at most {HEADER_LINES_MAX}")));
        }
        _ => {}
    }
    for (at, line) in lines.iter().enumerate() {
        if line.contains(HIDDEN_SKIP) {
            found.push((at + 1, "a printed skip is not counted: use `zonal_testing::skipped!`".into()));
        }
        if line.contains(GUESSED) {
            found.push((at + 1, "the name can be guessed and replaced by a link: use `tempfile`".into()));
        }
        let above = &lines[at.saturating_sub(REASON_LINES_MAX)..=at];
        if is_unsafe(line) && !above.iter().any(|line| line.contains("SAFETY:")) {
            found.push((at + 1, "unsafe without a `SAFETY:` comment above it".into()));
        }
    }
    found
}

/// Returns the sources that comments name, in backticks, although there is no such file.
fn missing_files(text: &str, sources: &[PathBuf]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//")) {
        let quoted = line.split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| name.ends_with(".rs")) {
            let name = name.trim_start_matches("../");
            let is_name = !name.contains(|of: char| of.is_uppercase() || " *<".contains(of));
            if is_name && !sources.iter().any(|source| source.ends_with(name)) {
                found.push((number, format!("there is no file `{name}`")));
            }
        }
    }
    found
}

/// Returns the number of `//!` header lines up to its first heading, without examples. Sections with headings are the
/// documentation page of a crate, and examples are tested code.
fn header_lines(lines: &[&str]) -> usize {
    let header = lines.iter().take_while(|line| line.starts_with("//!") && !line.starts_with("//! # "));
    let mut in_example = false;
    let counted = header.filter(|line| {
        let is_fence = line.starts_with("//! ```");
        in_example ^= is_fence;
        !in_example && !is_fence
    });
    counted.count()
}

/// Whether the line's code, excluding comments and quoted text, has an unsafe block, implementation, foreign
/// block or attribute.
pub(crate) fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    UNSAFE.iter().any(|form| {
        code.match_indices(form).any(|(at, _)| {
            let before = &code[..at];
            let whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            whole && before.matches('"').count().is_multiple_of(2)
        })
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let part_of = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !part_of(line[..at].chars().next_back()) && !part_of(line[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_comments_name_exist() {
        let sources = [PathBuf::from("crates/zonal/src/alloc/mod.rs"), PathBuf::from("xtask/src/style.rs")];
        assert!(
            missing_files("//! See `alloc/mod.rs`, `style.rs`, `*.rs`.\nlet a = \"`no.rs`\";\n", &sources)
                .is_empty()
        );
        let gone = missing_files("fn f() {}\n    /// As `scan.rs` and `loc/mod.rs`.\n", &sources);
        let expected = ["scan.rs", "loc/mod.rs"].map(|name| (2, format!("there is no file `{name}`")));
        assert_eq!(gone, expected);
    }

    const NONE: [usize; 0] = [];

    fn complaints(text: &str) -> Vec<usize> {
        check_source(text).iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn a_valid_file_passes() {
        let text =
            "//! Purpose.\n\n// SAFETY: nothing is touched.\nunsafe { nothing() };\nlet unsafe_name = 1;\n";
        assert_eq!(complaints(text), NONE);
    }

    #[test]
    fn header_and_length() {
        assert_eq!(complaints("use core::fmt;\n"), [1]);
        assert_eq!(complaints(&"//! line\n".repeat(HEADER_LINES_MAX + 1)), [1]);
        let example = format!("//! ```\n{}//! ```\n", "//! let a = 1;\n".repeat(HEADER_LINES_MAX));
        assert_eq!(complaints(&format!("//! Purpose.\n{example}//! More.\n")), NONE);
        let page = format!("//! Purpose.\n//!\n//! # Sizes\n{}", "//! line\n".repeat(HEADER_LINES_MAX));
        assert_eq!(complaints(&page), NONE);
        let long = format!("//! Purpose.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(complaints(&long), [LINES_MAX + 1]);
    }

    #[test]
    fn undone_work_and_private_paths() {
        for word in UNDONE {
            assert_eq!(complaints(&format!("//! Purpose.\n// {word}: later\n")), [2]);
            assert_eq!(complaints(&format!("//! Purpose.\nlet {word}_LIST = 1;\n")), NONE);
        }
        for path in ELSEWHERE {
            assert_eq!(complaints(&format!("//! Purpose.\n// see {path}x\n")), [2]);
        }
    }

    #[test]
    fn skips_go_where_the_summary_finds_them() {
        assert_eq!(complaints(&format!("//! Purpose.\ne{HIDDEN_SKIP}: why\");\n")), [2]);
        assert_eq!(complaints("//! Purpose.\nskipped!(\"why\");\n"), NONE);
    }

    #[test]
    fn temporary_files_have_names_that_cannot_be_guessed() {
        assert_eq!(complaints(&format!("//! Purpose.\nlet f = std::env::{GUESSED}\"f\");\n")), [2]);
        assert_eq!(complaints("//! Purpose.\nlet f = tempfile::tempdir();\n"), NONE);
    }

    #[test]
    fn unsafe_needs_its_reason_near() {
        for form in UNSAFE {
            assert_eq!(complaints(&format!("//! Purpose.\n{form}x\n")), [2], "{form}");
            assert_eq!(complaints(&format!("//! Purpose.\n// SAFETY: why\n{form}x\n")), NONE);
            assert_eq!(complaints(&format!("//! Purpose.\n// {form}x\nlet s = \"{form}\";\n")), NONE);
            let far = "\n".repeat(REASON_LINES_MAX);
            assert_eq!(complaints(&format!("//! Purpose.\n// SAFETY: why{far}\n{form}x\n")).len(), 1);
        }
    }

    #[test]
    fn this_workspace_is_walked() {
        let files = sources(&crate::workspace_root());
        assert!(files.contains(&PathBuf::from("xtask/src/style.rs")));
        assert!(!files.iter().any(|file| file.starts_with("target")));
    }
}
