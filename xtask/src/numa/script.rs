//! The script that a guest runs as its first process.
//!
//! Each line of program output gets the prefix `| `, so that only lines of the script are parsed as results. Related
//! files: `numa/console.rs` parses them.

use std::time::Duration;

use super::console::{DONE, UP};
use super::kernels::Arch;
use super::programs::Programs;

/// The set of checks that a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// The placement of pages: the short form.
    Placement,
    /// All checks for several nodes, the command line, the examples and a soak test.
    Everything,
    /// The tests of `zonal-linux`.
    Tests,
    /// The tests of `zonal-linux` on another architecture.
    TestsOnAarch64,
}

/// Checks of the short form, selected by words in their names.
const PLACEMENT: &str = "placement policy 'cpuset of a request' 'nodes without' fallback refused explicit";

/// Prefixes of the skips that `zonal-linux` tests may have in guests. Guests have no Python, little memory and a
/// reserve of 2 MiB pages, and are slow.
const TESTS_MAY_SKIP: [&str; 10] = [
    "foreign_parser: foreign_parser_reads_the_same_figures: jc==",
    "gigantic_pages: gigantic_pages_back_a_pool_and_return_to_the_reserve: pages of 1 GiB",
    "gigantic_pages: missing_gigantic_pages_are_warned_of_step_by_step: the ",
    "gigantic_pages: ordinary_memory_has_blocks_of_a_gibibyte: less than 3 GiB are available",
    "huge_pages: huge_pages_go_offline_as_a_whole: this kernel keeps the pages that went offline in reserve",
    "max_size: what_is_required_is_an_error_instead_of_a_warning: this machine has 32 huge pages in reserve",
    "overcommitted: overcommitted_pools_warn: this machine has less than 4 GiB",
    "pool: large_pools_use_no_memory_until_touched: this machine has less than 8 GiB",
    "pool: presets_can_be_emulated: altix512 takes a minute",
    "pool: presets_can_be_emulated: mesh1024 takes a minute",
];

/// Mounts the file systems that programs need.
pub(super) const BEGIN: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /usr/bin /sbin
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root ZONAL_SKIPS_FILE=/tmp/skips
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tracefs tracefs /sys/kernel/tracing
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
"#;

/// Defines the functions that run programs: `run NAME SECONDS COMMAND...`, and `checks SECONDS COMMAND...` for a
/// program that prints checks itself. Each line of output is a single write, so that lines of programs and the script
/// are not interleaved. Each line is also stored, and the script counts the stored lines at the end.
pub(super) const FUNCTIONS: &str = r#": > /tmp/results
up() { cut -d' ' -f1 /proc/uptime; }
tell() { echo "$1" | tee -a /tmp/results; }
number() { grep -c "^$1 " /tmp/results; }
run() {
  name=$1 limit=$2 begin=$(up)
  shift 2
  timeout -s KILL "$limit" "$@" > /tmp/out 2>&1
  ended=$?
  seconds=$(echo "$begin $(up)" | awk '{ printf "%.1f", $2 - $1 }')
  if [ $ended = 0 ]; then
    tell "ok $name ($seconds s)"
  else
    tail -n 80 /tmp/out | sed 's/^/| /'
    tell "not ok $name: ended with $ended after $seconds s"
  fi
}
checks() {
  echo none > /tmp/ended
  { timeout -s KILL "$@" 2>&1; echo $? > /tmp/ended; } | tee -a /tmp/results
  ended=$(cat /tmp/ended)
  [ "$ended" = 0 ] || tell "not ok the checks: ended with $ended"
}
"#;

/// Prints the skips of the tests, the kernel's log and the counts of the guest.
const END: &str = r#"
[ ! -e /tmp/skips ] || sed 's/^SKIPPED: /skipped /' /tmp/skips | sort -u | tee -a /tmp/results
dmesg | sed 's/^/log: /'
"#;

/// The file with the number of each node's reserved huge pages. Some tests need reserved huge pages.
const RESERVES: &str = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages";

impl Form {
    /// Returns the name that is used in file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Everything => "everything",
            Self::Tests => "tests",
            Self::TestsOnAarch64 => "tests-aarch64",
        }
    }

    pub(super) const fn arch(self) -> Arch {
        match self {
            Self::Placement | Self::Everything | Self::Tests => Arch::X86_64,
            Self::TestsOnAarch64 => Arch::Aarch64,
        }
    }

    /// Returns the time after which the guest is killed, which is several times its usual duration.
    pub(super) const fn time_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Placement => 300,
            Self::Everything => 2700,
            Self::Tests | Self::TestsOnAarch64 => 2400,
        })
    }

    /// Returns prefixes of the checks that may be skipped, as `NAME: WHY`. All other checks are required.
    pub(super) const fn may_skip(self) -> &'static [&'static str] {
        match self {
            Self::Placement | Self::Everything => &[],
            Self::Tests | Self::TestsOnAarch64 => &TESTS_MAY_SKIP,
        }
    }

    /// Returns the script.
    pub(super) fn script(self, programs: &Programs) -> String {
        let body = match self {
            Self::Placement => format!("checks 200 guest --may-change-machine {PLACEMENT}\n"),
            Self::Everything => everything(programs),
            Self::Tests | Self::TestsOnAarch64 => tests(programs),
        };
        format!("{BEGIN}{FUNCTIONS}echo {UP}\n{body}{END}{}", off())
    }
}

