//! Where samples come from: this system, a captured tree, a published pool, or a simulation.
//!
//! Related files: `system.rs` reads `/proc` and `/sys` through `zonal-machine`, `pool.rs` asks a program, `snapshot.rs`
//! parses its answer, and `simulated.rs` invents samples.

mod pool;
mod simulated;
mod snapshot;
mod system;

use std::path::{Path, PathBuf};

use zonal_machine::Excerpt;
use zonal_machine::state::StateError;

use crate::sample::Sample;

pub use pool::{PoolSource, ask};
pub use simulated::SimulatedSource;
pub use system::SystemSource;

/// Reads the state of one page allocator again and again.
pub trait Source: Send {
    /// Returns what is read, as a title: "this system", or the path of a socket.
    fn title(&self) -> String;

    /// Reads the state now.
    ///
    /// # Errors
    /// When it cannot be read; a later call may succeed.
    fn read(&mut self) -> Result<Sample, SourceError>;
}

/// The longest path of a Unix socket, in bytes.
const PATH_BYTES_MAX: usize = 107;

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The files of a system cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is no socket.
    #[error(
        "{path} does not exist; a program creates the socket of its pool with Pool::publish, zonal run with --publish",
        path = shown(.0)
    )]
    NoSocket(PathBuf),
    /// The path is not that of a socket.
    #[error("{path} is not a socket; it must be the path that the program gave to Pool::publish", path = shown(.0))]
    NotASocket(PathBuf),
    /// The path is longer than a socket's can be.
    #[error("{path} has {} bytes; the path of a socket has at most {PATH_BYTES_MAX}", .0.as_os_str().len(), path = shown(.0))]
    TooLong(PathBuf),
    /// The socket is of another user.
    #[error("{path} belongs to another user; run this as that user", path = shown(.0))]
    Denied(PathBuf),
    /// No program listens.
    #[error("no pool is published at {path}: the program that created it has ended", path = shown(.0))]
    NoPool(PathBuf),
    /// The program does not answer.
    #[error("the pool at {path} has not answered for {seconds} seconds", path = shown(.path))]
    Silent {
        /// Path of the socket.
        path: PathBuf,
        /// Seconds that were waited.
        seconds: u64,
    },
    /// The exchange failed.
    #[error("cannot ask the pool at {path}: {why}", path = shown(.path))]
    Exchange {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// The answer is not that of a pool.
    #[error("the program at {path} does not answer as a pool: {why}", path = shown(.path))]
    NotAPool {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The pool refused the request.
    #[error("{0}")]
    Refused(String),
}

impl SourceError {
    /// Whether the input was wrong from the start, rather than that the work failed.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Silent { .. } | Self::Exchange { .. } | Self::NotAPool { .. })
    }
}

/// Returns a path for a message, without characters that control a terminal.
pub(crate) fn shown(path: &Path) -> String {
    Excerpt::name(path.display()).to_string()
}
