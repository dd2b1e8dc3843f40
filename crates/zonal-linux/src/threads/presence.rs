//! Where the threads of a pool are: resting, at work in the pool, or in a reclaimer.
//!
//! Others wait for threads that are at work, which end their work by themselves. Nobody needs to wait for one
//! that is in a reclaimer: that is the user's code, and may itself wait for a lock of whoever would wait.
//! Neighbours: `pool/workers.rs` are the threads, `pool/reclaimers.rs` tells when one goes into a reclaimer and
//! comes back, `sync.rs` is what all wait by.

use super::sync::{Condvar, Mutex, held};
use crate::memory::origin::Origin;

/// Counts a pool's threads by where they are.
#[derive(Debug)]
pub(crate) struct Presence {
    /// The process that has the threads. In its children nobody is waited for, and the lock is left alone: a
    /// thread that they do not have may have held it.
    origin: Origin,
    state: Mutex<State>,
    changed: Condvar,
}

/// Invariant: `at_work + in_reclaimers <= threads`.
#[derive(Default, Debug)]
struct State {
    /// Threads that have not ended.
    threads: usize,
    at_work: usize,
    in_reclaimers: usize,
    /// [`Rest`]s that live: while there are any, no thread begins to work.
    rests: usize,
    /// Whether any thread was in a reclaimer, which may have left destructors of its own on it.
    ran_reclaimers: bool,
    is_ending: bool,
}

impl Presence {
    pub(crate) fn new() -> Self {
        let (origin, state) = (Origin::here(), Mutex::new(State::default()));
        Self { origin, state, changed: Condvar::new() }
    }

    /// Whether this is the process that has the threads.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Changes the state, first for those who look at it, then once it is as waited for.
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
        // Nobody waits for what changes here after a wait: a thread at work more.
        then(&mut state)
    }

    fn change_now(&self, change: impl FnOnce(&mut State)) {
        self.change(change, |_| true, |_| ());
    }

    /// Counts one more thread; [`Presence::leave`] is its end.
    pub(crate) fn join(&self) {
        self.change_now(|state| state.threads += 1);
    }

    /// The end of a thread that neither works nor is in a reclaimer.
    pub(crate) fn leave(&self) {
        self.change_now(|state| state.threads -= 1);
    }

    /// The calling thread, one of the pool's, works in the pool until the result is dropped. Waits while the
    /// pool's threads are to rest.
    pub(crate) fn work(&self) -> AtWork<'_> {
        self.begin_work();
        AtWork(self)
    }

    fn begin_work(&self) {
        self.change(|_| (), |state| state.rests == 0, |state| state.at_work += 1);
    }

    /// The calling thread, which is at work, goes into a reclaimer until the result is dropped, after which it
    /// is at work again. `None` when the pool is ending: no reclaimer is to be asked any more.
    pub(crate) fn go_into_reclaimer(&self) -> Option<InReclaimer<'_>> {
        let goes = self.change(
            |_| (),
            |_| true,
            |state| {
                let goes = !state.is_ending;
                state.at_work -= usize::from(goes);
                state.in_reclaimers += usize::from(goes);
                state.ran_reclaimers |= goes;
                goes
            },
        );
        goes.then(|| InReclaimer(self))
    }

    /// No thread works while the result lives. Those in a reclaimer stay there, and are counted.
    pub(crate) fn rest(&self) -> Rest<'_> {
        self.rest_when(|state| state.at_work == 0)
    }

    /// As [`Presence::rest`], when no thread is in a reclaimer either.
    pub(crate) fn rest_outside_reclaimers(&self) -> Rest<'_> {
        self.rest_when(|state| state.at_work == 0 && state.in_reclaimers == 0)
    }

    fn rest_when(&self, holds: impl Fn(&State) -> bool) -> Rest<'_> {
        let in_reclaimers = self.change(|state| state.rests += 1, holds, |state| state.in_reclaimers);
        Rest { presence: self, in_reclaimers }
    }

    /// Waits until all threads have ended but those in a reclaimer, which end when they come back. They have
    /// been told to end. Returns whether any of them ever ran a reclaimer.
    pub(crate) fn wait_for_the_end(&self) -> bool {
        let all_away = |state: &State| state.threads == state.in_reclaimers;
        self.change(|state| state.is_ending = true, all_away, |state| state.ran_reclaimers)
    }
}

/// A thread at work.
#[must_use]
pub(crate) struct AtWork<'a>(&'a Presence);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.change_now(|state| state.at_work -= 1);
    }
}

/// A thread in a reclaimer.
#[must_use]
pub(crate) struct InReclaimer<'a>(&'a Presence);

impl Drop for InReclaimer<'_> {
    fn drop(&mut self) {
        // Out at once, although it may have to wait: those who wait for all to be out keep it from working.
        self.0.change_now(|state| state.in_reclaimers -= 1);
        self.0.begin_work();
    }
}

/// The pool's threads do not work while this lives.
#[must_use]
pub(crate) struct Rest<'a> {
    presence: &'a Presence,
    /// Threads that were in a reclaimer when the rest began.
    pub(crate) in_reclaimers: usize,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.presence.change_now(|state| state.rests -= 1);
    }
}
