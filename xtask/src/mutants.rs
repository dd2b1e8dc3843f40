//! Mutation tests: `cargo mutants` makes small changes to the code, and the tests must detect most of them.
//!
//! Of the core, one mutant in forty is tested. Of the packages around it, a seed chooses a fixed number of mutants. The
//! second part takes hours on a small machine, so it resumes after an interruption. A mutant counts as caught if its
//! tests time out or die by a signal. Mutants that time out are listed. One around the core is tested a second time
//! before its time-out counts, and the tests of its package must take at most half the limit without a mutant. A mutant
//! whose build times out is not caught, because no test has run on it. Related files: `mutants/kept.rs` stores results,
//! `mutants/outcomes.rs` parses the tool's output, and `deep.rs` lists these steps.

mod kept;
mod outcomes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::kept::{AROUND, Kept, States, package_of, tests_of};
use self::outcomes::{builds_out_of_time, died_by_signals, total};
use crate::deep::answers;
use crate::planted;
use crate::steps::{Outcome, cargo, succeeds, target_folder};

/// The variable for the number of mutants to try around the core, and its default.
const COUNT: (&str, u64) = ("ZONAL_MUTANTS_COUNT", 60);
/// The variable for the seed that chooses these mutants, and its default.
const SEED: (&str, u64) = ("ZONAL_MUTANTS_SEED", 15);
/// Time limit in seconds for a mutant's tests, which ends tests that hang.
const TEST_SECONDS: u64 = 240;
/// Time limit in seconds of a mutant's build.
const BUILD_SECONDS: u64 = 900;
/// Largest percentage of mutants around the core that may be missed.
const MISSED_PERCENT_MAX: usize = 15;

/// Tests one in forty of all core mutants with its unit tests. Mutants that these tests miss are tested with the core's
/// other tests and those of `zonal-verify`. One in eleven may be missed, because some mutants change only timing or
/// nothing at all.
pub(crate) fn of_the_core(root: &Path) -> Outcome {
    if let Some(skipped) = missing_tool(root) {
        return skipped;
    }
    let sample = ["--shard", "7/40", "--sharding", "round-robin"].map(str::to_owned);
    let unit_tests = ["--timeout", "60", "--cargo-arg=--lib"];
    let packages = ["--test-package", "zonal,zonal-verify"];
    let all_tests =
        [&["--timeout", "300", "--cargo-arg=--lib", "--cargo-arg=--tests"][..], &packages].concat();
    let counted = Mutants::test_core(root, "mutants", &sample, &unit_tests, "1").and_then(|mut counted| {
        if counted.missed.is_empty() {
            return Ok(counted);
        }
        let which = named(&counted.missed);
        // Building all these tests without optimisation takes less time, although they then run longer.
        let again = Mutants::test_core(root, "mutants-again", &which, &all_tests, "0")?;
        counted.add_second_pass(again)?;
        Ok(counted)
    });
    // One in eleven, because some mutants change only timing, or nothing at all.
    judge(counted, |missed, caught| missed * 10 <= caught)
}

/// Tests a sample of all mutants in the packages around the core with each package's tests.
///
/// Each mutant's tests run in a copy of the workspace that is built incrementally. Results from before an interruption
/// stay in `target/mutants-around/SEED.txt`. They are reused as long as the code is the same (`mutants/kept.rs`). A
/// build that timed out is tried again.
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

