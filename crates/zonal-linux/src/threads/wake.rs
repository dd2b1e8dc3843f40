//! Wake-ups of the background workers: level-triggered, so that none is lost.
//!
//! A node's *flag* stays set until a worker clears it, and the worker checks for work only afterwards. Nodes share
//! a *signal* when there are more nodes than workers. Neighbours: `pool/platform.rs` sets flags, `pool/workers.rs`
//! clears them; both use `threads/sync.rs`.

use std::time::Duration;

use zonal::units::NodeId;

use super::sync::{AtomicBool, Condvar, Mutex, Ordering, held};

/// Largest number of worker threads of a pool; with more nodes than this, a worker serves several.
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

/// Flags of all nodes, signals of the workers, and the request to stop.
#[derive(Debug)]
pub(crate) struct WakeBoard {
    /// Ascending by node. Flag `i` belongs to signal `i % signals.len()`.
    flags: Box<[Flag]>,
    signals: Box<[Signal]>,
    stopping: Mutex<bool>,
    stop: Condvar,
}

impl WakeBoard {
    /// Makes a board for `nodes`, which must ascend.
    pub(crate) fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        let flags: Box<[_]> = nodes.map(|node| Flag { node, up: AtomicBool::new(false) }).collect();
        let signals = (0..flags.len().min(WORKERS_MAX)).map(|_| Signal::new()).collect();
        Self { flags, signals, stopping: Mutex::new(false), stop: Condvar::new() }
    }

    /// Returns the number of workers that wait on this board; they are `0..workers()`.
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
        // Swaps even when the flag is set: the release makes the caller's stores visible to the worker, whose swap
        // in `take` acquires. A plain load could be reordered before the caller's stores.
        if !self.flags[at].up.swap(true, Ordering::AcqRel) {
            self.signals[at % self.signals.len()].notify();
        }
    }

    /// Waits until flags of `worker` are set, clears them all and returns their nodes; `None` when stopped.
    pub(crate) fn take(&self, worker: usize) -> Option<Vec<NodeId>> {
        let signal = &self.signals[worker];
        let mut waiting = held(signal.lock.lock());
        loop {
            if *held(self.stopping.lock()) {
                return None;
            }
            // Relaxed: only a check; the swaps acquire. A flag that is set later is notified under the lock.
            if self.flags_of(worker).any(|flag| flag.up.load(Ordering::Relaxed)) {
                break;
            }
            waiting = held(signal.raised.wait(waiting));
        }
        // Not under the lock: the heap's lock may be held by a thread whose signal handler is about to wake this
        // worker.
        drop(waiting);
        // Acquire pairs with the release in `wake`.
        let up = self.flags_of(worker).filter(|flag| flag.up.swap(false, Ordering::AcqRel));
        Some(up.map(|flag| flag.node).collect())
    }

    /// Sleeps for `time`, or less when stopped, and returns whether it was stopped.
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
        // Under the lock, because a worker holds it between its check of the flags and its wait.
        let _waiting = held(self.lock.lock());
        self.raised.notify_all();
    }
}
