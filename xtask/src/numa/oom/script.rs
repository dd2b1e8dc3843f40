//! The script that runs cases in a guest.
//!
//! The script itself and its shell are never killed. A case uses the functions below and the program `exhaust`, which
//! the kernel kills first. Each case begins with an empty log and ends with the settings of the boot. A
//! case that sets `BEFORE` to a file gets that file before its log.

use super::super::console::UP;
use super::super::script::{BEGIN, FUNCTIONS, off};
use super::cases::Case;

/// The path of the kernel module in the guest.
pub(super) const MODULE: &str = "requester.ko";

/// Prepares the guest, and prints the kernel's log of the boot. Transparent huge pages would make requests of order 9.
const PREPARE: &str = r#"
echo -1000 > /proc/self/oom_score_adj
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
echo '+memory +cpuset' > /sys/fs/cgroup/cgroup.subtree_control
mount -t tmpfs -o size=3G files /run
[ ! -e /requester.ko ] || insmod /requester.ko
dmesg > /tmp/boot
sed 's/^/log: /' /tmp/boot
VM=/proc/sys/vm
SETTINGS='min_free_kbytes watermark_scale_factor watermark_boost_factor lowmem_reserve_ratio'
for name in $SETTINGS; do tr '\t' ' ' < $VM/$name > /tmp/$name; done
FILL='request=fill gfp=GFP_KERNEL|__GFP_NORETRY'
FAILED=-11
BEFORE=
"#;

/// Defines the functions of cases. The kernel reports at most one page allocation failure in ten seconds, so
/// `begin_failure` waits until that time is over.
const CASE_FUNCTIONS: &str = r#"
begin() { dmesg -c > /dev/null; }
begin_failure() {
  while [ $(($(cut -d. -f1 /proc/uptime) - FAILED)) -lt 11 ]; do sleep 1; done
  begin
}
finish() {
  FAILED=$(cut -d. -f1 /proc/uptime)
  sleep 1
  dmesg | cat $BEFORE - > /tmp/kmsg
  BEFORE=
  sed "s/^/| kmsg $1: /" /tmp/kmsg
  if grep -q "$2" /tmp/kmsg; then
    tell "ok oom $1: $(wc -l < /tmp/kmsg) lines"
  else
    tell "not ok oom $1: its log has no $2"
  fi
  for process in $(pidof exhaust); do kill -KILL $process; done
  while pidof exhaust > /dev/null; do sleep 0.1; done
  rm -f /run/*
  for folder in /sys/fs/cgroup/case*; do [ ! -d $folder ] || rmdir $folder; done
  for huge in /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages; do echo 0 > $huge; done
  for name in $SETTINGS; do cat /tmp/$name > $VM/$name; done
  echo 1 > $VM/compact_memory
}
victim() {
  exhaust score=1000 "$@" > /tmp/out 2>&1
  echo "| ended with $?: $(tail -n 3 /tmp/out)"
}
victim_in() {
  sh -c 'echo $$ > /sys/fs/cgroup/$0/cgroup.procs; exec exhaust score=1000 "$@"' "$@" > /tmp/out 2>&1
  echo "| ended with $?: $(tail -n 3 /tmp/out)"
}
holder() {
  : > /tmp/held
  exhaust "$@" hold > /tmp/held 2>&1 &
  while [ -d /proc/$! ] && ! grep -q held /tmp/held; do sleep 0.1; done
}
group() { mkdir -p /sys/fs/cgroup/$1; echo "$3" > /sys/fs/cgroup/$1/$2; }
"#;

/// Returns the script that runs cases. Those that need the kernel module are skipped if `no_requester` says why there is
/// none.
pub(super) fn script(cases: &[&Case], no_requester: Option<&str>) -> String {
    let mut text = format!("{BEGIN}{FUNCTIONS}echo {UP}\n{PREPARE}{CASE_FUNCTIONS}");
    for case in cases {
        match no_requester {
            Some(why) if case.needs_requester() => {
                // The reason is the output of a program, and is quoted.
                let why = why.replace('\'', "").replace('\n', " ");
                text.push_str(&format!("tell 'skipped oom {}: no kernel module ({why})'\n", case.name));
            }
            _ => {
                let begin = if case.is_failure() { "begin_failure" } else { "begin" };
                text.push_str(&format!("{begin}\n{}\nfinish {} '{}'\n", case.body, case.name, case.log));
            }
        }
    }
    text + &off()
}

/// Returns the prefix of each line in a case's log.
pub(super) fn prefix(case: &str) -> String {
    format!("| kmsg {case}: ")
}

/// Returns the number of lines in a case's log, if `line` is the check of the case.
pub(super) fn counted(line: &str, case: &str) -> Option<usize> {
    let rest = line.strip_prefix("ok oom ")?.strip_prefix(case)?.strip_prefix(": ")?;
    rest.strip_suffix(" lines")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::cases::GROUPS;
    use super::*;

    #[test]
    fn cases_without_their_module_are_skipped() {
        let cases: Vec<&Case> = GROUPS[0].1.iter().collect();
        let (all, some) = (script(&cases, None), script(&cases, Some("make: it's\ngone")));
        assert!(all.ends_with("poweroff -f\n") && !all.contains("tell 'skipped"));
        assert!(
            some.contains("tell 'skipped oom dma32-limit: no kernel module (make: its gone)'\n"),
            "{some}"
        );
        assert!(!some.contains("begin_failure\n") && some.contains("begin\nvictim policy=bind:1 "));
    }

    #[test]
    fn scripts_are_accepted_by_a_shell() {
        for (_, cases) in GROUPS {
            let text = script(&cases.iter().collect::<Vec<_>>(), None);
            let checked = std::process::Command::new("sh").args(["-n", "-c", &text]).output().unwrap();
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        }
    }

    #[test]
    fn lines_are_counted_by_the_check_of_their_case() {
        assert_eq!(counted("ok oom bind: 55 lines", "bind"), Some(55));
        assert_eq!(counted("ok oom bind-two: 55 lines", "bind"), None);
        assert_eq!(counted("not ok oom bind: its log has no kill", "bind"), None);
    }
}
