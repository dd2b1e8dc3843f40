//! Small changes that a tool makes to the code, and how many of them the tests notice.
//!
//! Of the core one in forty is tried; of the packages around it so many, chosen by a seed. The latter takes
//! hours on a small machine, so it goes on where it was interrupted. Neighbours: `deep.rs` lists these steps.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::deep::answers;
use crate::planted;
use crate::steps::{Outcome, cargo, succeeds, target_folder};

/// The packages around the core whose mutants are tried, each with its own tests.
const AROUND: [&str; 3] = ["zonal-linux", "zonal-machine", "zonal-lab"];
/// How many of their mutants are tried, and the variable that says another number.
const COUNT: (&str, u64) = ("ZONAL_MUTANTS_COUNT", 60);
/// What chooses them, and the variable that says another seed.
const SEED: (&str, u64) = ("ZONAL_MUTANTS_SEED", 15);
/// Seconds that the tests of a mutant may take, and its build: a mutant that hangs is noticed.
const TIMEOUTS: [&str; 4] = ["--timeout", "240", "--build-timeout", "900"];
/// Most of a hundred that may be missed around the core.
const MISSED_PERCENT_MAX: usize = 15;

/// Holds one in forty of all small changes of the core against its unit tests, and what these miss against its other
/// tests and those of `zonal-trust`. Some change nothing but time, or nothing at all: one in eleven may be missed.
pub(crate) fn of_the_core(root: &Path) -> Outcome {
    if let Some(skipped) = missing_tool(root) {
        return skipped;
    }
    let sample = ["--shard", "7/40", "--sharding", "round-robin"].map(str::to_owned);
    let unit_tests = ["--timeout", "60", "--cargo-arg=--lib"];
    let trust = ["--test-package", "zonal,zonal-trust"];
    let all_tests = [&["--timeout", "300", "--cargo-arg=--lib", "--cargo-arg=--tests"][..], &trust].concat();
    let counted = Mutants::test_core(root, "mutants", &sample, &unit_tests, "1").and_then(|mut counted| {
        if counted.missed.is_empty() {
            return Ok(counted);
        }
        let which = named(&counted.missed);
        // Building all these tests takes longer than running them, unless nothing is optimised.
        let mut again = Mutants::test_core(root, "mutants-again", &which, &all_tests, "0")?;
        again.missed.retain(|name| counted.missed.contains(name)); // some are selected whatever `--re` says
        counted.caught += counted.missed.len() - again.missed.len();
        counted.missed = again.missed;
        Ok(counted)
    });
    // Some change nothing but time, or nothing at all: one in eleven.
    judge(counted, |missed, caught| missed * 10 <= caught)
}

/// Holds a sample of all small changes of the packages around the core against the tests of each package.
///
/// They are made one by one in a copy of the workspace that is built again and again, so only what depends on a
/// change is built. What was found out before an interruption stays in `target/mutants-around/SEED.txt` and is
/// not tried again; remove the file to begin anew.
pub(crate) fn around_the_core(root: &Path) -> Outcome {
    missing_tool(root).unwrap_or_else(|| {
        let counted = Sample::choose(root).and_then(|sample| sample.test_all(root));
        judge(counted, |missed, caught| missed * 100 <= (missed + caught) * MISSED_PERCENT_MAX)
    })
}

/// Mutants that are tried, and where it is written down what came of them.
struct Sample {
    /// All that there are, in the order of the tool.
    all: Vec<String>,
    chosen: Vec<String>,
    copy: PathBuf,
    results: PathBuf,
}

impl Sample {
    fn choose(root: &Path) -> Result<Self, String> {
        let (seed, count) = (setting(SEED)?, setting(COUNT)?);
        let folder = target_folder(root).join("mutants-around");
        let (copy, results) = (folder.join("workspace"), folder.join(format!("{seed}.txt")));
        planted::copy_unchanged(root, &copy)?;
        let mut list = of_packages(&copy);
        let listed = list.arg("--list").output().map_err(|error| format!("cargo mutants: {error}"))?;
        if !listed.status.success() {
            return Err(format!("cargo mutants --list: {}", String::from_utf8_lossy(&listed.stderr)));
        }
        let listed = String::from_utf8_lossy(&listed.stdout);
        let all: Vec<String> = listed.lines().map(str::to_owned).collect();
        let chosen = sample(all.iter().map(String::as_str), seed, count as usize);
        println!("{} of {} mutants, chosen by seed {seed}", chosen.len(), all.len());
        Ok(Self { all, chosen, copy, results })
    }

