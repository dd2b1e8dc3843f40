//! What the kernel does between the processes of a shared pool: locks of bytes in its file, and waiting for a cell in it.
//!
//! Related files: `pool/members.rs`. Source: Linux `fcntl(2)`, open file description locks; `futex(2)`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Offset of the byte that the first process of a pool has locked while it lives. No file has data there or around it.
pub(super) const LIFE_AT: i64 = 1 << 40;
/// Offset of the byte that is locked while the table of processes changes.
pub(super) const TABLE_AT: i64 = LIFE_AT - 1;
/// Offset of the byte that is locked while a process trims the pool.
pub(super) const TRIM_AT: i64 = LIFE_AT - 2;

fn byte(at: i64, kind: libc::c_int) -> libc::flock {
    // SAFETY: zeros are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

/// Locks or unlocks a byte for an open file description, without waiting.
pub(super) fn set_lock(fd: BorrowedFd<'_>, at: i64, kind: libc::c_int) -> io::Result<()> {
    let lock = byte(at, kind);
    // SAFETY: the call reads the structure.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Locks a byte, unless another open file description has it locked; returns whether it did.
pub(super) fn try_lock(fd: BorrowedFd<'_>, at: i64) -> io::Result<bool> {
    match set_lock(fd, at, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(why) if matches!(why.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(why) => Err(why),
    }
}

/// Whether another open file description has locked a byte.
pub(super) fn is_locked(fd: BorrowedFd<'_>, at: i64) -> bool {
    let mut lock = byte(at, libc::F_WRLCK);
    // SAFETY: the call reads and writes the structure.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    // If the kernel does not answer, no process counts as dead.
    done != 0 || i32::from(lock.l_type) != libc::F_UNLCK
}

/// Waits until a cell that other processes share changes from `seen`, or the time is over; may return earlier.
pub(super) fn wait(cell: &AtomicU32, seen: u32, most: Duration) {
    let time = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
    };
    // SAFETY: the cell and the time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, cell.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time) };
}

/// Wakes all that [`wait`] for a cell.
pub(super) fn wake(cell: &AtomicU32) {
    // SAFETY: the kernel uses the address only as a name.
    unsafe { libc::syscall(libc::SYS_futex, cell.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
