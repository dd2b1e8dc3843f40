//! Checks that the named test of each guarantee fails when the guarantee does not hold.
//!
//! The guarantees, called *claims*, are the list items in a section of `docs/reliability.md`. Each file of
//! `xtask/claim-mutants` has a mutant, the claim that it violates, and the test that must fail with it. Each mutant is
//! planted in the copy of the workspace that `planted.rs` makes, and only its test is built and run. A test that does
//! not build, or that ends without a report, has not noticed the mutant. The everyday checks compare the files with the
//! page, so a new claim needs a mutant. `ZONAL_CLAIMS` restricts the run to mutants whose names contain one of its
//! words.
//!
//! Related files: `deep.rs` includes this step, and `plan.rs` the everyday comparison.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::planted::{self, Mutant};
use crate::steps::{Outcome, Step, passed_in};

/// Folder of the descriptions, relative to the root.
const FOLDER: &str = "xtask/claim-mutants";
const PAGE: &str = "docs/reliability.md";
const SECTION: &str = "## What is guaranteed";
/// Variable with words from the names of the mutants to plant.
const ONLY: &str = "ZONAL_CLAIMS";

/// A mutant that violates a claim, and the test that must fail with it.
struct Entry {
    mutant: Mutant,
    /// The beginning of the claim's text, without markup.
    claim: String,
    test: Test,
}

/// A test of the workspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Test {
    package: String,
    /// Name of the file in `tests`, or `lib` or `bin` for unit tests.
    target: String,
    /// Part of the names that the tests to run have.
    filter: String,
}

impl Test {
    /// Returns the arguments with which cargo builds the test.
    fn arguments(&self) -> Vec<&str> {
        let package = ["test", "--no-run", "-q", "--message-format=json", "-p", &self.package];
        let target = match &*self.target {
            "lib" => vec!["--lib"],
            "bin" => vec!["--bins"],
            name => vec!["--test", name],
        };
        [&package[..], &target].concat()
    }

    fn name(&self) -> String {
        format!("{}/{} {}", self.package, self.target, self.filter)
    }
}

impl Entry {
    fn read(file: &Path) -> Result<Self, String> {
        let mutant = Mutant::read(file)?;
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
        let field = |field: &str| {
            let value = table.get(field).and_then(toml::Value::as_str).map(str::to_owned);
            value.ok_or_else(|| format!("mutant {}: `{field}` is missing or not a string", mutant.name()))
        };
        let test = Test { package: field("package")?, target: field("target")?, filter: field("filter")? };
        Ok(Self { claim: field("claim")?, test, mutant })
    }
}

fn entries(root: &Path) -> Result<Vec<Entry>, String> {
    planted::described(root, FOLDER)?.iter().map(|file| Entry::read(file)).collect()
}

/// Returns the list items of a section without markup, each on one line. Items end at an empty line.
fn claims(page: &str) -> Vec<String> {
    let section = page.split_once(SECTION).map_or("", |(_, after)| after);
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let mut claims: Vec<String> = Vec::new();
    let mut is_in_item = false;
    for line in section.lines() {
        match line.strip_prefix("- ") {
            Some(first) => claims.push(first.to_owned()),
            None if is_in_item && line.starts_with("  ") => {
                claims.last_mut().expect("an item has begun").push_str(&line[1..]);
            }
            None => {
                is_in_item = false;
                continue;
            }
        }
        is_in_item = true;
    }
    claims.iter().map(|claim| claim.replace(['*', '`'], "")).collect()
}

/// Returns an error for each claim without a mutant, each mutant without a claim, and each mutant without a place.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let page = match fs::read_to_string(root.join(PAGE)) {
        Ok(page) => page,
        Err(error) => return vec![format!("{PAGE}: {error}")],
    };
    match entries(root) {
        Ok(entries) => compare(&claims(&page), root, &entries),
        Err(error) => vec![error],
    }
}

