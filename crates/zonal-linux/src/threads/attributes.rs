//! The signal mask, scheduling policy and CPU affinity of a pool's threads.
//!
//! A thread inherits the signal mask, the scheduling policy and the affinity of the thread that starts it. Any thread
//! of the program may build a pool. The pool's threads must nevertheless not receive the program's signals, run at
//! real-time priority, or be limited to the one CPU to which the builder may have bound itself. Related files:
//! `threads/start.rs` starts the threads, and `topology/affinity.rs` sets where a thread may run. Source: Linux
//! `pthread_sigmask(3)`, `sched(7)`.

use std::io;
use std::mem;

use crate::topology::affinity::CpuSet;

/// Signals that an instruction of the thread itself raises. If they were blocked, the kernel would kill the program
/// instead of running its handler.
const OF_THE_THREAD: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Guard that blocks signals in the calling thread and in the threads that it starts. Signals raised by a thread's
/// own instructions keep their previous state, because the calling thread may have blocked some of them in order to
/// wait for them later.
pub(super) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Blocks all signals, except those raised by the thread's own instructions, until the guard is dropped.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses, which happens only with a seccomp filter.
    pub(super) fn begin() -> io::Result<Self> {
        // SAFETY: a signal set is an array of bits, for which zeros are valid.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: the call writes only the set.
        unsafe { libc::sigfillset(&raw mut all) };
        for signal in OF_THE_THREAD {
            // SAFETY: the call changes only the set, and the signal exists.
            unsafe { libc::sigdelset(&raw mut all, signal) };
        }
        // SAFETY: the call reads one set and writes the other.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) } {
            0 => Ok(Self { before }),
            refused => Err(io::Error::from_raw_os_error(refused)),
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the call restores a mask that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Unblocks the signals raised by the calling thread's own instructions, which the thread that started it may have
/// blocked.
pub(super) fn take_own_signals() {
    // SAFETY: a signal set is an array of bits, for which zeros are valid.
    let mut own: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in OF_THE_THREAD {
        // SAFETY: the call changes only the set, and the signal exists.
        unsafe { libc::sigaddset(&raw mut own, signal) };
    }
    // SAFETY: the call reads the set. If a seccomp filter refuses it, the mask inherited from the builder stays.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut()) };
}

/// Sets the default scheduling policy for the calling thread, and allows all CPUs if the thread is bound to only one.
/// A setting that the kernel refuses stays unchanged.
pub(super) fn reset_scheduling() {
    // The kernel's `sched_param` is the priority alone. musl has further members, and its function always fails.
    let priority: libc::c_int = 0;
    // SAFETY: the call only reads the parameter.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) };
    if CpuSet::of_this_thread().is_some_and(|cpus| cpus.count() == 1) {
        // The kernel removes the CPUs that the thread's control group does not allow.
        CpuSet::all().apply();
    }
}
