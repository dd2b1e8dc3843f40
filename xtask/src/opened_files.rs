//! Style rule: which sources may open, list, create or rename files.
//!
//! Paths that users name are read by one module, `input.rs` of `zonal-model`, which bounds what it reads and follows no
//! link out of a folder, and written by another one, `output.rs` of `zonal-machine`. A call of the standard library, of `rustix` or the C
//! library elsewhere is a mistake unless the table has a reason for the file.

use std::path::{Component, Path};

use crate::source_code;
use crate::style::Violation;

/// Functions of types that open files. Their names are written in two parts, so that this file passes.
const OPENERS: [(&str, &str); 4] = [
    (concat!("Fi", "le"), "::open"),
    (concat!("Fi", "le"), "::create"),
    (concat!("Fi", "le"), "::options"),
    (concat!("Open", "Options"), "::"),
];
/// Functions of the C library that open, create, rename or remove files. System calls have the same names after `SYS_`.
const FUNCTIONS: [&str; 22] = [
    "creat",
    "fopen",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "mkfifo",
    "mknod",
    "open",
    "openat",
    "openat2",
    "opendir",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "symlink",
    "symlinkat",
    "truncate",
    "unlink",
    "unlinkat",
];

/// The library and command crates, whose sources the rule covers. Programs for development may open what they want.
const CRATES: &[&str] = &[
    "zonal",
    "zonal-adapters",
    "zonal-bench",
    "zonal-c",
    "zonal-cli",
    "zonal-conformance",
    "zonal-history",
    "zonal-lab",
    "zonal-linux",
    "zonal-live",
    "zonal-machine",
    "zonal-malloc",
    "zonal-model",
    "zonal-page",
    "zonal-python",
    "zonal-trace",
    "zonal-workload",
];

/// The sources that may open files, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("zonal-model/src/input.rs", "reads all paths that users name"),
    ("zonal-machine/src/output.rs", "writes all files, and finds those that killed runs left"),
    ("zonal-machine/src/tree_writer.rs", "writes trees"),
    ("zonal-machine/src/old_tree.rs", "looks at a tree that is to be replaced"),
    ("zonal-model/src/capture/kernel_log.rs", "reads /dev/kmsg"),
    ("zonal-lab/src/report/mod.rs", "checks that a folder takes files, with one that it creates and removes"),
    ("zonal-live/src/serve/token.rs", "reads the token, which may be in a pipe, up to a length"),
    ("zonal-cli/src/checkup/report.rs", "reads the name of the processor in /proc"),
    (
        "zonal-cli/src/run/member.rs",
        "opens the descriptor of a pool that the parent process has made, to join it",
    ),
    ("zonal-trace/src/file/reader.rs", "names the type of the opened trace"),
    ("zonal-trace/src/record/reader.rs", "reads ring buffers that `tracefs.rs` opened"),
    ("zonal-trace/src/record/setting.rs", "lists the threads in /proc"),
    ("zonal-trace/src/record/tracefs.rs", "reads and writes the files of tracefs"),
    ("zonal-bench/src/floor/lines.rs", "reads the list of CPUs in /sys"),
    ("zonal-bench/src/kernel_pages/punched.rs", "creates a file in memory, and punches holes into it"),
    ("zonal-machine/src/state/whole_blocks.rs", "reads /proc/kpageflags in parts, at the positions of zones"),
    ("zonal-linux/src/publish/answer.rs", "reads the name of the program in /proc"),
    ("zonal-linux/src/publish/socket.rs", "removes its own socket and that of a program that has ended"),
    ("zonal-linux/src/topology/limits.rs", "reads limits of control groups in /proc and /sys"),
    ("zonal-linux/src/topology/live.rs", "reads the nodes in /sys"),
    ("zonal-linux/src/memory/huge_pages.rs", "reads reserves in /sys"),
    ("zonal-linux/src/memory/residency.rs", "reads /proc/self/smaps"),
    (
        "zonal-linux/src/memory/pool_file.rs",
        "makes and opens the file of a shared pool, and opens it again by its descriptor",
    ),
    ("zonal-linux/src/memory/page_sizes.rs", "asks for the file system of an open file"),
    ("zonal-malloc/src/limits.rs", "reads the size of the process in /proc"),
    ("zonal-malloc/src/options.rs", "reads when the process began in /proc"),
    ("zonal-malloc/src/report.rs", "appends the report to a file that the user names"),
];

