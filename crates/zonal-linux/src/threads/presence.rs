//! Counts the threads of a pool by what they do: idle, at work in the pool, or in a reclaimer.
//!
//! Other threads may wait for threads at work, which always finish. They do not wait for a thread in a reclaimer,
//! because a reclaimer is user code that may itself wait for a lock of the waiting thread. Related files:
//! `pool/workers.rs` runs the threads, `pool/reclaimers.rs` reports when a thread enters or leaves a reclaimer, and
//! `threads/sync.rs` has the lock and the condition variable.

use super::sync::{Condvar, Mutex, held};
use crate::memory::origin::Origin;

/// Counts a pool's threads by what they do.
#[derive(Debug)]
pub(crate) struct Presence {
    /// The process that has the threads. Its children neither wait for the threads nor use the lock, because a thread
    /// that exists only in the parent may have held the lock at the fork.
    origin: Origin,
    state: Mutex<State>,
    changed: Condvar,
}

/// Invariant: `at_work + in_reclaimers <= threads`.
#[derive(Default, Debug)]
struct State {
    /// Number of threads that have not exited.
    threads: usize,
    at_work: usize,
    in_reclaimers: usize,
    /// Number of live [`Pause`]s. While there are any, no thread begins to work.
    pauses: usize,
    /// Whether any thread has ever been in a reclaimer, which may have left thread locals with destructors on it.
    ran_reclaimers: bool,
    is_ending: bool,
}

impl Presence {
    pub(crate) fn new() -> Self {
        let (origin, state) = (Origin::here(), Mutex::new(State::default()));
        Self { origin, state, changed: Condvar::new() }
    }

    /// Whether the current process is the one that has the threads.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Applies `first`, notifies waiters, waits until `is_time` returns true, and then applies `then`.
    fn change<R: Default>(
        &self,
        first: impl FnOnce(&mut State),
        is_time: impl Fn(&State) -> bool,
        then: impl FnOnce(&mut State) -> R,
    ) -> R {
        if !self.is_here() {
            return R::default();
        }
        let mut state = held(self.state.lock());
        first(&mut state);
        self.changed.notify_all();
        while !is_time(&state) {
            state = held(self.changed.wait(state));
        }
        // No notification follows: after a wait, `then` only adds a thread at work, and no thread waits for that.
        then(&mut state)
    }

    fn change_now(&self, change: impl FnOnce(&mut State)) {
        self.change(change, |_| true, |_| ());
    }

    /// Counts one more thread. [`Presence::leave`] is the counterpart.
    pub(crate) fn join(&self) {
        self.change_now(|state| state.threads += 1);
    }

    /// Counts one thread less. The thread must be neither at work nor in a reclaimer.
    pub(crate) fn leave(&self) {
        self.change_now(|state| state.threads -= 1);
    }

    /// Counts the calling thread, which belongs to the pool, as at work until the result is dropped. Waits while
    /// there is a [`Pause`].
    pub(crate) fn work(&self) -> AtWork<'_> {
        self.begin_work();
        AtWork(self)
    }

    /// Counts the calling thread like [`Presence::work`]. Returns `None`, also during a [`Pause`], once `is_stopped` returns
    /// true. The caller that changes its result must call [`Presence::notify`] afterwards.
    pub(crate) fn work_unless(&self, is_stopped: impl Fn() -> bool) -> Option<AtWork<'_>> {
        let mut stops = false;
        self.change(
            |_| (),
            |state| state.pauses == 0 || is_stopped(),
            |state| {
                stops = state.pauses > 0 || is_stopped();
                state.at_work += usize::from(!stops);
            },
        );
        (!stops).then(|| AtWork(self))
    }

    /// Makes waiting threads check their conditions again.
    pub(crate) fn notify(&self) {
        self.change_now(|_| ());
    }

    fn begin_work(&self) {
        self.change(|_| (), |state| state.pauses == 0, |state| state.at_work += 1);
    }

    /// Counts the calling thread as in a reclaimer instead of at work, until the result is dropped. Returns `None` if
    /// the pool is being dropped; no reclaimer may be called then.
    pub(crate) fn enter_reclaimer(&self) -> Option<InReclaimer<'_>> {
        let enters = self.change(
            |_| (),
            |_| true,
            |state| {
                let enters = !state.is_ending;
                state.at_work -= usize::from(enters);
                state.in_reclaimers += usize::from(enters);
                state.ran_reclaimers |= enters;
                enters
            },
        );
        enters.then(|| InReclaimer(self))
    }

    /// Waits until no thread is at work, and prevents work while the result exists. Threads in a reclaimer stay
    /// there; the result has their number.
    pub(crate) fn pause(&self) -> Pause<'_> {
        self.pause_when(|state| state.at_work == 0)
    }

    /// Waits like [`Presence::pause`], and also until no thread is in a reclaimer.
    pub(crate) fn pause_outside_reclaimers(&self) -> Pause<'_> {
        self.pause_when(|state| state.at_work == 0 && state.in_reclaimers == 0)
    }

    fn pause_when(&self, holds: impl Fn(&State) -> bool) -> Pause<'_> {
        let in_reclaimers = self.change(|state| state.pauses += 1, holds, |state| state.in_reclaimers);
        Pause { presence: self, in_reclaimers }
    }

    /// Waits until all threads have exited, except those in a reclaimer, which exit when the reclaimer returns. The
    /// caller has already requested them to stop. Returns whether any thread ever ran a reclaimer.
    pub(crate) fn wait_until_exited(&self) -> bool {
        let only_in_reclaimers = |state: &State| state.threads == state.in_reclaimers;
        self.change(|state| state.is_ending = true, only_in_reclaimers, |state| state.ran_reclaimers)
    }
}

/// Guard of a thread at work.
#[must_use]
pub(crate) struct AtWork<'a>(&'a Presence);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.change_now(|state| state.at_work -= 1);
    }
}

/// Guard of a thread in a reclaimer.
#[must_use]
pub(crate) struct InReclaimer<'a>(&'a Presence);

impl Drop for InReclaimer<'_> {
    fn drop(&mut self) {
        // The thread leaves the reclaimer at once, although it may then have to wait for work. A caller that waits
        // until no thread is in a reclaimer holds a `Pause`, and would otherwise wait forever.
        self.0.change_now(|state| state.in_reclaimers -= 1);
        self.0.begin_work();
    }
}

/// Guard that prevents the pool's threads from working.
#[must_use]
pub(crate) struct Pause<'a> {
    presence: &'a Presence,
    /// Number of threads that were in a reclaimer when the pause began.
    pub(crate) in_reclaimers: usize,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.presence.change_now(|state| state.pauses -= 1);
    }
}
