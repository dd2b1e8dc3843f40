//! Wake-ups of the background workers. They are level-triggered, so that no wake-up is lost.
//!
//! Each node has a *flag*, which stays set until a worker clears it. The worker looks for work only after it has
//! cleared the flag, so it finds the work of every wake-up. Workers sleep on a *signal*, which several nodes share if
//! there are more nodes than workers. Related files: `pool/platform.rs` sets flags, `pool/workers.rs` clears them,
//! and `threads/sync.rs` has the lock and the condition variable.

use std::time::Duration;

use zonal::units::NodeId;

use super::sync::{AtomicBool, Condvar, Mutex, Ordering, held};

/// The most worker threads of a pool. With more nodes, each worker serves several nodes.
pub(super) const WORKERS_MAX: usize = 64;

#[derive(Debug)]
struct Signal {
    lock: Mutex<()>,
    raised: Condvar,
}

#[derive(Debug)]
struct Flag {
    node: NodeId,
    up: AtomicBool,
}

/// The flags of all nodes, the signals of the workers, and the request to stop.
#[derive(Debug)]
pub(crate) struct WakeBoard {
    /// The flags in ascending order of node. Flag `i` belongs to signal `i % signals.len()`.
    flags: Box<[Flag]>,
    signals: Box<[Signal]>,
    stopping: Mutex<bool>,
    stop: Condvar,
}

impl WakeBoard {
    /// Creates a board for `nodes`, which must be in ascending order.
    pub(crate) fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        let flags: Box<[_]> = nodes.map(|node| Flag { node, up: AtomicBool::new(false) }).collect();
        let signals = (0..flags.len().min(WORKERS_MAX)).map(|_| Signal::new()).collect();
        Self { flags, signals, stopping: Mutex::new(false), stop: Condvar::new() }
    }

    /// Returns the number of workers that wait on this board. Workers have the numbers `0..workers()`.
    pub(crate) fn workers(&self) -> usize {
        self.signals.len()
    }

    /// Returns the nodes that `worker` serves.
    pub(crate) fn nodes_of(&self, worker: usize) -> impl Iterator<Item = NodeId> + '_ {
        self.flags_of(worker).map(|flag| flag.node)
    }

    fn flags_of(&self, worker: usize) -> impl Iterator<Item = &Flag> + '_ {
        self.flags.iter().skip(worker).step_by(self.signals.len())
    }

    /// Wakes the worker of `node`. Does nothing for a node without a worker.
    pub(crate) fn wake(&self, node: NodeId) {
        let Ok(at) = self.flags.binary_search_by_key(&node, |flag| flag.node) else { return };
        // This swaps even if the flag is already set. A plain load could be reordered before the caller's stores.
        // AcqRel: takes the worker's clearing, publishes the caller's stores; pairs with `take`.
        if !self.flags[at].up.swap(true, Ordering::AcqRel) {
            self.signals[at % self.signals.len()].notify();
        }
    }

    /// Waits until flags of `worker` are set, clears these flags and returns their nodes; `None` when stopped.
    pub(crate) fn take(&self, worker: usize) -> Option<Vec<NodeId>> {
        let signal = &self.signals[worker];
        let mut waiting = held(signal.lock.lock());
        loop {
            if *held(self.stopping.lock()) {
                return None;
            }
            // Relaxed: only a check; the swaps acquire. If a flag is set later, `wake` notifies under the lock.
            if self.flags_of(worker).any(|flag| flag.up.load(Ordering::Relaxed)) {
                break;
            }
            waiting = held(signal.raised.wait(waiting));
        }
        // The lock is released first, because the list is on the heap. A thread that holds the heap's lock may run a
        // signal handler that is about to wake this worker, which takes the signal's lock.
        drop(waiting);
        // AcqRel: takes the stores of all callers, publishes the clearing; pairs with `wake`.
        let up = self.flags_of(worker).filter(|flag| flag.up.swap(false, Ordering::AcqRel));
        Some(up.map(|flag| flag.node).collect())
    }

    /// Sleeps for `time`, or until stopped, and returns whether it was stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut stopping = held(self.stopping.lock());
        if !*stopping {
            (stopping, _) = held(self.stop.wait_timeout(stopping, time));
        }
        *stopping
    }

    /// Ends all waits permanently.
    pub(crate) fn stop(&self) {
        *held(self.stopping.lock()) = true;
        self.stop.notify_all();
        self.signals.iter().for_each(Signal::notify);
    }
}

impl Signal {
    fn new() -> Self {
        Self { lock: Mutex::new(()), raised: Condvar::new() }
    }

    fn notify(&self) {
        // The notification is under the lock because a worker holds it between its check of the flags and its wait.
        let _waiting = held(self.lock.lock());
        self.raised.notify_all();
    }
}
