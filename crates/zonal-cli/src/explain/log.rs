//! `zonal explain --log`: what refused the failed requests in a kernel log.
//!
//! The log is streamed: reports are explained one at a time, and memory does not grow with the log's length. Related
//! files: `log/text.rs` and `log/json.rs` print.

mod json;
mod text;

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use zonal_machine::log::{Explanation, LogReader, LogReport, Seen, Summary, explain_report};
use zonal_machine::{Excerpt, input};

use crate::layout::Width;
use crate::outcome::{Failure, print};

/// Reports of a log that are explained. More are counted.
const EXPLAINED_MAX: usize = 1000;

/// A report with its explanation.
pub(super) struct Explained {
    report: LogReport,
    explanation: Explanation,
}

/// Everything that is printed about a log.
struct Answer {
    explained: Vec<Explained>,
    summary: Summary,
}

/// Explains the reports of the log at `path`, or of standard input for `-`.
pub(super) fn explain(path: &Path, json: bool) -> Result<(), Failure> {
    let (answer, seen) = if path == Path::new("-") {
        read("standard input", io::stdin().lock())?
    } else {
        let name = Excerpt::name(path.display()).to_string();
        read(&name, input::stream(path).map_err(|error| unreadable(&name, &error))?)?
    };
    if answer.summary.reports == 0 {
        let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
        return Err(Failure::bad_input(nothing(&Excerpt::name(name).to_string(), &seen)));
    }
    print(&if json { json::document(&answer) } else { text::answer(&answer, Width::of_output()) })
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    let hint = if error.kind() == ErrorKind::InvalidInput { " (for a pipe, use --log -)" } else { "" };
    Failure::bad_input(format!("{name}: cannot be read: {error}{hint}"))
}

fn read(name: &str, from: impl Read) -> Result<(Answer, Seen), Failure> {
    let mut reader = LogReader::new(from);
    let mut answer = Answer { explained: Vec::new(), summary: Summary::default() };
    while let Some(report) = reader.next_report().map_err(|error| unreadable(name, &error))? {
        let explanation = explain_report(&report);
        answer.summary.add(&report, &explanation);
        if answer.explained.len() < EXPLAINED_MAX {
            answer.explained.push(Explained { report, explanation });
        }
    }
    Ok((answer, reader.seen()))
}

/// Returns the message for a log without a report.
fn nothing(name: &str, seen: &Seen) -> String {
    let how = "save one with `dmesg` or `journalctl -k -b -1`, as root if they show nothing";
    if seen.bytes == 0 {
        return format!("{name}: is empty; it must be a kernel log: {how}");
    }
    if seen.zero_bytes > 0 {
        return format!(
            "{name}: is not text (it has {} zero bytes); it must be a kernel log: {how}",
            seen.zero_bytes
        );
    }
    let lines = seen.lines;
    let plural = if lines == 1 { "line has" } else { "lines have" };
    format!(
        "{name}: its {lines} {plural} no report of a failed request (\"invoked oom-killer\", \"page allocation \
         failure\", \"oom-kill:constraint=\" or \"Out of memory\"); {how}"
    )
}
