//! The code of the smallest kernel: what `alloc`, `free` and `tick` link, and nothing else.
//!
//! `crates/zonal/bare/src/small.rs` is that kernel. Its code may not grow beyond `kernel_size.toml`, and a smaller size is
//! to be entered there. The program is also run, so that what is measured works.

use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::bare;
use crate::steps::{Outcome, Step, succeeds};

/// The file with the size, in KiB.
const FILE: &str = "xtask/kernel_size.toml";
/// Functions that `--size` prints.
const SHOWN: usize = 25;

/// Returns the step that measures the size; with `list`, it prints the largest functions.
pub(crate) fn step(list: bool) -> Step {
    Step::new("code that the smallest kernel links", move |root| match measure(root, list) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    })
}

fn measure(root: &Path, list: bool) -> Result<(), String> {
    let mut build = bare::cargo(root, ["build"], &["-q", "--profile", "small", "--bin", "zonal-small"]);
    let program = bare::target_folder(root).join("small/zonal-small");
    for call in [&mut build, &mut Command::new(&program)] {
        if let Outcome::Failed(why) | Outcome::Skipped(why) = succeeds(call) {
            return Err(why);
        }
    }
    let read = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let data = read(&program)?;
    let file = object::File::parse(&*data).map_err(|error| format!("{}: {error}", program.display()))?;
    let bytes = file.section_by_name(".text").map_or(0, |code| code.size());
    if list {
        println!("{bytes} bytes of code");
        largest(&file).into_iter().for_each(|(bytes, name)| println!("{bytes:>8}  {name}"));
    }
    let text = String::from_utf8(read(&root.join(FILE))?).map_err(|error| format!("{FILE}: {error}"))?;
    let known: toml::Table = toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?;
    let limit = known.get("code_kib").and_then(toml::Value::as_integer);
    compare(bytes.div_ceil(1024), limit.ok_or_else(|| format!("{FILE} has no `code_kib`"))?)
}

fn compare(kib: u64, limit: i64) -> Result<(), String> {
    match i64::try_from(kib).unwrap_or(i64::MAX).cmp(&limit) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(format!("{kib} KiB, more than the {limit} in {FILE}")),
        std::cmp::Ordering::Less => {
            Err(format!("{kib} KiB, less than the {limit} in {FILE}: lower it there"))
        }
    }
}

/// Returns the largest functions with their sizes.
fn largest(file: &object::File<'_>) -> Vec<(u64, String)> {
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let named = |symbol: object::Symbol<'_, '_>| {
        let name = symbol.name().unwrap_or_default();
        (symbol.size(), format!("{:#}", rustc_demangle::demangle(name)))
    };
    let mut found: Vec<_> = functions.map(named).collect();
    found.sort_by(|one, other| other.cmp(one));
    found.truncate(SHOWN);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_neither_grow_nor_stay_above_what_is_linked() {
        assert_eq!(compare(64, 64), Ok(()));
        assert!(compare(65, 64).unwrap_err().starts_with("65 KiB, more than the 64"));
        assert!(compare(63, 64).unwrap_err().ends_with("lower it there"));
    }
}
