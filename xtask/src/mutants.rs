//! Small changes that a tool makes to the code, and how many of them the tests notice.
//!
//! Of the core one in forty is tried; of the packages around it so many, chosen by a seed. The latter takes
//! hours on a small machine, so it goes on where it was interrupted. A mutant whose tests run out of time is
//! caught; one whose build does is not, because no test has seen it. Neighbours: `mutants/kept.rs` has results,
//! `deep.rs` lists these steps.

mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::kept::{AROUND, Kept, States};
use crate::deep::answers;
use crate::planted;
use crate::steps::{Outcome, cargo, succeeds, target_folder};

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
        again.not_built.retain(|name| counted.missed.contains(name));
        counted.caught += counted.missed.len() - again.missed.len() - again.not_built.len();
        counted.not_built.append(&mut again.not_built);
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
/// not tried again while the code is the same (`mutants/kept.rs`); a build that ran out of time is tried again.
pub(crate) fn around_the_core(root: &Path) -> Outcome {
    missing_tool(root).unwrap_or_else(|| {
        let counted = Sample::choose(root).and_then(|sample| sample.test_all(root));
        judge(counted, is_enough_around)
    })
}

/// Whether few enough of the mutants around the core are missed.
fn is_enough_around(missed: usize, caught: usize) -> bool {
    missed * 100 <= (missed + caught) * MISSED_PERCENT_MAX
}

/// Mutants that are tried, and where it is written down what came of them.
struct Sample {
    /// All that there are, in the order of the tool.
    all: Vec<String>,
    chosen: Vec<String>,
    copy: PathBuf,
    states: States,
    results: Kept,
}

impl Sample {
    fn choose(root: &Path) -> Result<Self, String> {
        let (seed, count) = (setting(SEED)?, setting(COUNT)?);
        let folder = target_folder(root).join("mutants-around");
        let (copy, results) = (folder.join("workspace"), Kept(folder.join(format!("{seed}.txt"))));
        let states = copied(root, &copy)?;
        println!("state of the code: {}", states.text());
        let mut list = of_packages(&copy);
        let listed = list.arg("--list").output().map_err(|error| format!("cargo mutants: {error}"))?;
        if !listed.status.success() {
            return Err(format!("cargo mutants --list: {}", String::from_utf8_lossy(&listed.stderr)));
        }
        let listed = String::from_utf8_lossy(&listed.stdout);
        let all: Vec<String> = listed.lines().map(str::to_owned).collect();
        let chosen = sample(all.iter().map(String::as_str), seed, count as usize);
        println!("{} of {} mutants, chosen by seed {seed}", chosen.len(), all.len());
        Ok(Self { all, chosen, copy, states, results })
    }

    /// Tests those that were not tested before.
    fn test_all(&self, root: &Path) -> Result<Mutants, String> {
        let mut verdicts = self.results.read(&self.states);
        verdicts.retain(|name, _| self.chosen.contains(name));
        if verdicts.len() < self.chosen.len() {
            self.test_unchanged()?;
        }
        for name in &self.chosen {
            if verdicts.contains_key(name) {
                continue;
            }
            let found = self.test(root, name)?;
            println!("{found}: {name}");
            if found != BUILD_TIMEOUT {
                self.results.add(&self.states, name, &found)?;
            }
            verdicts.insert(name.clone(), found);
        }
        Ok(counted(&verdicts))
    }

    /// Tests that fail without any mutant would notice all of them.
    fn test_unchanged(&self) -> Result<(), String> {
        let mut test = cargo(&self.copy, ["test", "-q", "--lib", "--tests"]);
        test.args(AROUND.map(|(package, _)| format!("--package={package}")));
        match succeeds(quickly_built(&mut test)) {
            Outcome::Passed => Ok(()),
            _ => Err("the tests fail without any mutant".to_owned()),
        }
    }