/// Checks a source, given as its path below the root.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Violation> {
    let Ok(below) = file.strip_prefix("crates") else { return Vec::new() };
    let name = below.to_string_lossy();
    let is_covered = CRATES.iter().any(|one| below.starts_with(Path::new(one).join("src")));
    if !is_covered || is_test(below) {
        return Vec::new();
    }
    let code = code_of(text);
    let mut found = (1..).zip(code.lines()).filter(|(_, line)| opens(line)).peekable();
    if ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
        let unused = (1, "opens no files; remove it from `opened_files.rs`".to_owned());
        return found.peek().is_none().then_some(unused).into_iter().collect();
    }
    let what = "files are opened by `zonal_model::input` and `zonal_machine::output`, or the source is in `opened_files.rs` with a reason";
    found.map(|(number, _)| (number, what.to_owned())).collect()
}

/// Where the tests at the end of a source begin.
pub(crate) const TESTS: &str = "\n#[cfg(test)]\nmod tests {";

/// Returns a source without texts, comments and the tests at its end; lines keep their numbers.
pub(crate) fn code_of(text: &str) -> String {
    source_code::without_texts(text.split_once(TESTS).map_or(text, |(code, _)| code))
}

/// Whether a source has only tests: `tests.rs`, `NAME_tests.rs`, or one in a folder `tests`.
pub(crate) fn is_test(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let is_folder = |part: Component<'_>| part.as_os_str() == "tests";
    stem == "tests" || stem.ends_with("_tests") || file.components().any(is_folder)
}

/// Whether a line without texts and comments names something that opens files: a module `fs`, except those of traits in
/// `std::os`, a function of a type that opens files, or one of the C library.
fn opens(line: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let is_import = line.trim_start().contains(concat!("use ", "libc::"));
    line.split(|letter: char| !is_part(letter)).filter(|word| !word.is_empty()).any(|word| {
        // The place of the word in the line.
        let before = &line[..word.as_ptr() as usize - line.as_ptr() as usize];
        let after = &line[before.len() + word.len()..];
        let function = word.strip_prefix("SYS_").unwrap_or(word);
        match word {
            "fs" => !["os::unix::", "os::linux::", "os::fd::"].iter().any(|path| before.ends_with(path)),
            _ if OPENERS.iter().any(|&(name, end)| name == word && after.starts_with(end)) => true,
            _ => FUNCTIONS.contains(&function) && (is_import || before.ends_with("libc::")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_open_files_are_found_outside_the_table() {
        let text = "//! A source.\n    fs::write(path)?;\n";
        let check = |file: &str| check(Path::new(file), text);
        for source in ["run.rs", "latests.rs", "tests_of_users.rs"] {
            let found = check(&format!("crates/zonal-cli/src/{source}"));
            assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2], "{source}");
        }
        let unused = super::check(Path::new("crates/zonal-machine/src/output.rs"), "//! A source.\n");
        assert!(unused[0].1.contains("remove it"), "{unused:?}");
        for allowed in [
            "crates/zonal-machine/src/output.rs",
            "crates/zonal-cli/tests/run.rs",
            "crates/zonal-cli/src/run/tests.rs",
            "crates/zonal-cli/src/run_tests.rs",
            "xtask/src/deb.rs",
        ] {
            assert_eq!(check(allowed), [], "{allowed}");
        }
    }

    #[test]
    fn every_way_to_open_a_file_is_found() {
        let is_found = |line: &str| {
            let text = format!("//! A source.\n{line}\n");
            !check(Path::new("crates/zonal-bench/src/run.rs"), &text).is_empty()
        };
        for line in [
            "use std::fs::{read_to_string};",
            "use std::{fs::read_to_string, io};",
            "use std::fs as files;",
            "use rustix::fs::open;",
            "let file = rustix::fs::open(path, flags, mode)?;",
            "unsafe { libc::open(path, 0) };",
            "unsafe { libc::syscall(libc::SYS_openat, path) };",
            "use libc::{openat, c_int};",
            "let url = \"http://x\"; let file = File::open(url);",
            "let quote = '\"'; let file = OpenOptions::new();",
            "let text = std::fs::read_to_string(file)?;",
        ] {
            assert!(is_found(line), "{line}");
        }
        for line in [
            "use std::os::unix::fs::FileTypeExt;",
            "// std::fs::read(path)",
            "let text = \"std::fs::read(path)\";",
            "/* fs::read */ let open = valve.open();",
            "let SourceError::File { path, why } = error;",
            "files.push(File::default());",
            "#[cfg(test)]\nmod tests {\n    use std::fs;",
        ] {
            assert!(!is_found(line), "{line}");
        }
    }

    /// A crate that is linked into a covered one is covered, too.
    #[test]
    fn dependencies_of_covered_crates_are_covered() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        for one in CRATES {
            let manifest = std::fs::read_to_string(crates.join(one).join("Cargo.toml")).unwrap();
            let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
            for line in
                lines.take_while(|line| !line.starts_with('[')).filter(|line| line.starts_with("zonal"))
            {
                let name = line.split(['.', ' ', '=']).next().unwrap();
                assert!(CRATES.contains(&name), "{one} depends on {name}");
            }
        }
    }
}
