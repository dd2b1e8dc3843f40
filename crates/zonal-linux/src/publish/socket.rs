//! The socket of a published pool: a file that is created safely and removed by its owner, and who may connect.

use std::ffi::OsStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{fs, mem};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, fchmod, renameat_with, unlinkat};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use super::error::PublishError;
use crate::memory::origin::around_forks;
use crate::memory::pool_socket::connect;
use crate::memory::range_list::{Entered, RangeList};
use crate::memory::shared_file::beyond_streams;

/// Longest path of a Unix socket, in bytes.
const PATH_BYTES_MAX: usize = 107;
/// Largest number of connections that wait for the thread.
const QUEUED_MAX: i32 = 128;

/// The file of a socket that this process created. Dropping it removes the file, if it is still the same one.
#[derive(Debug)]
pub(super) struct OwnSocket {
    /// Absolute, because the program may change its directory. Empty if the file is not to be removed.
    path: PathBuf,
    /// Before the listener, which is closed afterwards.
    _entered: Entered<AtomicBool>,
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
        // `Path` ignores what follows the last name.
        let names_a_folder = [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_bytes().ends_with(end));
        let (Some(folder), Some(name), false) = (absolute.parent(), absolute.file_name(), names_a_folder)
        else {
            return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, "the path names a folder")));
        };
        let new = NewSocket::listen(folder).map_err(|errno| refused(errno.into()))?;
        // Only a child of the C library's `fork` closes its copy, which otherwise receives connections after this process.
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // SAFETY: the handler only accesses atomics and closes each descriptor once.
        unsafe { around_forks(None, None, close_in_child, &IS_DONE) };
        let descriptor = new.listener.as_raw_fd() as usize;
        let reset = |is_closed: &AtomicBool| is_closed.store(false, Ordering::Relaxed);
        let entered = LISTENERS.enter(descriptor..descriptor + 1, reset);
        new.put(path, name)?;
        Ok(Self {
            path: absolute.clone(),
            _entered: entered,
            listener: Arc::clone(&new.listener),
            file: new.file,
        })
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

/// The descriptors of the sockets on which this process or its parent listens, and whether this process, a child, has
/// closed its copy.
static LISTENERS: RangeList<AtomicBool> = RangeList::new();

/// Closes the copies of listening sockets, as a handler of `fork` in a child. The child has no thread that answers, so its
/// copy would only keep clients waiting after the end of the parent.
extern "C" fn close_in_child() {
    for (descriptor, is_closed) in LISTENERS.ranges() {
        // Relaxed: the child has one thread. In a child of the child, the number may be that of another file.
        if !is_closed.swap(true, Ordering::Relaxed) {
            // SAFETY: the descriptor's owner is a value of the thread that serves, which the child does not have.
            unsafe { libc::close(descriptor.start as i32) };
        }
    }
}

/// A listening socket whose file has a name of its own until it is put at its path.
struct NewSocket {
    folder: OwnedFd,
    /// Name of the file in the folder.
    name: String,
    listener: Arc<UnixListener>,
    file: (u64, u64),
}

impl NewSocket {
    /// Creates the file of a socket that only this user can use from the beginning, and listens on it.
    fn listen(folder: &Path) -> Result<Self, Errno> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder =
            rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let [folder, socket] = [folder, socket].map(|fd| beyond_streams(fd).map_err(|_| Errno::MFILE));
        let (folder, socket) = (folder?, socket?);
        // The file gets the mode that the socket has when it is bound. A mode set by path could be that of another file.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        let name = loop {
            let name = format!(".zonal-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            // The path of the folder may leave no room for the name.
            let address = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
            match net::bind(&socket, &SocketAddrUnix::new(address)?) {
                Ok(()) => break name,
                Err(Errno::ADDRINUSE) => {} // left by a process of the same number that was killed
                Err(errno) => return Err(errno),
            }
        };
        let mut new = Self { folder, name, listener: Arc::new(socket.into()), file: (0, 0) };
        new.file = new.inode()?;
        net::listen(&*new.listener, QUEUED_MAX)?;
        Ok(new)
    }

    /// Returns device and inode of the file that has the socket's own name.
    fn inode(&self) -> Result<(u64, u64), Errno> {
        let found = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((found.st_dev, found.st_ino))
    }

    /// Renames the file to `name`, the last part of `path`. Replaces a socket of this user that an ended program left.
    fn put(&self, path: &Path, name: &OsStr) -> Result<(), PublishError> {
        let refused = |errno: Errno| PublishError::Socket { path: path.to_path_buf(), why: errno.into() };
        let rename = |flags| renameat_with(&self.folder, &self.name, &self.folder, name, flags);
        loop {
            match rename(RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(errno)),
            }
            let Some(left) = left_by_an_ended_program(path)? else { continue };
            match rename(RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(refused(errno)),
            }
            if self.inode().map_err(refused)? == left {
                return Ok(()); // `drop` removes the old socket
            }
            // Another program has put its socket there meanwhile.
            rename(RenameFlags::EXCHANGE).map_err(refused)?;
            return Err(PublishError::InUse(path.to_path_buf()));
        }
    }
}

impl Drop for NewSocket {
    fn drop(&mut self) {
        // What has this name: the socket itself, if it was not put in its place, or the one that it replaced.
        unlinkat(&self.folder, &self.name, AtFlags::empty()).unwrap_or(());
    }
}

/// Returns device and inode of a socket that an ended program of this user left at `path`, or `None` if nothing is there.
fn left_by_an_ended_program(path: &Path) -> Result<Option<(u64, u64)>, PublishError> {
    let refused = |why| PublishError::Socket { path: path.to_path_buf(), why };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error)),
    };
    if !found.file_type().is_socket() {
        return Err(PublishError::NotASocket(path.to_path_buf()));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(PublishError::NotOwned(path.to_path_buf()));
    }
    match connect(path) {
        Ok(stream) if !publisher_has_ended(&stream) => Err(PublishError::InUse(path.to_path_buf())),
        // If the queue of connections is full, as the queue of an ended program's child may be, whose process is unknown.
        Err(Errno::AGAIN) => Err(PublishError::InUse(path.to_path_buf())),
        Ok(_) | Err(Errno::CONNREFUSED) => Ok(Some((found.dev(), found.ino()))),
        Err(errno) => Err(refused(errno.into())),
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

/// Returns the process, user and group at the other end. For a listener they are those of its `listen` call.
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

    #[test]
    fn paths_of_folders_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for end in ["", "/", "/new/", "/new/.", "/..", "/new/.."] {
            let path = PathBuf::from(format!("{}{end}", directory.path().display()));
            OwnSocket::listen(&path).unwrap_err();
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{end}");
        }
        OwnSocket::listen(Path::new("/")).unwrap_err();
    }

    /// Several programs find the socket of one that ended at the same time.
    #[test]
    fn one_of_several_programs_gets_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        for round in 0..300 {
            if round % 2 == 0 {
                drop(UnixListener::bind(&path).unwrap());
            }
            let start = std::sync::Barrier::new(3);
            let listen = || {
                start.wait();
                OwnSocket::listen(&path)
            };
            let results = std::thread::scope(|scope| {
                [(); 3].map(|()| scope.spawn(listen)).map(|thread| thread.join().unwrap())
            });
            let mut sockets: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
            let names = |folder: &Path| fs::read_dir(folder).unwrap().count();
            assert_eq!((sockets.len(), names(directory.path())), (1, 1), "round {round}");
            connect(&path).unwrap();
            sockets.clear();
            assert_eq!(names(directory.path()), 0, "round {round}");
        }
    }
}
