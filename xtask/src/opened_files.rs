//! Style rule: which sources may open, list, create or rename files.
//!
//! Paths that users name are read by one module, `input.rs` of `zonal-machine`, which bounds what it reads and follows no
//! link out of a folder, and written by another one, `output.rs`. A call of the standard library elsewhere is a mistake
//! unless the table has a reason for the file.

use std::path::Path;

use crate::style::Violation;

/// Calls that read or write files or folders. They are written in two parts, so that this file passes.
const CALLS: [&str; 11] = [
    concat!("fs::", "read"),
    concat!("fs::", "write("),
    concat!("fs::", "copy("),
    concat!("fs::", "rename("),
    concat!("fs::", "hard_link("),
    concat!("fs::", "create_dir"),
    concat!("fs::", "remove_"),
    concat!("fs::", "set_permissions("),
    concat!("File::", "open("),
    concat!("File::", "create"),
    concat!("File::", "options("),
];
/// The builder by which files are opened in all other ways.
const BUILDER: &str = concat!("OpenOptions::", "new(");

/// The library and command crates, whose sources the rule covers. Programs for development may open what they want.
const CRATES: [&str; 11] = [
    "zonal",
    "zonal-adapters",
    "zonal-c",
    "zonal-cli",
    "zonal-lab",
    "zonal-linux",
    "zonal-live",
    "zonal-machine",
    "zonal-malloc",
    "zonal-page",
    "zonal-python",
];

/// The sources that may open files, with the reason.
const ALLOWED: [(&str, &str); 19] = [
    ("zonal-machine/src/input.rs", "reads all paths that users name"),
    ("zonal-machine/src/output.rs", "writes all files"),
    ("zonal-machine/src/new_names.rs", "finds the files that killed runs left"),
    ("zonal-machine/src/places.rs", "moves what is written to its place"),
    ("zonal-machine/src/tree_writer.rs", "writes trees"),
    ("zonal-machine/src/old_tree.rs", "looks at a tree that is to be replaced"),
    ("zonal-machine/src/capture/kernel_log.rs", "reads /dev/kmsg"),
    ("zonal-lab/src/report/mod.rs", "checks that a folder takes files, with one that it creates and removes"),
    ("zonal-live/src/serve/token.rs", "reads the token, which may be in a pipe, up to a length"),
    ("zonal-cli/src/explain/filled.rs", "reads /proc/zoneinfo"),
    ("zonal-linux/src/publish/answer.rs", "reads the name of the program in /proc"),
    ("zonal-linux/src/publish/socket.rs", "removes its own socket and that of a program that has ended"),
    ("zonal-linux/src/topology/limits.rs", "reads limits of control groups in /proc and /sys"),
    ("zonal-linux/src/topology/live.rs", "reads the nodes in /sys"),
    ("zonal-linux/src/memory/huge_pages.rs", "reads reserves in /sys"),
    ("zonal-linux/src/memory/residency.rs", "reads /proc/self/smaps"),
    ("zonal-malloc/src/limits.rs", "reads the size of the process in /proc"),
    ("zonal-malloc/src/options.rs", "reads when the process began in /proc"),
    ("zonal-malloc/src/report.rs", "appends the report to a file that the user names"),
];

/// Checks a source, given as its path below the root.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Violation> {
    let Ok(below) = file.strip_prefix("crates") else { return Vec::new() };
    let name = below.to_string_lossy();
    let is_covered = CRATES.iter().any(|one| below.starts_with(Path::new(one).join("src")));
    if !is_covered || name.contains("tests") {
        return Vec::new();
    }
    let code = text.lines().take_while(|line| !line.starts_with("mod tests {"));
    let opens = |line: &str| {
        let line = line.split("//").next().unwrap_or_default();
        CALLS.iter().chain([&BUILDER]).any(|call| line.contains(call))
    };
    let mut found = (1..).zip(code).filter(|(_, line)| opens(line)).peekable();
    if ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
        let unused = (1, "opens no files; remove it from `opened_files.rs`".to_owned());
        return found.peek().is_none().then_some(unused).into_iter().collect();
    }
    let what = "files are opened by `zonal_machine::input` and `output`, or the source is in `opened_files.rs` with a reason";
    found.map(|(number, _)| (number, what.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_open_files_are_found_outside_the_table() {
        let text = format!("//! A source.\n    {}path)?;\n", CALLS[1]);
        let check = |file: &str| check(Path::new(file), &text);
        assert_eq!(check("crates/zonal-cli/src/run.rs").len(), 1);
        assert_eq!(check("crates/zonal-cli/src/run.rs")[0].0, 2);
        let unused = super::check(Path::new("crates/zonal-machine/src/output.rs"), "//! A source.\n");
        assert!(unused[0].1.contains("remove it"), "{unused:?}");
        for allowed in
            ["crates/zonal-machine/src/output.rs", "crates/zonal-cli/tests/run.rs", "xtask/src/deb.rs"]
        {
            assert_eq!(check(allowed), [], "{allowed}");
        }
    }
}
