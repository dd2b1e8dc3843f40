//! Blocks threads until other threads have completed.

use std::cell::{Cell, RefCell};

use super::thread_id::ThreadId;
use super::world::World;

/// A number of threads that have not completed, and the threads that wait for their completion.
#[derive(Debug)]
pub struct Join {
    left: Cell<usize>,
    waiting: RefCell<Vec<ThreadId>>,
}

impl Join {
    /// Creates a join for `threads` threads that have not completed.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { left: Cell::new(threads), waiting: RefCell::default() }
    }

    /// Records that the running thread has completed.
    pub fn arrive(&self, world: &World) {
        world.sync();
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.waiting.take().into_iter().for_each(|thread| world.wake(thread, world.now()));
        }
    }

    /// Blocks the running thread until all threads of the join have completed.
    pub fn wait(&self, world: &World) {
        world.sync();
        if self.left.get() != 0 {
            self.waiting.borrow_mut().push(world.thread());
            world.idle();
        }
    }
}
