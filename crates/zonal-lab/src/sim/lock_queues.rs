//! The queues of threads that wait for a simulated machine's locks.
//!
//! Related files: `sim/locks.rs` implements the locks.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use super::line_queue::Waits;
use super::thread_id::ThreadId;
use super::time::Time;

/// Waiters and statistics of a lock that has been contended at least once.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    pub(super) queue: VecDeque<(ThreadId, usize)>,
    pub(super) handed_over: u64,
    pub(super) waited: Time,
}

/// The contended locks of a world.
#[derive(Default)]
pub(crate) struct Locks {
    /// Waiters by the number of the lock's line.
    pub(super) waiting: RefCell<BTreeMap<usize, Waiting>>,
}

impl Locks {
    /// Returns the statistics of each contended lock, by the number of its line.
    pub(super) fn waits(&self) -> Vec<(usize, Waits)> {
        let of = |(&line, waiting): (&usize, &Waiting)| {
            (line, Waits { handed_over: waiting.handed_over, waited: waiting.waited })
        };
        self.waiting.borrow().iter().map(of).collect()
    }
}
