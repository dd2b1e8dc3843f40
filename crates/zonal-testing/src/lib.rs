//! Code that the tests of all crates share: skips that the summary lists, waits with a time limit, the owner
//! ledger, CPUs to run on, and values at the edges of settings.
//!
//! A test that cannot check something on this machine calls [`skipped!`] and then continues or returns. libtest counts
//! the test as passed in either case and hides its output. The skip is therefore also appended to the file named by
//! [`SKIPS_FILE`]. `cargo xtask` sets this variable, and prints the contents of the file with its summary.
#![forbid(unsafe_code)]

mod cpus;
mod edges;
mod generated;
mod ledger;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

pub use cpus::{allowed_cpus, bind, pin_to, two_cpus};
pub use edges::Edges;
pub use generated::assert_generated;
pub use ledger::Ledger;

/// The environment variable that names the file to which skips are appended.
pub const SKIPS_FILE: &str = "ZONAL_SKIPS_FILE";
/// The environment variable that names the folder in which the libraries of [`built_library`] are built already.
pub const BUILT_FOLDER: &str = "ZONAL_BUILT_FOLDER";
/// Time limit of [`eventually`], which is far longer than any condition takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two checks of [`eventually`].
const POLL_PERIOD: Duration = Duration::from_millis(2);

/// Builds a crate's library for programs of other languages, and returns its path in the target folder. `manifest` is
/// the folder of the crate, and `file` the name of the library.
///
/// cargo does not build such a library with tests, or under a name that only cargo knows. `cargo xtask test` builds those
/// without features together with all else, which compiles less, and sets [`BUILT_FOLDER`].
///
/// # Panics
/// Panics if the library cannot be built.
#[must_use]
pub fn built_library(manifest: &str, features: &[&str], file: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os(BUILT_FOLDER).filter(|_| features.is_empty()) {
        return Path::new(&folder).join(file);
    }
    let own = std::env::current_exe().expect("the path of the test is not known");
    let target = own.ancestors().nth(3).expect("the test is in a folder of the target folder");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-q", "--manifest-path"]).arg(Path::new(manifest).join("Cargo.toml"));
    build.args(["--features", &features.join(",")]);
    let status = build.arg("--target-dir").arg(target).status();
    assert!(status.is_ok_and(|status| status.success()), "{file} was not built");
    target.join("debug").join(file)
}

/// Copies a program or library that a test then runs.
///
/// Another process copies, because this one would hold the copy open for writing, and so would every child that another
/// thread starts meanwhile, until its `exec`: a program that is open for writing cannot run (`ETXTBSY`).
///
/// # Panics
/// Panics if the file cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let status = Command::new("cp").args(["-p", "--"]).args([from, to]).status();
    assert!(status.is_ok_and(|status| status.success()), "{} was not copied", from.display());
}

/// Reports that the calling test skips a check, and why. The arguments are those of `format!`.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)+) => {
        $crate::record_skip(module_path!(), &format!($($why)+))
    };
}

/// Prints one line for a skip and appends it to the file of skips. Use [`skipped!`] to call this function.
///
/// # Panics
/// Panics if [`SKIPS_FILE`] names a file that cannot be written.
pub fn record_skip(module: &str, why: &str) {
    let test = thread::current().name().filter(|name| *name != "main").unwrap_or("a test").to_owned();
    let program = module.split("::").next().unwrap_or(module);
    let line = format!("SKIPPED: {program}: {test}: {}\n", why.replace('\n', " "));
    eprint!("{line}");
    let Some(file) = std::env::var_os(SKIPS_FILE) else { return };
    // Each line is appended with a single short write, so lines of concurrent tests are not interleaved.
    let opened = OpenOptions::new().create(true).append(true).open(&file);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{SKIPS_FILE} {}: {error}", file.display()));
}

/// Calls `holds` repeatedly until it returns `true`.
///
/// # Panics
/// Panics if `holds` does not return `true` within two minutes. The message contains `what`, the name of the condition.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(POLL_PERIOD);
    }
}

/// Calls `work` on a new thread and returns its result. The thread has the caller's name, so that skips in it
/// are attributed to the calling test.
///
/// # Panics
/// Panics if `work` panics, or if it does not finish within two minutes. In the second case its thread continues to
/// run, and the message contains `what`, the name of the work.
pub fn within_patience<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let caller = thread::current().name().unwrap_or(what).to_owned();
    let thread = thread::Builder::new().name(caller).spawn(work).expect("a thread can be started");
    eventually(what, || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A reusable barrier for two threads whose wait has a time limit.
#[derive(Default, Debug)]
pub struct Meeting {
    arrivals: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    /// Waits until the other thread has also called `wait`.
    ///
    /// # Panics
    /// Panics if the other thread does not arrive within two minutes.
    pub fn wait(&self) {
        let mut arrivals = self.arrivals.lock().expect("no thread panics here while holding the lock");
        *arrivals += 1;
        let both = arrivals.next_multiple_of(2);
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(arrivals, PATIENCE, |arrivals| *arrivals < both);
        let is_late = waited.expect("no thread panics here while holding the lock").1.timed_out();
        assert!(!is_late, "the other thread did not come within {PATIENCE:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn waits_end_when_it_holds() {
        let looks = Cell::new(0);
        eventually("three looks", || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        });
        assert_eq!(looks.get(), 3);
        assert_eq!(within_patience("work", || 7), 7);
    }

    #[test]
    #[should_panic(expected = "of the work")]
    fn a_panic_of_the_work_is_the_callers() {
        within_patience("work", || panic!("of the work"));
    }

    /// A child process sets the variable, because all tests of this process share the environment.
    #[test]
    fn skips_are_appended_to_the_file() {
        const CHILD: &str = "ZONAL_TESTING_CHILD";
        if std::env::var_os(CHILD).is_some() {
            skipped!("no {} here", "flux");
            skipped!("two\nlines");
            within_patience("a label", || within_patience("another", || skipped!("elsewhere")));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        std::fs::write(&file, "before\n").unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::skips_are_appended_to_the_file"])
            .env(CHILD, "1")
            .env(SKIPS_FILE, &file)
            .output()
            .unwrap();
        assert!(child.status.success());
        let text = std::fs::read_to_string(&file).unwrap();
        let line = |why| format!("SKIPPED: zonal_testing: tests::skips_are_appended_to_the_file: {why}\n");
        let lines = ["no flux here", "two lines", "elsewhere"].map(line).concat();
        assert_eq!(text, format!("before\n{lines}"));
    }

    #[test]
    fn threads_meet_again_and_again() {
        let (meeting, steps) = (Meeting::default(), AtomicU32::new(0));
        let steps_of_one = || {
            for round in 0..100 {
                meeting.wait();
                steps.fetch_add(1, Ordering::Relaxed);
                meeting.wait();
                assert_eq!(steps.load(Ordering::Relaxed), 2 * (round + 1));
            }
        };
        thread::scope(|scope| {
            scope.spawn(steps_of_one);
            steps_of_one();
        });
    }
}
