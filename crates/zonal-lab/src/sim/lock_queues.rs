//! Who waits for which lock of a simulated machine.
//!
//! Neighbours: `locks.rs` has the locks.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use super::line_queue::Waits;
use super::thread_id::ThreadId;
use super::time::Time;

/// What is known of a lock that was ever waited for.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    pub(super) queue: VecDeque<(ThreadId, usize)>,
    pub(super) handed_over: u64,
    pub(super) waited: Time,
}

/// The locks of a world.
#[derive(Default)]
pub(crate) struct Locks {
    /// By line.
    pub(super) waiting: RefCell<BTreeMap<usize, Waiting>>,
}

impl Locks {
    /// Waits for each lock that was waited for, by line.
    pub(super) fn waits(&self) -> Vec<(usize, Waits)> {
        let of = |(&line, waiting): (&usize, &Waiting)| {
            (line, Waits { handed_over: waiting.handed_over, waited: waiting.waited })
        };
        self.waiting.borrow().iter().map(of).collect()
    }
}
