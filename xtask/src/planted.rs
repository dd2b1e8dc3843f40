//! Checks that the stress test detects faults. Each step plants one fault in a copy of the core and runs the test.
//!
//! A *mutant* is a file of `xtask/mutants` with a text that occurs exactly once in one source file, and its
//! replacement. The copy is in `target/mutants/workspace` and is built in `target/mutants/build`. The program `stress`
//! of `zonal-verify` runs on it, and must stop with the operation at which it detected the fault. The unchanged core
//! must pass. Related files: `deep.rs` includes these steps, `claims.rs` plants faults for
//! the tests of each guarantee, and `kernel/faults.rs` for the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use walkdir::WalkDir;

use crate::steps::{Outcome, Selection, Step, cargo, program, succeeds, target_folder};

/// Folder of the mutants' descriptions, relative to the root.
const MUTANTS: &str = "xtask/mutants";
/// Folder with descriptions of faults that the kernel must detect.
pub(crate) const KERNEL_MUTANTS: &str = "xtask/kernel-mutants";
/// Parts of the workspace that are copied.
const PARTS: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates", "kernel", "xtask"];
/// First seed and number of rounds for a run.
const SEED: &str = "1";
const ROUNDS: &str = "16";
/// Prefix of the line that reports a detected fault.
const CAUGHT: &str = "stress, seed ";
/// Time after which a run counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);

/// A fault to plant.
#[derive(Debug)]
pub(crate) struct Mutant {
    name: String,
    what: String,
    noticed_by: String,
    file: PathBuf,
    find: String,
    replace: String,
}

impl Mutant {
    /// Reads the description of a mutant; ignores other fields.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let table: toml::Table = text.parse().map_err(|error| format!("mutant {name}: {error}"))?;
        let field = |field: &str| {
            let value = table.get(field).and_then(toml::Value::as_str).map(str::to_owned);
            value.ok_or_else(|| format!("mutant {name}: `{field}` is missing or not a string"))
        };
        Ok(Self {
            what: field("what")?,
            noticed_by: field("noticed_by")?,
            file: field("file")?.into(),
            find: field("find")?,
            replace: field("replace")?,
            name,
        })
    }

    /// Returns the name, which is that of the file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the source file that the fault is in.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns what the fault is, and what should detect it.
    pub(crate) fn describe(&self) -> String {
        format!("{}\nexpected to be detected by: {}", self.what, self.noticed_by)
    }

    /// Returns the source below `root` with the fault in it.
    pub(crate) fn plant_in(&self, root: &Path) -> Result<String, String> {
        let source = fs::read_to_string(root.join(&self.file));
        self.plant(&source.map_err(|error| format!("{}: {error}", self.file.display()))?)
    }

    /// Returns the source with the fault in it.
    fn plant(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.find).count() {
            1 if self.find != self.replace => Ok(source.replacen(&self.find, &self.replace, 1)),
            1 => Err(format!("mutant {}: changes nothing", self.name)),
            found => Err(format!(
                "mutant {}: its text occurs {found} times in {}; it must occur once",
                self.name,
                self.file.display()
            )),
        }
    }
}

/// Returns a run of the unchanged core, followed by one run for each mutant, or for the named mutants only.
///
/// # Errors
/// Returns an error if a name is unknown or a file cannot be read.
pub(crate) fn steps(root: &Path, names: &[String]) -> Result<Vec<Step>, String> {
    let unbroken = Step::new("no planted fault", unbroken);
    Ok(std::iter::once(unbroken).chain(planted(root, names)?).collect())
}

/// Returns a run for each mutant, or for the named mutants only.
///
/// # Errors
/// Returns an error in the same cases as [`steps`].
fn planted(root: &Path, names: &[String]) -> Result<Vec<Step>, String> {
    let mutants = mutants(root, MUTANTS)?;
    let known = || mutants.iter().map(|mutant| &*mutant.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = names.iter().find(|name| mutants.iter().all(|mutant| mutant.name != **name)) {
        return Err(format!("there is no mutant `{name}`; mutants are: {}", known()));
    }
    let wanted = mutants.into_iter().filter(|mutant| names.is_empty() || names.contains(&mutant.name));
    let planted = wanted
        .map(|mutant| Step::new(format!("planted fault {}", mutant.name), move |root| judge(root, &mutant)));
    Ok(planted.collect())
}

/// Returns an error for every mutant whose fault has no place in the source.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let planted = |mutant: Mutant| mutant.plant_in(root);
    let found = |folder| match mutants(root, folder) {
        Ok(mutants) => mutants.into_iter().filter_map(|mutant| planted(mutant).err()).collect(),
        Err(error) => vec![error],
    };
    [MUTANTS, KERNEL_MUTANTS].into_iter().flat_map(found).collect()
}

