//! Follows the pages about embeddings: runs their commands and builds their files in an empty directory, so that the
//! pages cannot become wrong.
//!
//! A block of the language `sh` is run by a shell. A block of the language `rust` after a line such as `` `src/main.rs`: ``
//! is written to that file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::machine::{PASSED, missing_tool};
use crate::steps::{Outcome, Step};

/// The pages, relative to the root.
const PAGES: [&str; 2] = ["docs/embedding.md", "docs/embedding-one-cpu.md"];

/// A block of the page.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    /// Commands for a shell.
    Run(String),
    /// A file with its text.
    Write(String, String),
}

/// Returns a step for each page, which is skipped or fails if QEMU is missing.
pub(super) fn steps(missing: fn(String) -> Outcome) -> impl Iterator<Item = Step> {
    PAGES.into_iter().map(move |page| {
        Step::new(format!("kernel of {page}"), move |root| match missing_tool() {
            Some(tool) => missing(tool),
            None => follow(root, page).map_or_else(Outcome::Failed, |()| Outcome::Passed),
        })
    })
}

fn follow(root: &Path, name: &str) -> Result<(), String> {
    let page = fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
    // Not below the root, where the new package would become a part of the workspace.
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let root = std::path::absolute(root).map_err(|error| format!("{}: {error}", root.display()))?;
    // One shell runs all commands, because the first block changes the directory.
    let script = script(&blocks(&page).map_err(|error| format!("{name}: {error}"))?);
    let output = Command::new("bash")
        .args(["-euc", &script])
        .current_dir(folder.path())
        .env("ZONAL", root)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("bash does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let ends = ["passed".to_owned(), format!("status {PASSED}")];
    let mut last = text.lines().rev().map(|line| line.trim_end_matches('\r')).filter(|line| !line.is_empty());
    if output.status.success() && ends.iter().rev().all(|end| last.next() == Some(end)) {
        return Ok(());
    }
    Err(format!("it does not end with {}: {}", ends.join(" and "), String::from_utf8_lossy(&output.stderr)))
}

/// Returns a script that does what the blocks say.
fn script(blocks: &[Block]) -> String {
    let step = |block: &Block| match block {
        Block::Run(commands) => commands.clone(),
        Block::Write(file, text) => format!("cat > '{file}' <<'END OF FILE'\n{text}END OF FILE\n"),
    };
    blocks.iter().map(step).collect()
}

/// Returns the blocks of a page.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let (mut found, mut file) = (Vec::new(), None);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: String =
                lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            match (language, file.take()) {
                ("sh", _) => found.push(Block::Run(text)),
                ("rust", Some(file)) => found.push(Block::Write(file, text)),
                ("rust", None) => return Err("a block of code has no file above it".to_owned()),
                _ => {}
            }
        } else if let Some(path) = line.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:")) {
            file = Some(path.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_files_are_found_in_order() {
        let page = "a\n```sh\ncd x\n```\n`src/a.rs`:\n\n```rust\nfn a() {}\n```\n```\noutput\n```\n";
        let run = Block::Run("cd x\n".to_owned());
        let write = Block::Write("src/a.rs".to_owned(), "fn a() {}\n".to_owned());
        assert_eq!(blocks(page).unwrap(), [run, write]);
        assert!(blocks("```rust\nx\n```\n").unwrap_err().contains("no file"));
    }
}
