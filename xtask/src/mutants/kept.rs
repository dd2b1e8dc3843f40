//! Stores results of mutants as long as they are valid. Each result belongs to one state of the code.
//!
//! A package's *state* is a hash of everything from which its tests are built: all files of the package and the
//! workspace packages that it uses, `Cargo.toml` and `Cargo.lock`. A result is valid as long as the package of its
//! mutant has the state recorded with the result. After a new test of the lab, for example, only the lab's mutants are
//! tested again. The state does not include the compiler, the machine and other files such as those in `docs`. Related
//! files: `mutants.rs` tests the mutants.
//!
//! Each line in a file of results has a state, a verdict and a mutant name, separated by tabs. Lines without a state
//! are from an older format and are ignored. If their code is known to be unchanged, they can be converted by hand,
//! with the states that `cargo xtask deep around` prints first:
//! `sed -i 's|^[a-z]*\tcrates/zonal-lab/|STATE\t&|' target/mutants-around/SEED.txt`, and likewise for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The packages around the core whose mutants are tested, and the packages that each or its [tests](tests_of) use.
pub(super) const AROUND: [(&str, &[&str]); 5] = [
    (
        "zonal-linux",
        &["zonal", "zonal-conformance", "zonal-history", "zonal-model", "zonal-machine", "zonal-testing"],
    ),
    ("zonal-model", &["zonal", "zonal-history", "zonal-machine", "zonal-testing"]),
    ("zonal-machine", &["zonal", "zonal-history", "zonal-model", "zonal-testing"]),
    ("zonal-workload", &["zonal"]),
    (
        "zonal-lab",
        &[
            "zonal",
            "zonal-conformance",
            "zonal-history",
            "zonal-model",
            "zonal-machine",
            "zonal-page",
            "zonal-trace",
            "zonal-testing",
        ],
    ),
];

/// Returns the packages whose tests a mutant of a package must pass. Those of `zonal-machine` read and capture machines.
pub(super) fn tests_of(package: &str) -> Vec<&str> {
    let more = (package == "zonal-model").then_some("zonal-machine");
    [package].into_iter().chain(more).collect()
}

