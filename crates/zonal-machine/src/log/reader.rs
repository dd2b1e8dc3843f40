//! Reads reports from a kernel log, one at a time, in bounded memory.

use std::io::{self, Read};

use super::lines::{Line, Lines, Seen};
use super::parse::Parser;
use super::report::LogReport;

/// Reads the reports of failed requests in a kernel log.
///
/// Memory does not grow with the log: lines have a maximum length, and one report is kept at a time.
///
/// ```
/// use zonal_machine::log::LogReader;
///
/// let log = "[ 4.5] hog invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_ZERO), order=0\n";
/// let mut reader = LogReader::new(log.as_bytes());
/// let report = reader.next_report()?.expect("the log has a report");
/// assert_eq!((report.line, report.request.order), (1, Some(0)));
/// assert_eq!(reader.next_report()?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct LogReader<R> {
    lines: Lines<R>,
    parser: Parser,
    is_at_end: bool,
}

impl<R: Read> LogReader<R> {
    /// Creates a reader of a log.
    pub fn new(from: R) -> Self {
        Self { lines: Lines::new(from), parser: Parser::default(), is_at_end: false }
    }

    /// Returns the next report, or `None` at the end of the log.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn next_report(&mut self) -> io::Result<Option<LogReport>> {
        if let Some(report) = self.parser.next() {
            return Ok(Some(report));
        }
        while !self.is_at_end {
            let Some(line) = self.lines.next()? else {
                self.is_at_end = true;
                return Ok(self.parser.finish());
            };
            if let Some(report) = self.parser.line(self.lines.seen.lines, Line::of(&line)) {
                return Ok(Some(report));
            }
        }
        Ok(None)
    }

    /// Returns what was read so far.
    pub const fn seen(&self) -> Seen {
        self.lines.seen
    }
}
