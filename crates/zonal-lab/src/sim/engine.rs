//! Schedules the threads of a simulated machine. The thread with the earliest virtual time runs next.
//!
//! Threads are fibers on one host thread. A thread runs until its clock is past the *horizon*, the time of other
//! threads' next event, and its next action is visible to other threads. A run ends when all foreground threads have
//! ended; background threads that still exist are dropped. Related files: `sim/agenda.rs` orders the events,
//! `sim/fiber.rs` provides the stacks.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

use super::agenda::Event;
use super::fiber::{self, Fiber, Progress};
use super::thread_id::ThreadId;
use super::time::Time;
use super::world::World;

/// Reason why a run ended early.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The caller set the stop flag.
    #[error("interrupted")]
    Interrupted,
    /// All threads that have not ended wait for each other.
    #[error("deadlock: {waiting} threads wait for each other at {at}; the first is thread {first}")]
    Deadlock {
        /// Number of threads that have not ended.
        waiting: usize,
        /// Index of the first such thread.
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
    /// The host has no memory for an object that the run needs.
    #[error("no memory for {what}: {reason}")]
    NoMemory {
        /// Purpose of the memory.
        what: &'static str,
        /// Error message of the host.
        reason: String,
    },
}

/// Whether a run waits for a thread to end before the run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The run waits for the thread.
    Foreground,
    /// The run does not wait for the thread. Workers and observers, which serve other threads, are background
    /// threads.
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
    /// Returns an error if the host has no address space for the thread's stack.
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

/// A guard. While it exists, accesses cost time.
struct Charged<'w>(&'w World);

impl<'w> Charged<'w> {
    fn new(world: &'w World) -> Self {
        world.set_charging(true);
        Self(world)
    }
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        self.0.set_charging(false);
    }
}

/// Longest virtual time that is simulated: 100 days. [`Time`] can represent twice this time, so the sum of two times
/// does not overflow.
const LONGEST: Time = Time::from_ps(100 * 86_400 * 1_000_000_000_000);

impl World {
    /// Runs threads until all foreground threads have ended, and drops the others. Returns the end time of each thread,
    /// indexed by thread.
    /// The end time of an unfinished background thread is [`Time::NEVER`].
    ///
    /// # Errors
    /// Returns an error if `stop` becomes true, if no thread can continue, or if the run exceeds the longest time
    /// that is simulated.
    pub fn run(&self, threads: Threads<'_>, stop: &AtomicBool) -> Result<Vec<Time>, RunError> {
        let mut threads = threads.threads;
        let programs = &self.programs;
        let first = self.add_threads(threads.iter().map(|thread| thread.cpu));
        let mut ended = vec![Time::NEVER; threads.len()];
        for (at, thread) in threads.iter().enumerate() {
            self.plan(thread.start, Event::Thread(ThreadId(first + at as u32)));
        }
        let foreground = threads.iter().filter(|thread| thread.role == Role::Foreground).count();
        if programs.is_several() {
            programs.left.set(programs.left.get() + foreground);
            fiber::suspend(); // until the other programs have added their threads
        } else {
            programs.left.set(foreground);
        }
        let _entered = (!programs.is_several()).then(|| self.enter());
        // If a thread panics, the other threads' destructors are not charged.
        let charged = Charged::new(self);
        let result = self.run_events(first, &mut threads, &mut ended, stop);
        self.forget_events();
        drop(charged);
        // Dropping the unfinished threads runs their destructors, which must not be charged and must not wait.
        self.undisturbed(|| drop(threads));
        if programs.is_several() && result.is_ok() {
            fiber::suspend(); // until the other programs have dropped their threads
        }
        programs.first.set(first);
        result.map(|()| ended)
    }

    /// Runs threads, of which the first one has the index `first`, until the foreground threads of all programs have
    /// ended.
    fn run_events(
        &self,
        first: u32,
        threads: &mut [Thread<'_>],
        ended: &mut [Time],
        stop: &AtomicBool,
    ) -> Result<(), RunError> {
        let (left, mut last) = (&self.programs.left, Time::ZERO);
        while left.get() > 0 {
            let passed_on = self.programs.passed_on.take().map(|(time, id)| (time, Event::Thread(id)));
            let Some((now, event)) = passed_on.or_else(|| self.next_event()) else {
                let waits = |(at, thread): (usize, &Thread<'_>)| {
                    (thread.role == Role::Foreground && ended[at] == Time::NEVER).then_some(at)
                };
                let first = threads.iter().enumerate().find_map(waits).unwrap_or(0);
                return Err(RunError::Deadlock { waiting: left.get(), first, at: last });
            };
            if now > LONGEST {
                return Err(RunError::TooLong);
            }
            last = now;
            // Relaxed: the flag only requests a stop, and no data is published with it.
            if stop.load(Relaxed) {
                return Err(RunError::Interrupted);
            }
            match event {
                Event::Line(line) => self.serve_line(line, now),
                Event::Thread(id) => {
                    let at = id.0.wrapping_sub(first) as usize;
                    let Some(thread) = threads.get_mut(at) else {
                        self.programs.passed_on.set(Some((now, id)));
                        fiber::suspend(); // until it is this program's turn again
                        continue;
                    };
                    self.switch_to(id, now);
                    let progress = thread.fiber.resume();
                    if self.now() > LONGEST {
                        return Err(RunError::TooLong);
                    }
                    if progress == Progress::Ended {
                        let is_foreground = thread.role == Role::Foreground;
                        ended[at] = if is_foreground { self.now() } else { Time::NEVER };
                        left.set(left.get() - usize::from(is_foreground));
                    }
                }
            }
        }
        Ok(())
    }
}