/// The mutants to try, and the file of their results.
struct Sample {
    /// The requested number of mutants.
    wanted: usize,
    /// All existing mutants, in the order of the tool.
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
        let wanted = count as usize;
        let chosen = sample(all.iter().map(String::as_str), seed, wanted);
        println!("{} of {} mutants, chosen by seed {seed}", chosen.len(), all.len());
        Ok(Self { wanted, all, chosen, copy, states, results })
    }

    /// Tests the mutants that have no result yet.
    fn test_all(&self, root: &Path) -> Result<Mutants, String> {
        let mut verdicts = self.results.read(&self.states);
        // A time-out that was not repeated does not count as a result.
        verdicts.retain(|name, found| self.chosen.contains(name) && found != TIMEOUT);
        if verdicts.len() < self.chosen.len() {
            self.test_unchanged()?;
        }
        for name in &self.chosen {
            if verdicts.contains_key(name) {
                continue;
            }
            let found = settled(|| self.test(root, name))?;
            println!("{found}: {name}");
            if found != BUILD_TIMEOUT {
                self.results.add(&self.states, name, &found)?;
            }
            verdicts.insert(name.clone(), found);
        }
        Ok(counted(&verdicts, self.wanted))
    }

    /// Tests the unchanged code, because tests that fail or time out without a mutant would count every mutant as
    /// caught. Each package's tests are timed in the same way as with a mutant: one package at a time, after it was
    /// built.
    fn test_unchanged(&self) -> Result<(), String> {
        for (package, _) in AROUND {
            let test = |more: &[&str]| {
                let mut test = cargo(&self.copy, ["test", "-q", "--lib", "--tests"]);
                test.args(tests_of(package).iter().flat_map(|tests| ["-p", tests]));
                succeeds(quickly_built(test.args(more)))
            };
            let built = test(&["--no-run"]);
            let begin = Instant::now();
            if built != Outcome::Passed || test(&[]) != Outcome::Passed {
                return Err(format!("the tests of {package} fail without any mutant"));
            }
            in_time(package, begin.elapsed())?;
        }
        Ok(())
    }

    /// Tests one mutant with the tests of [`tests_of`]. The call selects it as one shard of as many shards as there are
    /// mutants, because `cargo mutants` (27.1) tests more mutants than `--re` selects.
    fn test(&self, root: &Path, name: &str) -> Result<String, String> {
        // An interrupted run leaves a mutant in the copy.
        if copied(root, &self.copy)? != self.states {
            return Err("the code has changed since its mutants were listed; start again".to_owned());
        }
        let at = self.all.iter().position(|one| one == name).ok_or("the mutant is not listed")?;
        let shard = format!("--shard={at}/{}", self.all.len());
        let mut run = of_packages(&self.copy);
        run.args(["--in-place", "--baseline=skip", "--sharding=slice", &shard]);
        run.arg(format!("--timeout={TEST_SECONDS}")).arg(format!("--build-timeout={BUILD_SECONDS}"));
        let package = package_of(name).ok_or_else(|| format!("{name} is of no package"))?;
        run.arg(format!("--test-package={}", tests_of(package).join(",")));
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
        // Mutants whose tests died by a signal are in none of the lists.
        if found.is_none() && died_by_signals(&lists).is_ok_and(|died| died.contains(name)) {
            return Ok(CAUGHT.to_owned());
        }
        found.map(str::to_owned).ok_or_else(|| {
            format!("cargo mutants did not test {name}: {}", String::from_utf8_lossy(&ended.stderr))
        })
    }
}

/// The outcomes of a mutant, named like the lists of `cargo mutants`.
const CAUGHT: &str = "caught";
const MISSED: &str = "missed";
const TIMEOUT: &str = "timeout";
const UNVIABLE: &str = "unviable";
/// A time-out of tests that happened twice.
const TIMEOUT_TWICE: &str = "timeout twice";
/// A time-out of the build, which `cargo mutants` lists with time-outs of tests.
const BUILD_TIMEOUT: &str = "build timeout";

/// Returns the outcome of a mutant that `test` tests. A time-out counts only if it happens twice, because other load
/// may have caused the first.
fn settled(mut test: impl FnMut() -> Result<String, String>) -> Result<String, String> {
    match test()? {
        found if found == TIMEOUT => {
            test().map(|found| if found == TIMEOUT { TIMEOUT_TWICE.to_owned() } else { found })
        }
        found => Ok(found),
    }
}

/// Checks that tests without a mutant take at most half their time limit.
fn in_time(package: &str, took: Duration) -> Result<(), String> {
    if took <= Duration::from_secs(TEST_SECONDS) / 2 {
        return Ok(());
    }
    let took = took.as_secs_f64();
    Err(format!(
        "the tests of {package} take {took:.1} s without any mutant, more than half of the {TEST_SECONDS} s that \
         they may take with one; try again when the machine is less busy"
    ))
}

