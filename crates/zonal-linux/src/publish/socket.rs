//! The socket of a published pool: a file that is created safely and removed by its owner, and who may connect.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::{fs, mem};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use super::error::PublishError;

/// Longest path of a Unix socket, in bytes.
const PATH_BYTES_MAX: usize = 107;
/// Largest number of connections that wait for the thread.
const QUEUED_MAX: i32 = 128;

/// The file of a socket that this process created. Dropping it removes the file, if it is still the same one.
#[derive(Debug)]
pub(super) struct OwnSocket {
    /// Absolute, because the program may change its directory. Empty if the file is not to be removed.
    path: PathBuf,
    /// Closed after the file is removed. Otherwise another program could replace the file meanwhile, with one of the same
    /// inode number, and its file would be removed.
    listener: Arc<UnixListener>,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl OwnSocket {
    /// Creates a socket at `path` and listens. Replaces a socket of this user at which no program listens.
    pub(super) fn listen(path: &Path) -> Result<Self, PublishError> {
        let refused = |why| PublishError::Socket { path: path.to_path_buf(), why };
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let problem = format!(
                "the path has {} bytes; at most {PATH_BYTES_MAX} are possible",
                path.as_os_str().len()
            );
            return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, problem)));
        }
        let absolute = path::absolute(path).map_err(refused)?;
        make_way(path)?;
        let listener = Arc::new(bind(path).map_err(|errno| refused(errno.into()))?);
        let created = fs::symlink_metadata(path).map_err(refused)?;
        Ok(Self { path: absolute, listener, file: (created.dev(), created.ino()) })
    }

    /// Returns the socket on which clients connect.
    pub(super) fn listener(&self) -> Arc<UnixListener> {
        Arc::clone(&self.listener)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file in its place.
    pub(super) fn leave(&mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // If the directory has become read-only, the next program replaces the socket.
            fs::remove_file(&self.path).unwrap_or(());
        }
    }
}

/// Creates the file of a socket that only this user can use from the beginning, and listens on it.
fn bind(path: &Path) -> Result<UnixListener, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has when it is bound. A mode set by path could be that of another file.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, QUEUED_MAX)?;
    Ok(socket.into())
}

/// Removes a socket that an ended program of this user left at `path`.
fn make_way(path: &Path) -> Result<(), PublishError> {
    let refused = |why| PublishError::Socket { path: path.to_path_buf(), why };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error)),
    };
    if !found.file_type().is_socket() {
        return Err(PublishError::NotASocket(path.to_path_buf()));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(PublishError::NotOwned(path.to_path_buf()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Ok(stream) if publisher_has_ended(&stream) => fs::remove_file(path).map_err(refused),
        // A listener whose queue is full lets a connection wait, so it does not come here either.
        Ok(_) => Err(PublishError::InUse(path.to_path_buf())),
        Err(error) => Err(refused(error)),
    }
}

/// Whether the program at the other end belongs to this user or to the superuser.
pub(super) fn may_ask(client: &UnixStream) -> bool {
    peer(client).is_some_and(|peer| peer.uid == geteuid().as_raw() || peer.uid == 0)
}

/// Whether the process that listens at the other end of a connection has ended. A child that it made by `fork` then has
/// the socket and never answers.
#[must_use]
pub fn publisher_has_ended(connected: &UnixStream) -> bool {
    // The number is 0 for a process that this one cannot see.
    let Some(publisher) = peer(connected).and_then(|peer| Pid::from_raw(peer.pid)) else { return false };
    let process = match pidfd_open(publisher, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(errno) => return errno == Errno::SRCH,
    };
    // A process that has ended is readable, even if its parent has not waited for it.
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Returns the process, user and group at the other end. For a listener they are those of its call of `listen`.
///
/// `rustix` has no valid number for a process of another namespace, whose number is 0.
fn peer(stream: &UnixStream) -> Option<libc::ucred> {
    // SAFETY: the structure consists of numbers, for which zeros are valid.
    let mut peer: libc::ucred = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut peer).cast();
    // SAFETY: the call writes at most `length` bytes to `peer`, and the descriptor is open.
    let failed = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
    };
    (failed == 0).then_some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_in_use_until_its_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let socket = OwnSocket::listen(&path).unwrap();
        drop(socket.listener()); // as the thread does when it ends
        let second = OwnSocket::listen(&path).unwrap_err();
        assert!(matches!(second, PublishError::InUse(_)), "{second}");
        drop(socket);
        assert!(!path.exists());
        OwnSocket::listen(&path).unwrap();
    }
}
