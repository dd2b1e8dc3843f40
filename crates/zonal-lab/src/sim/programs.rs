//! Programs that run at the same time on one simulated machine.
//!
//! Each program adds its threads and schedules them in a fiber of its own. An event of a thread that another program
//! has added is passed on to that program, so that all threads share the clock, the locks, the lines and the
//! bandwidth. Related files: `sim/engine.rs` schedules the threads of one program; `sim/together.rs` resumes the
//! programs.

use std::cell::Cell;

use super::thread_id::ThreadId;
use super::time::Time;

/// The state that programs of one machine share.
#[derive(Default)]
pub(crate) struct Programs {
    /// Whether several programs run at the same time.
    pub(super) several: Cell<bool>,
    /// Index of the first thread that the current or latest program added.
    pub(super) first: Cell<u32>,
    /// Number of foreground threads that have not ended, in all programs.
    pub(super) left: Cell<usize>,
    /// A thread that its program has not resumed yet, and the time at which it resumes.
    pub(super) passed_on: Cell<Option<(Time, ThreadId)>>,
}

impl Programs {
    pub(super) fn is_several(&self) -> bool {
        self.several.get()
    }
}
