//! The descriptors on which the locks of this process's memberships are. A child made by `fork` must not keep them: the locks would
//! outlive the parent.
//!
//! A handler closes what is in the list in a child. A descriptor that was opened while another thread forked may be missing there,
//! so it is opened again. Related files: `pool/members.rs` locks, `memory/origin.rs` registers handlers. Source: Linux `fcntl(2)`.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;

use crate::error::SharedError;
use crate::memory::origin::around_forks;
use crate::memory::pool_file::MEMBERS_MAX;

/// Looks for the end of another thread's fork; a handler of `fork` that joins a pool would wait forever.
const LOOKS: u32 = 10_000;

/// The descriptors, plus 1.
static LIVES: [AtomicI32; MEMBERS_MAX] = [const { AtomicI32::new(0) }; MEMBERS_MAX];
/// Forks of this process that have begun, and that have ended.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Calls `open`, and enters the descriptor into the list, so that children made by `fork` do not keep it.
pub(super) fn opened(open: impl Fn() -> Result<OwnedFd, SharedError>) -> Result<OwnedFd, SharedError> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: the handlers only access atomics and close descriptors, which is async-signal-safe and can be repeated.
    unsafe { around_forks(Some(note_begin), Some(note_end), close_all, &IS_DONE) };
    loop {
        let begun = begun_when_no_fork_runs();
        let life = open()?;
        enter(life.as_raw_fd())?;
        // A child that has the descriptor has it in its list, or its fork has begun before this.
        // SeqCst: orders this after the entry; pairs with `note_begin`.
        if BEGUN.load(Ordering::SeqCst) == begun {
            return Ok(life);
        }
        remove(life.as_raw_fd());
    }
}

/// Takes a descriptor from the list.
pub(super) fn remove(life: RawFd) {
    for cell in &LIVES {
        _ = cell.compare_exchange(life + 1, 0, Ordering::Relaxed, Ordering::Relaxed); // relaxed: as in `enter`
    }
}

fn enter(life: RawFd) -> Result<(), SharedError> {
    // A handler runs on a thread that sees its process's descriptors.
    // SeqCst: orders the entry before the next look at forks; pairs with `note_begin`.
    let is_put =
        |cell: &AtomicI32| cell.compare_exchange(0, life + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if LIVES.iter().any(is_put) { Ok(()) } else { Err(SharedError::Memberships(MEMBERS_MAX)) }
}

fn begun_when_no_fork_runs() -> u32 {
    let mut looks = 0;
    loop {
        // SeqCst: orders both loads before the descriptor is opened; pairs with `note_begin`, `note_end`.
        let (begun, ended) = (BEGUN.load(Ordering::SeqCst), ENDED.load(Ordering::SeqCst));
        if ended == begun || looks == LOOKS {
            return begun;
        }
        looks += 1;
        thread::yield_now();
    }
}

extern "C" fn note_begin() {
    // SeqCst: orders this before the fork; pairs with `opened`, `enter`, `begun_when_no_fork_runs`.
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn note_end() {
    // SeqCst: orders this after the fork; pairs with `begun_when_no_fork_runs`.
    ENDED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn close_all() {
    ENDED.store(BEGUN.load(Ordering::Relaxed), Ordering::Relaxed); // relaxed, as below: the child has one thread
    for cell in &LIVES {
        let fd = cell.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            // SAFETY: the descriptor is this child's copy. `Membership::drop` does not close it here.
            unsafe { libc::close(fd) };
        }
    }
}