/// Counts the outcomes of mutants by name. `wanted` mutants were requested.
fn counted(verdicts: &BTreeMap<String, String>, wanted: usize) -> Mutants {
    let is = |wanted: &str| {
        let these = verdicts.iter().filter(|(_, found)| *found == wanted);
        these.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    println!("{} do not compile", is(UNVIABLE).len());
    let out_of_time = is(TIMEOUT_TWICE);
    let caught = [is(CAUGHT), out_of_time.clone()].concat();
    Mutants { wanted, caught, out_of_time, missed: is(MISSED), not_built: is(BUILD_TIMEOUT) }
}

/// Updates the copy to the current workspace; returns the states of its packages.
fn copied(root: &Path, copy: &Path) -> Result<States, String> {
    planted::copy_unchanged(root, copy)?;
    States::of(copy, &planted::files(copy).map_err(|error| error.to_string())?)
}

/// Returns a call of `cargo mutants` for the packages around the core.
fn of_packages(copy: &Path) -> Command {
    let mut call = cargo(copy, ["mutants"]);
    call.args(AROUND.map(|(package, _)| format!("--package={package}")));
    call
}

/// Configures a call to build only what tests need.
fn quickly_built(call: &mut Command) -> &mut Command {
    call.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR")
}

/// Returns the number in an environment variable, or its default.
fn setting((variable, default): (&str, u64)) -> Result<u64, String> {
    match std::env::var(variable) {
        Ok(text) => text.parse().map_err(|_| format!("{variable} is {text:?}; it must be a whole number")),
        Err(_) => Ok(default),
    }
}

/// Returns `count` of the names. If names are added or removed, most chosen names stay chosen.
fn sample<'n>(names: impl Iterator<Item = &'n str>, seed: u64, count: usize) -> Vec<String> {
    let hash = |name: &str| {
        // The line number is not hashed, because it changes most often.
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

/// Prints the missed mutants and their number. A result with fewer than half of the requested mutants is not
/// valid.
fn judge(counted: Result<Mutants, String>, is_enough: impl Fn(usize, usize) -> bool) -> Outcome {
    let Mutants { wanted, caught, out_of_time, missed, not_built } = match counted {
        Ok(counted) => counted,
        Err(reason) => return Outcome::Failed(reason),
    };
    let caught = caught.len();
    missed.iter().for_each(|mutant| println!("missed: {mutant}"));
    not_built.iter().for_each(|mutant| println!("not tested because its build timed out: {mutant}"));
    out_of_time.iter().for_each(|mutant| println!("caught because its tests timed out: {mutant}"));
    let judged = caught + missed.len();
    println!("{} of {judged} mutants missed", missed.len());
    if judged == 0 || judged * 2 < wanted {
        return Outcome::Failed(format!("only {judged} of {wanted} mutants were tested"));
    }
    // Untested mutants may be missed.
    if is_enough(missed.len() + not_built.len(), caught) {
        Outcome::Passed
    } else {
        let (missed, not_built) = (missed.len(), not_built.len());
        Outcome::Failed(format!("{missed} mutants missed, {not_built} not built in time, {caught} caught"))
    }
}

/// Returns arguments that select mutants by name.
fn named(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("--re=^{}$", escaped(name))).collect()
}

/// The results of a `cargo mutants` run.
struct Mutants {
    /// The requested number of mutants.
    wanted: usize,
    /// Caught mutants, including [`Self::out_of_time`].
    caught: Vec<String>,
    /// Mutants whose tests timed out.
    out_of_time: Vec<String>,
    missed: Vec<String>,
    /// Mutants whose build timed out.
    not_built: Vec<String>,
}

impl Mutants {
    /// Runs `tests` on the core's mutants that `which` selects. The tests are built at the optimisation level `level`.
    /// Lists and logs are written to `folder` in the target folder.
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
            ended => return Err(format!("cargo mutants did not finish: {ended:?}")),
        }
        let lines = |list: &str| -> Result<Vec<String>, String> {
            let list = output.join("mutants.out").join(list);
            let text = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let not_built = builds_out_of_time(&output.join("mutants.out"))?;
        let (not_built, out_of_time): (Vec<_>, Vec<_>) =
            lines("timeout.txt")?.into_iter().partition(|name| not_built.contains(name));
        let died = died_by_signals(&output.join("mutants.out"))?;
        let caught = lines("caught.txt")?.into_iter().chain(died).chain(out_of_time.clone()).collect();
        let wanted = total(&output.join("mutants.out"))?;
        Ok(Self { wanted, caught, out_of_time, missed: lines("missed.txt")?, not_built })
    }

    /// Adds the results of testing the missed mutants with more tests. `again` may include other mutants, because
    /// `--re` does not exclude every mutant that it does not match.
    ///
    /// # Errors
    /// Returns the missed mutants without a result.
    fn add_second_pass(&mut self, again: Self) -> Result<(), String> {
        let tried = std::mem::take(&mut self.missed);
        for name in tried {
            if again.caught.contains(&name) {
                if again.out_of_time.contains(&name) {
                    self.out_of_time.push(name.clone());
                }
                self.caught.push(name);
            } else if again.missed.contains(&name) {
                self.missed.push(name);
            } else if again.not_built.contains(&name) {
                self.not_built.push(name);
            } else {
                return Err(format!("cargo mutants did not test {name} again"));
            }
        }
        Ok(())
    }
}

