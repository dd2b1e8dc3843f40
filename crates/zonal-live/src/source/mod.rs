//! Where samples come from: this system, a captured tree, a published pool, or a simulation.
//!
//! Related files: `system.rs` reads `/proc` and `/sys`, `pool.rs` asks a program, `snapshot.rs` parses its answer, and
//! `simulated.rs` invents samples.

mod pool;
mod simulated;
mod snapshot;
mod system;
mod text;
mod zoneinfo;

use std::path::{Path, PathBuf};

use zonal_machine::Excerpt;

use crate::sample::Sample;

pub use pool::{PoolSource, ask};
pub use simulated::SimulatedSource;
pub use system::SystemSource;

/// How many node ids are possible: as in `zonal`, and in Linux kernels with the most nodes.
const NODES_MAX: usize = 1024;
/// Largest number of orders that is read.
const ORDERS_MAX: usize = 32;
/// Largest number of pagesets: those of 8192 CPUs, the most of a kernel, in 128 zones.
const PAGESETS_MAX: usize = 1 << 20;
/// Largest length of zone kind and migrate type names. Those of Linux have at most 10 bytes.
const NAME_BYTES_MAX: usize = 64;

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

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file cannot be read.
    #[error("cannot read {path}: {why}", path = shown(.path))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// A file has no zones.
    #[error("{path} has no zone with memory; it must be /proc/zoneinfo of Linux", path = shown(.0))]
    NoZones(PathBuf),
    /// There is no socket.
    #[error(
        "{path} does not exist; a program creates the socket of its pool with Pool::publish, zonal run with --publish",
        path = shown(.0)
    )]
    NoSocket(PathBuf),
    /// The path is not that of a socket.
    #[error("{path} is not a socket; it must be the path that the program gave to Pool::publish", path = shown(.0))]
    NotASocket(PathBuf),
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

/// The time since a source was opened, and since 1970.
#[derive(Debug)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Sets the times of a sample.
    pub(crate) fn stamp(&self, sample: &mut Sample) {
        sample.seconds = self.0.elapsed().as_secs_f64();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        sample.unix_ms = since_1970.map_or(0, |time| time.as_millis() as u64);
    }
}