/// Returns all mutants of a folder.
pub(crate) fn mutants(root: &Path, folder: &str) -> Result<Vec<Mutant>, String> {
    described(root, folder)?.iter().map(|file| Mutant::read(file)).collect()
}

/// Returns the paths of the descriptions in a folder.
pub(crate) fn described(root: &Path, folder: &str) -> Result<Vec<PathBuf>, String> {
    let files = WalkDir::new(root.join(folder)).sort_by_file_name().into_iter();
    let files = files.map(|entry| entry.map_err(|error| error.to_string()));
    let files = files.filter(|entry| !matches!(entry, Ok(entry) if entry.file_type().is_dir()));
    files.map(|entry| Ok(entry?.into_path())).collect()
}

fn unbroken(root: &Path) -> Outcome {
    // An optimised build, because this run goes through all rounds.
    let program = match program(root, "zonal-verify", "stress", Selection::Package) {
        Ok(program) => program,
        Err(failed) => return failed,
    };
    match stress(&program) {
        Ok(Ended::Nothing(line)) => {
            println!("{line}");
            Outcome::Passed
        }
        Ok(Ended::Caught(line) | Ended::Broken(line)) => Outcome::Failed(line),
        Err(error) => Outcome::Failed(error),
    }
}

fn judge(root: &Path, mutant: &Mutant) -> Outcome {
    println!("{}", mutant.describe());
    match copy(root, Some(mutant)).and_then(|copy| stress_of_copy(root, &copy)) {
        Ok(Ended::Caught(line)) => {
            println!("caught: {line}");
            Outcome::Passed
        }
        Ok(Ended::Nothing(line)) => Outcome::Failed(format!("NOT CAUGHT: {line}")),
        Ok(Ended::Broken(line)) => Outcome::Failed(format!("NOT CAUGHT, but {line}")),
        Err(error) => Outcome::Failed(error),
    }
}

/// The way in which a run ended.
enum Ended {
    Nothing(String),
    Caught(String),
    Broken(String),
}

/// Builds the copy and runs stress on it.
fn stress_of_copy(root: &Path, copy: &Path) -> Result<Ended, String> {
    let mut call = cargo_in_copy(root, copy, &["build", "-q", "-p", "zonal-verify", "--bin", "stress"]);
    if let Outcome::Failed(why) = succeeds(&mut call) {
        return Err(format!("the copy does not build: {why}"));
    }
    stress(&mutants_folder(root).join("build/debug/stress"))
}

