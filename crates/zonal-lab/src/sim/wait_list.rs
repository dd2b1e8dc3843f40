//! Threads that wait until somebody says that things have changed.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::thread_id::ThreadId;
use super::world::World;

/// Threads that wait, first come, first served. Whoever is woken looks again whether what it waits for
/// is there.
#[derive(Default, Debug)]
pub struct WaitList {
    waiting: RefCell<VecDeque<ThreadId>>,
}

impl WaitList {
    /// The running thread does nothing until it is woken.
    pub fn wait(&self, world: &World) {
        self.waiting.borrow_mut().push_back(world.thread());
        world.idle();
    }

    /// So many of those who wait go on now, or all of them when they are fewer.
    pub fn wake(&self, world: &World, most: usize) {
        if !self.waiting.borrow().is_empty() {
            world.sync();
            let count = most.min(self.waiting.borrow().len());
            let woken: Vec<ThreadId> = self.waiting.borrow_mut().drain(..count).collect();
            woken.into_iter().for_each(|thread| world.wake(thread, world.now()));
        }
    }
}