/// Hashes bytes with FNV-1a, which is the same on every platform.
pub(super) fn hash(start: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Initial value of hashes.
pub(super) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The states of the packages around the core, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct States(BTreeMap<&'static str, String>);

impl States {
    /// Computes the states of a workspace that has these files.
    pub(super) fn of(root: &Path, files: &BTreeSet<PathBuf>) -> Result<Self, String> {
        let state = |(package, below): (&'static str, &[&str])| {
            let folders: Vec<PathBuf> =
                below.iter().chain([&package]).map(|name| Path::new("crates").join(name)).collect();
            let is_part = |file: &&PathBuf| {
                file.components().count() == 1 || folders.iter().any(|folder| file.starts_with(folder))
            };
            let mut state = EMPTY;
            for file in files.iter().filter(is_part) {
                let content =
                    fs::read(root.join(file)).map_err(|why| format!("{}: {why}", file.display()))?;
                // The lengths separate each file from the next one.
                let name = file.as_os_str().as_encoded_bytes();
                let lengths = [name.len(), content.len()].into_iter().flat_map(usize::to_le_bytes);
                state = hash(hash(hash(state, lengths), name.iter().copied()), content);
            }
            Ok((package, format!("{state:016x}")))
        };
        AROUND.into_iter().map(state).collect::<Result<_, String>>().map(Self)
    }

    /// Returns the state of a mutant's package, whose name begins with the package's path.
    pub(super) fn of_mutant(&self, name: &str) -> Option<&str> {
        self.0.get(package_of(name)?).map(String::as_str)
    }

    /// Returns the states as text, with the name of each package.
    pub(super) fn text(&self) -> String {
        let states = self.0.iter().map(|(package, state)| format!("{package} {state}"));
        states.collect::<Vec<_>>().join(", ")
    }
}

/// Returns a mutant's package, whose path its name begins with.
pub(super) fn package_of(name: &str) -> Option<&str> {
    name.strip_prefix("crates/")?.split('/').next()
}

/// A file of results.
pub(super) struct Kept(pub(super) PathBuf);

impl Kept {
    /// Returns the last verdict of each mutant that is valid for these states, by name.
    pub(super) fn read(&self, states: &States) -> BTreeMap<String, String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let held = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, '\t');
            let (state, verdict, name) = (fields.next()?, fields.next()?, fields.next()?);
            (states.of_mutant(name) == Some(state)).then(|| (name.to_owned(), verdict.to_owned()))
        });
        let held: BTreeMap<String, String> = held.collect();
        let others = text.lines().count().saturating_sub(held.len());
        if others > 0 {
            println!("{others} results in {} are of other code and do not count", self.0.display());
        }
        held
    }

    /// Adds a result.
    pub(super) fn add(&self, states: &States, name: &str, verdict: &str) -> Result<(), String> {
        let state =
            states.of_mutant(name).ok_or_else(|| format!("{name} is of no package around the core"))?;
        let opened = OpenOptions::new().create(true).append(true).open(&self.0);
        let line = format!("{state}\t{verdict}\t{name}\n");
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| format!("{}: {error}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace in a temporary folder.
    struct Workspace(tempfile::TempDir);

    impl Workspace {
        fn new() -> Self {
            let workspace = Self(tempfile::tempdir().unwrap());
            for package in
                ["zonal", "zonal-testing", "zonal-model", "zonal-machine", "zonal-linux", "zonal-lab"]
            {
                workspace.write(&format!("crates/{package}/src/lib.rs"), "one");
                workspace.write(&format!("crates/{package}/tests/all.rs"), "one");
            }
            workspace.write("Cargo.lock", "one");
            workspace.write("xtask/src/main.rs", "one");
            workspace
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        fn states(&self) -> States {
            States::of(self.0.path(), &crate::planted::files(self.0.path()).unwrap()).unwrap()
        }
    }

    const NAMES: [&str; 3] = [
        "crates/zonal-linux/src/a.rs:1:2: replace a with b",
        "crates/zonal-machine/src/a.rs:1:2: replace a with b",
        "crates/zonal-lab/src/a.rs:1:2: replace a with b",
    ];

    #[test]
    fn results_hold_as_long_as_what_they_depend_on() {
        let workspace = Workspace::new();
        let kept = Kept(workspace.0.path().join("15.txt"));
        let before = workspace.states();
        NAMES.iter().for_each(|name| kept.add(&before, name, "caught").unwrap());
        let held = |states: &States| {
            let held = kept.read(states);
            NAMES.map(|name| held.contains_key(name))
        };
        assert_eq!(held(&before), [true; 3]);
        for (file, expected) in [
            ("xtask/src/main.rs", [true; 3]),
            ("crates/zonal-lab/tests/all.rs", [true, true, false]),
            ("crates/zonal-lab/tests/new.rs", [true, true, false]),
            ("crates/zonal-linux/src/lib.rs", [false, true, true]),
            ("crates/zonal-machine/src/lib.rs", [false; 3]),
            ("crates/zonal-model/src/lib.rs", [false; 3]),
            ("crates/zonal/src/lib.rs", [false; 3]),
            ("crates/zonal-testing/src/lib.rs", [false; 3]),
            ("Cargo.lock", [false; 3]),
        ] {
            let old = fs::read_to_string(workspace.0.path().join(file)).ok();
            workspace.write(file, "two");
            assert_eq!(held(&workspace.states()), expected, "{file}");
            match old {
                Some(old) => workspace.write(file, &old),
                None => fs::remove_file(workspace.0.path().join(file)).unwrap(),
            }
        }
        assert_eq!(held(&workspace.states()), [true; 3]);
    }

    #[test]
    fn lines_without_a_state_do_not_count_until_they_have_one() {
        let workspace = Workspace::new();
        let (kept, states) = (Kept(workspace.0.path().join("15.txt")), workspace.states());
        let line = format!("caught\t{}\n", NAMES[2]);
        fs::write(&kept.0, &line).unwrap();
        assert_eq!(kept.read(&states).len(), 0);
        let state = states.of_mutant(NAMES[2]).unwrap();
        fs::write(&kept.0, format!("{state}\t{line}")).unwrap();
        assert_eq!(kept.read(&states)[NAMES[2]], "caught");
        assert!(kept.add(&states, "crates/zonal/src/a.rs:1:2: replace a", "caught").is_err());
    }

    #[test]
    fn packages_are_built_from_what_is_said_to_be_below_them() {
        let root = crate::workspace_root();
        for (package, below) in AROUND {
            let file = root.join("crates").join(package).join("Cargo.toml");
            let manifest: toml::Table = fs::read_to_string(file).unwrap().parse().unwrap();
            let keys = |table: &str| {
                let table = manifest.get(table).and_then(|table| table.as_table());
                table.into_iter().flat_map(|table| table.keys().cloned()).collect::<Vec<_>>()
            };
            for name in keys("dependencies").into_iter().chain(keys("dev-dependencies")) {
                assert!(!name.starts_with("zonal") || below.contains(&&*name), "{package} needs {name}");
            }
        }
    }
}
