//! Runs that check nothing fail, for every program of this crate that chooses what it checks.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Arguments of several runs.
type Runs = &'static [&'static [&'static str]];

/// Programs with arguments that choose nothing.
const PROGRAMS: [(&str, Runs); 7] = [
    (
        env!("CARGO_BIN_EXE_deaths"),
        &[&["--only", "no-such-operation"], &["--worlds", "--only", "NoSuchOperation"]],
    ),
    (env!("CARGO_BIN_EXE_exhaust"), &[]), // checks nothing: it uses up memory
    (env!("CARGO_BIN_EXE_guest"), &[&["no-such-check"]]),
    (env!("CARGO_BIN_EXE_lift"), &[&[], &["/dev/null"]]),
    (env!("CARGO_BIN_EXE_proof"), &[]), // proves the whole table
    (env!("CARGO_BIN_EXE_soak"), &[&["--processes", "2", "--minutes", "0"]]),
    (env!("CARGO_BIN_EXE_stress"), &[&["1", "0"]]),
];

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn runs_that_check_nothing_fail() {
    let name = |path: &str| Path::new(path).file_stem().unwrap().to_string_lossy().into_owned();
    let programs: BTreeMap<_, _> = PROGRAMS.map(|(path, runs)| (name(path), (path, runs))).into();
    let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin")).unwrap();
    for source in sources {
        let source = source.unwrap().path();
        let (path, runs) = programs[&name(source.to_str().unwrap())];
        for run in runs {
            let ran = Command::new(path).args(*run).output().unwrap();
            let complaint = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.code().is_some_and(|code| code > 0), "{path} {run:?}: {ran:?}");
            assert!(!complaint.contains("panicked"), "{path} {run:?}: {complaint}");
        }
    }
}
