//! How a command ends: its exit code, and its one line on standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use zonal_machine::{Escaped, Excerpt};

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The work failed.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// Bad usage or bad input; the message names what is wrong and what would be right.
    pub(crate) fn bad_input(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// Ended by Ctrl-C.
    pub(crate) fn interrupted(message: impl Display) -> Self {
        Self { code: 130, message: message.to_string() }
    }

    /// Says it, and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        tell(one_line(&self.message));
        ExitCode::from(self.code)
    }
}

/// Prints a line about the work to standard error, whatever is quoted in it, and however long that is.
pub(crate) fn tell(message: impl Display) {
    // Nowhere else to say it.
    let _ = writeln!(io::stderr(), "zonal: {}", Excerpt::line(message));
}

/// The text with its line breaks as spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints lines to standard output. A reader that has seen enough is no failure.
///
/// What is from outside was escaped where a line break of its own would have made a line. Anything else that
/// acts on a terminal is escaped here, in text and in strings of JSON alike.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let mut lines = text.split_inclusive('\n');
    let written = lines.try_for_each(|line| {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        write!(out, "{}{end}", Escaped(line))
    });
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}