/// Returns the last lines of a script, which print the counts and switch the guest off.
pub(super) fn off() -> String {
    format!("echo {DONE} $(number ok) $(number 'not ok') $(number skipped)\nsync\npoweroff -f\n")
}

fn everything(programs: &Programs) -> String {
    let mut text = String::from(
        "checks 1800 guest --may-change-machine\nrun 'machine --check' 60 zonal machine --check\n",
    );
    for policy in ["local", "preferred:4", "bind:0,4", "interleave:0-2,4", "weighted:0=3,1=1"] {
        text.push_str(&format!(
            "run 'run touch --policy {policy}' 120 zonal run touch --pool 64MiB --seconds 1 --policy {policy}\n"
        ));
    }
    for example in programs.in_folder("examples/") {
        text.push_str(&format!("run {example} 300 /{example} --short\n"));
    }
    text.push_str("run soak 300 soak --minutes 0.3\n");
    text
}

fn tests(programs: &Programs) -> String {
    let mut text = format!("cd /tests\nfor pages in {RESERVES}; do echo 16 > $pages; done\n");
    for test in programs.in_folder("tests/deps/") {
        let name = test.trim_start_matches("tests/deps/");
        text.push_str(&format!("run {name} 900 /{test}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_run_what_is_there_and_say_that_they_are_done() {
        let programs =
            Programs::of(&["bin/guest", "examples/a", "tests/deps/pool", "tests/examples/libx.so"]);
        let all = Form::Everything.script(&programs);
        assert!(all.contains("run examples/a 300 /examples/a --short\n") && all.contains("weighted:0=3,1=1"));
        let tests = Form::Tests.script(&programs);
        assert!(tests.contains("run pool 900 /tests/deps/pool\n") && !tests.contains("libx"));
        for form in [Form::Placement, Form::Everything, Form::Tests, Form::TestsOnAarch64] {
            let script = form.script(&programs);
            let (up, done) = (script.find("echo up\n").unwrap(), script.find("echo done ").unwrap());
            assert!(up < done && script.ends_with("poweroff -f\n"));
        }
    }

    /// Returns the host's verdict on a script with this body, which a shell of the host runs.
    fn judged(body: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let script = Form::Placement.script(&Programs::of(&[]));
        let (from, to) = (script.find(FUNCTIONS).unwrap(), script.find("sync\n").unwrap());
        let script = script[from..to].replace(
            "checks 200 guest",
            &format!("dmesg() {{ echo '[ 0.0] Linux version 6'; }}\n{body}\n: checks 200 guest"),
        );
        let script = script.replace("/tmp/", &format!("{}/", folder.path().display()));
        let printed = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        let mut report = crate::numa::console::Report::default();
        for line in printed.lines() {
            report.read(line);
        }
        report.verdict(&["t: may: "]).map_err(|why| format!("{why} in {printed}"))
    }

    #[test]
    fn what_scripts_print_is_judged() {
        let checks = |text: &str, ended| judged(&format!("checks 60 sh -c \"{text}; exit {ended}\""));
        assert_eq!(checks("echo ok a; echo ok b", 0), Ok(()));
        let skip = |what: &str| judged(&format!("run a 60 true\necho 'SKIPPED: t: {what}: c' >> /tmp/skips"));
        assert_eq!(skip("may"), Ok(()));
        let why = |judged: Result<(), String>| judged.unwrap_err();
        assert!(why(skip("must")).starts_with("skipped, and must not be: t: must: c in "));
        // A program that exits with a failure need not name a failed check.
        assert!(why(checks("echo ok a", 1)).starts_with("the checks: ended with 1 in "));
        let failed = why(checks("echo ok a; echo not ok b: c", 1));
        assert!(failed.starts_with("b: c; the checks: ended with 1 in "), "{failed}");
        assert!(why(judged("checks 1 sleep 60")).starts_with("the checks: ended with 137 in "));
        assert!(why(judged("run a 60 true; run b 60 false")).starts_with("b: ended with 1 after "));
        assert!(why(judged("tell 'ok a'; echo 'ok b'")).contains("as the guest counted"));
    }
}
