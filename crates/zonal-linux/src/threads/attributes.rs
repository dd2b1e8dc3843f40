//! Signal mask, scheduling policy and affinity of a pool's threads, whichever thread built the pool.
//!
//! A thread inherits the signal mask, the scheduling policy and the affinity of the thread that starts it. A pool's
//! threads must not receive the program's signals, must not run at real-time priority, and must not be limited to
//! the one CPU that the builder chose for itself. Neighbours: `pool/workers.rs` starts the threads,
//! `topology/affinity.rs` sets where a thread may run. Source: Linux `pthread_sigmask(3)`, `sched(7)`.

use std::io;
use std::mem;

use crate::topology::affinity::CpuSet;

/// Signals raised by an instruction of the thread itself. If they were blocked, they would kill the program without
/// running its handler for them.
const OF_THE_THREAD: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Guard that blocks all signals in the calling thread and the threads it starts, except those raised by their own
/// instructions. Those keep their previous state, because the calling thread may have some pending that it waits
/// for later.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Creates the guard, which blocks these signals until it is dropped.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses, which happens only with a filter.
    pub(crate) fn begin() -> io::Result<Self> {
        // SAFETY: a set of bits, for which zeros are valid.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: writes the set.
        unsafe { libc::sigfillset(&raw mut all) };
        for signal in OF_THE_THREAD {
            // SAFETY: changes the set; the signal exists.
            unsafe { libc::sigdelset(&raw mut all, signal) };
        }
        // SAFETY: reads one set and writes the other.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) } {
            0 => Ok(Self { before }),
            refused => Err(io::Error::from_raw_os_error(refused)),
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores a mask that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Unblocks the signals raised by the calling thread's own instructions, whatever the thread that started it
/// blocked.
pub(crate) fn take_own_signals() {
    // SAFETY: a set of bits, for which zeros are valid.
    let mut own: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in OF_THE_THREAD {
        // SAFETY: changes the set; the signal exists.
        unsafe { libc::sigaddset(&raw mut own, signal) };
    }
    // SAFETY: reads the set. If a filter refuses this, the mask stays that of the builder.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut()) };
}

/// Sets the default scheduling policy for the calling thread, and all CPUs if it has only one. What the kernel
/// refuses stays unchanged.
pub(crate) fn reset_scheduling() {
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
    if CpuSet::of_this_thread().is_some_and(|cpus| cpus.count() == 1) {
        // The kernel excludes CPUs that the thread's control group does not allow.
        CpuSet::all().apply();
    }
}
