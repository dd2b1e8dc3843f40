//! The queue of runs. The next run is always the longest one that fits into the remaining memory of the host.
//!
//! Related files: the host threads of `experiment/run.rs` remove runs from this queue.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::plan::Run;

/// Runs that wait for a host thread.
pub(super) struct Queue<'p> {
    runs: &'p [Run],
    memory_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// The mutable state of a queue.
///
/// Invariant: `used` is the memory of the runs that have been removed from the queue and have not ended.
struct State {
    /// Indices of waiting runs, in the order in which they start if there is memory.
    waiting: Vec<usize>,
    used: u64,
}

impl<'p> Queue<'p> {
    /// Creates a queue of all runs, of which those from `last` on start after the others. Runs that execute
    /// concurrently may use `memory_bytes` in total; each single run must fit.
    pub(super) fn new(runs: &'p [Run], last: usize, memory_bytes: u64) -> Self {
        let mut waiting: Vec<usize> = (0..runs.len()).collect();
        waiting.sort_by(|&a, &b| {
            (a >= last).cmp(&(b >= last)).then(runs[b].operations.total_cmp(&runs[a].operations))
        });
        let state = Mutex::new(State { waiting, used: 0 });
        Self { runs, memory_bytes, state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panicked host thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is memory for a run, removes the run and returns its index. Returns `None` if no runs are
    /// left.
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

    /// Releases the memory of a run that has ended.
    pub(super) fn give_back(&self, place: usize) {
        let mut state = self.state();
        state.used -= self.runs[place].host_bytes;
        self.changed.notify_all();
    }

    /// Removes all runs that have not started.
    pub(super) fn close(&self) {
        self.state().waiting.clear();
        self.changed.notify_all();
    }
}
