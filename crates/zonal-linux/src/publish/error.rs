//! The errors of publishing a pool.

use std::io;
use std::path::PathBuf;

/// Why a pool could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A file that is not a socket has the path.
    #[error("{path} is not a socket; choose a path that does not exist", path = .0.display())]
    NotASocket(PathBuf),
    /// A socket of another user has the path.
    #[error("{path} is the socket of another user; choose a path that does not exist", path = .0.display())]
    NotOwned(PathBuf),
    /// A program listens at the path, or a child of one that ended still has its socket and clients fill its queue.
    #[error("a program listens at {path}; choose another path, or remove the socket if no program answers at it",
        path = .0.display())]
    InUse(PathBuf),
    /// The socket could not be created.
    #[error("cannot create the socket {path}: {why}", path = .path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The thread could not be started.
    #[error("cannot start the thread that serves {path}: {why}", path = .path.display())]
    Thread {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
}
