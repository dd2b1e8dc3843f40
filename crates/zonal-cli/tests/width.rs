//! Checks that the output fits the width given by `COLUMNS`, and that its width is not limited if it goes to a pipe.

use std::path::Path;
use std::process::Command;

/// Commands whose lines fit into 40 columns. None of them prints a path or another word that is longer.
const COMMANDS: [&[&str]; 20] = [
    &["machine", "--preset", "quad-10-12-32"],
    &["machine", "--preset", "quad-10-12-32", "--rules", "5.10"],
    &["machine", "--preset", "mesh64"],
    &["lab", "list"],
    &[
        "run",
        "pair",
        "--threads",
        "1",
        "--seconds",
        "0.01",
        "--pool",
        "64MiB",
        "--fake-nodes",
        "4",
        "--verbose",
    ],
    &[
        "bench",
        "pair",
        "--peer",
        "none",
        "--pool",
        "64MiB",
        "--seconds",
        "0.001",
        "--rounds",
        "1",
        "--warm-up",
        "0.001",
    ],
    &["bench", "figures", "metadata"],
    &["mechanisms", "M5"],
    &["--help"],
    &["run", "--help"],
    &["machine", "--help"],
    &["bench", "--help"],
    &["bench", "figures", "--help"],
    &["lab", "--help"],
    &["lab", "list", "--help"],
    &["lab", "run", "--help"],
    &["mechanisms", "--help"],
    &["man", "--help"],
    &["top", "--help"],
    &["top", "--once", "--interval", "0.1"],
];

fn output(arguments: &[&str], columns: Option<usize>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.args(arguments).env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn widest(text: &str) -> &str {
    text.lines().max_by_key(|line| line.chars().count()).unwrap_or_default()
}

#[test]
fn lines_fit_the_requested_width() {
    for arguments in COMMANDS {
        for columns in [40, 80, 200] {
            let text = output(arguments, Some(columns));
            // clap does not wrap the usage line.
            let text =
                text.lines().filter(|line| !line.contains(" [OPTIONS]")).collect::<Vec<_>>().join("\n");
            let line = widest(&text);
            assert!(line.chars().count() <= columns, "{arguments:?} in {columns} columns: {line:?}");
            let is_trimmed = text.lines().all(|line| line.trim_end() == line);
            assert!(is_trimmed || arguments.contains(&"--help"), "{arguments:?}: spaces end a line");
        }
    }
}

#[test]
fn pipes_have_no_limit_and_tables_are_in_one_part() {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal-machine/tests/oracle");
    let file = oracle.join("linux-5.10-quad-10-12-32.json");
    let arguments = ["machine", "--file", file.to_str().unwrap()];
    let text = output(&arguments, None);
    let header =
        "node  zone     managed   min   low   high  reserve  batch  pageset.high (fixed)  stat threshold";
    assert!(text.contains(header), "{text}");
    assert_eq!(output(&arguments, Some(400)), text);
    // Values that are not a width are ignored.
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let ignored = command.args(arguments).env("COLUMNS", "wide").output().unwrap();
    assert_eq!(String::from_utf8(ignored.stdout).unwrap(), text);
}

#[test]
fn narrow_tables_lose_no_value() {
    let arguments = ["machine", "--preset", "quad-10-12-32"];
    let words = |text: &str| {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        words.sort_unstable();
        words.dedup();
        words
    };
    assert_eq!(words(&output(&arguments, Some(40))), words(&output(&arguments, None)));
}
