//! What a guest prints on its serial console, and whether that is good.
//!
//! Lines that begin with `ok `, `not ok ` and `skipped ` are checks; `up` and `done` frame them; lines that begin
//! with `log: ` are the kernel's log. Everything else is output to be read by people.

/// Printed when the guest's own programs begin to run.
pub(super) const UP: &str = "up";
/// Printed last.
pub(super) const DONE: &str = "done";
/// How lines of the kernel's log begin.
const LOG: &str = "log: ";
/// Checks that are named when several do not hold.
const NAMED_MAX: usize = 3;

/// What the kernel says of a fault of its own, or of memory that ran out.
const FAULTS: [&str; 13] = [
    "BUG:",
    "kernel BUG",
    "WARNING:",
    "Oops",
    "Kernel panic",
    "Call Trace",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "general protection fault",
    "INFO: task",
    "Out of memory",
    "oom-kill",
];

/// All that was found in the output of a guest.
#[derive(Default, Debug)]
pub(super) struct Report {
    /// Checks that hold.
    pub(super) held: usize,
    /// Checks that do not, with the reason.
    pub(super) failed: Vec<String>,
    /// Checks that were skipped, and why.
    pub(super) skipped: Vec<(String, String)>,
    /// Lines of the kernel that tell of a fault.
    faults: Vec<String>,
    is_done: bool,
}

/// What a line means for how the guest goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// Our programs run now.
    Up,
    /// Nothing further.
    Other,
}

impl Report {
    /// Takes note of a line.
    pub(super) fn read(&mut self, line: &str) -> Line {
        let line = line.trim_end();
        if FAULTS.iter().any(|fault| line.contains(fault)) && !is_ours(line) {
            self.faults.push(line.strip_prefix(LOG).unwrap_or(line).to_owned());
        } else if line == UP {
            return Line::Up;
        } else if line == DONE {
            self.is_done = true;
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

    /// Whether all is well: every check holds, there are some, the kernel has nothing to complain of, and the
    /// guest came to its end.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let mut wrong: Vec<String> = self.failed.iter().take(NAMED_MAX).cloned().collect();
        if self.failed.len() > NAMED_MAX {
            wrong.push(format!("{} more", self.failed.len() - NAMED_MAX));
        }
        wrong.extend(self.faults.first().map(|fault| format!("the kernel says: {fault}")));
        if !self.is_done {
            wrong.push("it did not come to its end".into());
        } else if self.held == 0 && self.failed.is_empty() {
            wrong.push("no check was made".into());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

/// Whether a line is output of a program, which may name what it likes.
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

    #[test]
    fn a_guest_that_says_all_is_well_is_believed() {
        let good =
            report("SeaBIOS\r\nup\r\nok a: 3\r\nskipped b: c: no d\nlog: please report a bug\ndone\r\n");
        assert_eq!((good.held, good.verdict()), (1, Ok(())));
        assert_eq!(good.skipped, [("b: c".to_owned(), "no d".to_owned())]);
        assert_eq!(Report::default().read("up\r"), Line::Up);
    }

    #[test]
    fn anything_else_is_not() {
        let why = |text: &str| report(text).verdict().unwrap_err();
        assert!(why("up\nok a\n").contains("did not come to its end"));
        assert!(why("up\ndone\n").contains("no check was made"));
        assert_eq!(why("ok a\nnot ok b: 7 of 9 pages\ndone\n"), "b: 7 of 9 pages");
        assert!(why(&format!("{}done\n", "not ok b\n".repeat(5))).ends_with("2 more"));
        for fault in FAULTS {
            let line = format!("[    2.79] {fault} somewhere");
            assert!(why(&format!("ok a\n{line}\ndone\n")).ends_with(&line), "{fault}");
            assert!(
                why(&format!("ok a\nlog: {line}\ndone\n")).ends_with(&format!("the kernel says: {line}"))
            );
        }
        assert_eq!(report("ok a\n| thread panicked: Out of memory\ndone\n").verdict(), Ok(()));
    }
}