fn compare(claims: &[String], root: &Path, entries: &[Entry]) -> Vec<String> {
    let is_of = |entry: &Entry, claim: &String| claim.starts_with(&entry.claim);
    let untested = claims.iter().filter(|claim| !entries.iter().any(|entry| is_of(entry, claim)));
    let mut found: Vec<String> =
        untested.map(|claim| format!("{PAGE}: no mutant in {FOLDER} violates \"{claim}\"")).collect();
    for entry in entries {
        let name = entry.mutant.name();
        let of = claims.iter().filter(|claim| is_of(entry, claim)).count();
        if of != 1 {
            found.push(format!("mutant {name}: {of} claims of {PAGE} begin with \"{}\"", entry.claim));
        }
        found.extend(entry.mutant.plant_in(root).err());
        let Test { package, target, .. } = &entry.test;
        let tests = root.join("crates").join(package).join("tests");
        let is_there = ["lib", "bin"].contains(&&**target)
            || tests.join(target).join("main.rs").exists()
            || tests.join(format!("{target}.rs")).exists();
        if !is_there {
            found.push(format!("mutant {name}: {package} has no test `{target}`"));
        }
    }
    found
}

/// Returns the step that plants each mutant.
pub(crate) fn step() -> Step {
    Step::new("claims: each guarantee's test fails when it does not hold", |root| {
        plant_all(root).unwrap_or_else(Outcome::Failed)
    })
}

/// What a run of a test reported.
#[derive(PartialEq, Eq)]
enum Report {
    Passed,
    Failed,
    /// No report, and why.
    None(String),
}

/// Returns the mutants whose names contain one of these words, or all if there are none.
fn chosen(mut entries: Vec<Entry>, words: &str) -> Result<Vec<Entry>, String> {
    let is_wanted = |entry: &Entry| words.split_whitespace().any(|word| entry.mutant.name().contains(word));
    entries.retain(|entry| words.is_empty() || is_wanted(entry));
    if entries.is_empty() {
        return Err(format!("{ONLY}={words}: no file of {FOLDER} has one of these words in its name"));
    }
    Ok(entries)
}

fn plant_all(root: &Path) -> Result<Outcome, String> {
    let mut entries = chosen(entries(root)?, &std::env::var(ONLY).unwrap_or_default())?;
    // Tests of one crate follow each other, so that fewer crates are built again.
    entries.sort_by(|a, b| (a.mutant.file(), &a.test).cmp(&(b.mutant.file(), &b.test)));
    let copy = planted::copy(root, None)?;
    let mut passes = BTreeMap::new();
    for entry in &entries {
        if !passes.contains_key(&entry.test) {
            let (report, _) = run(root, &copy, &entry.test)?;
            println!("unchanged: {}: {}", entry.test.name(), word(&report));
            passes.insert(entry.test.clone(), report == Report::Passed);
        }
    }
    let mut wrong = 0;
    let mut table = String::new();
    for entry in &entries {
        let copy = planted::copy(root, Some(&entry.mutant))?;
        let (report, took) =
            run(root, &copy, &entry.test).unwrap_or_else(|problem| (Report::None(problem), Duration::ZERO));
        let verdict = match (&report, passes[&entry.test]) {
            (Report::Failed, true) => "killed".to_owned(),
            (Report::Failed, false) => "the test fails without the mutant too".to_owned(),
            (other, _) => format!("NOT KILLED: {}", word(other)),
        };
        wrong += usize::from(verdict != "killed");
        let (mutant, claim, test) = (entry.mutant.name(), &entry.claim, entry.test.name());
        let line = format!("{:>6.1} s  {verdict}  {mutant}  \"{claim}\"  {test}\n", took.as_secs_f64());
        print!("{line}");
        table.push_str(&line);
    }
    println!("\n{table}");
    let count = entries.len();
    Ok(if wrong == 0 { Outcome::Passed } else { Outcome::Failed(format!("{wrong} of {count} mutants")) })
}

fn word(report: &Report) -> &str {
    match report {
        Report::Passed => "passed",
        Report::Failed => "failed",
        Report::None(why) => why,
    }
}