    /// Tests one mutant: the only one of as many shards as there are mutants, because what `--re` selects is not
    /// all that `cargo mutants` (27.1) tries.
    fn test(&self, root: &Path, name: &str) -> Result<String, String> {
        // An interruption leaves a mutant in the copy.
        if copied(root, &self.copy)? != self.states {
            return Err("the code has changed since its mutants were listed; start again".to_owned());
        }
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
        if found == Some(TIMEOUT) && builds_out_of_time(&lists)?.contains(name) {
            return Ok(BUILD_TIMEOUT.to_owned());
        }
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
/// A time-out of the build, which `cargo mutants` lists with those of tests.
const BUILD_TIMEOUT: &str = "build timeout";

/// Sums verdicts of mutants by name up.
fn counted(verdicts: &BTreeMap<String, String>) -> Mutants {
    let is = |wanted: &str| {
        let these = verdicts.iter().filter(|(_, found)| *found == wanted);
        these.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    println!("{} do not compile", is(UNVIABLE).len());
    Mutants { caught: is(CAUGHT).len() + is(TIMEOUT).len(), missed: is(MISSED), not_built: is(BUILD_TIMEOUT) }
}

/// Makes the copy what the workspace is now; gives the states of its packages.
fn copied(root: &Path, copy: &Path) -> Result<States, String> {
    planted::copy_unchanged(root, copy)?;
    States::of(copy, &planted::files(copy).map_err(|error| error.to_string())?)
}

/// Names of mutants whose build ran out of time, of a folder that `cargo mutants` wrote.
fn builds_out_of_time(lists: &Path) -> Result<BTreeSet<String>, String> {
    let file = lists.join("outcomes.json");
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let text = std::fs::read_to_string(&file).map_err(|why| told(&why))?;
    let all: serde_json::Value = serde_json::from_str(&text).map_err(|why| told(&why))?;
    let outcomes = all["outcomes"].as_array().ok_or_else(|| told(&"has no list of outcomes"))?;
    let ran_out = |outcome: &&serde_json::Value| {
        let phases = outcome["phase_results"].as_array().into_iter().flatten();
        phases.into_iter().any(|phase| phase["phase"] != "Test" && phase["process_status"] == "Timeout")
    };
    let name =
        |outcome: &serde_json::Value| outcome["scenario"]["Mutant"]["name"].as_str().map(str::to_owned);
    Ok(outcomes.iter().filter(ran_out).filter_map(name).collect())
}

/// `cargo mutants` of the packages around the core.
fn of_packages(copy: &Path) -> Command {
    let mut call = cargo(copy, ["mutants"]);
    call.args(AROUND.map(|(package, _)| format!("--package={package}")));
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
        // Of all but the line, which changes most often.
        let parts = name.splitn(3, ':').enumerate().filter(|(at, _)| *at != 1);
        let bytes = parts.flat_map(|(_, part)| part.bytes());
        kept::hash(kept::EMPTY, seed.to_le_bytes().into_iter().chain(bytes))
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
    let Mutants { caught, missed, not_built } = match counted {
        Ok(counted) => counted,
        Err(reason) => return Outcome::Failed(reason),
    };
    missed.iter().for_each(|mutant| println!("missed: {mutant}"));
    not_built.iter().for_each(|mutant| println!("not tested, its build ran out of time: {mutant}"));
    println!("{} of {} mutants missed", missed.len(), caught + missed.len());
    // What was not tested may be missed.
    if is_enough(missed.len() + not_built.len(), caught) {
        Outcome::Passed
    } else {
        let (missed, not_built) = (missed.len(), not_built.len());
        Outcome::Failed(format!("{missed} mutants missed, {not_built} not built in time, {caught} caught"))
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
    /// Those whose build ran out of time.
    not_built: Vec<String>,
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
        let (not_built, timeouts) = (builds_out_of_time(&output.join("mutants.out"))?, lines("timeout.txt")?);
        let (not_built, timeouts): (Vec<_>, Vec<_>) =
            timeouts.into_iter().partition(|name| not_built.contains(name));
        Ok(Self {
            caught: lines("caught.txt")?.len() + timeouts.len(),
            missed: lines("missed.txt")?,
            not_built,
        })
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
        let names = |count| vec!["a".to_owned(); count];
        let counted = |missed, not_built, caught| {
            let counted = Mutants { caught, missed: names(missed), not_built: names(not_built) };
            judge(Ok(counted), is_enough_around)
        };
        assert_eq!(counted(9, 0, 51), Outcome::Passed);
        assert!(matches!(counted(10, 0, 50), Outcome::Failed(why) if why.contains("10 mutants")));
        assert!(matches!(counted(0, 60, 0), Outcome::Failed(why) if why.contains("60 not built in time")));
        assert!(matches!(judge(Err("no tool".into()), is_enough_around), Outcome::Failed(_)));
    }

    #[test]
    fn a_build_out_of_time_is_not_caught() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let outcome = |name: &str, build: &str, test: &str| {
            let phases = [("Build", build), ("Test", test)].map(|(phase, status)| {
                format!(r#"{{"phase": "{phase}", "duration": 1.5, "process_status": {status}, "argv": []}}"#)
            });
            let scenario = format!(r#"{{"Mutant": {{"name": "{name}", "package": "p"}}}}"#);
            format!(
                r#"{{"scenario": {scenario}, "summary": "Timeout", "phase_results": [{}]}}"#,
                phases.join(",")
            )
        };
        let outcomes = [
            r#"{"scenario": "Baseline", "summary": "Timeout", "phase_results": []}"#.to_owned(),
            outcome("tests", r#""Success""#, r#""Timeout""#),
            outcome("build", r#""Timeout""#, r#"{"Failure": 101}"#),
            outcome("caught", r#""Success""#, r#"{"Failure": 101}"#),
        ];
        let text = format!(r#"{{"outcomes": [{}], "total_mutants": 3}}"#, outcomes.join(","));
        std::fs::write(folder.join("outcomes.json"), text).unwrap();
        let found = builds_out_of_time(folder);
        std::fs::remove_file(folder.join("outcomes.json")).unwrap();
        assert_eq!(found.unwrap(), BTreeSet::from(["build".to_owned()]));
        assert!(builds_out_of_time(folder).is_err_and(|why| why.contains("outcomes.json")));

        let verdicts = [("a", CAUGHT), ("b", TIMEOUT), ("c", BUILD_TIMEOUT), ("d", MISSED), ("e", UNVIABLE)];
        let verdicts = verdicts.map(|(name, found)| (name.to_owned(), found.to_owned()));
        let Mutants { caught, missed, not_built } = counted(&BTreeMap::from(verdicts));
        assert_eq!((caught, missed, not_built), (2, vec!["d".to_owned()], vec!["c".to_owned()]));
    }

    #[test]
    fn names_are_taken_literally() {
        assert_eq!(
            named(&["a.rs:1:2: replace + with *".to_owned()]),
            [r"--re=^a\.rs:1:2: replace \+ with \*$"]
        );
    }
}
