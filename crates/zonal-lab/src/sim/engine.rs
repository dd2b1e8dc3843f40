//! Schedules the threads of a simulated machine: the one with the earliest virtual time runs.
//!
//! Threads are fibers on one host thread. Each runs until its clock is past the horizon and its next action is
//! visible to other threads. A run ends when all foreground threads have ended; background threads that still run
//! are dropped. Neighbours: `sim/world.rs` keeps the agenda, `sim/fiber.rs` the stacks.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

use super::fiber::{Fiber, Progress};
use super::thread_id::ThreadId;
use super::time::Time;
use super::world::{Event, World};

/// Reason why a run ended early.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The run was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// All threads wait for each other.
    #[error("deadlock: {waiting} threads wait for each other at {at}; the first is thread {first}")]
    Deadlock {
        /// Number of threads that have not ended.
        waiting: usize,
        /// Index of one of them.
        first: usize,
        /// Virtual time of the last event.
        at: Time,
    },
    /// The run exceeded the longest virtual time that is simulated.
    #[error(
        "not finished after {} days of simulated time, the maximum; reduce the work or use faster hardware",
        LONGEST.seconds() / 86_400.0
    )]
    TooLong,
    /// The host has no memory for something the run needs.
    #[error("no memory for {what}: {reason}")]
    NoMemory {
        /// What the memory was for.
        what: &'static str,
        /// Error message of the host.
        reason: String,
    },
}

/// Whether a run waits for a thread to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The run waits for the thread.
    Foreground,
    /// The thread serves others and does not keep the run alive: a worker, an observer.
    Background,
}

/// A thread to run.
pub(crate) struct Thread<'a> {
    cpu: usize,
    role: Role,
    start: Time,
    fiber: Fiber<'a>,
}

/// The threads of a run.
pub struct Threads<'a> {
    threads: Vec<Thread<'a>>,
}

impl<'a> Threads<'a> {
    /// Creates an empty set of threads.
    #[must_use]
    pub const fn new() -> Self {
        Self { threads: Vec::new() }
    }

    /// Adds a thread that starts `work` on `cpu` at `start`.
    ///
    /// # Errors
    /// When the host has no address space for its stack.
    pub fn add(
        &mut self,
        cpu: usize,
        role: Role,
        start: Time,
        work: impl FnOnce() + 'a,
    ) -> Result<ThreadId, RunError> {
        let fiber = Fiber::new(work).map_err(|error| RunError::NoMemory {
            what: "the stack of a thread",
            reason: error.to_string(),
        })?;
        self.threads.push(Thread { cpu, role, start, fiber });
        Ok(ThreadId(self.threads.len() as u32 - 1))
    }

    /// Returns the ids of the threads added so far.
    pub fn ids(&self) -> impl Iterator<Item = ThreadId> + use<> {
        (0..self.threads.len() as u32).map(ThreadId)
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Whether there are no threads.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }
}

impl Default for Threads<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Longest virtual time that is simulated: 100 days. [`Time`] holds twice that, so no sum of two times overflows.
const LONGEST: Time = Time::from_ps(100 * 86_400 * 1_000_000_000_000);

impl World {
    /// Runs threads until all foreground threads have ended. Returns the end time of each thread, indexed by
    /// thread; [`Time::NEVER`] for background threads.
    ///
    /// # Errors
    /// When `stop` becomes true, when no thread can continue, or when the run exceeds the longest time that is
    /// simulated.
    pub fn run(&self, threads: Threads<'_>, stop: &AtomicBool) -> Result<Vec<Time>, RunError> {
        let mut threads = threads.threads;
        self.set_threads(threads.iter().map(|thread| thread.cpu).collect());
        let mut ended = vec![Time::NEVER; threads.len()];
        for (at, thread) in threads.iter().enumerate() {
            self.plan(thread.start, Event::Thread(ThreadId(at as u32)));
        }
        let _entered = self.enter();
        self.set_charging(true);
        let result = self.run_events(&mut threads, &mut ended, stop);
        self.set_charging(false);
        // Run the destructors of unfinished threads now, without cost and without waiting.
        self.undisturbed(|| drop(threads));
        result.map(|()| ended)
    }

    fn run_events(
        &self,
        threads: &mut [Thread<'_>],
        ended: &mut [Time],
        stop: &AtomicBool,
    ) -> Result<(), RunError> {
        let mut left = threads.iter().filter(|thread| thread.role == Role::Foreground).count();
        let mut last = Time::ZERO;
        while left > 0 {
            let Some((now, event)) = self.next_event() else {
                let waits = |(at, thread): (usize, &Thread<'_>)| {
                    (thread.role == Role::Foreground && ended[at] == Time::NEVER).then_some(at)
                };
                let first = threads.iter().enumerate().find_map(waits).unwrap_or(0);
                return Err(RunError::Deadlock { waiting: left, first, at: last });
            };
            if now > LONGEST {
                return Err(RunError::TooLong);
            }
            last = now;
            // Relaxed: only a request to stop; no data is published with it.
            if stop.load(Relaxed) {
                return Err(RunError::Interrupted);
            }
            match event {
                Event::Line(line) => self.serve_line(line, now),
                Event::Thread(id) => {
                    let thread = &mut threads[id.index()];
                    self.switch_to(id, now);
                    let progress = thread.fiber.resume();
                    if self.now() > LONGEST {
                        return Err(RunError::TooLong);
                    }
                    if progress == Progress::Ended {
                        ended[id.index()] =
                            if thread.role == Role::Foreground { self.now() } else { Time::NEVER };
                        left -= usize::from(thread.role == Role::Foreground);
                    }
                }
            }
        }
        Ok(())
    }
}
