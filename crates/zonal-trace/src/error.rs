//! The reasons why a trace was not read, recorded, imported or exported. Each prints on one line.

use std::io;
use std::path::PathBuf;

use zonal_machine::Excerpt;
use zonal_machine::output::WriteError;

/// The reason why a trace was not read, recorded, imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", Excerpt::name(origin))]
    Read {
        /// The file.
        origin: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is no trace.
    #[error("{}: it does not begin with the line \"{}\"; name a file that `zonal trace record` or `zonal trace import` wrote", Excerpt::name(origin), crate::file::FIRST_LINE.trim_end())]
    Foreign {
        /// The file.
        origin: String,
    },
    /// A trace has a version that this program does not know.
    #[error(
        "{}: the trace has format version {}; this program reads version 1",
        Excerpt::name(origin),
        Excerpt::name(version)
    )]
    Version {
        /// The file.
        origin: String,
        /// The version.
        version: String,
    },
    /// A trace ends before its last record, as one does whose recorder was killed.
    #[error(
        "{}: the trace is cut off after {events} events; its recorder was killed, or the copy is incomplete. `zonal trace info` shows what it holds",
        Excerpt::name(origin)
    )]
    Cut {
        /// The file.
        origin: String,
        /// The number of events before the cut.
        events: u64,
    },
    /// A trace has wrong bytes.
    #[error(
        "{}: byte {at}: {}; the file is damaged, copy or record it again",
        Excerpt::name(origin),
        Excerpt::sentence(problem)
    )]
    Damaged {
        /// The file.
        origin: String,
        /// Where the record with the wrong bytes begins.
        at: u64,
        /// What is wrong.
        problem: String,
    },
    /// A trace could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The system has no tracefs.
    #[error("no tracefs is mounted; as root, run: mount -t tracefs nodev /sys/kernel/tracing")]
    NoTracefs,
    /// This process may not use tracefs.
    #[error("cannot use {}: {source}; recording needs root, or CAP_DAC_OVERRIDE for a mount without other permissions", Excerpt::name(path.display()))]
    NotPermitted {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of tracefs could not be used.
    #[error("cannot use {}: {source}", Excerpt::name(path.display()))]
    Tracefs {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has none of the tracepoints, or describes one in a way that is not understood.
    #[error("{}: {}", Excerpt::name(origin), Excerpt::sentence(problem))]
    Format {
        /// The file that describes the tracepoint.
        origin: String,
        /// What is wrong, and what is needed.
        problem: String,
    },
    /// The command to record could not be started.
    #[error("cannot run {}: {source}", Excerpt::name(command))]
    Command {
        /// The program's name.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// A perf.data file has something that cannot be imported.
    #[error("{}: {}", Excerpt::name(origin), Excerpt::sentence(problem))]
    Import {
        /// The file.
        origin: String,
        /// What is wrong, and what is needed.
        problem: String,
    },
    /// The machine could not be described.
    #[error(transparent)]
    Machine(#[from] zonal_machine::MachineError),
    /// The system refused something else.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl TraceError {
    /// Whether the caller's input or system is the reason, and not a failure during the work.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Write(error) => {
                use io::ErrorKind as Kind;
                matches!(
                    error.source.kind(),
                    Kind::AlreadyExists
                        | Kind::InvalidInput
                        | Kind::NotADirectory
                        | Kind::NotFound
                        | Kind::PermissionDenied
                )
            }
            Self::Tracefs { .. } | Self::System { .. } | Self::Machine(_) => false,
            _ => true,
        }
    }

    /// Returns the exit code of a shell for a command that could not be started: 127 if it was not found, otherwise 126.
    #[must_use]
    pub fn command_status(&self) -> Option<u8> {
        let Self::Command { source, .. } = self else { return None };
        Some(if source.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }
}
