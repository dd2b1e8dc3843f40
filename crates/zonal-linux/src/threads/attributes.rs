//! Signal mask, scheduling policy and affinity of the threads of a pool, whichever thread built it.
//!
//! A thread begins with the signal mask, the scheduling policy and the affinity of the one that starts it. A
//! pool's threads take no signals of the program, compete with nobody as real-time threads, and are not kept on
//! the one CPU that their builder chose for itself. Neighbours: `pool/workers.rs` starts them,
//! `topology/affinity.rs` asks where a thread may run. Source: Linux `pthread_sigmask(3)`, `sched(7)`.

use std::io;
use std::mem;

use crate::topology::affinity::CpuSet;

/// Signals that tell of an instruction of the thread itself: blocked, they would end the program without the
/// handler that it may have for them.
const OF_THE_THREAD: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// While this lives, the calling thread and those it starts take no signals but those of their own instructions,
/// and these only if the calling thread did before: it may have some pending that it waits for later.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// # Errors
    /// When the kernel refuses, which only a filter makes it do.
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
        // SAFETY: a mask that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Lets the calling thread take the signals of its own instructions, whatever the thread that started it blocks.
pub(crate) fn take_own_signals() {
    // SAFETY: a set of bits, for which zeros are valid.
    let mut own: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in OF_THE_THREAD {
        // SAFETY: changes the set; the signal exists.
        unsafe { libc::sigaddset(&raw mut own, signal) };
    }
    // SAFETY: reads the set. Where a filter refuses it, the mask stays that of the builder.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut()) };
}

/// Gives the calling thread the default scheduling policy, and more than one CPU. What the kernel refuses stays as
/// it is.
pub(crate) fn reset_scheduling() {
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
    if CpuSet::of_this_thread().is_some_and(|cpus| cpus.count() == 1) {
        // The kernel leaves out CPUs that the thread's control group does not let it have.
        CpuSet::all().apply();
    }
}