/// Returns a regular expression that matches `text`.
fn escaped(text: &str) -> String {
    let is_special = |c: char| r"\.+*?()|[]{}^$#&-~".contains(c);
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// Exit codes of `cargo mutants` if tests missed some mutants, and if some mutants timed out.
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
            let [missed, not_built, caught] = [missed, not_built, caught].map(names);
            let counted = Mutants { wanted: 60, caught, out_of_time: Vec::new(), missed, not_built };
            judge(Ok(counted), is_enough_around)
        };
        assert_eq!(counted(9, 0, 51), Outcome::Passed);
        assert_eq!(counted(0, 0, 30), Outcome::Passed);
        for judged in [0, 29] {
            let why = format!("only {judged} of 60 mutants were tested");
            assert_eq!(counted(0, 0, judged), Outcome::Failed(why));
        }
        assert!(matches!(counted(10, 0, 50), Outcome::Failed(why) if why.contains("10 mutants")));
        assert!(matches!(counted(0, 20, 40), Outcome::Failed(why) if why.contains("20 not built in time")));
        assert!(matches!(counted(0, 60, 0), Outcome::Failed(_)));
        let none =
            Mutants { wanted: 0, caught: vec![], out_of_time: vec![], missed: vec![], not_built: vec![] };
        assert!(matches!(judge(Ok(none), is_enough_around), Outcome::Failed(_)));
        assert!(matches!(judge(Err("no tool".into()), is_enough_around), Outcome::Failed(_)));
    }

    #[test]
    fn verdicts_are_summed_up() {
        let verdicts =
            [("a", CAUGHT), ("b", TIMEOUT_TWICE), ("c", BUILD_TIMEOUT), ("d", MISSED), ("e", UNVIABLE)];
        let verdicts = verdicts.map(|(name, found)| (name.to_owned(), found.to_owned()));
        let counted = counted(&BTreeMap::from(verdicts), 60);
        assert_eq!((&counted.caught[..], counted.wanted), (&["a", "b"].map(str::to_owned)[..], 60));
        let lists = [counted.out_of_time, counted.missed, counted.not_built];
        assert_eq!(lists, ["b", "d", "c"].map(|name| vec![name.to_owned()]));
    }

    #[test]
    fn only_what_a_second_pass_caught_counts() {
        let names = |names: &str| names.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let pass = |caught, out_of_time, missed, not_built| Mutants {
            wanted: 7,
            caught: names(caught),
            out_of_time: names(out_of_time),
            missed: names(missed),
            not_built: names(not_built),
        };
        let mut first = pass("a", "", "b c d e", "f");
        first.add_second_pass(pass("b c x", "c x", "d y", "e z")).unwrap();
        assert_eq!((first.wanted, first.caught), (7, names("a b c")));
        assert_eq!([first.out_of_time, first.missed, first.not_built], ["c", "d", "f e"].map(names));

        let mut first = pass("a", "", "b c", "");
        let why = first.add_second_pass(pass("b", "", "", "")).unwrap_err();
        assert_eq!(why, "cargo mutants did not test c again");
    }

    #[test]
    fn a_time_out_counts_when_it_comes_again() {
        let settled = |found: &[&str]| {
            let mut found = found.iter().map(|found| Ok((*found).to_owned()));
            let settled = settled(|| found.next().unwrap());
            assert_eq!(found.next(), None, "tested as often as need be");
            settled
        };
        for verdict in [CAUGHT, MISSED, UNVIABLE, BUILD_TIMEOUT] {
            assert_eq!(settled(&[verdict]), Ok(verdict.to_owned()));
            assert_eq!(settled(&[TIMEOUT, verdict]), Ok(verdict.to_owned()));
        }
        assert_eq!(settled(&[TIMEOUT, TIMEOUT]), Ok(TIMEOUT_TWICE.to_owned()));
    }

    #[test]
    fn unchanged_tests_take_half_of_the_limit_at_most() {
        assert_eq!(in_time("p", Duration::from_secs(TEST_SECONDS / 2)), Ok(()));
        let why = in_time("p", Duration::from_secs(TEST_SECONDS / 2 + 1)).unwrap_err();
        assert!(why.contains("tests of p take 121.0 s without any mutant"), "{why}");
    }

    #[test]
    fn names_are_taken_literally() {
        assert_eq!(
            named(&["a.rs:1:2: replace + with *".to_owned()]),
            [r"--re=^a\.rs:1:2: replace \+ with \*$"]
        );
    }
}
