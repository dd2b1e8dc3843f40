//! Wake-ups of the background workers: level-triggered, so that none is lost.
//!
//! A node's *flag* stays up until a worker takes it down, and the worker looks only afterwards at
//! what there is to do. Nodes share a *signal* when there are more nodes than workers.
//! Neighbours: `platform.rs` raises flags, `workers.rs` takes them down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use zonal::units::NodeId;

/// Most worker threads of a pool; with more nodes than this, a worker serves several.
const WORKERS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Signal {
    lock: Mutex<()>,
    raised: Condvar,
}

#[derive(Debug)]
struct Flag {
    node: NodeId,
    up: AtomicBool,
}

/// The flags of all nodes and the workers' stop sign.
#[derive(Debug)]
pub(crate) struct WakeBoard {
    /// Ascending by node. Flag `i` belongs to signal `i % signals.len()`.
    flags: Box<[Flag]>,
    signals: Box<[Signal]>,
    stopping: Mutex<bool>,
    stop: Condvar,
}

impl WakeBoard {
    /// A board for `nodes`, which ascend.
    pub(crate) fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        let flags: Box<[_]> = nodes.map(|node| Flag { node, up: AtomicBool::new(false) }).collect();
        let signals = (0..flags.len().min(WORKERS_MAX)).map(|_| Signal::default()).collect();
        Self { flags, signals, stopping: Mutex::new(false), stop: Condvar::new() }
    }

    /// Number of workers that wait on this board: they are `0..workers()`.
    pub(crate) fn workers(&self) -> usize {
        self.signals.len()
    }

    /// The nodes that `worker` serves.
    pub(crate) fn nodes_of(&self, worker: usize) -> impl Iterator<Item = NodeId> + '_ {
        self.flags_of(worker).map(|flag| flag.node)
    }

    fn flags_of(&self, worker: usize) -> impl Iterator<Item = &Flag> + '_ {
        self.flags.iter().skip(worker).step_by(self.signals.len())
    }

    /// Asks `node`'s worker to look at the node. Does nothing for a node that has none.
    pub(crate) fn wake(&self, node: NodeId) {
        let Ok(at) = self.flags.binary_search_by_key(&node, |flag| flag.node) else { return };
        // A swap even when the flag is up: its release makes what the caller did visible to the
        // worker, whose swap in `take` acquires. A plain load could pass the caller's stores.
        if !self.flags[at].up.swap(true, Ordering::AcqRel) {
            self.signals[at % self.signals.len()].notify();
        }
    }

    /// Waits until flags of `worker` are up, takes them all down and gives their nodes; `None` when
    /// stopped.
    pub(crate) fn take(&self, worker: usize) -> Option<Vec<NodeId>> {
        let signal = &self.signals[worker];
        let mut waiting = signal.lock.lock();
        loop {
            if *self.stopping.lock() {
                return None;
            }
            // Acquire pairs with the release in `wake`.
            let up = self.flags_of(worker).filter(|flag| flag.up.swap(false, Ordering::AcqRel));
            let nodes: Vec<_> = up.map(|flag| flag.node).collect();
            if !nodes.is_empty() {
                return Some(nodes);
            }
            signal.raised.wait(&mut waiting);
        }
    }

    /// Sleeps for `time`, or less when stopped; says whether it was stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stop.wait_for(&mut stopping, time);
        }
        *stopping
    }

    /// Ends all waits for good.
    pub(crate) fn stop(&self) {
        *self.stopping.lock() = true;
        self.stop.notify_all();
        self.signals.iter().for_each(Signal::notify);
    }
}

impl Signal {
    fn notify(&self) {
        // Under the lock: a worker between its look at the flags and its wait holds it.
        let _waiting = self.lock.lock();
        self.raised.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn node(id: usize) -> NodeId {
        NodeId::new(id as u16).unwrap()
    }

    #[test]
    fn no_wake_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 60 } else { 60_000 };
        let board = WakeBoard::new([2, 5].map(node).into_iter());
        let (work, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                while let Some(nodes) = board.take(1) {
                    assert_eq!(nodes, [node(5)]);
                    // Relaxed: the flag orders; release shows the other side what was seen.
                    seen.store(work.load(Ordering::Relaxed), Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                work.store(round, Ordering::Relaxed); // the flag orders
                board.wake(node(5));
                // Acquire pairs with the worker's release. Never ends if a wake is lost.
                while round % 2 == 0 && seen.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
            }
            board.stop();
        });
    }

    #[test]
    fn a_wake_between_look_and_wait_is_heard() {
        let board = WakeBoard::new([node(0)].into_iter());
        std::thread::scope(|s| {
            // As a worker that has looked at the flags and is about to wait.
            let mut waiting = board.signals[0].lock.lock();
            s.spawn(|| board.wake(node(0)));
            while !board.flags[0].up.load(Ordering::Relaxed) {
                std::thread::yield_now(); // the value alone counts
            }
            // Time for a waker that would not respect the lock. Without it: never ends.
            std::thread::sleep(Duration::from_millis(20));
            board.signals[0].raised.wait(&mut waiting);
        });
    }

    #[test]
    fn raised_before_anybody_waits_and_unknown_nodes() {
        let board = WakeBoard::new([0, 1].map(node).into_iter());
        board.wake(node(7));
        board.wake(node(1));
        board.wake(node(1));
        assert_eq!(board.take(1), Some(vec![node(1)]));
        board.stop();
        assert_eq!(board.take(1), None);
        assert!(board.sleep(Duration::from_secs(3600)));
    }

    #[test]
    fn many_nodes_share_workers() {
        let board = WakeBoard::new((0..1000).map(node));
        assert_eq!(board.workers(), WORKERS_MAX);
        let served: usize = (0..board.workers()).map(|worker| board.nodes_of(worker).count()).sum();
        assert_eq!(served, 1000);
        board.wake(node(999));
        board.wake(node(999 - WORKERS_MAX));
        assert_eq!(board.take(999 % WORKERS_MAX), Some(vec![node(999 - WORKERS_MAX), node(999)]));
    }
}
