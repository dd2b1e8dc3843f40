//! Shows the progress of long work as a live line on standard error if standard error is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use terminal_size::{Height, terminal_size_of};
use textwrap::core::display_width;

/// Characters of the bar.
const BAR: usize = 24;
/// Minimum time between two drawings.
const INTERVAL: Duration = Duration::from_millis(100);

/// A live line, which is removed when this value is dropped.
pub(crate) struct ProgressLine {
    begin: Instant,
    /// When the line was drawn last; `None` before.
    drawn: Mutex<Option<Instant>>,
    is_shown: bool,
}

impl ProgressLine {
    /// Begins to show progress.
    pub(crate) fn begin() -> Self {
        let is_shown = io::stderr().is_terminal();
        Self { begin: Instant::now(), drawn: Mutex::new(None), is_shown }
    }

    /// Shows what the work is doing, and which share of it is done.
    pub(crate) fn show(&self, doing: &str, share: f64) {
        if !self.is_shown {
            return;
        }
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_some_and(|at| at.elapsed() < INTERVAL) {
            return;
        }
        *drawn = Some(Instant::now());
        let error = io::stderr();
        let columns = terminal_size_of(&error).map_or(80, |(columns, Height(_))| columns.0.into());
        // Nothing depends on the line, so a terminal that is gone is not an error here.
        let _ = write!(error.lock(), "\r\x1b[2K{}", line(doing, share, self.begin.elapsed(), columns));
    }

    /// Shows what the work is doing, and how many of `total` steps are done.
    pub(crate) fn show_steps(&self, doing: &str, done: u64, total: u64) {
        self.show(doing, done as f64 / total.max(1) as f64);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.drawn.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            let _ = write!(io::stderr(), "\r\x1b[2K"); // as above
        }
    }
}

/// Returns the text of the line, which is less than `columns` wide.
fn line(doing: &str, share: f64, elapsed: Duration, columns: usize) -> String {
    let share = share.clamp(0.0, 1.0);
    let filled = (share * BAR as f64) as usize;
    let left = elapsed.mul_f64((1.0 - share) / share.max(0.01)).as_secs();
    let left = if left < 100 { format!("{left} s") } else { format!("{} min", left.div_ceil(60)) };
    let bar = format!("[{}{}]", "=".repeat(filled), " ".repeat(BAR - filled));
    let mut line = format!("{bar} {:3.0} %, {left} left: {doing}", share * 100.0);
    while display_width(&line) >= columns.max(1) {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_left_and_fits() {
        let half = line("mapping memory", 0.5, Duration::from_secs(30), 80);
        assert_eq!(half, "[============            ]  50 %, 30 s left: mapping memory");
        let begin = line("x", 0.0, Duration::from_secs(2), 80);
        assert_eq!(begin, "[                        ]   0 %, 4 min left: x");
        assert_eq!(line("x", 1.5, Duration::ZERO, 80), "[========================] 100 %, 0 s left: x");
        for columns in 0..100 {
            let line = line("\u{8b70}\u{984c}", 0.25, Duration::from_secs(9), columns);
            assert!(display_width(&line) < columns.max(1), "{columns}: {line}");
        }
    }
}
