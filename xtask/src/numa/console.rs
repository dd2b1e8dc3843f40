//! Parses the output of a guest on its serial console, and decides whether the guest passed.
//!
//! Lines that begin with `ok `, `not ok ` and `skipped ` are checks. They follow a line `up`, and precede a line `done
//! HELD FAILED SKIPPED`. The guest itself counts the checks, because a kernel message may have interrupted the line of
//! a check. Lines that begin with `log: ` are the kernel's log. All other lines are ordinary output.

/// Printed when the guest's own programs begin to run.
pub(super) const UP: &str = "up";
/// Printed last, with three counts.
pub(super) const DONE: &str = "done";
/// Prefix of lines in the kernel's log.
const LOG: &str = "log: ";
/// Maximum number of failed checks that the verdict lists.
const NAMED_MAX: usize = 3;

/// Text from a line near the beginning of the kernel's log. If no line has this text, the log is missing or incomplete.
const FIRST: &str = "Linux version ";

/// Messages of the kernel about its own faults or exhausted memory. At every boot, kernels also print the words `stall`
/// and `bug` in messages about their watchdogs and about where to report bugs. The texts in this list are therefore
/// longer or in capitals.
const FAULTS: [&str; 29] = [
    "WARNING:",
    "Oops",
    "Internal error",
    "Kernel panic",
    "Call Trace",
    "Call trace",
    "possible circular locking",
    "possible recursive locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "general protection fault",
    "invalid opcode",
    "unable to handle",
    "Unable to handle",
    "Bad page",
    "Corrupted page table",
    "page dumped because",
    "overwritten",
    "_add corruption",
    "_del corruption",
    "UBSAN",
    "detected stall",
    "detected expedited stall",
    "stall on CPU",
    "stalls on CPU",
    "soft lockup",
    "INFO: task",
    "Out of memory",
    "oom-kill",
];
/// The word with which most reports of faults begin, such as `BUG kmalloc-64` and `watchdog: BUG: soft lockup`.
const BUG: &str = "BUG";

/// The results found in the output of a guest.
#[derive(Default, Debug)]
pub(super) struct Report {
    /// Number of checks that passed.
    pub(super) held: usize,
    /// Checks that failed, with the reason.
    pub(super) failed: Vec<String>,
    /// Checks that were skipped, with the reason.
    pub(super) skipped: Vec<(String, String)>,
    /// Lines of the kernel that report a fault.
    faults: Vec<String>,
    /// Whether the kernel's log was printed. The log is searched for faults.
    has_log: bool,
    /// The counts that the guest prints at its end, or the text of the line if they cannot be parsed.
    done: Option<Result<[usize; 3], String>>,
}

/// The effect of a line on the guest's progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// The programs of the guest have started.
    Up,
    /// No effect.
    Other,
}

impl Report {
    /// Records a line.
    pub(super) fn read(&mut self, line: &str) -> Line {
        let line = line.trim_end();
        self.has_log |= line.starts_with(LOG) && line.contains(FIRST);
        if !is_ours(line) && is_fault(line) {
            self.faults.push(line.strip_prefix(LOG).unwrap_or(line).to_owned());
        } else if line == UP {
            return Line::Up;
        } else if let Some(counts) = line.strip_prefix(DONE) {
            self.done = Some(counts_in(counts).ok_or_else(|| line.to_owned()));
        } else if line.starts_with("ok ") {
            self.held += 1;
        } else if let Some(why) = line.strip_prefix("not ok ") {
            self.failed.push(why.to_owned());
        } else if let Some(skip) = line.strip_prefix("skipped ") {
            let (name, why) = skip.rsplit_once(": ").unwrap_or((skip, ""));
            self.skipped.push((name.to_owned(), why.to_owned()));
        }
        Line::Other
    }

    /// Checks that the guest passed. There must be at least one check, every check must have passed, and only checks
    /// with a prefix in `may_skip` may be skipped. All counted checks must have been printed. The kernel's log must be
    /// complete from the boot on and report no fault, and the guest must have reached its end.
    pub(super) fn verdict(&self, may_skip: &[&str]) -> Result<(), String> {
        let mut wrong: Vec<String> = self.failed.iter().take(NAMED_MAX).cloned().collect();
        if self.failed.len() > NAMED_MAX {
            wrong.push(format!("{} more", self.failed.len() - NAMED_MAX));
        }
        wrong.extend(self.faults.first().map(|fault| format!("the kernel says: {fault}")));
        let skips = self.skipped.iter().map(|(name, why)| format!("{name}: {why}"));
        let unexpected = skips.filter(|skip| !may_skip.iter().any(|beginning| skip.starts_with(beginning)));
        wrong.extend(unexpected.map(|skip| format!("skipped, and must not be: {skip}")));
        wrong.extend(self.incomplete());
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Returns what is missing from the output.
    fn incomplete(&self) -> Option<String> {
        let came = [self.held, self.failed.len(), self.skipped.len()];
        match &self.done {
            None => Some("it did not come to its end".into()),
            Some(Err(line)) => Some(format!("its last line is {line:?}, which has not three counts")),
            Some(Ok(counted)) if *counted != came => Some(format!(
                "of {counted:?} checks that hold, do not and were skipped, as the guest counted, {came:?} came"
            )),
            Some(Ok(_)) if self.held == 0 && self.failed.is_empty() => Some("no check was made".into()),
            Some(Ok(_)) if !self.has_log => {
                Some("the kernel's log did not come, or not from its beginning".into())
            }
            Some(Ok(_)) => None,
        }
    }
}

/// Parses three numbers.
fn counts_in(text: &str) -> Option<[usize; 3]> {
    let counts: Option<Vec<usize>> = text.split_whitespace().map(|count| count.parse().ok()).collect();
    counts?.try_into().ok()
}

fn is_fault(line: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.split(|c| !is_part(c)).any(|word| word == BUG) || FAULTS.iter().any(|fault| line.contains(fault))
}

/// Whether a line is output of a program, which may contain any word.
fn is_ours(line: &str) -> bool {
    ["ok ", "not ok ", "skipped ", "| "].iter().any(|beginning| line.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            report.read(line);
        }
        report
    }

