//! The end of a command: its exit code, and its one-line error message on standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use zonal_live::SourceError;
use zonal_live::serve::ServeError;
use zonal_machine::output::{self, WriteError};
use zonal_machine::{Escaped, Excerpt};

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Creates a failure of the work that the user requested.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// Creates a failure because of bad usage or bad input. The message names the wrong value and the allowed values.
    pub(crate) fn bad_input(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// Creates a failure because of Ctrl-C.
    pub(crate) fn interrupted(message: impl Display) -> Self {
        Self { code: 130, message: message.to_string() }
    }

    /// Begins the message with the name of the command.
    pub(crate) fn of(self, command: &str) -> Self {
        Self { message: format!("{command}: {}", self.message), ..self }
    }

    /// Creates a failure with the exit code that other programs use for it.
    pub(crate) fn with_code(code: u8, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Adds `text` to the message.
    pub(crate) fn with(self, text: &str) -> Self {
        Self { message: self.message + text, ..self }
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        print_message(one_line(&self.message));
        ExitCode::from(self.code)
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        if error.is_bad_input() { Self::bad_input(error) } else { Self::failed(error) }
    }
}

impl From<WriteError> for Failure {
    /// Returns a failure of bad input for a path at which no file may be written, and of the system for all other errors.
    fn from(error: WriteError) -> Self {
        match error.source.kind() {
            ErrorKind::AlreadyExists
            | ErrorKind::InvalidInput
            | ErrorKind::NotADirectory
            | ErrorKind::NotFound
            | ErrorKind::PermissionDenied => Self::bad_input(error),
            _ => Self::failed(error),
        }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        if error.is_bad_input() { Self::bad_input(error) } else { Self::failed(error) }
    }
}

/// Prints a one-line message to standard error. The message is escaped and shortened if necessary.
pub(crate) fn print_message(message: impl Display) {
    // A write error is ignored, because there is no other place to report it.
    let _ = writeln!(io::stderr(), "zonal: {}", Excerpt::line(message));
}

/// Prints a warning for each file and folder that a killed command left next to `path`.
pub(crate) fn warn_of_left_over(path: &Path) {
    for path in output::left_over(path).unwrap_or_default() {
        let path = Excerpt::name(path.display());
        print_message(format_args!(
            "warning: {path} was left by a run that was killed; check its contents and remove it"
        ));
    }
}

/// Returns the text with its line breaks replaced by spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints lines to standard output. A closed pipe is not a failure.
///
/// Callers have already escaped text from outside sources wherever a line break in it would have started a new line.
/// This function escapes all other characters that control a terminal, in text and in JSON strings.
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
