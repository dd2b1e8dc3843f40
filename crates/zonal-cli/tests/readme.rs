//! Checks that the sample outputs in the README and in `docs` are the outputs of the commands.
//!
//! A comment before a sample names its command: `<!-- output: ARGUMENTS -->` if the output must be equal, or `<!--
//! measured output: ARGUMENTS -->` if its numbers and units vary. A sample is a part of the output. A line `...` in a
//! sample matches any lines.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments that make the measurements of a command short.
const SHORT: [(&str, &[&str]); 2] = [
    ("run", &["--seconds", "0.05", "--pool", "64MiB"]),
    ("bench", &["--pool", "64MiB", "--seconds", "0.001", "--rounds", "2", "--warm-up", "0.001"]),
];
/// Words that follow a number and depend on its size.
const UNITS: [&str; 17] = [
    "ns", "us", "ms", "s", "k", "M", "G", "T", "KiB", "MiB", "GiB", "thread", "threads", "time", "times",
    "zone", "zones",
];

/// A sample of a page.
#[derive(Debug)]
struct Sample {
    arguments: Vec<String>,
    is_measured: bool,
    lines: Vec<String>,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn samples(page: &str) -> Vec<Sample> {
    let mut lines = page.lines();
    let mut samples = Vec::new();
    while let Some(line) = lines.next() {
        let comment = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
        let command = comment.and_then(|comment| comment.split_once("output: "));
        let Some((kind, arguments)) = command else { continue };
        assert!(["", "measured "].contains(&kind), "{line}");
        let fence = lines.find(|line| !line.is_empty());
        assert!(fence.is_some_and(|fence| fence.starts_with("```")), "no sample after {line}");
        samples.push(Sample {
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            is_measured: kind == "measured ",
            lines: lines.by_ref().take_while(|line| !line.starts_with("```")).map(str::to_owned).collect(),
        });
    }
    samples
}

/// Runs a command in a directory that contains a link to the repository's `crates` and the experiment `mine.toml`.
/// Returns the lines of its output.
fn output(arguments: &[String]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    symlink(workspace().join("crates"), folder.path().join("crates")).unwrap();
    let zonal = |arguments: &[String]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
        let output = command.args(arguments).current_dir(&folder).env_remove("COLUMNS").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "zonal {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    };
    let example = zonal(&["lab", "example"].map(str::to_owned));
    std::fs::write(folder.path().join("mine.toml"), example).unwrap();
    zonal(arguments).lines().map(str::to_owned).collect()
}

/// Returns the words of a line, with `#` in place of each number and without units.
fn shape(line: &str) -> Vec<&str> {
    // The nodes and the placement of a pool depend on the machine, as do the first lines of a check-up.
    let about_machine = ["machine ", "kernel ", "nodes ", "free now ", "advice ", "A program that"];
    let line = match about_machine.iter().find(|label| line.starts_with(*label)) {
        Some(label) => label,
        None if line.contains(" on a pool of ") => line.split(',').next().unwrap_or_default(),
        None => line,
    };
    let mut words: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let is_number = word == "-" || word.contains(|letter: char| letter.is_ascii_digit());
        let is_unit = UNITS.contains(&word.trim_matches([',', ';', '(', ')', ':']));
        match is_number {
            true => words.push("#"),
            false if is_unit && words.last() == Some(&"#") => {}
            false => words.push(word),
        }
    }
    words
}

/// Whether `output` begins with `sample`. A line `...` in the sample matches any lines.
fn stands_first(sample: &[String], output: &[String], is_same: &dyn Fn(&str, &str) -> bool) -> bool {
    match (sample, output) {
        ([], _) => true,
        ([dots, rest @ ..], _) if dots.trim() == "..." => {
            (0..=output.len()).any(|from| stands_first(rest, &output[from..], is_same))
        }
        ([first, sample @ ..], [line, output @ ..]) => {
            is_same(first, line) && stands_first(sample, output, is_same)
        }
        _ => false,
    }
}

fn is_part(sample: &Sample, output: &[String]) -> bool {
    let same_shape = |a: &str, b: &str| shape(a) == shape(b);
    let is_same: &dyn Fn(&str, &str) -> bool = if sample.is_measured { &same_shape } else { &|a, b| a == b };
    (0..output.len()).any(|from| stands_first(&sample.lines, &output[from..], is_same))
}

#[test]
fn samples_are_the_output_of_their_commands() {
    let pages = std::fs::read_dir(workspace().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let pages = pages.chain([workspace().join("README.md")]);
    let samples: Vec<_> = pages.flat_map(|page| samples(&std::fs::read_to_string(page).unwrap())).collect();
    assert!(samples.len() >= 5, "there are samples of run, mechanisms, bench, machine and lab");
    for sample in samples {
        let short = SHORT.iter().find(|(command, _)| {
            sample.is_measured && sample.arguments.first().is_some_and(|first| first == command)
        });
        let short = short.map_or(&[][..], |(_, arguments)| *arguments);
        let arguments: Vec<String> =
            sample.arguments.iter().cloned().chain(short.iter().map(|&word| word.to_owned())).collect();
        let mut output = output(&arguments);
        // Allocators and floors that cannot run on this machine are skipped, with a remark.
        let skipped: Vec<String> =
            output.iter().filter(|line| line.starts_with("skipped on ")).cloned().collect();
        let is_skipped = |line: &String| {
            let name = line.split_whitespace().next().unwrap_or_default();
            name.starts_with("floor-") && skipped.iter().any(|remark| remark.contains(name))
        };
        let sample =
            Sample { lines: sample.lines.into_iter().filter(|line| !is_skipped(line)).collect(), ..sample };
        output.retain(|line| !line.starts_with("skipped on "));
        let command = sample.arguments.join(" ");
        assert!(
            is_part(&sample, &output),
            "the sample of `zonal {command}` is stale:\n{}\n\nthe output is:\n{}",
            sample.lines.join("\n"),
            output.join("\n")
        );
    }
}

#[test]
fn a_changed_label_column_or_number_is_noticed() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let of = |text: &str, is_measured| Sample { arguments: Vec::new(), is_measured, lines: lines(text) };
    let output = lines("head\n  speed  10.4 M pairs/s, 193 ns per pair\n  name  ns\n  a  5\n  b  6");
    for (text, is_measured, expected) in [
        ("  speed  9 k pairs/s, 1.2 us per pair", true, true),
        ("  rate  9 k pairs/s, 1.2 us per pair", true, false),
        ("  speed  9 k pairs/s, 1.2 us each pair", true, false),
        ("  name  ns  max\n  a  5  6", true, false),
        ("  name  ns\n  b  6", true, false),
        ("  name  ns\n  ...\n  b  6", false, true),
        ("  a  5\n  b  6", false, true),
        ("  a  5\n  b  7", false, false),
        ("head\n  name  ns", false, false),
    ] {
        assert_eq!(is_part(&of(text, is_measured), &output), expected, "{text}");
    }
}