fn stress(program: &Path) -> Result<Ended, String> {
    let mut run = Command::new(program);
    run.args([SEED, ROUNDS]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut run = run.spawn().map_err(|error| format!("stress does not start: {error}"))?;
    if !ends(&mut run)? {
        return Ok(Ended::Broken(format!("stress did not end within {} s", PATIENCE.as_secs())));
    }
    // The program prints one line, which fits in a pipe even if no reader is waiting.
    let output = run.wait_with_output().map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(match output.status.code() {
        Some(0) => Ended::Nothing(line),
        Some(1) if line.starts_with(CAUGHT) => Ended::Caught(line),
        _ => Ended::Broken(format!("stress ended with {}: {line}", output.status)),
    })
}

/// Waits for a program to end; kills it and returns `false` if it does not end in time.
pub(crate) fn ends(run: &mut Child) -> Result<bool, String> {
    let begin = Instant::now();
    while run.try_wait().map_err(|error| error.to_string())?.is_none() {
        if begin.elapsed() > PATIENCE {
            run.kill().and_then(|()| run.wait()).map_err(|error| error.to_string())?;
            return Ok(false);
        }
        sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Returns a cargo call that builds parts of a copy.
pub(crate) fn cargo_in_copy(root: &Path, copy: &Path, arguments: &[&str]) -> Command {
    let mut call = cargo(copy, arguments);
    // Optimised builds take longer than the faults take to be found without. Incremental builds compile only the code
    // around the fault again.
    call.env("CARGO_TARGET_DIR", mutants_folder(root).join("build"))
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .args(["--config", "profile.dev.package.zonal-verify.opt-level=0"])
        .env("CARGO_INCREMENTAL", "1");
    call
}

pub(crate) fn mutants_folder(root: &Path) -> PathBuf {
    target_folder(root).join("mutants")
}

/// Updates the copy to the current workspace with the fault of a mutant, and returns its path. Files that are already
/// correct are not written, so that only differences are rebuilt.
pub(crate) fn copy(root: &Path, mutant: Option<&Mutant>) -> Result<PathBuf, String> {
    let target = mutants_folder(root).join("workspace");
    copy_to(root, &target, mutant)?;
    Ok(target)
}

/// Updates `target` to the current workspace with the fault of a mutant.
pub(crate) fn copy_with(root: &Path, target: &Path, mutant: &Mutant) -> Result<(), String> {
    copy_to(root, target, Some(mutant))
}

/// Updates `target` to the current workspace. Files that are already correct are not written.
pub(crate) fn copy_unchanged(root: &Path, target: &Path) -> Result<(), String> {
    copy_to(root, target, None)
}

fn copy_to(root: &Path, target: &Path, mutant: Option<&Mutant>) -> Result<(), String> {
    let from = files(root).map_err(|error| error.to_string())?;
    for file in &from {
        let place = |error: std::io::Error| format!("{}: {error}", file.display());
        let mut content = fs::read(root.join(file)).map_err(place)?;
        if let Some(mutant) = mutant.filter(|mutant| mutant.file == *file) {
            content = mutant.plant(&String::from_utf8_lossy(&content))?.into_bytes();
        }
        let to = target.join(file);
        if fs::read(&to).is_ok_and(|there| there == content) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(target)).map_err(place)?;
        fs::write(&to, content).map_err(place)?;
    }
    match mutant {
        Some(mutant) if !from.contains(&mutant.file) => {
            return Err(format!("mutant {}: there is no {}", mutant.name, mutant.file.display()));
        }
        _ => {}
    }
    for gone in files(target).map_err(|error| error.to_string())?.difference(&from) {
        fs::remove_file(target.join(gone)).map_err(|error| format!("{}: {error}", gone.display()))?;
    }
    Ok(())
}

/// Returns the files of the workspace, as paths below its root.
pub(crate) fn files(root: &Path) -> Result<BTreeSet<PathBuf>, walkdir::Error> {
    let mut files = BTreeSet::new();
    for part in PARTS.map(|part| root.join(part)).into_iter().filter(|part| part.exists()) {
        let walk = WalkDir::new(part).into_iter().filter_entry(|entry| entry.file_name() != "target");
        for entry in walk {
            let entry = entry?;
            if entry.file_type().is_file()
                && let Ok(file) = entry.path().strip_prefix(root)
            {
                files.insert(file.to_path_buf());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_finds_its_place() {
        let root = crate::workspace_root();
        assert!(
            mutants(&root, MUTANTS).unwrap().len() >= 8 && mutants(&root, KERNEL_MUTANTS).unwrap().len() >= 3
        );
        assert!(violations(&root).is_empty(), "{:?}", violations(&root));
    }

    #[test]
    fn what_is_not_there_once_is_an_error_with_names() {
        let file = PathBuf::from("crates/zonal/src/free.rs");
        let [what, noticed_by] = [String::new(), String::new()];
        let (find, replace) = ("a - b".to_owned(), "a + b".to_owned());
        let mutant = Mutant { name: "drift".to_owned(), what, noticed_by, file, find, replace };
        assert_eq!(mutant.plant("let c = a - b;").unwrap(), "let c = a + b;");
        for (source, times) in [("let c = a * b;", "0 times"), ("a - b; a - b", "2 times")] {
            let error = mutant.plant(source).unwrap_err();
            assert!(["drift", "free.rs", times].iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn names_that_no_mutant_has_are_refused_with_those_there_are() {
        let root = crate::workspace_root();
        let error = steps(&root, &["nosuch".to_owned()]).err().unwrap();
        assert!(error.contains("nosuch") && error.contains("marks-stay"), "{error}");
        assert_eq!(steps(&root, &["marks-stay".to_owned()]).unwrap().len(), 2);
    }
}
