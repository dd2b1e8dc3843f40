//! The queue of CPUs that wait for a cache line, and the choice of the CPU that is served next.
//!
//! Related files: `sim/charge.rs` serves the waiters one by one.

use std::collections::VecDeque;

use super::access::Access;
use super::hardware::{Arbitration, Hardware};
use super::thread_id::ThreadId;
use super::time::Time;

/// Statistics of the waits for one lock or line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waits {
    /// Number of hand-overs to a waiter.
    pub handed_over: u64,
    /// Total waiting time, including the hand-over.
    pub waited: Time,
}

/// A waiting thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) thread: ThreadId,
    pub(crate) cpu: usize,
    pub(crate) access: Access,
    pub(crate) since: Time,
}

/// The waiters of one line, grouped by the latency to the node of the line.
///
/// Invariant: the classes ascend by latency, and `len` is the sum of the waiters in all classes.
#[derive(Default, Debug)]
pub(crate) struct LineQueue {
    classes: Vec<(Time, VecDeque<Waiter>)>,
    len: usize,
    /// Services since a CPU of the line's own node was last served.
    turns: u32,
    served: u64,
    waited: Time,
}

impl LineQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a waiter whose requests need the time `toward` to reach the node of the line.
    pub(crate) fn enter(&mut self, thread: ThreadId, cpu: usize, access: Access, toward: Time, since: Time) {
        let waiter = Waiter { thread, cpu, access, since };
        let at = self.classes.partition_point(|&(distance, _)| distance < toward);
        if self.classes.get(at).is_none_or(|&(distance, _)| distance != toward) {
            self.classes.insert(at, (toward, VecDeque::new()));
        }
        self.classes[at].1.push_back(waiter);
        self.len += 1;
    }

    /// Removes and returns the waiter to serve next.
    pub(crate) fn next(
        &mut self,
        hardware: &Hardware,
        random: &mut fastrand::Rng,
        is_local: impl Fn(usize) -> bool,
    ) -> Option<Waiter> {
        let class = match hardware.arbitration {
            Arbitration::InOrder => self.longest_waiting(),
            Arbitration::Retry => self.by_retry(hardware, random, is_local),
        }?;
        let waiter = self.classes[class].1.pop_front()?;
        self.len -= 1;
        Some(waiter)
    }

    fn longest_waiting(&self) -> Option<usize> {
        let first =
            |class: &usize| self.classes[*class].1.front().map(|waiter| (waiter.since, waiter.thread));
        (0..self.classes.len()).filter(|class| first(class).is_some()).min_by_key(first)
    }

    /// Chooses a CPU of the line's own node when it is that node's port's turn. Otherwise chooses a random class, with
    /// a higher probability for nearer classes.
    fn by_retry(
        &mut self,
        hardware: &Hardware,
        random: &mut fastrand::Rng,
        is_local: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.turns += 1;
        let local = |(_, waiters): &(Time, VecDeque<Waiter>)| {
            waiters.front().is_some_and(|waiter| is_local(waiter.cpu))
        };
        let home = self.classes.iter().position(local);
        if self.turns >= hardware.ports {
            self.turns = 0;
            if home.is_some() {
                return home;
            }
        }
        let others = || self.classes.iter().enumerate().filter(|&(class, _)| Some(class) != home);
        let weight = |(toward, waiters): &(Time, VecDeque<Waiter>)| {
            let requests = (toward.ns().max(1) as f64).powf(-hardware.retry_power);
            waiters.len() as f64 * requests
        };
        let total: f64 = others().map(|(_, class)| weight(class)).sum();
        let mut left = random.f64() * total;
        let mut last = home;
        for (at, class) in others().filter(|(_, class)| !class.1.is_empty()) {
            last = Some(at);
            left -= weight(class);
            if left < 0.0 {
                break;
            }
        }
        last
    }

    /// Records that a waiter was served.
    pub(crate) fn note_served(&mut self, waited: Time) {
        self.served += 1;
        self.waited += waited;
    }

    /// Returns the number of waiters that were served, and their total waiting time.
    pub(crate) fn waits(&self) -> Waits {
        Waits { handed_over: self.served, waited: self.waited }
    }
}
