//! Follows the pages about embeddings: runs their commands, the blocks of the language `sh`, in an empty directory, so
//! that the pages cannot become wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::machine::{PASSED, missing_tool};
use crate::steps::{Outcome, Step};

/// The pages, relative to the root.
const PAGES: [&str; 2] = ["docs/embedding.md", "docs/embedding-one-cpu.md"];

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
    let output = Command::new("bash")
        .args(["-euc", &commands(&page)])
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

/// Returns the commands of a page.
fn commands(page: &str) -> String {
    let mut found = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|&line| line != "```");
            block.filter(|_| language == "sh").for_each(|line| found.extend([line, "\n"]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_order() {
        let page = "a\n```sh\ncd x\n```\n```rust\nfn a() {}\n```\n```sh\nls\n```\n```\noutput\n```\n";
        assert_eq!(commands(page), "cd x\nls\n");
    }
}
