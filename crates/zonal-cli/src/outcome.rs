//! How a command ends: its exit code, and its one line on standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

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
        // Nowhere else to say it.
        let _ = writeln!(io::stderr(), "zonal: {}", one_line(&self.message));
        ExitCode::from(self.code)
    }
}

/// The text with its line breaks as spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints to standard output. A reader that has seen enough is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}