    /// Messages that Debian's kernels print at every boot and that resemble a fault, and words of their command line
    /// that do.
    const ORDINARY: &str = "\
log: [    0.000000] Linux version 6.1.0-56-cloud-amd64 (debian-kernel@lists.debian.org)
log: [    0.000000] Command line: panic=-1 oops=panic nowatchdog rcupdate.rcu_cpu_stall_suppress=1
log: [    0.000000] calibrate_delay_direct() failed to get a good estimate for loops_per_jiffy.
log: [    0.036000] tsc: Unable to calibrate against PIT
log: [    0.626679] \tRCU CPU stall warnings suppressed (rcu_cpu_stall_suppress).
log: [    0.744296] DMI not present or invalid.
log: [    1.710500] PCI: Using host bridge windows from ACPI; if necessary, use \"pci=nocrs\" and report a bug
log: [    1.913166] iommu: DMA domain TLB invalidation policy: lazy mode
log: [    2.000000] DEBUG_PAGEALLOC is off
log: [    9.000000] tests:[36]: segfault at 7f8c ip 0000 sp 0000 error 6 in zonal_linux likely on CPU 0
";

    #[test]
    fn a_guest_that_says_all_is_well_is_believed() {
        let text = format!("SeaBIOS\r\nup\r\nok a: 3\r\nskipped b: c: no d\n{ORDINARY}done 1 0 1\r\n");
        let good = report(&text);
        assert_eq!((good.held, good.verdict(&["b: c: no"])), (1, Ok(())));
        assert_eq!(good.skipped, [("b: c".to_owned(), "no d".to_owned())]);
        assert_eq!(Report::default().read("up\r"), Line::Up);
    }

    /// Returns why a guest fails that prints `text` and an ordinary log.
    fn why(text: &str) -> String {
        report(&format!("{ORDINARY}{text}")).verdict(&["may: "]).unwrap_err()
    }

    #[test]
    fn anything_else_is_not() {
        assert!(why("up\nok a\n").contains("did not come to its end"));
        assert!(why("up\ndone 0 0 0\n").contains("no check was made"));
        assert_eq!(why("ok a\nnot ok b: 7 of 9 pages\ndone 1 1 0\n"), "b: 7 of 9 pages");
        assert!(why(&format!("{}done 0 5 0\n", "not ok b\n".repeat(5))).ends_with("2 more"));
    }

    #[test]
    fn what_is_skipped_without_leave_is_a_failure() {
        let reason = why("ok a\nskipped may: no d\nskipped must: one node only\ndone 1 0 2\n");
        assert_eq!(reason, "skipped, and must not be: must: one node only");
        assert!(why("skipped may: no d\ndone 0 0 1\n").contains("no check was made"));
    }

    #[test]
    fn what_the_guest_counted_must_have_come() {
        // A kernel message interrupts one of our lines.
        let torn = why("ok a\nno[    9.1] systemd: x\nt ok b: 7 of 9 pages\ndone 1 1 0\n");
        assert!(torn.contains("of [1, 1, 0] checks") && torn.contains("[1, 0, 0] came"), "{torn}");
        for counts in ["2 0 0", "1 0 1", "0 0 0"] {
            assert!(why(&format!("ok a\ndone {counts}\n")).contains("as the guest counted"), "{counts}");
        }
        for last in ["done", "done 1 0", "done 1 0 0 0", "done 1 0 x"] {
            assert!(why(&format!("ok a\n{last}\n")).contains("has not three counts"), "{last}");
        }
    }

    #[test]
    fn faults_of_the_kernel_are_found_in_its_log_and_on_the_console() {
        for fault in FAULTS.into_iter().chain([
            "BUG",
            "BUG: soft lockup - CPU#1 stuck for 22s!",
            "watchdog: BUG soft lockup",
            "kernel BUG at mm/page_alloc.c:1!",
            "BUG kmalloc-64 (Not tainted): Poison overwritten",
            "BUG: Bad page state in process guest  pfn:1",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "invalid opcode: 0000 [#1] PREEMPT SMP",
            "traps: guest[1] trap invalid opcode",
            "unable to handle kernel paging request",
            "Unable to handle kernel NULL pointer dereference at virtual address 0",
        ]) {
            let line = format!("[    2.79] {fault} somewhere");
            assert!(why(&format!("ok a\n{line}\ndone 1 0 0\n")).ends_with(&line), "{fault}");
            let reason = why(&format!("ok a\nlog: {line}\ndone 1 0 0\n"));
            assert!(reason.ends_with(&format!("the kernel says: {line}")), "{fault}");
        }
        let of_ours = format!("ok a\n| thread panicked: Out of memory\n{ORDINARY}done 1 0 0\n");
        assert_eq!(report(&of_ours).verdict(&[]), Ok(()));
    }

    #[test]
    fn a_guest_without_the_whole_log_is_not_believed() {
        for log in ["", "log: [    9.0] Run /init\n", "[    0.0] Linux version 6.1\n"] {
            let why = report(&format!("up\nok a\n{log}done 1 0 0\n")).verdict(&[]).unwrap_err();
            assert!(why.contains("the kernel's log did not come"), "{log}: {why}");
        }
    }
}