    /// Tests those that were not tested before.
    fn test_all(&self, root: &Path) -> Result<Mutants, String> {
        let known = std::fs::read_to_string(&self.results).unwrap_or_default();
        let mut verdicts: Vec<(String, String)> = known.lines().filter_map(verdict).collect();
        verdicts.retain(|(_, name)| self.chosen.contains(name));
        if verdicts.len() < self.chosen.len() {
            self.test_unchanged()?;
        }
        for name in &self.chosen {
            if verdicts.iter().any(|(_, known)| known == name) {
                continue;
            }
            let found = self.test(root, name)?;
            println!("{found}: {name}");
            append(&self.results, &format!("{found}\t{name}\n"))?;
            verdicts.push((found, name.clone()));
        }
        let is = |wanted: &'static str| verdicts.iter().filter(move |(found, _)| found == wanted);
        println!("{} do not compile", is(UNVIABLE).count());
        Ok(Mutants {
            caught: is(CAUGHT).count() + is(TIMEOUT).count(),
            missed: is(MISSED).map(|(_, name)| name.clone()).collect(),
        })
    }

    /// Tests that fail without any mutant would notice all of them.
    fn test_unchanged(&self) -> Result<(), String> {
        let mut test = cargo(&self.copy, ["test", "-q", "--lib", "--tests"]);
        test.args(AROUND.map(|package| format!("--package={package}")));
        match succeeds(quickly_built(&mut test)) {
            Outcome::Passed => Ok(()),
            _ => Err("the tests fail without any mutant".to_owned()),
        }
    }

    /// Tests one mutant: the only one of as many shards as there are mutants, because what `--re` selects is not
    /// all that `cargo mutants` (27.1) tries.
    fn test(&self, root: &Path, name: &str) -> Result<String, String> {
        planted::copy_unchanged(root, &self.copy)?; // an interruption leaves a mutant in the copy
        let at = self.all.iter().position(|one| one == name).ok_or("the mutant is not listed")?;
        let shard = format!("--shard={at}/{}", self.all.len());
        let mut run = of_packages(&self.copy);
        run.args(["--in-place", "--baseline=skip", "--sharding=slice", &shard]).args(TIMEOUTS);
        run.args(["--cargo-arg=--lib", "--cargo-arg=--tests"]).arg("-o").arg(self.copy.with_file_name("one"));
        let ended = quickly_built(&mut run).output().map_err(|error| format!("cargo mutants: {error}"))?;
        let lists = self.copy.with_file_name("one").join("mutants.out");
        let is_in = |verdict: &&str| {
            let list = std::fs::read_to_string(lists.join(format!("{verdict}.txt"))).unwrap_or_default();
            list.lines().any(|line| line == name)
        };
        let found = [CAUGHT, MISSED, TIMEOUT, UNVIABLE].into_iter().find(is_in);
        found.map(str::to_owned).ok_or_else(|| {
            format!("cargo mutants did not test {name}: {}", String::from_utf8_lossy(&ended.stderr))
        })
    }
}

/// What can come of a mutant; the lists of `cargo mutants` are called so.
const CAUGHT: &str = "caught";
const MISSED: &str = "missed";
const TIMEOUT: &str = "timeout";
const UNVIABLE: &str = "unviable";

/// A line of the file of results.
fn verdict(line: &str) -> Option<(String, String)> {
    line.split_once('\t').map(|(found, name)| (found.to_owned(), name.to_owned()))
}

fn append(file: &Path, line: &str) -> Result<(), String> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// `cargo mutants` of the packages around the core.
fn of_packages(copy: &Path) -> Command {
    let mut call = cargo(copy, ["mutants"]);
    call.args(AROUND.map(|package| format!("--package={package}")));
    call
}

/// A call that builds what tests need and no more.
fn quickly_built(call: &mut Command) -> &mut Command {
    call.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR")
}

/// A number that a variable of the environment may say.
fn setting((variable, default): (&str, u64)) -> Result<u64, String> {
    match std::env::var(variable) {
        Ok(text) => text.parse().map_err(|_| format!("{variable} is {text:?}; it must be a whole number")),
        Err(_) => Ok(default),
    }
}

/// `count` of the names. A name that is chosen stays so, mostly, when others come and go.
fn sample<'n>(names: impl Iterator<Item = &'n str>, seed: u64, count: usize) -> Vec<String> {
    let hash = |name: &str| {
        // FNV-1a, which is the same everywhere, of all but the line, which changes most often.
        let parts = name.splitn(3, ':').enumerate().filter(|(at, _)| *at != 1);
        let bytes = parts.flat_map(|(_, part)| part.bytes());
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        seed.to_le_bytes().into_iter().chain(bytes).fold(0xcbf2_9ce4_8422_2325, mix)
    };
    let by_hash: BTreeSet<(u64, &str)> = names.map(|name| (hash(name), name)).collect();
    by_hash.into_iter().take(count).map(|(_, name)| name.to_owned()).collect()
}

