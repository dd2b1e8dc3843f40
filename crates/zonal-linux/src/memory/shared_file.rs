//! Files in memory (`memfd`) that hold the frames of a zone, so that other processes can map them.
//!
//! Related file: `memory/mapping.rs` maps the files and returns their memory.

use std::ffi::{CString, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::page_sizes::HugePageSize;

/// Forbids executing the file, also to processes that receive it (kernels since 6.3).
const MFD_NOEXEC_SEAL: c_uint = 8;

/// Creates a file of `bytes` zeroed bytes, in explicit huge pages if `size` is given.
///
/// The length of the file cannot change, so no process that receives the file can make accesses of others fail.
///
/// # Errors
/// Those of the kernel. Also returns an error if the file would exceed the process's limit of file sizes, because the
/// kernel would kill the process then.
pub(super) fn create(name: &str, bytes: usize, size: Option<HugePageSize>) -> io::Result<OwnedFd> {
    check_length(bytes as u64)?;
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    if let Some(size) = size {
        flags |= libc::MFD_HUGETLB | size.flag() as c_uint;
    }
    let file = match open(name, flags | MFD_NOEXEC_SEAL) {
        Err(why) if why.kind() == io::ErrorKind::InvalidInput => open(name, flags)?,
        opened => opened?,
    };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the descriptor is open.
    done(unsafe { libc::ftruncate(file.as_raw_fd(), length) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open, and the command takes an integer.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Whether the file was made for a pool that is shared by descriptor. The kernel then provides its pages without a limit of a file
/// system. Only files that [`create`] made have this seal.
pub(crate) fn is_of_descriptor(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open, and the command takes nothing.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Returns an error for a length with which the kernel would kill the process (`RLIMIT_FSIZE`).
pub(super) fn check_length(bytes: u64) -> io::Result<()> {
    let limit = file_size_limit()?;
    let why = || {
        format!(
            "a file of {bytes} bytes exceeds the limit of file sizes (RLIMIT_FSIZE), {limit} bytes; raise it with `ulimit -f`"
        )
    };
    if bytes > limit { Err(io::Error::new(io::ErrorKind::FileTooLarge, why())) } else { Ok(()) }
}

fn open(name: &str, flags: c_uint) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the name outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    done(fd)?;
    // SAFETY: the descriptor is open, and this function is its only owner.
    beyond_streams(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a descriptor, or a duplicate if it is a standard stream, as it may be in a program that has closed its streams. The
/// program's output would otherwise be written to it, and a later `dup2` to the stream would close it.
pub(crate) fn beyond_streams<T: From<OwnedFd> + Into<OwnedFd>>(opened: T) -> io::Result<T> {
    let descriptor = opened.into();
    let is_stream = descriptor.as_raw_fd() <= libc::STDERR_FILENO;
    // A duplicate is never a standard stream.
    Ok(if is_stream { descriptor.try_clone()? } else { descriptor }.into())
}

/// Returns the largest size in bytes of files that this process writes.
fn file_size_limit() -> io::Result<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call writes one structure to `limit`.
    done(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so the structure is initialized.
    Ok(unsafe { limit.assume_init() }.rlim_cur)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::origin::tests::in_a_child;

    #[test]
    fn files_keep_their_length_and_close_on_exec() {
        let file = create("test", 1 << 20, None).unwrap();
        // SAFETY: the descriptor is open.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let file = File::from(file);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        for length in [0, 4096, 2 << 20] {
            assert_eq!(file.set_len(length).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        file.write_at(b"end", (1 << 20) - 3).unwrap();
        assert!(file.write_at(b"end", 1 << 20).is_err(), "the file has grown");
    }

    #[test]
    fn limit_of_file_sizes_is_an_error() {
        let refused = || {
            let limit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the call reads the limit, and changes only limits of this child.
            let is_set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0;
            is_set
                && create("test", 1 << 16, None).is_ok()
                && create("test", 1 << 20, None)
                    .is_err_and(|why| why.to_string().contains("(RLIMIT_FSIZE), 65536 bytes"))
        };
        assert_eq!(in_a_child(false, refused), 0);
    }

    /// The output of a program that has closed its standard streams must not be written to frames.
    #[test]
    fn descriptors_of_standard_streams_are_not_used() {
        let of_child = in_a_child(false, || {
            // SAFETY: the child uses none of these descriptors.
            let are_closed = (0..3).all(|fd| unsafe { libc::close(fd) } == 0);
            are_closed && create("test", 4096, None).is_ok_and(|file| file.as_raw_fd() > 2)
        });
        assert_eq!(of_child, 0);
    }

    #[test]
    fn names_with_a_zero_byte_are_refused() {
        assert_eq!(create("a\0b", 4096, None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
