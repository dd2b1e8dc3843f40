//! The queues of threads that wait for a simulated machine's locks.
//!
//! Related files: `sim/locks.rs` implements the locks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::line_map::{self, LineMap};
use super::line_queue::Waits;
use super::thread_id::ThreadId;
use super::time::Time;

/// A lock of the allocator that a thread keeps until its operation ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptLock {
    pub(super) cell: NonNull<AtomicU32>,
    pub(super) line: usize,
}

/// A thread that waits for a lock.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) thread: ThreadId,
    pub(super) cpu: usize,
    /// Address of the lock's cell, because several locks may be on one line.
    pub(super) lock: usize,
}

/// Waiters and statistics of a line whose locks have been contended at least once.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    pub(super) queue: VecDeque<Waiter>,
    pub(super) handed_over: u64,
    pub(super) waited: Time,
}

/// The contended locks of a world.
#[derive(Default)]
pub(crate) struct Locks {
    /// Waiters by the number of the locks' line.
    pub(super) waiting: RefCell<LineMap<Waiting>>,
}

impl Locks {
    /// Returns the statistics of each contended lock, by the number of its line.
    pub(super) fn waits(&self) -> Vec<(usize, Waits)> {
        let of = |(line, waiting): (usize, &Waiting)| {
            (line, Waits { handed_over: waiting.handed_over, waited: waiting.waited })
        };
        line_map::by_line(&self.waiting.borrow()).into_iter().map(of).collect()
    }
}