fn missing_tool(root: &Path) -> Option<Outcome> {
    let is_there = answers(&mut cargo(root, ["mutants", "--version"]));
    (!is_there).then(|| Outcome::Skipped("no cargo-mutants: cargo install cargo-mutants".into()))
}

/// Says which were missed, and how many.
fn judge(counted: Result<Mutants, String>, is_enough: impl Fn(usize, usize) -> bool) -> Outcome {
    let Mutants { caught, missed } = match counted {
        Ok(counted) => counted,
        Err(reason) => return Outcome::Failed(reason),
    };
    missed.iter().for_each(|mutant| println!("missed: {mutant}"));
    println!("{} of {} mutants missed", missed.len(), caught + missed.len());
    if is_enough(missed.len(), caught) {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("{} mutants missed, {caught} caught", missed.len()))
    }
}

/// Arguments that select mutants by name.
fn named(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("--re=^{}$", escaped(name))).collect()
}

/// What came of a run of `cargo mutants`.
struct Mutants {
    caught: usize,
    missed: Vec<String>,
}

impl Mutants {
    /// Tests those of the core that `which` selects with `tests`, built with a `level` of optimisation; lists and
    /// logs go into a `folder` of the target folder.
    fn test_core(
        root: &Path,
        folder: &str,
        which: &[String],
        tests: &[&str],
        level: &str,
    ) -> Result<Self, String> {
        let output = target_folder(root).join(folder);
        let mut run = cargo(root, ["mutants", "-p", "zonal", "-o"]);
        run.arg(&output).args(which).args(tests);
        run.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", level);
        match run.status().map(|status| status.code()) {
            Ok(Some(0 | MUTANTS_MISSED | MUTANTS_OUT_OF_TIME)) => {}
            ended => return Err(format!("cargo mutants did not come to its end: {ended:?}")),
        }
        let lines = |list: &str| -> Result<Vec<String>, String> {
            let list = output.join("mutants.out").join(list);
            let text = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let caught = lines("caught.txt")?.len() + lines("timeout.txt")?.len();
        Ok(Self { caught, missed: lines("missed.txt")? })
    }
}

/// A regular expression that matches `text`.
fn escaped(text: &str) -> String {
    let is_special = |c: char| r"\.+*?()|[]{}^$#&-~".contains(c);
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// How `cargo mutants` ends when some were not noticed, and when some ran out of time.
const MUTANTS_MISSED: i32 = 2;
const MUTANTS_OUT_OF_TIME: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_chooses_the_same_again_wherever_it_stands() {
        let names: Vec<String> =
            (0..500).map(|at| format!("crates/a/src/b.rs:7:{at}: replace f{at} -> u64 with 0")).collect();
        let chosen = sample(names.iter().map(String::as_str), 15, 60);
        assert_eq!(chosen.len(), 60);
        assert_eq!(sample(names.iter().rev().map(String::as_str), 15, 60), chosen);
        assert_ne!(sample(names.iter().map(String::as_str), 16, 60), chosen);
        let moved: Vec<String> = names.iter().map(|name| name.replacen(":7:", ":19:", 1)).collect();
        let expected: Vec<String> = chosen.iter().map(|name| name.replacen(":7:", ":19:", 1)).collect();
        assert_eq!(sample(moved.iter().map(String::as_str), 15, 60), expected);
        assert_eq!(sample(names.iter().map(String::as_str), 15, 1000).len(), 500);
    }

    #[test]
    fn what_is_missed_is_judged() {
        let counted = |missed: usize, caught| Ok(Mutants { caught, missed: vec!["a".to_owned(); missed] });
        let is_enough = |missed, caught| missed * 100 <= (missed + caught) * MISSED_PERCENT_MAX;
        assert_eq!(judge(counted(9, 51), is_enough), Outcome::Passed);
        assert!(
            matches!(judge(counted(10, 50), is_enough), Outcome::Failed(why) if why.contains("10 mutants"))
        );
        assert!(matches!(judge(Err("no tool".into()), is_enough), Outcome::Failed(_)));
    }

    #[test]
    fn names_are_taken_literally() {
        assert_eq!(
            named(&["a.rs:1:2: replace + with *".to_owned()]),
            [r"--re=^a\.rs:1:2: replace \+ with \*$"]
        );
    }
}
