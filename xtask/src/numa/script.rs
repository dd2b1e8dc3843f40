//! What a guest runs: the script that is its first process.
//!
//! Output of programs stands behind `| `, so that only our own lines are read as results; `console.rs` reads them.

use std::time::Duration;

use super::console::{DONE, UP};
use super::kernels::Arch;
use super::programs::Programs;

/// What a guest is booted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Where pages lie: the short form.
    Placement,
    /// All checks for several nodes, the command, the examples and a soak.
    Everything,
    /// The tests of `zonal-linux`.
    Tests,
    /// The same on another architecture.
    TestsOnAarch64,
}

/// Checks of the short form, as words in their names.
const PLACEMENT: &str = "placement policy 'cpuset of a request' 'nodes without' fallback refused explicit";

/// Mounts what programs need, and tells how to run one: `run NAME SECONDS COMMAND...`. Each line of output is one
/// write, so that lines of programs and of the script do not mix.
const BEGIN: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /usr/bin /sbin
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root ZONAL_SKIPS_FILE=/tmp/skips
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
up() { cut -d' ' -f1 /proc/uptime; }
run() {
  name=$1 limit=$2 begin=$(up)
  shift 2
  timeout -s KILL "$limit" "$@" > /tmp/out 2>&1
  ended=$?
  seconds=$(echo "$begin $(up)" | awk '{ printf "%.1f", $2 - $1 }')
  if [ $ended = 0 ]; then
    echo "ok $name ($seconds s)"
  else
    tail -n 80 /tmp/out | sed 's/^/| /'
    echo "not ok $name: ended with $ended after $seconds s"
  fi
}
checks() {
  timeout -s KILL "$@" 2>&1
  ended=$?
  [ $ended -le 1 ] || echo "not ok the checks: ended with $ended"
}
"#;

/// Prints what tests left out and the kernel's log, and turns the machine off.
const END: &str = r#"
[ ! -e /tmp/skips ] || sed 's/^SKIPPED: /skipped /' /tmp/skips | sort -u
dmesg | sed 's/^/log: /'
"#;

/// The reserve of huge pages of each node, which lets tests use some.
const RESERVES: &str = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages";

impl Form {
    /// As it appears in names of files.
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

    /// When the guest is turned off, whatever it is doing: several times what it takes.
    pub(super) const fn time_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Placement => 300,
            Self::Everything => 1200,
            Self::Tests | Self::TestsOnAarch64 => 2400,
        })
    }

    /// The script.
    pub(super) fn script(self, programs: &Programs) -> String {
        let body = match self {
            Self::Placement => format!("checks 200 guest --may-change-machine {PLACEMENT}\n"),
            Self::Everything => everything(programs),
            Self::Tests | Self::TestsOnAarch64 => tests(programs),
        };
        format!("{BEGIN}echo {UP}\n{body}{END}echo {DONE}\nsync\npoweroff -f\n")
    }
}

fn everything(programs: &Programs) -> String {
    let mut text = String::from(
        "checks 600 guest --may-change-machine\nrun 'machine --check' 60 zonal machine --check\n",
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
            let (up, done) = (script.find("echo up\n").unwrap(), script.find("echo done\n").unwrap());
            assert!(up < done && script.ends_with("poweroff -f\n"));
        }
    }
}