/// Builds and runs a test of the copy. Returns its report and the time that both took.
fn run(root: &Path, copy: &Path, test: &Test) -> Result<(Report, Duration), String> {
    let begin = Instant::now();
    let build = planted::cargo_in_copy(root, copy, &test.arguments()).stderr(Stdio::null()).output();
    let build = build.map_err(|error| format!("cargo does not start: {error}"))?;
    if !build.status.success() {
        return Err(format!("{} does not build", test.name()));
    }
    let program = program_of(&String::from_utf8_lossy(&build.stdout))
        .ok_or_else(|| format!("{}: cargo names no program", test.name()))?;
    let output = planted::mutants_folder(root).join("claim-output");
    let create = || File::create(&output).map_err(|error| format!("{}: {error}", output.display()));
    let mut run = Command::new(program);
    run.arg(&test.filter).current_dir(copy.join("crates").join(&test.package));
    run.stdin(Stdio::null()).stdout(create()?).stderr(Stdio::null());
    let mut run = run.spawn().map_err(|error| format!("{} does not start: {error}", test.name()))?;
    let report = if planted::ends(&mut run)? {
        report_of(&fs::read_to_string(&output).unwrap_or_default())
    } else {
        Report::None("it did not end".to_owned())
    };
    Ok((report, begin.elapsed()))
}

/// Returns the program that cargo's messages name.
fn program_of(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut tests = messages.filter(|message| message["profile"]["test"] == true);
    tests.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Returns the report at the end of a test's output. A run without tests reports nothing.
fn report_of(output: &str) -> Report {
    let result = output.lines().rev().find(|line| line.starts_with("test result: "));
    match result {
        Some(line) if line.starts_with("test result: FAILED.") => Report::Failed,
        Some(line) if passed_in(line) == 0 => Report::None("no test was run".to_owned()),
        Some(_) => Report::Passed,
        None => Report::None("it ended without a report".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_a_mutant_and_every_mutant_a_claim() {
        let found = violations(&crate::workspace_root());
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn items_of_the_section_are_claims() {
        let page = "- no claim\n## What is guaranteed\n\n### A\n\n- **One `x`** is\n  so. Tested.\n- Two\n\nText.\n  \
                    more\n\n- Three\n\n## Next\n\n- no claim\n";
        assert_eq!(claims(page), ["One x is so. Tested.", "Two", "Three"]);
    }

    #[test]
    fn claims_and_mutants_that_do_not_match_are_named() {
        let root = crate::workspace_root();
        let entries = entries(&root).unwrap();
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let mut claims = claims(&page);
        claims.push("Nothing is ever wrong.".to_owned());
        let found = compare(&claims, &root, &entries);
        assert!(found.len() == 1 && found[0].contains("Nothing is ever wrong"), "{found:?}");
        claims.pop();
        let gone = claims.remove(0);
        let found = compare(&claims, &root, &entries);
        assert!(!found.is_empty() && found.iter().all(|what| what.contains("0 claims")), "{gone}: {found:?}");
    }

    #[test]
    fn a_run_has_mutants() {
        let chosen = |words| chosen(entries(&crate::workspace_root()).unwrap(), words);
        assert_eq!(chosen("lost-count freed-twice").unwrap_or_default().len(), 2);
        assert!(chosen("").unwrap_or_default().len() > 40);
        assert!(chosen("nosuch").err().unwrap().starts_with("ZONAL_CLAIMS=nosuch: no file of"));
        assert!(super::chosen(Vec::new(), "").is_err());
    }

    #[test]
    fn only_a_report_counts() {
        let report = |output| word(&report_of(output)).to_owned();
        assert_eq!(report("running 2 tests\n\ntest result: ok. 2 passed; 0 failed;\n"), "passed");
        assert_eq!(report("test result: FAILED. 1 passed; 1 failed;\n"), "failed");
        assert_eq!(
            report("test result: ok. 0 passed; 0 failed; 0 ignored; 9 filtered out\n"),
            "no test was run"
        );
        assert_eq!(report("running 1 test\n"), "it ended without a report");
    }
}
