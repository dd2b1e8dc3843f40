//! Which run is next: the longest that the host has memory for.
//!
//! Neighbours: `run.rs` has the host threads that take runs from here.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::plan::Run;

/// Runs that wait for a host thread.
pub(super) struct Queue<'p> {
    runs: &'p [Run],
    memory_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Invariant: `used` is the sum of the memory of the runs that were taken and not given back.
struct State {
    /// Places of runs, longest first.
    waiting: Vec<usize>,
    used: u64,
}

impl<'p> Queue<'p> {
    /// All runs wait; together they may use so much memory, as each of them alone does.
    pub(super) fn new(runs: &'p [Run], memory_bytes: u64) -> Self {
        let mut waiting: Vec<usize> = (0..runs.len()).collect();
        waiting.sort_by(|&a, &b| runs[b].operations.total_cmp(&runs[a].operations));
        let state = Mutex::new(State { waiting, used: 0 });
        Self { runs, memory_bytes, state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A host thread that panicked left numbers that are still true.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Place of the next run, once there is memory for one; `None` when no more are to be done.
    pub(super) fn take(&self) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            let room = self.memory_bytes.saturating_sub(state.used);
            let fits = |&place: &usize| self.runs[place].host_bytes <= room;
            if let Some(at) = state.waiting.iter().position(fits) {
                let place = state.waiting.remove(at);
                state.used += self.runs[place].host_bytes;
                return Some(place);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A run has ended.
    pub(super) fn give_back(&self, place: usize) {
        let mut state = self.state();
        state.used -= self.runs[place].host_bytes;
        self.changed.notify_all();
    }

    /// Nothing that still waits will run.
    pub(super) fn close(&self) {
        self.state().waiting.clear();
        self.changed.notify_all();
    }
}
