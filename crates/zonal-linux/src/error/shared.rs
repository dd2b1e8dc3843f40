//! The errors of making and joining a pool that processes share.

use std::io;
use std::path::{Path, PathBuf};

use crate::shared_name::SharedName;

/// Why a pool that processes share could not be made or joined; nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The file could not be made.
    #[error("cannot make the file of a shared pool{}: {source}{}", at(path.as_ref()), advice(source))]
    Create {
        /// Path of the file, if it has one.
        path: Option<PathBuf>,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The file could not be opened.
    #[error("cannot open {}: {source}; {}", path.display(), what_to_open(source))]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The process that has published the pool on a socket has not sent its file.
    #[error("the pool published at {} cannot be joined: {why}", path.display())]
    Refused {
        /// Path of the socket.
        path: PathBuf,
        /// The process's reason.
        why: String,
    },
    /// The file could not be mapped, read or locked.
    #[error("cannot use the file of a shared pool: {source}")]
    Unusable {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The file is of another user.
    #[error(
        "the file belongs to user {owner}, but this process runs as user {user}; only its owner can join"
    )]
    Owner {
        /// User of the file.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// The file is not that of a pool, or damaged.
    #[error("the file is not a shared pool, or damaged: {0}")]
    Corrupt(&'static str),
    /// The pool was made by another version of zonal, or on another kind of machine.
    #[error(
        "the pool has version {found} of its layout, and this process needs version {expected}; run the same version of \
         zonal, for processors of the same kind, in all processes of a pool"
    )]
    Version {
        /// Version of the pool.
        found: u32,
        /// Version of this process.
        expected: u32,
    },
    /// The file has another length than when it was made.
    #[error(
        "the file has {found} bytes, but was made with {expected}; it was cut or extended, and cannot be used"
    )]
    Length {
        /// Bytes now.
        found: u64,
        /// Bytes then.
        expected: u64,
    },
    /// The pool has pages of another size than this kernel.
    #[error(
        "the pool has pages of {found} bytes, but this kernel's have {page}; join it on the machine that made it"
    )]
    Pages {
        /// The pool's page size in bytes.
        found: u64,
        /// This kernel's page size in bytes.
        page: usize,
    },
    /// As many processes as can share the pool do, or have ended and left blocks that are kept.
    #[error("{}", full(*processes, kept))]
    Full {
        /// How many processes can share the pool.
        processes: u8,
        /// Names of those that have ended.
        kept: Vec<SharedName>,
    },
    /// This process takes part in as many shared pools as it can. Joining one twice counts twice.
    #[error("this process takes part in {0} shared pools, as many as a process can; drop one first")]
    Memberships(usize),
    /// The text cannot be the name of a process or a root.
    #[error("the name is not valid: it must have 1 to 32 bytes, and no control characters")]
    Name,
    /// A process that lives has the name.
    #[error("process {pid} is {name:?} in this pool, and lives")]
    NameInUse {
        /// The name.
        name: SharedName,
        /// The process that has it.
        pid: u32,
    },
    /// No process has had the name, or what it held was freed.
    #[error("the pool keeps nothing for {0:?}")]
    NotKept(SharedName),
    /// The block of a root is not allocated.
    #[error("{name:?} cannot be a root: {source}")]
    Root {
        /// The root's name.
        name: SharedName,
        /// Why its frames are none that are allocated together.
        source: zonal::error::FreeError,
    },
    /// The pool has as many roots as it can have.
    #[error("the pool has {0} roots, which is as many as it can have; remove one")]
    FullRoots(usize),
    /// Another process has held the table of processes for too long: it is stopped, or very slow.
    #[error(
        "another process is joining the pool or leaving it, and does not get on; continue it if it is stopped"
    )]
    Busy,
    /// The process is a child made by `fork` after the pool was joined.
    #[error("this process was made by fork, and has no part in the pool of its parent; join the pool")]
    Forked,
    /// Processes do not share the pool.
    #[error("processes do not share this pool")]
    NotShared,
    /// Pools of this kind cannot be shared.
    #[error("a pool that processes share cannot have {0}")]
    Option(&'static str),
}

impl SharedError {
    pub(crate) fn create(path: Option<&PathBuf>, source: io::Error) -> Self {
        Self::Create { path: path.cloned(), source }
    }

    /// Returns how a message begins that does not say itself where the pool is.
    pub(super) fn place(&self, path: Option<&Path>) -> String {
        match (self, path) {
            (Self::Create { .. } | Self::Open { .. } | Self::Refused { .. }, _) | (_, None) => String::new(),
            (_, Some(path)) => format!("{}: ", path.display()),
        }
    }
}

fn what_to_open(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which is not followed; give the path of the file itself",
        _ => "it must be the file of a shared pool",
    }
}

fn full(processes: u8, kept: &[SharedName]) -> String {
    let names: Vec<_> = kept.iter().map(|name| format!("{name:?}")).collect();
    match names.as_slice() {
        [] => format!(
            "{processes} processes share the pool, which is as many as it was made for; make it for more, or end one"
        ),
        names => format!(
            "the pool was made for {processes} processes: {} share it, and it keeps the blocks of {}, which ended; make it for \
             more, end one, or discard what it keeps for a name",
            usize::from(processes) - names.len(),
            names.join(", ")
        ),
    }
}

fn at(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| format!(" at {}", path.display()))
}

/// Returns what to do about the usual reasons.
fn advice(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AlreadyExists => "; join the pool there, or remove the file if no process uses it",
        io::ErrorKind::StorageFull => {
            "; its file system must have room for the whole pool: request less, or use a descriptor"
        }
        io::ErrorKind::Unsupported => "; use a folder in a memory file system, such as /dev/shm",
        _ => "",
    }
}
