//! Why the state cannot be served, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::source::shown;

/// Why the state cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another program listens on the port.
    #[error(
        "port {port} of {ip} is in use by another program; choose another port, or port 0 for any free port",
        port = .0.port(), ip = .0.ip()
    )]
    PortInUse(SocketAddr),
    /// The port needs rights that the process lacks.
    #[error("port {port} may only be used by root; ports from 1024 on need no rights", port = .0.port())]
    Privileged(SocketAddr),
    /// The address is of another machine.
    #[error(
        "{ip} is not an address of this machine; 127.0.0.1 is for this machine only, 0.0.0.0 for all networks",
        ip = .0.ip()
    )]
    NoSuchAddress(SocketAddr),
    /// Listening fails for another reason.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        why: io::Error,
    },
    /// Other machines can reach the address, and there is no token.
    #[error("other machines can reach {0}, so a token is needed")]
    NoToken(SocketAddr),
    /// The file of the token cannot be read.
    #[error("cannot read the token file {path}: {why}", path = shown(.path))]
    TokenFile {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// Others can read the file of the token.
    #[error(
        "the token file {path} has mode {mode:04o}, so other users can read it; chmod 600 prevents that",
        path = shown(.path)
    )]
    TokenMode {
        /// Path of the file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user owns the file of the token.
    #[error(
        "the token file {path} belongs to user {owner}, who can read and change it; chown it to the user who runs this",
        path = shown(.path)
    )]
    TokenOwner {
        /// Path of the file.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
    /// The contents of the file are no token.
    #[error(
        "the token file {path} must have one line of 16 to 256 letters, digits, hyphens and underscores, as \
         `openssl rand -hex 24` prints",
        path = shown(.0)
    )]
    TokenText(PathBuf),
    /// The process may not open enough files.
    #[error("cannot serve: {needed} more files must be opened, but {why}; `ulimit -n` changes their limit")]
    Files {
        /// Files that serving needs.
        needed: usize,
        /// The reason.
        why: io::Error,
    },
    /// The system lacks something.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

impl ServeError {
    /// Returns the error of an address on which the process cannot listen.
    pub(crate) fn of_bind(address: SocketAddr, why: io::Error) -> Self {
        match why.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(address),
            io::ErrorKind::PermissionDenied => Self::Privileged(address),
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress(address),
            _ => Self::Listen { address, why },
        }
    }

    /// Whether the options were wrong, rather than that the work failed.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Files { .. } | Self::System(_))
    }
}
